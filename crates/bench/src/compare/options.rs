//! Options of `thalweg bench compare`.
//!
//! Owns: the options, the decision if the text for A or B names a stored report, a program or an address, and the
//! checks of options that exclude each other. Does not own: the options of the load (`given`).

use std::path::{Path, PathBuf};

use thalweg_transport::Fingerprint;
use thalweg_types::Durability;

use super::given::GivenLoad;
use crate::{
    BenchError,
    options::{require, within},
    scenario::WireProtocol,
};
use thalweg_lab::comparison::MIN_PAIRS;

/// Number of pairs of runs if the options give none. A pair is one run of A and one of B.
const DEFAULT_PAIRS: u32 = 12;
/// Load options that are valid only if requests follow a schedule.
const OF_SCHEDULES: [&str; 2] = ["--rate", "--arrivals"];
/// Options of the load that cannot be given together with `--scenario`, because the scenario's file sets them.
const OF_FILES: [&str; 8] =
    ["--workers", "--pipeline", "--value-size", "--mix", "--distribution", "--api", "--closed", "--no-load"];
/// Options of the load that cannot be given for RESP.
const NEVER_OVER_RESP: [&str; 2] = ["--workers", "--no-load"];
/// Options of the load that apply only to protocols other than RESP.
const OF_OTHERS_THAN_RESP: [&str; 3] = ["--durability", "--api", "--keyspace"];

/// Options of a comparison of two servers, programs or stored reports.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareOptions {
    /// The first side: a program to start as `A serve` (a path or a name on the search path), the address of a running
    /// server (http://host:port, redis://host:port or redis://host:port@N for its database N, thalweg://host:port,
    /// thalweg+tls://host:port, thalweg+quic://host:port, nats://host:port, jetstream://host:port), a directory of the
    /// embedded engine (embedded://PATH), or a report that `thalweg bench http` or `scenario` wrote with
    /// `--output FILE.json` or `--html FILE.html`.
    pub a: String,
    /// The second side, in the same forms as the first side A. Its figures are compared with those of A. A report can
    /// only be compared with a report.
    pub b: String,
    /// Run this scenario instead of puts and gets: a built-in one or a file, as thalweg bench scenario does. Options of
    /// the load that both commands have replace values of the file. If both sides are addresses, `-b` is added to the
    /// name of B's keyspace, because the addresses can be of one server.
    #[arg(long, value_name = "NAME|FILE")]
    pub scenario: Option<String>,
    /// Protocol for sides that are programs, and for addresses without a scheme such as http://. Without it, http.
    #[arg(long, value_enum)]
    pub protocol: Option<WireProtocol>,
    /// SHA-256 of the certificate of servers over TLS or QUIC that run already.
    #[arg(long)]
    pub fingerprint: Option<Fingerprint>,
    /// SHA-256 of the certificate of B, if it differs from that of A.
    #[arg(long, value_name = "FINGERPRINT")]
    pub fingerprint_b: Option<Fingerprint>,
    /// Password for AUTH on RESP servers that run already.
    #[arg(long)]
    pub password: Option<String>,
    /// Number of the database to select over RESP, unless the address of a side ends in @N. Without it, 0.
    #[arg(long)]
    pub database: Option<u32>,
    /// Number of pairs of runs, one of A and one of B each. Without it, 12.
    #[arg(long)]
    pub pairs: Option<u32>,
    /// Additional arguments for the server of side A, if A is a program.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub arg_a: Vec<String>,
    /// Additional arguments for the server of side B, if B is a program.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub arg_b: Vec<String>,
    /// Durability level that puts to B request, if it differs from that of A. Requires --across-durabilities.
    #[arg(long, value_name = "DURABILITY")]
    pub durability_b: Option<Durability>,
    /// Compare even if the writes of A and B have different durability levels. The titles then state both.
    #[arg(long)]
    pub across_durabilities: bool,
    /// Exit with code 4 if B is worse in the deciding figure: the rate in a closed loop, otherwise the 99th percentile
    /// of the response time.
    #[arg(long)]
    pub fail_if_worse: bool,
    /// Directory below which started servers keep their data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Load of each run.
    #[command(flatten)]
    pub load: GivenLoad,
}

/// One side of a comparison, A or B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// A stored report, with the path of its file.
    Stored(PathBuf),
    /// A program, to be started as a server and loaded over this protocol.
    Program(WireProtocol, PathBuf),
    /// A server that runs already, with its protocol and address.
    Running(WireProtocol, String),
}

