//! Options of `thalweg bench scenario`, and the scenario that they name.

use std::time::Duration;

use thalweg_types::Durability;

use super::{
    file::{BUILT_IN, Scenario},
    mix::Kind,
};
use crate::{
    BenchError, ProfileOptions,
    http::ServerOptions,
    load::{Arrivals, Objective},
    options::{check_window, parse_duration, rate_within, require, steady, within},
};

const TARGET_HELP: &str = "Address of a running server, as http://host:port, for RESP as redis://host:port, and for the native protocol as \
     thalweg://host:port. With --protocol embedded a directory, as a path or embedded://PATH. The keys stay on it. Without a target \
     the benchmark starts a server, or opens a directory, of its own";
/// Beginning of the address of a directory.
pub(super) const EMBEDDED_SCHEME: &str = "embedded://";

/// Longest wait for a reply, after which a run ends as overloaded.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);
/// Maximum number of rows and of bytes of a scan over the native protocol, whose pages are limited.
const MAX_PAGE: (u32, usize) = (4096, 1 << 20);

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
    /// Protocol of the requests.
    #[arg(long, value_enum, default_value_t)]
    pub protocol: WireProtocol,
    /// Server under load.
    #[command(flatten)]
    pub server: ServerOptions,
    /// Keyspace of the keys and name of the cache on a server that the benchmark starts, and on any server except over RESP. Names
    /// of streams, groups and subjects begin with it.
    #[arg(long, default_value = "scenario")]
    pub keyspace: String,
    /// Durability level that each write requests, except over RESP; without it the default of the server or engine.
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
    /// Length of the windows into which plots and the samples of a report divide each run, at least 10ms; a run has at most 1,200.
    /// Without it, 250ms, or so much that a run has 120.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Profiles of the server.
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

/// Protocol of a scenario's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum WireProtocol {
    /// HTTP, which has all operations.
    #[default]
    Http,
    /// Redis's commands, for any server that speaks RESP; without scans.
    Resp,
    /// Native protocol over TCP without encryption, which has all operations.
    Native,
    /// Calls of the embedded engine in this process, without a server; no caches and no subjects.
    Embedded,
}

impl WireProtocol {
    /// Beginnings of addresses, and the protocols that they name.
    pub(crate) const SCHEMES: [(&str, Self); 5] = [
        ("http://", Self::Http),
        ("redis://", Self::Resp),
        ("resp://", Self::Resp),
        ("thalweg://", Self::Native),
        (EMBEDDED_SCHEME, Self::Embedded),
    ];

    /// Returns the name of the protocol in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Resp => "RESP2",
            Self::Native => "native protocol over TCP",
            Self::Embedded => "calls of the engine in this process, whose processor time is part of the generator's",
        }
    }
}

impl ScenarioOptions {
    /// Returns the text that the options request instead of a run: the list of the built-in scenarios, or the file of
    /// one. Returns `None` if they ask for a run.
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

    /// Returns an error if the options or the file of the scenario are wrong.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        self.scenario().map(|_| ())
    }

    /// Returns the scenario of the options: the named file, with the values that the options give instead.
    pub(super) fn scenario(&self) -> Result<Scenario, BenchError> {
        within("--rounds", self.rounds, 100)?;
        check_window(self.window)?;
        rate_within(self.search.as_ref().map(|_| self.max_rate), 10_000_000)?;
        let runs_resp = self.protocol == WireProtocol::Resp && self.server.target.is_some();
        let why = "is for a RESP server that runs already: give --protocol resp and --target";
        require(runs_resp || self.password.is_none(), "--password", why)?;
        require(runs_resp || self.database == 0, "--database", why)?;
        let is_level_free = self.durability.is_none() || self.protocol != WireProtocol::Resp;
        require(is_level_free, "--durability", "requests over RESP name no level; give it to the server")?;
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
        if self.protocol == WireProtocol::Resp && scenario.mix.kinds().any(|kind| kind == Kind::Scan) {
            return Err(fail("mix.scan: RESP has no scan in the order of keys; use --protocol http".to_owned()));
        }
        let rows = *scenario.scan_rows.end();
        let is_page = rows <= MAX_PAGE.0 && rows as usize * (scenario.value_bytes.end() + 64) <= MAX_PAGE.1;
        if matches!(self.protocol, WireProtocol::Native | WireProtocol::Embedded) && !is_page {
            return Err(fail(
                "scans: over the native protocol at most 4,096 rows and 1 MiB; use --protocol http".to_owned(),
            ));
        }
        if self.protocol == WireProtocol::Embedded {
            let start = &self.server.start;
            let starts = start.server_binary.is_some() || !start.server_arg.is_empty();
            require(!starts, "--protocol embedded", "starts no server: leave out --server-binary and --server-arg")?;
            let is_served = |kind: &Kind| kind.uses_cache() || *kind == Kind::Publish;
            if let Some(kind) = scenario.mix.kinds().find(is_served) {
                let kind = kind.name();
                return Err(fail(format!("mix.{kind}: caches and subjects belong to a server; use --protocol native")));
            }
        }
        let has_level = scenario.http.is_none() || self.protocol != WireProtocol::Http;
        let header = "the requests of [http] name none; add a header to http.headers";
        require(has_level || self.durability.is_none(), "--durability", header)?;
        if self.protocol == WireProtocol::Resp && scenario.mix.has(Kind::uses_cache) {
            if scenario.mix.has(|kind| kind.uses_keyspace() || kind.uses_stream()) {
                return Err(fail(
                    "mix: over RESP a cache is a database of its own, so the mix has no operations on keys or streams"
                        .into(),
                ));
            }
            if scenario.cache_bytes.is_some() {
                return Err(fail("caches.max_bytes: RESP creates no caches; set it in the server".into()));
            }
        }
        Ok(scenario)
    }

    /// Returns the name of the scenario as it was given.
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
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: ScenarioOptions,
    }

    fn options(flags: &str) -> ScenarioOptions {
        Cli::parse_from(["bench"].into_iter().chain(flags.split_whitespace())).options
    }

    #[test]
    fn the_files_are_listed_and_shown() {
        let list = options("--list").printed().unwrap().unwrap();
        assert_eq!(list.lines().count(), BUILT_IN.len());
        assert!(list.starts_with("ycsb-a  YCSB A: "), "{list}");
        assert_eq!(options("--show ycsb-e").printed().unwrap().as_deref(), built_in("ycsb-e"));
        assert!(options("--show ycsb-g").printed().unwrap_err().to_string().contains("ycsb-a, ycsb-b"));
        assert_eq!(options("ycsb-a").printed().unwrap(), None);
        assert!(Cli::try_parse_from(["bench"]).is_err(), "a scenario is needed");
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
