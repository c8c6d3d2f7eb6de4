//! Texts of a scenario's report: the conditions of the runs, and a sentence about the rounds.
//!
//! Owns: these texts. Does not own: the tables (`tables`), or the checks (`suite`).

use std::time::Duration;

use super::{
    feed_tables::Storage,
    file::{Distribution, Scenario},
    mix::Kind,
    protocols::WireProtocol,
    suite::{Subject, Suite},
    work::Counts,
};
use crate::{
    Report,
    figures::SampledLoad,
    load::{
        Pace, Rounds, Timeline, Validity,
        feeds::{FeedSizes, ReadFrom},
    },
    report::{duration, number},
};

/// Durability of the writes to a cache.
pub(super) const CACHED: &str = "none: a cache in memory";
/// Durability of messages over core NATS.
pub(super) const NOT_STORED: &str = "none: core NATS stores no messages";

impl Suite {
    /// Describes the durability of the scenario's writes.
    pub(super) fn durability<C>(&self, subject: &Subject<C>) -> String {
        let without = if self.options.protocol() == WireProtocol::Nats { NOT_STORED } else { "without writes" };
        self.level_of_writes(subject).unwrap_or_else(|| without.to_owned())
    }

    /// Returns the durability level of the scenario's writes; `None` without writes.
    fn level_of_writes<C>(&self, subject: &Subject<C>) -> Option<String> {
        let mix = &self.scenario.mix;
        // Over RESP the level is that of the selected database, even if the database is a cache.
        let is_cached = |kind: Kind| kind.uses_cache() && self.options.protocol() != WireProtocol::Resp;
        if mix.has(|kind| kind.writes() && !is_cached(kind)) {
            return Some(subject.durability.clone());
        }
        mix.has(Kind::writes).then(|| CACHED.to_owned())
    }

    /// Returns the description of the load for comparisons, with the durability level of its writes. It contains
    /// everything that must be equal for a comparison. The server and its protocol are left out, because they may
    /// differ.
    pub(super) fn sampled<C>(&self, subject: &Subject<C>) -> SampledLoad {
        let Scenario { load, keys, mix, .. } = &self.scenario;
        let mut words = format!(
            "{}, {}, {}, {} connections",
            self.options.name(),
            mix.describe(),
            self.scenario.pace().name("/s"),
            load.connections
        );
        if mix.has(Kind::has_key) {
            let bytes = ends(self.scenario.value_bytes.start(), self.scenario.value_bytes.end());
            words += &format!(", {} keys {}, {bytes} B values", keys.count, self.spread());
        }
        if let Some(bytes) = self.scenario.cache_bytes {
            words += &format!(", a cache of {bytes} B");
        }
        if mix.share(Kind::Scan) > 0.0 {
            words += &format!(", {}", self.scans());
        }
        let FeedSizes { record_bytes, batch, message_bytes, messages, .. } = self.scenario.feeds.sizes;
        if mix.has(Kind::uses_stream) {
            words += &format!(", {batch} records of {record_bytes} B to an append");
        }
        if mix.share(Kind::Publish) > 0.0 {
            let subscribers = self.scenario.feeds.subscribers;
            words += &format!(", {messages} messages of {message_bytes} B to a publish, {subscribers} subscribers");
        }
        let [duration, warmup] = [load.duration, load.warmup].map(|time| time.as_secs_f64());
        words += &format!(", runs of {duration} s after {warmup} s of warm-up");
        let durability = self.level_of_writes(subject).unwrap_or_else(|| "-".to_owned());
        SampledLoad { scenario: words, durability, pace: self.scenario.pace(), unit: "operation" }
    }

    /// Describes in words how the operations are distributed over the keys.
    fn spread(&self) -> String {
        let keys = &self.scenario.keys;
        match keys.distribution {
            Distribution::Uniform => "uniform".to_owned(),
            Distribution::Zipf => format!("zipf {} over the loaded keys, scattered", keys.theta),
            Distribution::Latest => format!("latest: zipf {} over the age of a key, inserted ones too", keys.theta),
            Distribution::Sequential => "sequential".to_owned(),
        }
    }

    /// Adds the conditions of the runs to the report.
    pub(super) fn describe<C>(&self, subject: &Subject<C>, report: &mut Report) {
        let Scenario { description, load, mix, .. } = &self.scenario;
        report.condition("scenario", format!("{}: {description}", self.options.name()));
        report.condition("server", subject.name.clone());
        if let Some(target) = &subject.target {
            report.condition("server build", target.build());
        }
        report.condition("protocol", self.options.protocol().name());
        if let Some(client) = self.options.protocol().client() {
            let how = "a load thread reaches them over a pair of sockets, and their time is the generator's";
            report.condition("client threads", format!("{}, on which {client}; {how}", load.threads));
        }
        report.condition("durability", self.durability(subject));
        report.condition(
            "load",
            format!(
                "{}, {} connections, {} threads in this process, {} s after {} s of warm-up, {} rounds; seed {}",
                match &self.options.search {
                    Some(_) => "a search over rates".to_owned(),
                    None => self.scenario.pace().name("/s"),
                },
                load.connections,
                load.threads,
                load.duration.as_secs_f64(),
                load.warmup.as_secs_f64(),
                self.options.rounds,
                self.options.seed
            ),
        );
        report.condition("windows", Timeline::describe(load.duration, self.options.window));
        if mix.has(Kind::has_key) {
            self.describe_keys(subject, report);
        }
        if mix.has(Kind::uses_cache) {
            self.describe_cache(report);
        }
        self.describe_feeds(report);
        let scans = if mix.share(Kind::Scan) > 0.0 { format!("; {}", self.scans()) } else { String::new() };
        report.condition("mix", format!("{}{scans}", mix.describe()));
    }

