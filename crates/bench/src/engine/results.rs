//! Measurements of the engine suite by test, durability level and store, and the tables made of them.
//!
//! Owns: the types of results, the numbers of operations at a scale, and the tables. Does not own: the measurements
//! (`workloads`, `compaction`, `stream`), or conclusions from them (`findings`).

use super::{subject::Level, timing::Measure};
use crate::{
    latency::{Latencies, micros},
    report::{self, Table, cells, duration, mebibytes, number, table},
    stats::{Summary, median, median_of, ratio},
};

/// A test of the suite, with the texts that describe it in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Name of the operation that the test measures.
    pub name: &'static str,
    /// Number and size of the test's operations at scale 1, as text for the report. Numbers in braces are multiplied by
    /// the scale of the run.
    pub parameters: &'static str,
    /// Figures of a published benchmark of another storage engine (row P of docs/performance.md): the published figure
    /// / the figure of that engine on a machine like ours. Empty if the benchmark has no such test.
    pub published: &'static str,
}

impl Test {
    /// Creates a test from its name, its parameters and the published figures, all as texts for reports.
    pub const fn new(name: &'static str, parameters: &'static str, published: &'static str) -> Self {
        Self { name, parameters, published }
    }
}

impl Test {
    /// Returns the number and size of the test's operations at this scale, as text.
    pub fn parameters_at(&self, scale: f64) -> String {
        counts_at(self.parameters, scale)
    }
}

/// Returns the number of operations that a test makes at this scale, if it makes `full` at scale 1.
pub(super) fn count_at(full: u64, scale: f64) -> u64 {
    ((full as f64 * scale) as u64).max(1)
}

/// Replaces each number in braces in a text, such as `{50k}` or `{2 M}`, by the number multiplied by `scale`.
pub(super) fn counts_at(text: &str, scale: f64) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once('}').expect("a brace is closed");
        let (digits, factor) = match (number.strip_suffix('k'), number.strip_suffix(" M")) {
            (Some(thousands), _) => (thousands, 1000),
            (_, Some(millions)) => (millions, 1_000_000),
            _ => (number, 1),
        };
        let full: u64 = digits.parse().expect("a number in braces");
        out.push_str(&short_count(count_at(full * factor, scale)));
        out.push_str(rest);
    }
    out
}

/// Formats a count exactly and as short as possible: `2 M`, `50k`, `1000`.
fn short_count(count: u64) -> String {
    match count {
        millions if millions >= 1_000_000 && millions.is_multiple_of(1_000_000) => {
            format!("{} M", millions / 1_000_000)
        }
        thousands if thousands >= 10_000 && thousands.is_multiple_of(1000) => format!("{}k", thousands / 1000),
        count => count.to_string(),
    }
}

/// All rounds of a test for one store, at one durability level.
#[derive(Clone, Debug)]
pub struct Row {
    /// The test that was run in all these rounds.
    pub test: Test,
    /// Number and size of the operations that ran, as text.
    pub parameters: String,
    /// Durability level of the writes.
    pub level: Level,
    /// Name of the measured store.
    pub contender: String,
    /// Measurements of the rounds, in order.
    pub rounds: Vec<Measure>,
}

impl Row {
    /// Returns the operations per second of each round.
    pub fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(Measure::rate).collect()
    }

    fn nanos(&self) -> Vec<f64> {
        self.rounds.iter().map(Measure::thread_nanos).collect()
    }
}

/// Disk space that a store used after a group of tests.
#[derive(Clone, Debug)]
pub struct Space {
    /// Name of the group of tests that ran just before.
    pub after: String,
    /// Name of the measured store.
    pub contender: String,
    /// Bytes of the keys and values that are not deleted.
    pub payload_bytes: u64,
    /// Bytes of the store's tables, or of its data file; `None` if they are not known.
    pub data_bytes: Option<u64>,
    /// Bytes of all files of the store, including journals and prepared log segments.
    pub allocated_bytes: u64,
    /// Number of the store's tables; `None` if it has no tables.
    pub tables: Option<u64>,
}

/// Number and size of a store's tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// Number of tables; `None` if the store has no tables.
    pub tables: Option<u64>,
    /// Bytes of the tables, or of the store's data file; `None` if they are not known.
    pub bytes: Option<u64>,
}

/// Effect of a compaction that the test requested.
#[derive(Clone, Debug)]
pub struct CompactionEffect {
    /// The test that requested the compaction.
    pub test: Test,
    /// Number and size of the pairs that the test wrote, as text.
    pub parameters: String,
    /// Name of the measured store.
    pub contender: String,
    /// Number and size of the store's tables before the compaction.
    pub before: Footprint,
    /// Number and size of the store's tables after the compaction.
    pub after: Footprint,
    /// Bytes of the keys and values that are not deleted.
    pub alive: u64,
    /// Results that another system's authors published for the same compaction (row P of docs/performance.md), as text.
    pub published: &'static str,
}

