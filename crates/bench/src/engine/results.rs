//! Measurements by test, level and contender; and the tables made of them.

use super::{subject::Level, timing::Measure};
use crate::{
    latency::{Latencies, micros},
    report::{self, Table, cells, duration, mebibytes, number, table},
    stats::{Summary, median, median_of, ratio},
};

/// A line of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Name of the operation.
    pub name: &'static str,
    /// Count and size of the operations.
    pub parameters: &'static str,
    /// Figures that row P's system published / reached on a machine like ours; empty if it has no such test.
    pub published: &'static str,
}

impl Test {
    /// A test of row P.
    pub const fn new(name: &'static str, parameters: &'static str, published: &'static str) -> Self {
        Self { name, parameters, published }
    }
}

/// All rounds of a test for one contender.
#[derive(Clone, Debug)]
pub struct Row {
    /// The test.
    pub test: Test,
    /// The level.
    pub level: Level,
    /// Name of the contender.
    pub contender: String,
    /// Measures of the rounds, in order.
    pub rounds: Vec<Measure>,
}

impl Row {
    /// Rates of the rounds.
    pub fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(Measure::rate).collect()
    }

    fn nanos(&self) -> Vec<f64> {
        self.rounds.iter().map(Measure::thread_nanos).collect()
    }
}

/// Space used after a group of tests.
#[derive(Clone, Debug)]
pub struct Space {
    /// The group of tests before.
    pub after: &'static str,
    /// Name of the contender.
    pub contender: String,
    /// Bytes of keys and values that are alive.
    pub payload_bytes: u64,
    /// Bytes of tables or of the data file.
    pub data_bytes: Option<u64>,
    /// Bytes of all files, journals and prepared segments included.
    pub allocated_bytes: u64,
    /// Number of tables.
    pub tables: Option<u64>,
}

/// Number and size of the tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// Number of tables.
    pub tables: Option<u64>,
    /// Bytes of them, or of the data file.
    pub bytes: Option<u64>,
}

/// Effect of a compaction that was asked for.
#[derive(Clone, Debug)]
pub struct CompactionEffect {
    /// The test.
    pub test: Test,
    /// Name of the contender.
    pub contender: String,
    /// Tables before the compaction.
    pub before: Footprint,
    /// Tables after the compaction.
    pub after: Footprint,
    /// Bytes of the keys and values that are left.
    pub alive: u64,
    /// Figures that row P's system published.
    pub published: &'static str,
}

impl CompactionEffect {
    /// Returns the share of the space that the compaction freed.
    pub fn saved(&self) -> f64 {
        let (Some(before), Some(after)) = (self.before.bytes, self.after.bytes) else { return f64::NAN };
        1.0 - after as f64 / before as f64
    }

    /// Returns the bytes that are left, divided by those alive.
    pub fn per_alive(&self) -> f64 {
        self.after.bytes.map_or(f64::NAN, |after| after as f64 / self.alive as f64)
    }
}

/// All measurements so far.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Rows in the order of first measurement.
    pub rows: Vec<Row>,
    /// Space by group and contender, of the last round.
    pub space: Vec<Space>,
    /// Compactions by test and contender, of the last round.
    pub compacted: Vec<CompactionEffect>,
}

impl Results {
    /// Adds a round; returns a line for the progress.
    pub fn record(&mut self, test: Test, level: Level, contender: &str, measure: Measure) -> String {
        let line = format!(
            "{contender} {level}: {} ({}): {}/s, p50 {}, p99 {}",
            test.name,
            test.parameters,
            number(measure.rate()),
            duration(measure.times.percentile(50.0)),
            duration(measure.times.percentile(99.0)),
        );
        match self.rows.iter_mut().find(|row| row.test == test && row.level == level && row.contender == contender) {
            Some(row) => row.rounds.push(measure),
            None => {
                let row = Row { test, level, contender: contender.to_owned(), rounds: vec![measure] };
                self.rows.push(row);
            }
        }
        line
    }

    /// Records the space after a group; replaces an earlier round's.
    pub fn record_space(&mut self, space: Space) {
        self.space.retain(|other| (other.after, &other.contender) != (space.after, &space.contender));
        self.space.push(space);
    }

    /// Records a compaction; replaces an earlier round's.
    pub fn record_compacted(&mut self, compacted: CompactionEffect) {
        self.compacted.retain(|other| (other.test, &other.contender) != (compacted.test, &compacted.contender));
        self.compacted.push(compacted);
    }

    /// Returns the row of a test at a level.
    pub fn find(&self, name: &str, level: Level, contender: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.test.name == name && row.level == level && row.contender.split(' ').next() == Some(contender)
        })
    }

    /// The tables of figures and of space. `first` is whom the others are compared with.
    pub fn tables(&self, first: &str) -> Vec<Table> {
        let mut tables = Vec::new();
        for level in [Level::Interval, Level::Disk] {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.level == level).collect();
            if !rows.is_empty() {
                tables.push(self.figures(level, &rows, first));
                tables.push(costs(level, &rows));
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
            // One test's contenders stand together, whenever they were first measured.
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
                "after" => space.after, "backend" => space.contender.as_str(),
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
            "test" => compacted.test.name, "parameters" => compacted.test.parameters,
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
        "test" => row.test.name, "parameters" => row.test.parameters, "backend" => row.contender.as_str(),
        "operations/s" => rates.median, "± MAD" => rates.mad, "p50 µs" => at(50.0), "p90 µs" => at(90.0),
        "p99 µs" => at(99.0), "p99.9 µs" => at(99.9), "longest µs" => micros(longest),
        "thread CPU ns/operation" => median(&row.nanos()),
        "hits" => hits.last().map(|share| format!("{:.1} %", share * 100.0)),
        "thalweg ÷ this" => other.map(|own| ratio(&own.rates(), &row.rates())),
        "by thread CPU" => other.map(|own| ratio(&row.nanos(), &own.nanos())),
        "published / here" => row.test.published,
    }
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
