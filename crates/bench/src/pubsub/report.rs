//! The tables and checks of the subjects suite.
//!
//! Owns: the figures of all rounds of a scenario, and the tables and checks made of them. Does not own: the order of
//! the runs (`suite`), or the plots, which the suite draws.

use std::{collections::BTreeMap, time::Instant};

use thalweg_wire::{Batch, BatchWriter, Checksum};

use super::{
    batch::SUBJECT,
    options::PubsubOptions,
    recorder::{Deliveries, Outcome},
    scenario::{Scenario, pace_name},
    subscriber::judge,
};
use crate::{
    Report,
    account::{Account, cost_row, cost_table},
    figures::SampledLoad,
    latency::{Latencies, micros},
    load::{self, MAX_BUSY, Objective, Pace, Trial, Validity},
    native::{Depth, Head, Payloads, Runs, Share, SubscriberAccount, TransportKind},
    report::{Check, Table, cells, table},
    server::{Stages, add_stages},
    stats::{median, ratio},
};

/// Figures of the rounds of one scenario, and of the machine's loopback speed, measured without a server before each
/// round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Results of the scenario's rounds.
    pub own: load::Rounds<Deliveries>,
    /// Bytes per second of a raw loopback stream without a server, measured before each round.
    pub bare: Vec<f64>,
    /// Speed of a raw relay without a server, measured before each round: the bytes per second of all its receivers
    /// together. It has as many receivers as the scenario has connections that subscribe.
    pub relayed: Vec<f64>,
    /// Increase of the server's own metrics over the rounds.
    pub account: Account,
}

/// Adds to the report the conditions that are the same for all its scenarios.
pub(super) fn conditions(report: &mut Report, options: &PubsubOptions, scenarios: &[Scenario]) {
    report.condition("durability", "none: subjects store nothing");
    report.condition("load", options.load.describe());
    report.condition("windows", options.load.describe_windows());
    let sizes: BTreeMap<usize, Depth> =
        scenarios.iter().map(|scenario| (scenario.options.payload, scenario.options.depth())).collect();
    let cost = |(bytes, depth): (usize, Depth)| {
        let compared = if depth == Depth::Full { "every byte" } else { "head, end, a line" };
        format!("{:.1} ns for {bytes} B ({compared})", checker_nanos(bytes, depth))
    };
    report.condition("checking a message, alone", sizes.into_iter().map(cost).collect::<Vec<_>>().join(", "));
    report.tables.push(table! {
        "conditions: publishers and subscriptions with their connections × streams";
        Scenario { name, carrier, options, .. } in scenarios;
        let acks = match options.in_flight {
            0 => "none".to_owned(),
            in_flight => format!("up to {in_flight} waited for"),
        };
        let subscriptions = match options.queue_members {
            0 => format!("{}", options.fan_out),
            members => format!("{} groups of {members}", options.fan_out),
        };
        "scenario" => name.as_str(), "transport" => carrier.name(), "payload B" => options.payload,
        "batch" => u64::from(options.batch),
        "publishers" => format!("{} on {}", options.publishers, options.publish()),
        "subscriptions" => format!("{subscriptions} on {}", options.subscribe()), "acks" => acks,
        "policy" => options.policy.name(),
        "profile" => options.server_profile.map_or("as started", |profile| profile.name()),
        "pace" => pace_name(options),
    });
}

/// Returns the time in nanoseconds that checking and counting one message takes. It is measured without a server, on
/// batches of 64 messages in the processor's caches.
pub(super) fn checker_nanos(payload_bytes: usize, depth: Depth) -> f64 {
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
        let mut account = SubscriberAccount::new(Share::All, 1);
        messages += judge(&batch, &payloads, &mut runs, |due, count| times.record_nanos_times(due, count));
        account.take(runs.all());
        std::hint::black_box(&account);
    }
    begun.elapsed().as_nanos() as f64 / messages as f64
}

/// Table of the measured results. Each scenario adds a row to it.
#[derive(Debug)]
pub(super) struct Figures {
    table: Table,
    bound: Vec<String>,
    costs: Table,
    stages: Vec<Stages>,
}

