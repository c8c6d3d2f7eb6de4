//! Scenario files: their schema in TOML, its checks, and the built-in files.
//!
//! Owns: the names of tables and fields, the values that they accept, and the errors for others. If the syntax, a name
//! or a type is wrong, the error names the line. If a value is out of its range, the error names the field. Does not
//! own: the use of the values.

use std::{ops::RangeInclusive, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use thalweg_types::limits::MIN_CACHE_BYTES;

use super::{
    feed_tables::{FeedTables, Feeds, GroupsTable, JetstreamTable, StreamsTable, SubjectsTable, within},
    http_table::HttpTable,
    mix::{Kind, Mix},
};
use crate::{
    load::{
        Arrivals, Pace,
        pairs::{HEAD_BYTES, HttpTemplates},
    },
    options::parse_duration,
    random::YCSB_EXPONENT,
};

/// Names and contents of the files of the built-in scenarios.
pub(super) const BUILT_IN: [(&str, &str); 10] = [
    ("ycsb-a", include_str!("../../scenarios/ycsb-a.toml")),
    ("ycsb-b", include_str!("../../scenarios/ycsb-b.toml")),
    ("ycsb-c", include_str!("../../scenarios/ycsb-c.toml")),
    ("ycsb-d", include_str!("../../scenarios/ycsb-d.toml")),
    ("ycsb-e", include_str!("../../scenarios/ycsb-e.toml")),
    ("ycsb-f", include_str!("../../scenarios/ycsb-f.toml")),
    ("events", include_str!("../../scenarios/events.toml")),
    ("jobs", include_str!("../../scenarios/jobs.toml")),
    ("messages", include_str!("../../scenarios/messages.toml")),
    ("sessions", include_str!("../../scenarios/sessions.toml")),
];

/// Maximum number of connections that a scenario may have.
pub(super) const MAX_CONNECTIONS: u64 = 20_000;
/// Maximum number of keys that a run loads.
pub(super) const MAX_KEYS: u64 = 100_000_000;
/// Maximum number of rows of a scan. It is bounded because the generator buffers whole replies.
const MAX_ROWS: u64 = 10_000;
/// Maximum length of a value in bytes. It is bounded because the generator buffers whole replies.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum capacity of a cache, in bytes.
const MAX_CACHE_BYTES: u64 = 1 << 40;
/// Maximum rate of a scenario, in operations per second.
const MAX_RATE: f64 = 1e7;
/// Maximum exponent of the Zipf distribution. With larger ones nearly all operations would use one key.
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
    /// Range of the lengths of values in bytes. Each length in it is equally likely.
    pub value_bytes: RangeInclusive<usize>,
    /// Range of the number of rows that a scan reads. Each number in it is equally likely.
    pub scan_rows: RangeInclusive<u32>,
    /// Stream, consumer group and subject of the scenario.
    pub feeds: Feeds,
    /// Templates of requests over HTTP; `None` for Thalweg's key-value API.
    pub http: Option<HttpTemplates>,
    /// Capacity in bytes of a cache that the run creates; `None` is the server's default.
    pub cache_bytes: Option<u64>,
    /// Operations of the scenario with their weights.
    pub mix: Mix,
}

/// Pace, connections and times of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    /// Number of connections to the server.
    pub connections: usize,
    /// Number of load threads.
    pub threads: usize,
    /// Operations per second by a schedule; `None` for a closed loop, in which the next operation follows a reply.
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
    /// All loaded keys are equally likely.
    Uniform,
    /// A few of the loaded keys take most operations. They are scattered over the key space.
    Zipf,
    /// The newest keys take most operations: a Zipf distribution over the ages of the keys.
    Latest,
    /// The loaded keys are used in order, and again from the first after the last.
    Sequential,
}

impl Scenario {
    /// Parses a scenario file. An error names the line or the field, and the permitted values.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        let scenario = file.resolve()?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Returns an error if a value is out of its range. The error names the field and the range.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { load, keys, value_bytes, scan_rows, feeds, cache_bytes, mix, .. } = self;
        within("load.connections", load.connections as u64, 1, MAX_CONNECTIONS)?;
        within("load.threads", load.threads as u64, 1, 1024)?;
        if load.rate.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE)) {
            return Err("load.rate: must be above 0 and at most 10,000,000 operations/s".to_owned());
        }
        let longest = Duration::from_secs(86_400);
        if load.duration.is_zero() || load.duration > longest || load.warmup > longest {
            return Err("load.duration, load.warmup: at most a day, and the duration above 0".to_owned());
        }
        within("keys.count", keys.count, u64::from(mix.has(Kind::has_key)), MAX_KEYS)?;
        within("caches.max_bytes", cache_bytes.unwrap_or(MIN_CACHE_BYTES), MIN_CACHE_BYTES, MAX_CACHE_BYTES)?;
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
            let names = Kind::ALL.map(Kind::name).join(", ");
            return Err(format!("mix: give at least one of {names} a weight"));
        }
        feeds.check()
    }

    /// Returns the pace of the operations: the schedule, or a closed loop.
    pub(super) fn pace(&self) -> Pace {
        Pace::of_rate(self.load.rate, self.load.arrivals)
    }
}

