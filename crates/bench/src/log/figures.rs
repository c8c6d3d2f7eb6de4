//! Results of the log suite's measurements, their tables, and the checks of required results. A measurement of one
//! combination of parameters is called a cell.

use super::{
    cells::{Cell, Purpose, RunAs},
    round::Round,
};
use crate::{
    latency::{Latencies, micros},
    probe::{Probed, steadiness},
    report::{Check, Table, number, table},
    stats::{Summary, median, ratio},
};

/// All rounds of one measured combination of parameters (a cell). Each round also has the result of the disk probe that
/// ran right before it.
pub(super) struct CellRounds {
    pub(super) cell: Cell,
    pub(super) probes: Vec<Probed>,
    pub(super) rounds: Vec<Round>,
}

impl CellRounds {
    fn rates(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.rate).collect()
    }

    fn probe_rates(&self) -> Vec<f64> {
        self.probes.iter().map(|probed| probed.rate).collect()
    }

    fn times(&self) -> Latencies {
        Latencies::sum(self.rounds.iter().map(|round| &round.times))
    }

    fn probe_times(&self) -> Latencies {
        Latencies::sum(self.probes.iter().map(|probed| &probed.times))
    }

    fn of_probe(&self) -> f64 {
        ratio(&self.rates(), &self.probe_rates())
    }

    pub(super) fn fsyncs(&self) -> u64 {
        self.rounds.iter().filter_map(|round| round.cost.fsyncs).sum()
    }

    /// Describes the measured combination of parameters and its rate in one line, for the progress output.
    pub(super) fn line(&self) -> String {
        let (cell, times) = (&self.cell, self.times());
        format!(
            "{} writers ({}) × {} × {} B, {}: {} records/s, p50 {} µs, p99 {} µs, {} × probe",
            cell.writers,
            cell.run_as.name(),
            cell.batch,
            cell.payload,
            cell.level,
            number(median(&self.rates()) * cell.batch as f64),
            number(micros(times.percentile(50.0))),
            number(micros(times.percentile(99.0))),
            number(self.of_probe()),
        )
    }
}

pub(super) fn table(purpose: Purpose, rows: &[&CellRounds]) -> Table {
    table! {
        purpose.title(); row in rows;
        let (cell, rates, times, fsyncs) = (&row.cell, Summary::of(&row.rates()), row.times(), row.fsyncs());
        let appends = times.count() as f64;
        let cpu_seconds = row.rounds.iter().map(|round| round.cost.cpu_seconds).sum::<f64>();
        let written = row.rounds.iter().map(|round| round.cost.written_bytes).sum::<Option<u64>>();
        let payload = appends * (cell.batch * cell.payload) as f64;
        let ms = |times: &Latencies, percentile| micros(times.percentile(percentile)) / 1e3;
        "durability" => cell.level.name(), "writers" => cell.writers, "as" => cell.run_as.name(),
        "batch" => cell.batch, "record B" => cell.payload, "records/s" => rates.median * cell.batch as f64,
        "batches/s" => rates.median,
        "± MAD" => rates.mad * cell.batch as f64, "p50 ms" => ms(&times, 50.0), "p95 ms" => ms(&times, 95.0),
        "p99 ms" => ms(&times, 99.0),
        "p99.9 ms" => ms(&times, 99.9), "max ms" => ms(&times, 100.0),
        "probe writes/s" => median(&row.probe_rates()), "probe p50 ms" => ms(&row.probe_times(), 50.0),
        "appends of probe" => row.of_probe(), "CPU µs/append" => cpu_seconds * 1e6 / appends,
        "fsyncs" => fsyncs, "appends/fsync" => appends / fsyncs as f64,
        "written B/payload B" => written.map(|bytes| bytes as f64 / payload),
    }
}

/// Compares the figures of the measured cells with the required ones.
pub(super) fn checks(measured: &[CellRounds]) -> Vec<Check> {
    let find_as = |run_as, writers, batch, payload| {
        measured.iter().find(|row| {
            let cell = &row.cell;
            let shape = (cell.run_as, cell.writers, cell.batch, cell.payload);
            cell.purpose == Purpose::Required && shape == (run_as, writers, batch, payload)
        })
    };
    let find = |writers, batch, payload| find_as(RunAs::Threads, writers, batch, payload);
    let of_probe = |batch, payload, what: &str, required| {
        find(1, batch, payload).map(|row| Check::at_least(what, row.of_probe(), required, " ×"))
    };
    let mut checks = Vec::new();
    checks.extend(of_probe(1, 100, "1 writer, 100 B, disk: appends of the probe's", 0.85));
    checks.extend(of_probe(1, 1024, "1 writer, 1 KB, disk: appends of the probe's", 0.85));
    for run_as in [RunAs::Threads, RunAs::Tasks] {
        let (Some(one), Some(many)) = (find(1, 1, 1024), find_as(run_as, 64, 1, 1024)) else { continue };
        let name = format!("64 writers ({}), 1 KB, disk", run_as.name());
        let gain = median(&many.rates()) / median(&one.rates());
        checks.push(Check::at_least(format!("{name}: appends of one writer's"), gain, 20.0, " ×"));
        let p99 = micros(many.times().percentile(99.0)) / micros(many.probe_times().percentile(50.0));
        checks.push(Check::below(format!("{name}: p99 in median fdatasyncs"), p99, 4.0, " ×"));
    }
    checks.extend(of_probe(1024, 1024, "1 MiB batches (1024 × 1 KB), disk: bytes/s of the probe's", 0.75));
    checks.extend(of_probe(1, 1 << 20, "1 MiB batches (1 record), disk: bytes/s of the probe's", 0.75));
    checks.extend(unsteadiest_probe(measured));
    checks
}

/// Creates the check that the disk was steady during all measurements. It uses the measurement in which the raw probe's
/// rounds deviate most from their median. Probes without syncs are left out, because they measure memory and not the
/// disk.
fn unsteadiest_probe(measured: &[CellRounds]) -> Option<Check> {
    let deviation = |row: &&CellRounds| {
        let rates = Summary::of(&row.probe_rates());
        rates.mad / rates.median
    };
    let synced = measured.iter().filter(|row| row.cell.level.waits_for_sync());
    let worst = synced.max_by(|a, b| deviation(a).total_cmp(&deviation(b)))?;
    let what = format!("raw probe of {} B at disk", worst.cell.batch * worst.cell.payload);
    steadiness(what, &worst.probe_rates(), "/s")
}
