//! Scenario files: their schema in TOML, its checks, and the built-in files.
//!
//! Owns: the names of tables and fields, the values that they accept, and the errors for others. An error of the syntax,
//! an unknown name or a wrong type names the line; a value out of its range names the field. Does not own: what the
//! scenario does with the values.

use std::{ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{mix::Mix, records::HEAD_BYTES};
use crate::{
    load::{Arrivals, Pace},
    options::parse_duration,
    random::YCSB_EXPONENT,
};

/// Built-in scenarios: names and files.
pub(super) const BUILT_IN: [(&str, &str); 6] = [
    ("ycsb-a", include_str!("../../scenarios/ycsb-a.toml")),
    ("ycsb-b", include_str!("../../scenarios/ycsb-b.toml")),
    ("ycsb-c", include_str!("../../scenarios/ycsb-c.toml")),
    ("ycsb-d", include_str!("../../scenarios/ycsb-d.toml")),
    ("ycsb-e", include_str!("../../scenarios/ycsb-e.toml")),
    ("ycsb-f", include_str!("../../scenarios/ycsb-f.toml")),
];

/// Maximum number of connections.
pub(super) const MAX_CONNECTIONS: u64 = 20_000;
/// Maximum number of keys that a run loads.
pub(super) const MAX_KEYS: u64 = 100_000_000;
/// Maximum number of rows of a scan. It is bounded because the generator buffers whole replies.
const MAX_ROWS: u64 = 10_000;
/// Maximum length of a value in bytes, for the same reason.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of operations per second.
const MAX_RATE: f64 = 1e7;
/// Maximum exponent of the Zipf distribution; with larger ones nearly all operations use one key.
const MAX_THETA: f64 = 5.0;

/// A scenario: the load, the keys, the values and the operations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scenario {
    /// One line about the scenario, for lists and reports.
    pub description: String,
    /// Pace, connections and times of a run.
    pub load: Load,
    /// Keys that are loaded before the runs, and the distribution of the operations over them.
    pub keys: Keys,
    /// Lengths of the values in bytes. Each length is equally likely.
    pub value_bytes: RangeInclusive<usize>,
    /// Numbers of rows of a scan. Each number is equally likely.
    pub scan_rows: RangeInclusive<u32>,
    /// Operations with their weights.
    pub mix: Mix,
}

/// Pace, connections and times of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// Number of connections to the server.
    pub connections: usize,
    /// Number of load threads.
    pub threads: usize,
    /// Operations per second by a schedule; `None` sends the next operation after a reply.
    pub rate: Option<f64>,
    /// Distribution of the scheduled operations over time.
    pub arrivals: Arrivals,
    /// Duration of the warm-up, whose operations are not counted.
    pub warmup: Duration,
    /// Duration of a run without its warm-up.
    pub duration: Duration,
}

/// Keys that are loaded before the runs, and the distribution of the operations over them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Keys {
    /// Number of keys that are loaded.
    pub count: u64,
    /// Distribution of the operations over the keys.
    pub distribution: Distribution,
    /// Exponent of the distributions `zipf` and `latest`.
    pub theta: f64,
}

/// Distribution of the operations over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Distribution {
    /// Every loaded key is equally likely.
    Uniform,
    /// Few of the loaded keys take most operations; they are scattered over the key space.
    Zipf,
    /// The newest keys take most operations, by a Zipf distribution over the keys' age.
    Latest,
    /// The loaded keys in order, and again from the first.
    Sequential,
}

impl Scenario {
    /// Parses a scenario file. The error names the line or the field, and the values that are allowed.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let scenario = file.resolve()?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Returns an error that names a field whose value is out of its range, and the range.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { load, keys, value_bytes, scan_rows, mix, .. } = self;
        within("load.connections", load.connections as u64, 1, MAX_CONNECTIONS)?;
        within("load.threads", load.threads as u64, 1, 1024)?;
        if load.rate.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE)) {
            return Err("load.rate: must be above 0 and at most 10,000,000 operations/s".to_owned());
        }
        let longest = Duration::from_secs(86_400);
        if load.duration.is_zero() || load.duration > longest || load.warmup > longest {
            return Err("load.duration, load.warmup: at most a day, and the duration above 0".to_owned());
        }
        within("keys.count", keys.count, 1, MAX_KEYS)?;
        if !(keys.theta > 0.0 && keys.theta <= MAX_THETA) {
            return Err(format!("keys.theta: must be above 0 and at most {MAX_THETA}"));
        }
        for bytes in [value_bytes.start(), value_bytes.end()] {
            within("values.bytes, values.min_bytes, values.max_bytes", *bytes as u64, HEAD_BYTES as u64, MAX_BYTES)?;
        }
        for rows in [scan_rows.start(), scan_rows.end()] {
            within("scans.rows, scans.min_rows, scans.max_rows", u64::from(*rows), 1, MAX_ROWS)?;
        }
        if value_bytes.is_empty() || scan_rows.is_empty() {
            return Err("values, scans: the minimum is above the maximum".to_owned());
        }
        if mix.is_empty() {
            return Err("mix: give at least one of read, update, insert, scan, read_modify_write a weight".to_owned());
        }
        Ok(())
    }

    /// Returns the pace of the operations: the schedule, or a closed loop.
    pub(super) fn pace(&self) -> Pace {
        Pace::of_rate(self.load.rate, self.load.arrivals)
    }
}

