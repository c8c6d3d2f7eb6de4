//! Tables in the report of a scenario.

use super::{
    mix::{Kind, Mix},
    work::Counts,
};
use crate::{
    latency::{Latencies, micros},
    load::{Outcome, Rounds},
    report::{Table, cells},
};

/// Returns the table with the figures of each kind of operation.
pub(super) fn operations(mix: &Mix, rounds: &Rounds<Counts>) -> Table {
    let title = "figures: medians of the rounds; response times from the moment an operation was due";
    let mut table = Table::new(title);
    for kind in std::iter::once(None).chain(mix.kinds().map(Some)) {
        let count = |outcome: &Outcome<Counts>| times(outcome, kind).count();
        let at = |percentile| {
            rounds.median(|outcome| match count(outcome) {
                0 => f64::NAN,
                _ => micros(times(outcome, kind).percentile(percentile)),
            })
        };
        table.row(cells! {
            "operation" => kind.map_or("all", Kind::name),
            "operations/s" => rounds.median(|outcome| count(outcome) as f64 / outcome.seconds),
            "p50 µs" => at(50.0), "p95 µs" => at(95.0), "p99 µs" => at(99.0), "p99.9 µs" => at(99.9),
            "max µs" => at(100.0), "count" => rounds.outcomes.iter().map(count).sum::<u64>(),
        });
    }
    table
}

/// Returns the response times of the operations of one kind; `None` means all kinds together.
pub(super) fn times(outcome: &Outcome<Counts>, kind: Option<Kind>) -> &Latencies {
    kind.map_or(&outcome.times, |kind| &outcome.tally.times[kind as usize])
}

/// Returns the table with the figures of the runs as a whole.
pub(super) fn run_table(rounds: &Rounds<Counts>, fsyncs_per_run: f64) -> Table {
    let (rate, operations) = (rounds.rate(), |outcome: &Outcome<Counts>| outcome.tally.all_right);
    let rows_of_scan = |outcome: &Outcome<Counts>| {
        let scans = outcome.tally.times[Kind::Scan as usize].count();
        if scans == 0 { f64::NAN } else { outcome.tally.own.rows as f64 / scans as f64 }
    };
    let misses = |outcome: &Outcome<Counts>| {
        let gets = outcome.tally.times[Kind::CacheGet as usize].count();
        if gets == 0 { f64::NAN } else { 100.0 * outcome.tally.own.misses as f64 / gets as f64 }
    };
    let mut table = Table::new("runs");
    table.row(cells! {
        "rounds" => rounds.outcomes.len(), "operations/s" => rate.median, "± MAD" => rate.mad,
        "lowest" => rate.min, "highest" => rate.max, "rows/scan" => rounds.median(rows_of_scan),
        "cache misses %" => rounds.median(misses),
        "lag p99 µs" => rounds.median(Outcome::lag_us),
        "stolen %" => rounds.median(Outcome::stolen_percent),
        "received MiB/s" => rounds.median(Outcome::received_mib), "sent MiB/s" => rounds.median(Outcome::sent_mib),
        "server CPU µs/operation" => rounds.median(|outcome| outcome.server_cpu(operations(outcome))),
        "generator CPU µs/operation" => rounds.median(|outcome| outcome.generator_cpu(operations(outcome))),
        "generator busy %" => rounds.busy_percent(),
        "server peak RSS MiB" => rounds.peak_rss(), "fsyncs/run" => fsyncs_per_run, "verdict" => rounds.verdict(),
    });
    table
}