    fn scans(&self) -> String {
        let rows = &self.scenario.scan_rows;
        format!("scans of {} rows", ends(rows.start(), rows.end()))
    }

    fn describe_keys<C>(&self, subject: &Subject<C>, report: &mut Report) {
        let Scenario { keys, value_bytes, .. } = &self.scenario;
        let spread = self.spread();
        let loaded = match self.scenario.mix.has(Kind::uses_keyspace) {
            true => format!("loaded with {}", subject.loaded),
            false => "put into the cache before the runs".to_owned(),
        };
        report.condition("keys", format!("{} of 14 B, {loaded}; {spread}", keys.count));
        let bytes = ends(value_bytes.start(), value_bytes.end());
        report.condition("values", format!("one blob of {bytes} B each"));
        let templates = self.scenario.http.as_ref().filter(|_| self.options.protocol() == WireProtocol::Http);
        let is_checked = templates.is_none_or(|templates| templates.reply.values() > 0);
        let check = match is_checked {
            true => {
                "each value read was written to its key, and is not older than the last write acknowledged before the read"
            }
            false => "the status of each reply; no value, because http.reply has no place for one",
        };
        report.condition("check", check);
        if templates.is_some() {
            report.condition("requests", "those of the file's table [http]");
        }
    }

    fn describe_cache(&self, report: &mut Report) {
        let size = match self.scenario.cache_bytes {
            Some(bytes) => format!("{bytes} B"),
            None => "the server's size for new caches".to_owned(),
        };
        report.condition(
            "cache",
            format!("{size}; a read that finds nothing is a miss, which counts apart and is right"),
        );
    }

    fn describe_feeds(&self, report: &mut Report) {
        let (mix, feeds) = (&self.scenario.mix, &self.scenario.feeds);
        let sizes = &feeds.sizes;
        if mix.has(Kind::uses_stream) {
            let from = match sizes.read_from {
                ReadFrom::Tail => "each reader continues where it stopped, from the tail on",
                ReadFrom::Start => "each reader continues where it stopped, from the first record on",
                ReadFrom::Random => "each read begins at any record",
            };
            report.condition(
                "stream",
                format!(
                    "records of {} B, {} appended before the runs; appends of {}, reads of at most {}, {from}",
                    sizes.record_bytes, feeds.records, sizes.batch, sizes.read_records
                ),
            );
            if self.options.protocol() == WireProtocol::Jetstream {
                let place = match feeds.storage {
                    Storage::File => "files",
                    Storage::Memory => "memory",
                };
                report.condition("stream on the server", format!("in {place}, one replica"));
            }
            report.condition(
                "check of records",
                "each record read or fetched is the one that was acknowledged at its offset; after the runs the stream is read as a whole",
            );
        }
        if mix.share(Kind::Fetch) > 0.0 {
            let group = "one group; a fetch of at most {} records and the ack of all of them are one operation";
            report.condition("group", group.replace("{}", &sizes.fetch_records.to_string()));
        }
        if mix.share(Kind::Publish) > 0.0 {
            let FeedSizes { message_bytes, messages, .. } = sizes;
            let order = match self.options.protocol().is_nats() {
                true => "; the order of each publisher is checked, since NATS keeps no other",
                false => "",
            };
            report.condition(
                "subject",
                format!(
                    "messages of {message_bytes} B, {messages} to a publish, {} subscribers on a thread of their own; at most \
                     once{order}",
                    feeds.subscribers
                ),
            );
        }
    }

    /// Describes the results of all rounds of a scenario in a sentence.
    pub(super) fn sentence<C>(&self, subject: &Subject<C>, rounds: &Rounds<Counts>) -> String {
        let at_least = if rounds.is_lower_bound() { "at least " } else { "" };
        let (name, rate) = (self.options.name(), format!("{at_least}{}", number(rounds.rate().median)));
        if rounds.validity() != Validity::Good {
            return format!("{name}: not a valid run, {}.", rounds.validity().verdict().0);
        }
        let time = |percentile| duration(Duration::from_nanos((rounds.time_us(percentile) * 1e3) as u64));
        let how = format!("{} connections; durability: {}", self.scenario.load.connections, self.durability(subject));
        match self.scenario.pace() {
            Pace::Open { .. } => format!(
                "{name} ({how}): at {rate} operations/s half of the operations were answered within {} of their scheduled \
                 moment, 99 % within {}, and the slowest within {}.",
                time(50.0),
                time(99.0),
                time(100.0)
            ),
            Pace::Closed | Pace::Each { .. } => format!(
                "{name} ({how}): {rate} operations/s, each connection sending its next request after a reply; the times of \
                 such a run say little."
            ),
        }
    }
}

fn ends<T: PartialEq + std::fmt::Display>(start: T, end: T) -> String {
    if start == end { start.to_string() } else { format!("{start} to {end}") }
}
