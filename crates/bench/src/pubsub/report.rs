//! The tables and checks of the subjects suite.

use std::time::Instant;

use thalweg_wire::{Batch, BatchWriter, Checksum};

use super::{
    options::PubsubOptions,
    publisher::SUBJECT,
    scenario::{Scenario, pace_name, policy_name},
    stage::Outcome,
    subscriber::judge,
    suite::Rounds,
};
use crate::{
    Report,
    latency::{Latencies, micros},
    load::{
        pace::Pace,
        search::{Objective, Trial},
        validity::{MAX_BUSY, Validity},
    },
    native::{
        check::{Account, Runs, Share},
        payload::{Depth, Head, Payloads},
        place::Carrier,
    },
    report::{Check, Table, cells, mebibytes},
    stats::{Summary, median, ratio},
};

/// Adds the conditions of the whole report.
pub fn conditions(report: &mut Report, options: &PubsubOptions, scenarios: &[Scenario]) {
    report.condition("durability", "none: subjects store nothing");
    report.condition("load", options.load.describe());
    let sizes: std::collections::BTreeSet<usize> = scenarios.iter().map(|scenario| scenario.payload_bytes).collect();
    let cost = |bytes: usize| {
        let depth = options.depth(bytes);
        format!(
            "{:.1} ns for {bytes} B ({})",
            checker_nanos(bytes, depth),
            if depth == Depth::Full { "every byte" } else { "head, end, a line" }
        )
    };
    report.condition("checking a message, alone", sizes.into_iter().map(cost).collect::<Vec<_>>().join(", "));
    let mut table = Table::new("conditions: publishers and subscriptions with their connections × streams");
    for scenario in scenarios {
        let acks = match scenario.in_flight {
            0 => "none".to_owned(),
            in_flight => format!("up to {in_flight} waited for"),
        };
        table.row(cells! {
            "scenario" => scenario.name.as_str(), "transport" => scenario.carrier.name(),
            "payload B" => scenario.payload_bytes, "batch" => u64::from(scenario.batch),
            "publishers" => scenario.publishers_name(), "subscriptions" => scenario.subscribers_name(),
            "acks" => acks, "policy" => policy_name(scenario.policy),
            "profile" => scenario.profile.map_or("as started", |profile| profile.name()),
            "pace" => scenario.pace_name(),
        });
    }
    report.tables.push(table);
}