impl Figures {
    /// Creates the table of results with its columns, before any scenario has added a row.
    pub(super) fn new() -> Self {
        let title = "figures: medians of the rounds; times of every delivery, from the moment its message was due (closed loop: \
                     composed, which says little)";
        Self { table: Table::new(title), bound: Vec::new(), costs: cost_table(), stages: Vec::new() }
    }

    /// Adds a scenario's rounds to the table, and their checks to the report. If a search for the highest rate follows,
    /// leaves out the checks of times.
    pub(super) fn add(&mut self, report: &mut Report, scenario: &Scenario, rounds: &Rounds) {
        let (own, Scenario { name, carrier, options, .. }) = (&rounds.own, scenario);
        let (rate, busy, validity) = (own.rate(), own.busy_percent(), own.validity());
        if options.pace() == Pace::Closed && busy > 100.0 * MAX_BUSY {
            self.bound.push(format!("{name} over {}", carrier.name()));
        }
        self.table.row(cells! {
            "scenario" => name.as_str(), "transport" => carrier.name(), "pace" => pace_name(options),
            "published/s" => rate.median / options.fan_out as f64, "deliveries/s" => rate.median,
            "± MAD" => rate.mad,
            "published batches/s" => batches_rate(options, rate.median),
            "payload MB/s" => rate.median * options.payload as f64 / 1e6,
            "p50 µs" => own.time_us(50.0), "p90 µs" => own.time_us(90.0), "p95 µs" => own.time_us(95.0),
            "p99 µs" => own.time_us(99.0),
            "p99.9 µs" => own.time_us(99.9), "max µs" => own.time_us(100.0),
            "lag p99 µs" => own.median(|outcome| outcome.lag_us()),
            "server CPU s/M deliveries" => own.median(|outcome| outcome.server_cpu(outcome.tally.all_right)),
            "generator CPU s/M deliveries" => own.median(|outcome| outcome.generator_cpu(outcome.tally.all_right)),
            "generator busy %" => busy, "server peak RSS MiB" => own.peak_rss(),
            "dropped" => own.outcomes.iter().map(|outcome| outcome.tally.own.dropped()).sum::<u64>(),
            "bare stream MB/s" => median(&rounds.bare) / 1e6,
            "of bare, bytes that subscribers receive" => ratio(&rounds.received(), &rounds.bare),
            "of bare, bytes that server and subscribers receive" => rounds.of_bare_received(options),
            "bare relay MB/s" => median(&rounds.relayed) / 1e6,
            "of relay, bytes that subscribers receive" => ratio(&rounds.received(), &rounds.relayed),
            "deliveries/s by round" => own.by_round(), "verdict" => own.verdict(),
        });
        let (scenario_load, durability) = (scenario.describe(), "none".to_owned());
        let load = SampledLoad { scenario: scenario_load, durability, pace: options.pace(), unit: "delivery" };
        report.samples.extend(load.samples(&own.outcomes));
        let runs: Vec<&Outcome> = own.outcomes.iter().collect();
        self.costs.row(cost_row(&format!("{}, per delivery", scenario.label()), &runs, &rounds.account));
        let end_to_end_us = own.median(|outcome| micros(outcome.times.mean()));
        self.stages.extend(rounds.account.publishes(&scenario.label(), end_to_end_us));
        let what = scenario.label();
        report.checks.push(own.check(&what, "all delivered, rightly, in order"));
        rate_check(report, scenario, rounds, &what);
        if let (Some((p50, p99)), None, Validity::Good) = (scenario.below, &scenario.knee, validity) {
            report.checks.push(Check::below(format!("{what}: p50"), own.time_us(50.0), micros(p50), " µs"));
            report.checks.push(Check::below(format!("{what}: p99"), own.time_us(99.0), micros(p99), " µs"));
        }
    }

