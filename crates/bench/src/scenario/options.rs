//! Options of `thalweg bench scenario`, and the scenario that they name.
//!
//! Owns: the options, the search for the named scenario among the files and the built-in ones, and its changes by
//! options. Does not own: the schema of a file (`file`), or the protocols' operations (`protocols`).

use std::time::Duration;

use thalweg_transport::Fingerprint;
use thalweg_types::Durability;

use super::{
    file::{BUILT_IN, Scenario},
    mix::Kind,
    protocols::WireProtocol,
};
use crate::{
    BenchError, ProfileOptions,
    http::ServerOptions,
    load::{Arrivals, Objective},
    options::{check_window, parse_duration, rate_within, require, steady, within},
};

const TARGET_HELP: &str = "Address of a running server, as http://host:port, for RESP as redis://host:port, for the native protocol as \
     thalweg://host:port (over TLS thalweg+tls://host:port, over QUIC thalweg+quic://host:port), and for NATS as nats://host:port or, \
     with JetStream, jetstream://host:port. With --protocol embedded a directory, as a path or embedded://PATH. The keys stay on it. \
     Without a target the benchmark starts a server, or opens a directory, of its own";

/// Longest wait for a reply. After a longer one, the run ends as overloaded.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

/// Options of `thalweg bench scenario`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("target", |arg| arg.help(TARGET_HELP)))]
pub struct ScenarioOptions {
    /// Name of a built-in scenario (ycsb-a to ycsb-f, events, jobs, messages, sessions), or path of a scenario file.
    #[arg(value_name = "NAME|FILE", required_unless_present_any = ["list", "show"])]
    pub scenario: Option<String>,
    /// Print the built-in scenarios instead of running one.
    #[arg(long, conflicts_with_all = ["scenario", "show"])]
    pub list: bool,
    /// Print the file of a built-in scenario, to be copied and edited, instead of running one.
    #[arg(long, value_name = "NAME", conflicts_with = "scenario")]
    pub show: Option<String>,
    /// Protocol of the requests. Without it that of the target's address, or HTTP.
    #[arg(long, value_enum)]
    pub protocol: Option<WireProtocol>,
    /// Server under load.
    #[command(flatten)]
    pub server: ServerOptions,
    /// SHA-256 of the target server's certificate, for the native protocol over TLS and QUIC.
    #[arg(long, requires = "target")]
    pub fingerprint: Option<Fingerprint>,
    /// Keyspace of the keys and name of the cache on a server that the benchmark starts, and on any server except over
    /// RESP. Names of streams, groups and subjects begin with it.
    #[arg(long, default_value = "scenario")]
    pub keyspace: String,
    /// Durability level that each write requests, except over RESP and NATS; without it the default of the server or
    /// engine.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// Password for AUTH on a RESP server that runs already.
    #[arg(long)]
    pub password: Option<String>,
    /// Number of the database to select on a RESP server that runs already.
    #[arg(long, default_value_t = 0)]
    pub database: u32,
    /// Number of keys, instead of the file's `keys.count`.
    #[arg(long)]
    pub keys: Option<u64>,
    /// Number of connections, instead of the file's `load.connections`.
    #[arg(long)]
    pub connections: Option<usize>,
    /// Operations per second by a schedule, instead of the file's `load.rate`.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Distribution of the scheduled operations over time, instead of the file's `load.arrivals`: constant, poisson,
    /// ramp:FROM:TIME (the rate changes evenly from FROM/s to the rate within TIME after the warm-up), step:FROM:TIME
    /// (FROM/s until TIME after the warm-up, then the rate), or replay:FILE (the times in seconds on the lines of FILE,
    /// stretched to the rate on average and repeated).
    #[arg(long)]
    pub arrivals: Option<Arrivals>,
    /// Search for the highest rate that meets an objective, such as p99<5ms, or p50<1ms,p99.9<20ms,errors<0.1% for
    /// several conditions; the search begins at --rate, or else at the file's rate or at 1000.
    #[arg(long)]
    pub search: Option<Objective>,
    /// Highest rate that the search tries, in operations per second.
    #[arg(long, default_value_t = 1e6, requires = "search")]
    pub max_rate: f64,
    /// Duration of each run, instead of the file's `load.duration`.
    #[arg(long, value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Warm-up before each run, instead of the file's `load.warmup`.
    #[arg(long, value_parser = parse_duration)]
    pub warmup: Option<Duration>,
    /// Length of the windows into which plots and the samples of a report divide each run: at least 10ms, and longer if
    /// a run would have more than 1,200 windows. The default is 250ms, or longer if a run would have more than 120.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Options for profiling the server.
    #[command(flatten)]
    pub profile: ProfileOptions,
    /// Number of runs; the medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a run with a rate is void.
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of the random operations, keys, values and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl ScenarioOptions {
    /// Returns the list of the built-in scenarios, or the file of one, if the options request it. Returns `None` if
    /// they request a run.
    pub fn printed(&self) -> Result<Option<String>, BenchError> {
        if self.list {
            let line = |(name, text): (&str, &str)| match Scenario::parse(text) {
                Ok(scenario) => Ok(format!("{name}  {}", scenario.description)),
                Err(error) => Err(bad(format!("{name}: {error}"))),
            };
            let lines: Vec<String> = BUILT_IN.into_iter().map(line).collect::<Result<_, _>>()?;
            return Ok(Some(lines.join("\n")));
        }
        let Some(name) = &self.show else { return Ok(None) };
        match built_in(name) {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(bad(format!("{name:?} is none of the built-in scenarios: {}", names()))),
        }
    }

    /// Returns an error if the options or the scenario's file are wrong.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        self.scenario().map(|_| ())
    }