/// A scenario as a file contains it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    description: String,
    load: LoadTable,
    keys: Option<KeysTable>,
    values: Option<ValuesTable>,
    mix: MixTable,
    scans: Option<ScansTable>,
    streams: Option<StreamsTable>,
    groups: Option<GroupsTable>,
    subjects: Option<SubjectsTable>,
    caches: Option<CachesTable>,
    http: Option<HttpTable>,
    jetstream: Option<JetstreamTable>,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachesTable {
    max_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MixTable {
    read: u32,
    update: u32,
    insert: u32,
    scan: u32,
    read_modify_write: u32,
    append: u32,
    read_records: u32,
    fetch: u32,
    publish: u32,
    cache_get: u32,
    cache_put: u32,
    cache_delete: u32,
}

impl MixTable {
    fn mix(&self) -> Mix {
        let keys = [self.read, self.update, self.insert, self.scan, self.read_modify_write];
        let feeds = [self.append, self.read_records, self.fetch, self.publish];
        let cache = [self.cache_get, self.cache_put, self.cache_delete];
        Mix::new::<12>([&keys[..], &feeds, &cache].concat().try_into().expect("five, four and three weights"))
    }
}

fn one() -> usize {
    1
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl File {
    fn resolve(self) -> Result<Scenario, String> {
        let Self { description, load, keys, values, mix, scans, streams, groups, subjects, caches, http, jetstream } =
            self;
        let weights = mix.mix();
        if caches.is_some() && !weights.has(Kind::uses_cache) {
            return Err("caches: the mix has no cache_get, cache_put or cache_delete".to_owned());
        }
        let http = http.map(|table| table.resolve(&weights)).transpose()?;
        let feeds = FeedTables { streams, groups, subjects, jetstream }.resolve(&weights)?;
        let (keys, value_bytes) = keys_and_values(keys, values, &weights)?;
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
            keys,
            value_bytes,
            scan_rows,
            feeds,
            http,
            cache_bytes: caches.and_then(|caches| caches.max_bytes),
            mix: weights,
        })
    }
}

/// Returns the keys of a scenario and the range of the lengths of their values, from the tables `[keys]` and `[values]`
/// of its file. If the mix has operations on keys, the file must have both tables; otherwise it must have neither.
fn keys_and_values(
    keys: Option<KeysTable>,
    values: Option<ValuesTable>,
    mix: &Mix,
) -> Result<(Keys, RangeInclusive<usize>), String> {
    match (keys, values, mix.has(Kind::has_key)) {
        (Some(keys), Some(values), true) => {
            let is_ranked = matches!(keys.distribution, Distribution::Zipf | Distribution::Latest);
            if keys.theta.is_some() && !is_ranked {
                return Err("keys.theta: only the distributions zipf and latest have an exponent".to_owned());
            }
            let theta = keys.theta.unwrap_or(YCSB_EXPONENT);
            let bytes = range("values", "bytes", values.bytes, values.min_bytes, values.max_bytes)?;
            Ok((Keys { count: keys.count, distribution: keys.distribution, theta }, bytes))
        }
        (None, None, false) => {
            let none = Keys { count: 0, distribution: Distribution::Uniform, theta: YCSB_EXPONENT };
            Ok((none, HEAD_BYTES..=HEAD_BYTES))
        }
        (_, _, true) => Err("keys, values: the mix has operations on keys, which need both tables".to_owned()),
        (_, _, false) => Err("keys, values: the mix has no operation on keys: set mix.read, mix.update, mix.insert, \
                              mix.scan, mix.read_modify_write, mix.cache_get, mix.cache_put or mix.cache_delete"
            .to_owned()),
    }
}

/// Returns the range that a table of a scenario file gives, either as one value or as a minimum and a maximum.
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
#[path = "file_tests.rs"]
mod tests;