    /// Adds the checks that a run at 80 % of the highest rate meets the objective's bounds on delivery times. The
    /// highest rate is the one that the search found.
    pub(super) fn objective(&self, report: &mut Report, scenario: &Scenario, rounds: &Rounds, objective: &Objective) {
        for limit in &objective.times {
            let what = format!("{}: {} at 80 % of the knee", scenario.label(), limit.name());
            let time = rounds.own.time_us(limit.percentile);
            report.checks.push(Check::below(what, time, micros(limit.bound), " µs").asked_for());
        }
    }

    /// Adds the finished table of results to the report.
    pub(super) fn finish(self, report: &mut Report) {
        report.tables.extend([self.table, self.costs]);
        add_stages(report, "stages of a publish", &self.stages);
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

/// Returns the batches per second that the publishers send, computed from the deliveries per second. `None` with a
/// schedule of single messages, where the number of messages in a batch varies.
fn batches_rate(options: &PubsubOptions, deliveries: f64) -> Option<f64> {
    let of_batch = options.fan_out as f64 * f64::from(options.batch);
    options.linger.is_none().then_some(deliveries / of_batch)
}

impl Rounds {
    /// Returns the bytes per second that subscribers receive in each round.
    fn received(&self) -> Vec<f64> {
        self.own.over(Outcome::received_rate)
    }

    /// Returns the bytes per second that the server and the subscribers receive together, divided by those of a raw
    /// stream without a server, as the median over the rounds. Both receive every byte once: the server the published
    /// bytes, and the raw stream its own. Only payloads count.
    fn of_bare_received(&self, options: &PubsubOptions) -> f64 {
        let published = |outcome: &Outcome| outcome.rate / options.fan_out as f64 * options.payload as f64;
        ratio(&self.own.over(|outcome| outcome.received_rate() + published(outcome)), &self.bare)
    }
}

/// Adds the check of a scenario's rate. Over TCP, the rate must reach a fixed number of deliveries per second. Over
/// QUIC, it is enough if the rate reaches either this number or a required share of the machine's raw speed without a
/// server. The share must be reached in two comparisons: the bytes that server and subscribers receive with a raw
/// stream, and the bytes that subscribers receive with a raw relay.
fn rate_check(report: &mut Report, scenario: &Scenario, rounds: &Rounds, what: &str) {
    let rate = rounds.own.rate().median;
    let share = scenario.bare_share.filter(|_| scenario.carrier == TransportKind::Quic);
    let shares = [
        ("of a bare stream, per byte that server or subscribers receive", rounds.of_bare_received(&scenario.options)),
        ("of a bare relay, per byte that subscribers receive", ratio(&rounds.received(), &rounds.relayed)),
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

/// Creates the table for the runs of a search for the highest rate that meets an objective.
pub(super) fn trials(scenario: &Scenario, objective: &Objective) -> Table {
    let title = format!(
        "search for {objective}: {}, {}: climb, bisect, confirm both ends",
        scenario.name,
        scenario.carrier.name()
    );
    Table::new(title)
}

/// Adds a run of a search as a row of the table.
pub(super) fn trial_row(table: &mut Table, rate: f64, outcome: &Outcome, trial: &Trial) {
    let times = outcome.times.quantiles();
    table.row(cells! {
        "offered msg/s" => rate, "deliveries/s" => outcome.rate, "p50 µs" => times.p50_us, "p95 µs" => times.p95_us,
        "p99 µs" => times.p99_us, "p99.9 µs" => times.p999_us, "max µs" => times.max_us,
        "lag p99 µs" => outcome.lag_us(), "generator busy %" => 100.0 * outcome.spent.busiest,
        "outcome" => trial.to_string(),
    });
}

/// Creates the table with the percentile spectrum of a run. `options` state the pace of the run.
pub(super) fn spectrum(outcome: &Outcome, options: &PubsubOptions) -> Table {
    let (pace, count) = (pace_name(options), outcome.times.count());
    table! {
        format!("percentile spectrum of the last run ({pace}), {count} deliveries"); line in outcome.times.spectrum();
        "percentile" => format!("{}", line.percentile), "end to end µs" => line.time_us,
        "deliveries at or below" => line.count, "1/(1-percentile)" => line.one_in(),
    }
}