    /// Returns the named scenario. Values of the options replace those of the file.
    pub(super) fn scenario(&self) -> Result<Scenario, BenchError> {
        within("--rounds", self.rounds, 100)?;
        check_window(self.window)?;
        rate_within(self.search.as_ref().map(|_| self.max_rate), 10_000_000)?;
        let protocol = self.protocol();
        let runs_resp = protocol == WireProtocol::Resp && self.server.target.is_some();
        let why = "is for a RESP server that runs already: give --protocol resp and --target";
        require(runs_resp || self.password.is_none(), "--password", why)?;
        require(runs_resp || self.database == 0, "--database", why)?;
        let has_level = self.durability.is_none() || protocol.names_levels();
        require(has_level, "--durability", "requests over RESP and NATS name no level; give it to the server")?;
        let name = self.name();
        let text = match built_in(name) {
            Some(text) => text.to_owned(),
            None => std::fs::read_to_string(name).map_err(|error| {
                bad(format!("{name:?} is none of the built-in scenarios ({}), and no file: {error}", names()))
            })?,
        };
        let fail = |error: String| bad(format!("{name}: {error}"));
        let mut scenario = Scenario::parse(&text).map_err(fail)?;
        let has_keys = self.keys.is_none() || scenario.mix.has(Kind::has_key);
        require(has_keys, "--keys", "the mix has no operation on keys")?;
        scenario.keys.count = self.keys.unwrap_or(scenario.keys.count);
        scenario.load.connections = self.connections.unwrap_or(scenario.load.connections);
        scenario.load.rate = self.rate.or(scenario.load.rate);
        let is_scheduled = self.arrivals.is_none() || scenario.load.rate.is_some() || self.search.is_some();
        require(is_scheduled, "--arrivals", "only a load with a rate has arrivals: give --rate")?;
        scenario.load.arrivals = self.arrivals.unwrap_or(scenario.load.arrivals);
        steady(self.search.as_ref(), scenario.load.arrivals)?;
        scenario.load.duration = self.duration.unwrap_or(scenario.load.duration);
        scenario.load.warmup = self.warmup.unwrap_or(scenario.load.warmup);
        scenario.check().map_err(fail)?;
        protocol.check(&scenario).map_err(fail)?;
        let has_level = scenario.http.is_none() || protocol != WireProtocol::Http;
        let header = "the requests of [http] name none; add a header to http.headers";
        require(has_level || self.durability.is_none(), "--durability", header)?;
        self.check_server(protocol)?;
        Ok(scenario)
    }

    /// Returns the protocol of the requests: the one that the options or the server's address name, otherwise HTTP.
    pub(super) fn protocol(&self) -> WireProtocol {
        let of_target = || WireProtocol::of_address(self.server.target.as_deref()?);
        self.protocol.or_else(of_target).unwrap_or_default()
    }

    /// Returns an error if the server cannot be reached or started over this protocol.
    fn check_server(&self, protocol: WireProtocol) -> Result<(), BenchError> {
        let (start, has_target) = (&self.server.start, self.server.target.is_some());
        let starts = start.server_binary.is_some() || !start.server_arg.is_empty();
        let is_embedded = protocol == WireProtocol::Embedded;
        let why = "starts no server: leave out --server-binary and --server-arg";
        require(!(is_embedded && starts), "--protocol embedded", why)?;
        let is_pinned = self.fingerprint.is_some();
        let why = "is for servers of the native protocol over TLS or QUIC: give thalweg+tls:// or thalweg+quic://";
        require(!is_pinned || protocol.is_encrypted(), "--fingerprint", why)?;
        let why = "TLS and QUIC need the SHA-256 of the target's certificate, which a server prints when it starts";
        require(is_pinned || !has_target || !protocol.is_encrypted(), "--fingerprint", why)?;
        let why = "the benchmark starts no NATS server: give nats://host:port or jetstream://host:port";
        require(has_target || !protocol.is_nats(), "--target", why)?;
        let why = "this program has no client for NATS: build it with the feature nats";
        require(cfg!(feature = "nats") || !protocol.is_nats(), "--protocol", why)
    }