impl CompactionEffect {
    /// Returns the share of the disk space, from 0 to 1, that the compaction freed.
    pub fn saved(&self) -> f64 {
        let (Some(before), Some(after)) = (self.before.bytes, self.after.bytes) else { return f64::NAN };
        1.0 - after as f64 / before as f64
    }

    /// Returns the bytes on disk after the compaction, divided by the bytes of the keys and values that are not
    /// deleted.
    pub fn per_alive(&self) -> f64 {
        self.after.bytes.map_or(f64::NAN, |after| after as f64 / self.alive as f64)
    }
}

/// All measurements of the engine suite so far.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Rounds of each test on each store, in the order in which the tests were first measured.
    pub rows: Vec<Row>,
    /// Disk space for each test group and store, from the last round.
    pub space: Vec<Space>,
    /// Effects of the requested compactions for each test and store, from the last round.
    pub compacted: Vec<CompactionEffect>,
}

impl Results {
    /// Adds the measurement of one round. Returns a line that describes it, for the progress output. `parameters`
    /// describes the operations that ran.
    pub fn record(
        &mut self,
        test: Test,
        parameters: String,
        level: Level,
        contender: &str,
        measure: Measure,
    ) -> String {
        let line = format!(
            "{contender} {level}: {} ({parameters}): {}/s, p50 {}, p99 {}",
            test.name,
            number(measure.rate()),
            duration(measure.times.percentile(50.0)),
            duration(measure.times.percentile(99.0)),
        );
        match self.rows.iter_mut().find(|row| row.test == test && row.level == level && row.contender == contender) {
            Some(row) => row.rounds.push(measure),
            None => {
                let row = Row { test, parameters, level, contender: contender.to_owned(), rounds: vec![measure] };
                self.rows.push(row);
            }
        }
        line
    }

    /// Records a store's disk space after a group of tests. Replaces the record of an earlier round.
    pub fn record_space(&mut self, space: Space) {
        self.space.retain(|other| (&other.after, &other.contender) != (&space.after, &space.contender));
        self.space.push(space);
    }

    /// Records the effect of a compaction. Replaces the record of an earlier round.
    pub fn record_compacted(&mut self, compacted: CompactionEffect) {
        self.compacted.retain(|other| (other.test, &other.contender) != (compacted.test, &compacted.contender));
        self.compacted.push(compacted);
    }

    /// Returns all rounds of a test for one store at a durability level; `None` if the test was not run.
    pub fn find(&self, name: &str, level: Level, contender: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.test.name == name && row.level == level && row.contender.split(' ').next() == Some(contender)
        })
    }

    /// Creates the tables of figures and of disk space. `first` is the name of the store to which the other stores are
    /// compared.
    pub fn tables(&self, first: &str) -> Vec<Table> {
        let mut tables = Vec::new();
        for level in [Level::Interval, Level::Disk] {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.level == level).collect();
            if !rows.is_empty() {
                tables.push(self.figures(level, &rows, first));
                tables.push(costs(level, &rows));
                tables.extend(apart(level, &rows));
            }
        }
        if !self.space.is_empty() {
            tables.push(self.space_table());
        }
        if !self.compacted.is_empty() {
            tables.push(self.compacted_table());
        }
        tables
    }

    fn figures(&self, level: Level, rows: &[&Row], first: &str) -> Table {
        let title = format!("durability {level}, 1 thread: rates and times (of fast operations one in 16 is timed)");
        let mut table = Table::new(title);
        let mut done: Vec<(&str, &str)> = Vec::new();
        for row in rows {
            // The stores of a test are adjacent in the table, independent of the order in which they were measured.
            if done.contains(&(row.test.name, row.test.parameters)) {
                continue;
            }
            done.push((row.test.name, row.test.parameters));
            let together = rows.iter().filter(|other| other.test == row.test);
            let own = rows.iter().find(|other| other.test == row.test && other.contender == first);
            for row in together {
                table.row(figure_cells(row, own.copied()));
            }
        }
        table
    }

    fn space_table(&self) -> Table {
        let mut table = Table::new("space");
        for space in &self.space {
            let per_payload = space.data_bytes.map(|bytes| bytes as f64 / space.payload_bytes as f64);
            table.row(cells! {
                "after" => space.after.as_str(), "backend" => space.contender.as_str(),
                "payload MiB" => mebibytes(Some(space.payload_bytes)), "tables MiB" => mebibytes(space.data_bytes),
                "tables ÷ payload" => per_payload, "number of tables" => space.tables,
                "all files MiB (journal, prepared segments)" => mebibytes(Some(space.allocated_bytes)),
            });
        }
        table
    }
}