impl Side {
    /// Determines the kind of side that a text names. A file whose name ends in `.json` or `.html` is a report, and any
    /// other file is a program. Any other text must be an address. `protocol` is that of a program, and of an address
    /// without a scheme.
    pub fn of(text: &str, protocol: WireProtocol) -> Result<Self, BenchError> {
        let path = Path::new(text);
        let fail = BenchError::target(text);
        if path.extension().is_some_and(|extension| extension == "json" || extension == "html") {
            return if path.is_file() { Ok(Self::Stored(path.into())) } else { Err(fail("there is no such report")) };
        }
        if let Some(program) = program(text) {
            let message = "a program is started as a server of ours: name a directory of the engine as embedded://PATH, and a \
                           NATS server as nats://host:port";
            return if protocol.is_served_by_programs() {
                Ok(Self::Program(protocol, program))
            } else {
                Err(fail(message))
            };
        }
        let known = WireProtocol::SCHEMES.iter().find(|(scheme, _)| text.starts_with(*scheme));
        match known {
            Some(("resp://", protocol)) => Ok(Self::Running(*protocol, text.replacen("resp", "redis", 1))),
            Some((_, protocol)) => Ok(Self::Running(*protocol, text.to_owned())),
            None if text.contains(':') && !text.contains("//") => Ok(Self::Running(protocol, text.to_owned())),
            None => Err(fail(
                "is neither a program, nor a report (.json, .html), nor an address (http://, redis://, thalweg://, \
                 thalweg+tls://, thalweg+quic://, nats:// or jetstream:// and host:port, or embedded:// and a directory)",
            )),
        }
    }

    /// Returns the protocol of the side's requests; `None` for a report.
    fn protocol(&self) -> Option<WireProtocol> {
        match self {
            Self::Stored(_) => None,
            Self::Program(protocol, _) | Self::Running(protocol, _) => Some(*protocol),
        }
    }
}

/// Returns the absolute path of a program. `text` is its path, or its name on `PATH`.
fn program(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    if path.is_file() {
        return std::path::absolute(path).ok();
    }
    let is_name = !text.is_empty() && !text.contains(['/', ':']);
    let dirs = std::env::var_os("PATH").filter(|_| is_name)?;
    std::env::split_paths(&dirs).map(|dir| dir.join(text)).find(|path| path.is_file())
}

impl CompareOptions {
    /// Returns both sides of the comparison. Returns an error if options contradict each other or the sides.
    pub(super) fn sides(&self) -> Result<[Side; 2], BenchError> {
        // A scenario's own check includes its load.
        self.scenario.as_ref().map_or_else(|| self.load.load.check(), |_| Ok(()))?;
        within("--pairs", self.pairs() as usize, 10_000)?;
        let has_interval = self.pairs() as usize >= MIN_PAIRS;
        require(has_interval, "--pairs", format!("must be at least {MIN_PAIRS} for an interval"))?;
        let protocol = self.protocol.unwrap_or_default();
        let sides = [Side::of(&self.a, protocol)?, Side::of(&self.b, protocol)?];
        let stored = sides.iter().filter(|side| matches!(side, Side::Stored(_))).count();
        require(stored != 1, "A, B", "a stored report can only be compared with a stored report")?;
        for (side, arguments, option) in [(&sides[0], &self.arg_a, "--arg-a"), (&sides[1], &self.arg_b, "--arg-b")] {
            let starts = matches!(side, Side::Program(..));
            require(starts || arguments.is_empty(), option, "is for a side that is a program, which it starts")?;
        }
        if stored == 2 {
            let none = self.load.given.is_empty() && self.durability_b.is_none() && self.scenario.is_none();
            require(none, "A, B", "stored reports have their own load: give none")?;
            for (is_given, option) in [
                (self.pairs.is_some(), "--pairs"),
                (self.database.is_some(), "--database"),
                (self.protocol.is_some(), "--protocol"),
                (self.dir.is_some(), "--dir"),
            ] {
                require(!is_given, option, "is for runs, and stored reports have theirs: leave it out")?;
            }
        }
        if self.load.load.closed
            && let Some(option) = self.load.first_of(&OF_SCHEDULES)
        {
            return Err(BenchError::Option {
                option,
                message: "a closed loop has no schedule: leave it or --closed".into(),
            });
        }
        let has_password = |side: &Side| matches!(side, Side::Running(WireProtocol::Resp, _));
        let is_used = self.password.is_none() || sides.iter().any(has_password);
        require(is_used, "--password", "is for a RESP server that runs already, and no side is one")?;
        self.check_fingerprints(&sides)?;
        self.check_protocols(sides.each_ref().map(Side::protocol))?;
        if let Some(option) = self.scenario.as_ref().and_then(|_| self.load.first_of(&OF_FILES)) {
            return Err(BenchError::Option { option, message: "a scenario has it in its file".to_owned() });
        }
        for (at, side) in sides.iter().enumerate() {
            self.scenario_of(side, at)?.map_or(Ok(()), |scenario| scenario.check())?;
        }
        Ok(sides)
    }