    /// Returns the name of the scenario as the user gave it.
    pub(super) fn name(&self) -> &str {
        self.scenario.as_deref().unwrap_or_default()
    }
}

fn bad(message: String) -> BenchError {
    BenchError::Option { option: "scenario", message }
}

fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

fn names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;

    fn options(flags: &str) -> ScenarioOptions {
        parsed(flags.split_whitespace()).unwrap()
    }

    #[test]
    fn the_files_are_listed_and_shown() {
        let list = options("--list").printed().unwrap().unwrap();
        assert_eq!(list.lines().count(), BUILT_IN.len());
        assert!(list.starts_with("ycsb-a  YCSB A: "), "{list}");
        assert_eq!(options("--show ycsb-e").printed().unwrap().as_deref(), built_in("ycsb-e"));
        assert!(options("--show ycsb-g").printed().unwrap_err().to_string().contains("ycsb-a, ycsb-b"));
        assert_eq!(options("ycsb-a").printed().unwrap(), None);
        assert!(parsed::<ScenarioOptions>([]).is_err(), "a scenario is needed");
    }

    #[test]
    fn the_address_names_the_protocol() {
        for (flags, protocol) in [
            ("ycsb-a", WireProtocol::Http),
            ("ycsb-a --target h:1", WireProtocol::Http),
            ("ycsb-a --target redis://h:1", WireProtocol::Resp),
            ("ycsb-a --target thalweg://h:1", WireProtocol::Native),
            ("ycsb-a --target thalweg+tls://h:1", WireProtocol::NativeTls),
            ("ycsb-a --target thalweg://h:1 --protocol native-quic", WireProtocol::NativeQuic),
            ("ycsb-a --target embedded://dir", WireProtocol::Embedded),
            ("messages --target nats://h:1", WireProtocol::Nats),
            ("events --target jetstream://h:1", WireProtocol::Jetstream),
        ] {
            assert_eq!(options(flags).protocol(), protocol, "{flags}");
        }
        let pinned = format!("ycsb-a --target http://h:1 --fingerprint {}", "ab".repeat(32));
        let error = options(&pinned).scenario().unwrap_err().to_string();
        assert!(error.contains("--fingerprint: is for servers of the native protocol over TLS or QUIC"), "{error}");
    }

    #[cfg(not(feature = "nats"))]
    #[test]
    fn a_build_without_the_client_says_so() {
        let error = options("messages --target nats://h:1").scenario().unwrap_err().to_string();
        assert!(error.contains("build it with the feature nats"), "{error}");
    }

    #[test]
    fn options_replace_values_of_the_file() {
        let scenario =
            options("ycsb-a --keys 7 --connections 3 --rate 50 --duration 2s --warmup 0").scenario().unwrap();
        assert_eq!((scenario.keys.count, scenario.load.connections, scenario.load.rate), (7, 3, Some(50.0)));
        assert_eq!((scenario.load.duration, scenario.load.warmup), (Duration::from_secs(2), Duration::ZERO));
        for (flags, part) in [
            ("ycsb-a --keys 0", "ycsb-a: keys.count: 0 is not from 1"),
            ("ycsb-e --protocol resp", "mix.scan"),
            ("messages --keys 5", "--keys"),
            ("sessions --keys 0", "keys.count"),
            ("sessions --protocol resp --keys 0", "keys.count"),
            ("ycsb-a --protocol resp --durability os", "--durability"),
            ("messages --protocol embedded", "mix.publish: caches and subjects belong to a server"),
            ("sessions --protocol embedded", "mix.cache_get"),
            ("ycsb-a --protocol embedded --server-arg=x", "leave out --server-binary"),
            ("ycsb-a --target nats://h:1", "mix.read: core NATS has only subjects"),
            ("events --target nats://h:1", "mix.append: core NATS has only subjects"),
            ("sessions --target jetstream://h:1", "mix.cache_get: JetStream has streams, groups and subjects"),
            ("ycsb-e --target jetstream://h:1", "mix.insert: JetStream has"),
            ("messages --protocol nats", "--target: the benchmark starts no NATS server"),
            ("messages --target nats://h:1 --durability os", "--durability: requests over RESP and NATS"),
            ("ycsb-a --target thalweg+quic://h:1", "--fingerprint: TLS and QUIC need"),
            ("ycsb-a --target thalweg://h:1 --protocol native-tls", "--fingerprint: TLS and QUIC need"),
            ("ycsb-a --rounds 0", "--rounds"),
            ("ycsb-a --window 1ms", "--window: must be at least 10ms"),
            ("ycsb-a --arrivals poisson", "give --rate"),
            ("ycsb-a --arrivals step:5:1s --search p99<5ms", "a search needs runs at one rate"),
            ("ycsb-a --search p99<5ms --max-rate 0", "rate"),
            ("/does/not/exist.toml", "no file"),
        ] {
            let error = options(flags).scenario().unwrap_err().to_string();
            assert!(error.contains(part), "{flags}: {error}");
        }
    }
}