impl Results {
    fn compacted_table(&self) -> Table {
        let kilobytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / 1e3);
        table! {
            "compaction of everything, asked for"; compacted in &self.compacted;
            "test" => compacted.test.name, "parameters" => compacted.parameters.as_str(),
            "backend" => compacted.contender.as_str(), "tables before" => compacted.before.tables,
            "tables after" => compacted.after.tables, "KB before" => kilobytes(compacted.before.bytes),
            "KB after" => kilobytes(compacted.after.bytes),
            "saved" => format!("{:.1} %", 100.0 * compacted.saved()),
            "alive KB" => compacted.alive as f64 / 1e3, "after ÷ alive" => compacted.per_alive(),
            "published" => compacted.published,
        }
    }
}

fn figure_cells(row: &Row, own: Option<&Row>) -> report::Row {
    let (rates, times) = (Summary::of(&row.rates()), Latencies::sum(row.rounds.iter().map(|round| &round.times)));
    let at = |percentile| micros(times.percentile(percentile));
    let longest = row.rounds.iter().map(|round| round.longest).max().unwrap_or_default();
    let reads = row.rounds.iter().filter_map(|round| Some((round.hits?, round.operations)));
    let other = own.filter(|own| own.contender != row.contender);
    let hits: Vec<f64> = reads.map(|(hits, operations)| hits as f64 / operations as f64).collect();
    cells! {
        "test" => row.test.name, "parameters" => row.parameters.as_str(), "backend" => row.contender.as_str(),
        "operations/s" => rates.median, "± MAD" => rates.mad, "p50 µs" => at(50.0), "p90 µs" => at(90.0),
        "p95 µs" => at(95.0),
        "p99 µs" => at(99.0), "p99.9 µs" => at(99.9), "longest µs" => micros(longest),
        "thread CPU ns/operation" => median(&row.nanos()),
        "hits" => hits.last().map(|share| format!("{:.1} %", share * 100.0)),
        "thalweg ÷ this" => other.map(|own| ratio(&own.rates(), &row.rates())),
        "by thread CPU" => other.map(|own| ratio(&row.nanos(), &own.nanos())),
        "published / here" => row.test.published,
    }
}

/// Creates the table that shows the times of reads and of writes separately, for the tests that mix both. `None` if no
/// such test was run.
fn apart(level: Level, rows: &[&Row]) -> Option<Table> {
    let mut table = Table::new(format!("durability {level}, 1 thread: reads and writes of a mix apart"));
    for row in rows {
        let of = |is_read: bool| {
            let times = row.rounds.iter().filter_map(|round| round.apart.as_ref());
            Latencies::sum(times.map(|apart| if is_read { &apart.reads } else { &apart.writes }))
        };
        for (name, times) in
            [("read", of(true)), ("write", of(false))].into_iter().filter(|(_, times)| times.count() > 0)
        {
            let at = |percentile| micros(times.percentile(percentile));
            table.row(cells! {
                "test" => row.test.name, "backend" => row.contender.as_str(), "operation" => name,
                "timed" => times.count(), "p50 µs" => at(50.0), "p90 µs" => at(90.0), "p95 µs" => at(95.0),
                "p99 µs" => at(99.0), "p99.9 µs" => at(99.9), "max µs" => at(100.0),
            });
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn costs(level: Level, rows: &[&Row]) -> Table {
    let mut table = Table::new(format!("durability {level}, 1 thread: cost"));
    for row in rows {
        let Some(last) = row.rounds.last() else { continue };
        table.row(cells! {
            "test" => row.test.name, "backend" => row.contender.as_str(), "operations" => last.operations,
            "rounds" => row.rounds.len(),
            "payload B/operation" => last.payload_bytes as f64 / last.operations as f64,
            "CPU µs/operation" => median_of(&row.rounds, |round| round.cost.cpu_seconds * 1e6 / round.operations as f64),
            "fsyncs" => last.cost.fsyncs,
            "written B/payload B" => median_of(&row.rounds, written_per_payload),
            "peak RSS MiB" => mebibytes(last.cost.peak_rss_bytes),
        });
    }
    table
}

fn written_per_payload(round: &Measure) -> f64 {
    round.cost.written_bytes.map_or(f64::NAN, |bytes| bytes as f64) / round.payload_bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_that_run() {
        for (scale, wanted) in [(1.0, "50k of 2 M × 100 B"), (0.2, "10k of 400k × 100 B"), (0.0001, "5 of 200 × 100 B")]
        {
            assert_eq!(counts_at("{50k} of {2 M} × 100 B", scale), wanted);
        }
        assert_eq!(counts_at("{1000} queries", 1.0), "1000 queries");
        assert_eq!(counts_at("{1000} queries", 0.00001), "1 queries", "a test runs at least once");
        assert_eq!(counts_at("5 × {1000} keys", 0.5), "5 × 500 keys");
    }
}