/// Nanoseconds that checking and counting a message takes, alone: batches of 64 that lie in the processor's caches.
#[must_use]
pub fn checker_nanos(payload_bytes: usize, depth: Depth) -> f64 {
    const BATCH: u64 = 64;
    let payloads = Payloads::new(payload_bytes, 1, depth);
    let mut writer = BatchWriter::new(SUBJECT, b"").expect("the subject is short");
    let mut payload = Vec::with_capacity(payload_bytes);
    for sequence in 0..BATCH {
        payload.clear();
        payloads.put(Head { sequence, due: 1, publisher: 0 }, &mut payload);
        let _ = writer.push_payload(&payload);
    }
    let Some(shared) = writer.into_shared(Checksum::Without) else { return f64::NAN };
    let (mut runs, mut times) = (Runs::default(), Latencies::default());
    let begun = Instant::now();
    let mut messages = 0;
    while begun.elapsed().as_millis() < 20 {
        let Ok(batch) = Batch::decode(std::hint::black_box(&shared.bytes)) else { return f64::NAN };
        let mut account = Account::new(Share::All, 1);
        messages += judge(&batch, &payloads, &mut runs, |due, count| times.record_nanos_times(due, count));
        account.take(runs.all());
        std::hint::black_box(&account);
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}

/// The table of figures, which grows by a row at a time.
#[derive(Debug)]
pub struct Figures {
    table: Table,
    bound: Vec<String>,
}

impl Figures {
    /// Creates a table without rows.
    #[must_use]
    pub fn new() -> Self {
        let title = "figures: medians of the rounds; times of every delivery, from the moment its message was due (closed loop: \
                     composed, which says little)";
        Self { table: Table::new(title), bound: Vec::new() }
    }

    /// Adds a scenario's rounds; `last`: with the checks of its times, which are made at its last pace.
    pub fn add(&mut self, report: &mut Report, scenario: &Scenario, pace: Pace, rounds: &Rounds, last: bool) {
        let over = |figure: fn(&Outcome) -> f64| median(&rounds.over(figure));
        let quantile =
            |percentile: f64| median(&rounds.over(|outcome| micros(outcome.counts.times.percentile(percentile))));
        let rates = Summary::of(&rounds.rates());
        let busy = over(|outcome| 100.0 * outcome.busiest);
        let lag = over(|outcome| micros(outcome.counts.lag.percentile(99.0)));
        if pace == Pace::Closed && busy > 100.0 * MAX_BUSY {
            self.bound.push(format!("{} over {}", scenario.name, scenario.carrier.name()));
        }
        let validity = rounds.validity();
        let peak = rounds.outcomes.iter().filter_map(|outcome| outcome.server.peak_rss_bytes).max();
        self.table.row(cells! {
            "scenario" => scenario.name.as_str(), "transport" => scenario.carrier.name(), "pace" => pace_name(pace),
            "published/s" => rates.median / scenario.fan_out as f64, "deliveries/s" => rates.median,
            "± MAD" => rates.mad, "payload MB/s" => rates.median * scenario.payload_bytes as f64 / 1e6,
            "p50 µs" => quantile(50.0), "p90 µs" => quantile(90.0), "p99 µs" => quantile(99.0),
            "p99.9 µs" => quantile(99.9), "max µs" => quantile(100.0),
            "lag p99 µs" => Some(lag).filter(|_| pace != Pace::Closed),
            "server CPU s/M deliveries" => over(|outcome| outcome.cpu_per_million().0.unwrap_or(f64::NAN)),
            "generator CPU s/M deliveries" => over(|outcome| outcome.cpu_per_million().1),
            "generator busy %" => busy, "server peak RSS MiB" => mebibytes(peak),
            "dropped" => rounds.outcomes.iter().map(|outcome| outcome.dropped).sum::<u64>(),
            "bare stream MB/s" => median(&rounds.bare) / 1e6,
            "of bare, bytes that subscribers receive" => of_bare(rounds),
            "of bare, bytes that server and subscribers receive" => of_bare_received(scenario, rounds),
            "bare relay MB/s" => median(&rounds.relayed) / 1e6,
            "of relay, bytes that subscribers receive" => of_relay(rounds),
            "deliveries/s by round" => by_round(&rounds.rates()), "verdict" => validity.name(),
        });
        let what = format!("{}, {}, {}", scenario.name, scenario.carrier.name(), pace_name(pace));
        report.checks.push(Check::of_run(&what, "all delivered, rightly, in order", validity.clone()));
        if pace == scenario.pace {
            rate_check(report, scenario, rounds, &what);
        }
        if let (Some((p50, p99)), true, true) = (scenario.below, last, validity == Validity::Good) {
            report.checks.push(Check::below(format!("{what}: p50"), quantile(50.0), micros(p50), " µs"));
            report.checks.push(Check::below(format!("{what}: p99"), quantile(99.0), micros(p99), " µs"));
        }
    }

    /// Adds the check of an objective at a share of the knee.
    pub fn objective(
        &self,
        report: &mut Report,
        scenario: &Scenario,
        pace: Pace,
        rounds: &Rounds,
        objective: Objective,
    ) {
        let times = rounds.over(|outcome| micros(outcome.counts.times.percentile(objective.percentile)));
        let what = format!(
            "{}, {}, {}: p{} at 80 % of the knee",
            scenario.name,
            scenario.carrier.name(),
            pace_name(pace),
            objective.percentile
        );
        report.checks.push(Check::below(what, median(&times), micros(objective.bound), " µs"));
    }

    /// Puts the table into the report.
    pub fn finish(self, report: &mut Report) {
        report.tables.push(self.table);
        if !self.bound.is_empty() {
            report.notes.push(format!(
                "a load thread was the bottleneck in closed loop, so these rates are lower bounds of what the server can do: {}; \
                 try --workers 2",
                self.bound.join("; ")
            ));
        }
    }
}

impl Default for Figures {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the bytes that subscribers receive as a share of a bare stream's, as the median of the rounds' ratios.
fn of_bare(rounds: &Rounds) -> f64 {
    ratio(&rounds.over(|outcome| outcome.received_rate), &rounds.bare)
}

/// Returns the share of [`of_bare`] with the bytes that the server receives added, which are the published ones: a bare
/// stream, too, receives every byte once. Only payloads of the publishers' bytes are counted.
fn of_bare_received(scenario: &Scenario, rounds: &Rounds) -> f64 {
    let copies = scenario.fan_out as f64;
    let published = |outcome: &Outcome| outcome.deliveries_rate / copies * scenario.payload_bytes as f64;
    ratio(&rounds.over(|outcome| outcome.received_rate + published(outcome)), &rounds.bare)
}

/// Returns the bytes that subscribers receive as a share of a bare relay's to as many connections.
fn of_relay(rounds: &Rounds) -> f64 {
    ratio(&rounds.over(|outcome| outcome.received_rate), &rounds.relayed)
}

fn by_round(rates: &[f64]) -> String {
    rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ")
}

/// Over TCP a rate is held against a figure; over QUIC against that or the share of what the machine carries bare,
/// whichever is less. That share is asked in both readings that compare like with like: per received byte of one hop,
/// and of two hops.
fn rate_check(report: &mut Report, scenario: &Scenario, rounds: &Rounds, what: &str) {
    let rate = median(&rounds.rates());
    let share = scenario.bare_share.filter(|_| scenario.carrier == Carrier::Quic);
    let shares = [
        ("of a bare stream, per byte that server or subscribers receive", of_bare_received(scenario, rounds)),
        ("of a bare relay, per byte that subscribers receive", of_relay(rounds)),
    ];
    let reaches_share = share.is_some_and(|share| shares.iter().all(|(_, measured)| *measured >= share));
    match (scenario.floor, share) {
        (Some(floor), share) if rate >= floor || share.is_none() || !reaches_share => {
            report.checks.push(Check::at_least(format!("{what}: deliveries"), rate, floor, "/s"));
        }
        (_, Some(share)) => {
            for (name, measured) in shares {
                report.checks.push(Check::at_least(format!("{what}: {name}"), measured, share, " ×"));
            }
        }
        (_, None) => {}
    }
}

/// Creates a table for the runs of a search.
#[must_use]
pub fn trials(scenario: &Scenario, objective: Objective) -> Table {
    let title =
        format!("search for {objective}: {}, {}: climb, bisect, repeat", scenario.name, scenario.carrier.name());
    Table::new(title)
}

/// Adds a run of a search.
pub fn trial_row(table: &mut Table, rate: f64, outcome: &Outcome, trial: Trial) {
    let times = outcome.counts.times.quantiles();
    table.row(cells! {
        "offered msg/s" => rate, "deliveries/s" => outcome.deliveries_rate, "p50 µs" => times.p50_us,
        "p99 µs" => times.p99_us, "p99.9 µs" => times.p999_us, "max µs" => times.max_us,
        "lag p99 µs" => micros(outcome.counts.lag.percentile(99.0)), "generator busy %" => 100.0 * outcome.busiest,
        "outcome" => trial.name(&outcome.validity),
    });
}

/// Returns the percentile spectrum of a run.
#[must_use]
pub fn spectrum(outcome: &Outcome, pace: Pace) -> Table {
    let title = format!(
        "percentile spectrum of the last run ({}), {} deliveries",
        pace_name(pace),
        outcome.counts.times.count()
    );
    let mut table = Table::new(title);
    for line in outcome.counts.times.spectrum() {
        table.row(cells! {
            "percentile" => format!("{}", line.percentile), "end to end µs" => line.time_us,
            "deliveries at or below" => line.count,
        });
    }
    table
}