fn within(field: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    let is_within = (least..=most).contains(&value);
    if is_within { Ok(()) } else { Err(format!("{field}: {value} is not from {least} to {most}")) }
}

/// A scenario as it is written in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    description: String,
    load: LoadTable,
    keys: KeysTable,
    values: ValuesTable,
    mix: MixTable,
    scans: Option<ScansTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadTable {
    connections: usize,
    #[serde(default = "one")]
    threads: usize,
    rate: Option<f64>,
    arrivals: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    warmup: Duration,
    #[serde(deserialize_with = "duration")]
    duration: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysTable {
    count: u64,
    distribution: Distribution,
    theta: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValuesTable {
    bytes: Option<usize>,
    min_bytes: Option<usize>,
    max_bytes: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScansTable {
    rows: Option<u32>,
    min_rows: Option<u32>,
    max_rows: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MixTable {
    read: u32,
    update: u32,
    insert: u32,
    scan: u32,
    read_modify_write: u32,
}

fn one() -> usize {
    1
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl File {
    fn resolve(self) -> Result<Scenario, String> {
        let Self { description, load, keys, values, mix, scans } = self;
        let is_ranked = matches!(keys.distribution, Distribution::Zipf | Distribution::Latest);
        if keys.theta.is_some() && !is_ranked {
            return Err("keys.theta: only the distributions zipf and latest have an exponent".to_owned());
        }
        let arrivals = match (&load.arrivals, load.rate) {
            (Some(_), None) => {
                return Err("load.arrivals: only a load with a rate has arrivals; set load.rate".to_owned());
            }
            (Some(text), Some(_)) => text.parse().map_err(|error| format!("load.arrivals: {error}"))?,
            (None, _) => Arrivals::Constant,
        };
        let scan_rows = match (mix.scan, scans) {
            (0, None) => 1..=1,
            (0, Some(_)) => return Err("scans: the mix has no scans; set mix.scan".to_owned()),
            (_, None) => {
                return Err("mix.scan: scans need a table [scans] with rows, or min_rows and max_rows".to_owned());
            }
            (_, Some(table)) => range("scans", "rows", table.rows, table.min_rows, table.max_rows)?,
        };
        Ok(Scenario {
            description,
            load: Load {
                connections: load.connections,
                threads: load.threads,
                rate: load.rate,
                arrivals,
                warmup: load.warmup,
                duration: load.duration,
            },
            keys: Keys {
                count: keys.count,
                distribution: keys.distribution,
                theta: keys.theta.unwrap_or(YCSB_EXPONENT),
            },
            value_bytes: range("values", "bytes", values.bytes, values.min_bytes, values.max_bytes)?,
            scan_rows,
            mix: Mix::new([mix.read, mix.update, mix.insert, mix.scan, mix.read_modify_write]),
        })
    }
}

/// Returns the range of a table that gives either one value or both ends.
fn range<T: Copy>(
    table: &str,
    unit: &str,
    value: Option<T>,
    min: Option<T>,
    max: Option<T>,
) -> Result<RangeInclusive<T>, String> {
    match (value, min, max) {
        (Some(value), None, None) => Ok(value..=value),
        (None, Some(min), Some(max)) => Ok(min..=max),
        _ => Err(format!("{table}: give either {unit}, or both min_{unit} and max_{unit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::mix::Kind;

    const SMALL: &str = "[load]\nconnections = 2\nduration = \"1s\"\n[keys]\ncount = 10\ndistribution = \"uniform\"\n\
                         [values]\nbytes = 100\n[mix]\nread = 1\n";

    #[test]
    fn a_small_file_has_defaults() {
        let scenario = Scenario::parse(SMALL).unwrap();
        let Load { threads, rate, warmup, duration, .. } = scenario.load;
        assert_eq!((threads, rate, warmup, duration), (1, None, Duration::ZERO, Duration::from_secs(1)));
        assert_eq!((scenario.value_bytes.clone(), scenario.keys.theta), (100..=100, 0.99));
        assert_eq!(scenario.pace(), Pace::Closed);
    }

    #[test]
    fn a_file_can_set_everything() {
        let text = "description = \"all\"\n[load]\nconnections = 3\nthreads = 2\nrate = 5000\narrivals = \"poisson\"\n\
                    warmup = \"500ms\"\nduration = \"2m\"\n[keys]\ncount = 1_000\ndistribution = \"latest\"\ntheta = 0.7\n\
                    [values]\nmin_bytes = 50\nmax_bytes = 2000\n[scans]\nrows = 7\n\
                    [mix]\nread = 1\nupdate = 2\ninsert = 3\nscan = 4\nread_modify_write = 5\n";
        let scenario = Scenario::parse(text).unwrap();
        assert_eq!(scenario.pace(), Pace::Open { rate: 5000.0, arrivals: Arrivals::Poisson });
        assert_eq!((scenario.keys.distribution, scenario.keys.theta), (Distribution::Latest, 0.7));
        assert_eq!((scenario.value_bytes.clone(), scenario.scan_rows.clone()), (50..=2000, 7..=7));
        assert_eq!(scenario.mix, Mix::new([1, 2, 3, 4, 5]));
        assert_eq!(
            (scenario.load.warmup, scenario.load.duration),
            (Duration::from_millis(500), Duration::from_secs(120))
        );
    }

    #[test]
    fn a_file_can_change_the_rate_during_a_run() {
        let pace = |arrivals: &str| {
            let load = format!("rate = 5000\narrivals = \"{arrivals}\"\n[keys]");
            Scenario::parse(&SMALL.replace("[keys]", &load)).map(|scenario| scenario.pace().name("/s"))
        };
        assert_eq!(pace("ramp:100:10s").unwrap(), "100/s to 5000/s within 10 s");
        assert_eq!(pace("step:100:500ms").unwrap(), "100/s, after 0.5 s 5000/s");
        assert_eq!(pace("poisson").unwrap(), "5000/s Poisson");
        let error = pace("ramp:0:10s").unwrap_err();
        assert!(error.starts_with("load.arrivals: ") && error.contains("ramp:100:10s"), "{error}");
    }

    #[test]
    fn the_built_in_files_are_ycsb_a_to_f() {
        let share = |mix: &Mix, kind| (100.0 * mix.share(kind)).round();
        for (name, text) in BUILT_IN {
            let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let shares = Kind::ALL.map(|kind| share(&scenario.mix, kind));
            let (expected, distribution) = match name {
                "ycsb-a" => ([50.0, 50.0, 0.0, 0.0, 0.0], Distribution::Zipf),
                "ycsb-b" => ([95.0, 5.0, 0.0, 0.0, 0.0], Distribution::Zipf),
                "ycsb-c" => ([100.0, 0.0, 0.0, 0.0, 0.0], Distribution::Zipf),
                "ycsb-d" => ([95.0, 0.0, 5.0, 0.0, 0.0], Distribution::Latest),
                "ycsb-e" => ([0.0, 0.0, 5.0, 95.0, 0.0], Distribution::Zipf),
                _ => ([50.0, 0.0, 0.0, 0.0, 50.0], Distribution::Zipf),
            };
            assert_eq!(
                (shares, scenario.keys.distribution, scenario.keys.theta),
                (expected, distribution, 0.99),
                "{name}"
            );
            assert_eq!(scenario.value_bytes, 1000..=1000);
            assert!(name != "ycsb-e" || scenario.scan_rows == (1..=100));
            assert!(scenario.description.starts_with("YCSB "), "{name}");
        }
    }

    #[test]
    fn errors_name_the_place_and_what_is_allowed() {
        let changed = |from: &str, to: &str| {
            assert!(SMALL.contains(from), "{from}");
            Scenario::parse(&SMALL.replace(from, to)).unwrap_err()
        };
        for (from, to, parts) in [
            ("read = 1", "reads = 1", &["line 10", "unknown field `reads`", "`read_modify_write`"][..]),
            ("\"uniform\"", "\"normal\"", &["line 6", "`normal`", "`zipf`", "`latest`", "`sequential`"]),
            ("\"1s\"", "\"1 hour\"", &["line 3", "\"1 hour\"", "500ms"]),
            ("duration = \"1s\"\n", "", &["`duration`"]),
            ("connections = 2", "connections = \"two\"", &["line 2", "connections = \"two\""]),
            ("connections = 2", "connections = 0", &["load.connections", "from 1 to 20000"]),
            ("connections = 2", "connections = 2\nrate = 0", &["load.rate", "above 0"]),
            ("connections = 2", "connections = 2\narrivals = \"poisson\"", &["load.arrivals", "load.rate"]),
            ("count = 10", "count = 10\ntheta = 0.5", &["keys.theta", "zipf and latest"]),
            ("\"uniform\"", "\"zipf\"\ntheta = 9", &["keys.theta", "at most 5"]),
            ("bytes = 100", "bytes = 10", &["values.bytes", "from 22 to"]),
            ("bytes = 100", "min_bytes = 100", &["values", "min_bytes and max_bytes"]),
            ("bytes = 100", "min_bytes = 200\nmax_bytes = 100", &["minimum", "maximum"]),
            ("read = 1", "read = 0", &["mix", "read_modify_write"]),
            ("read = 1", "read = -1", &["line 10", "-1"]),
            ("read = 1", "scan = 1", &["mix.scan", "[scans]"]),
            ("read = 1", "read = 1\n[scans]\nrows = 5", &["scans", "mix.scan"]),
            ("[mix]", "[mixture]", &["line 9", "unknown field `mixture`", "`mix`"]),
        ] {
            let error = changed(from, to);
            for part in parts {
                assert!(error.contains(part), "{to}: {part} in {error}");
            }
        }
    }
}