    /// Returns the number of pairs of runs. A pair is one run of A and one of B.
    pub(super) fn pairs(&self) -> u32 {
        self.pairs.unwrap_or(DEFAULT_PAIRS)
    }

    /// Returns an error if a fingerprint is given for a side that cannot use it.
    fn check_fingerprints(&self, sides: &[Side; 2]) -> Result<(), BenchError> {
        let is_pinned = |side: &Side| matches!(side, Side::Running(protocol, _) if protocol.is_encrypted());
        let why = "is for a server over TLS or QUIC that runs already: give thalweg+tls:// or thalweg+quic://";
        require(self.fingerprint.is_none() || sides.iter().any(is_pinned), "--fingerprint", why)?;
        require(self.fingerprint_b.is_none() || is_pinned(&sides[1]), "--fingerprint-b", why)
    }

    /// Returns an error if an option belongs to a protocol that no side uses.
    fn check_protocols(&self, protocols: [Option<WireProtocol>; 2]) -> Result<(), BenchError> {
        let resp = protocols.map(|protocol| protocol == Some(WireProtocol::Resp));
        let needs_scenario = |protocol: &WireProtocol| !matches!(protocol, WireProtocol::Http | WireProtocol::Resp);
        let has_load = self.scenario.is_some() || !protocols.iter().flatten().any(needs_scenario);
        let needed = "the native protocol, NATS and the embedded engine need one, such as --scenario ycsb-a";
        require(has_load, "--scenario", needed)?;
        let never = self.load.first_of(&NEVER_OVER_RESP).filter(|_| resp != [false; 2]);
        let others = self.load.first_of(&OF_OTHERS_THAN_RESP).filter(|_| resp == [true; 2]);
        if let Some(option) = never.or(others) {
            return Err(BenchError::Option { option, message: "requests over RESP have none".to_owned() });
        }
        let [a, b] = protocols.map(|protocol| protocol.is_none_or(WireProtocol::names_levels));
        let why = "requests over RESP and NATS name no level; give it to the server";
        let is_level_free = self.load.first_of(&["--durability"]).is_none();
        require(a || b || is_level_free, "--durability", why)?;
        require(b || self.durability_b.is_none(), "--durability-b", why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scratch, options::parsed};

    const PRINT: &str = "abababababababababababababababababababababababababababababababab";

    fn options(arguments: &[&str]) -> CompareOptions {
        parsed(arguments.iter().copied()).unwrap()
    }

    fn sides(arguments: &[&str]) -> Result<[Side; 2], String> {
        options(arguments).sides().map_err(|error| error.to_string())
    }

    #[test]
    fn sides_are_told_apart() {
        let scratch = Scratch::below(None).unwrap();
        let [report, program] = ["a.json", "program"].map(|name| {
            let path = scratch.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.to_str().unwrap().to_owned()
        });
        let both = sides(&[&program, "127.0.0.1:7070"]).unwrap();
        let http = WireProtocol::Http;
        assert_eq!(both, [Side::Program(http, program.clone().into()), Side::Running(http, "127.0.0.1:7070".into())]);
        assert!(
            matches!(Side::of("sh", http).unwrap(), Side::Program(_, path) if path.is_absolute()),
            "found on the search path"
        );
        let [redis, native] = sides(&["resp://127.0.0.1:1@2", "thalweg://h:2", "--scenario", "ycsb-a"]).unwrap();
        assert_eq!(redis, Side::Running(WireProtocol::Resp, "redis://127.0.0.1:1@2".into()));
        assert_eq!(native, Side::Running(WireProtocol::Native, "thalweg://h:2".into()));
        let [program, plain] = sides(&[&program, "h:1", "--protocol", "resp"]).unwrap();
        assert_eq!([program.protocol(), plain.protocol()], [Some(WireProtocol::Resp); 2]);
        assert!(matches!(sides(&[&report, &report]).unwrap(), [Side::Stored(_), Side::Stored(_)]));
        for (arguments, part) in [
            (vec![&*report, "http://h:1"], "only be compared with a stored report"),
            (vec![&report, &report, "--rate", "5"], "their own load"),
            (vec![&report, &report, "--pairs", "12"], "--pairs: is for runs"),
            (vec![&report, &report, "--database", "0"], "--database: is for runs"),
            (vec![&report, &report, "--dir", "."], "--dir: is for runs"),
            (vec![&report, &report, "--protocol", "resp"], "--protocol: is for runs"),
            (vec!["nothing.json", &report], "no such report"),
            (vec!["nothing", "h:1"], "neither a program"),
            (vec!["h:1", "h:2", "--pairs", "3"], "--pairs"),
            (vec!["h:1", "h:2", "--arg-b", "--backend"], "--arg-b"),
            (vec!["h:1", "h:2", "--keys", "0"], "--keys"),
            (vec!["h:1", "h:2", "--closed", "--rate", "5"], "--rate: a closed loop has no schedule"),
            (vec!["h:1", "h:2", "--password", "x"], "--password"),
            (vec!["https://h:1", "h:2"], "neither a program"),
            (vec!["thalweg://h:1", "h:2"], "--scenario"),
            (vec!["h:1", "h:2", "--scenario", "ycsb-a", "--mix", "put"], "--mix: a scenario has it in its file"),
            (vec!["h:1", "h:2", "--scenario", "ycsb-a", "--keys", "0"], "keys.count"),
            (vec!["h:1", "h:2", "--scenario", "nothing"], "nothing"),
            (vec!["redis://127.0.0.1:1", "h:2", "--scenario", "ycsb-e"], "mix.scan"),
            (vec!["redis://h:1", "redis://h:2", "--durability", "os"], "--durability: requests over RESP"),
            (vec!["h:1", "redis://h:2", "--no-load"], "--no-load: requests over RESP"),
            (vec!["h:1", "redis://h:2", "--durability-b", "os"], "--durability-b"),
            (vec!["nats://h:1", "thalweg://h:2"], "--scenario"),
            (vec!["nats://h:1", "thalweg://h:2", "--scenario", "ycsb-a"], "mix.read: core NATS"),
            (
                vec!["jetstream://h:1", "redis://h:2", "--scenario", "events", "--durability", "os"],
                "--durability: requests over RESP and NATS",
            ),
            (vec!["thalweg+quic://h:1", "thalweg+quic://h:2", "--scenario", "ycsb-a"], "--fingerprint: TLS and QUIC"),
            (vec!["h:1", "h:2", "--fingerprint", PRINT], "--fingerprint: is for a server over TLS or QUIC"),
            (
                vec!["thalweg+tls://h:1", "thalweg://h:2", "--scenario", "ycsb-a", "--fingerprint-b", PRINT],
                "--fingerprint-b",
            ),
        ] {
            let error = sides(&arguments).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn each_side_may_have_a_certificate_of_its_own() {
        let line = ["thalweg+tls://h:1", "thalweg+quic://h:2", "--scenario", "ycsb-a", "--fingerprint", PRINT];
        let other = PRINT.replace("ab", "cd");
        let options = options(&[&line[..], &["--fingerprint-b", other.as_str()]].concat());
        let sides = options.sides().unwrap();
        let of = |at: usize| options.scenario_of(&sides[at], at).unwrap().unwrap().fingerprint;
        assert_eq!((of(0), of(1)), (Some(PRINT.parse().unwrap()), Some(other.parse().unwrap())));
    }

    #[test]
    fn named_options_of_the_load_replace_values_of_a_scenario() {
        let usual = options(&["h:1", "h:2"]);
        assert_eq!((usual.load.given, usual.load.load.rate), (Vec::new(), 1000.0));
        let named = options(&[
            "thalweg://h:1",
            "redis://127.0.0.1:2@3",
            "--scenario=ycsb-a",
            "--rate=1000",
            "--durability=os",
            "--arrivals=poisson",
        ]);
        let sides = named.sides().unwrap();
        let scenario = |at: usize| named.scenario_of(&sides[at], at).unwrap().unwrap();
        let (a, b) = (scenario(0), scenario(1));
        assert_eq!(
            (a.rate, a.keys, a.protocol),
            (Some(1000.0), None, Some(WireProtocol::Native)),
            "the default, but named"
        );
        assert_eq!((a.durability, b.durability), (Some(Durability::Os), None));
        assert_eq!((b.server.target.as_deref(), b.database), (Some("127.0.0.1:2"), 3));
    }
}
