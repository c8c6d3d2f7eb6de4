//! Scenarios of the subjects suite, and the presets made of scenarios. Each scenario is a line of the report.
//!
//! Owns: `Scenario` with its requirements, its name, and the server's arguments that it needs. Does not own: the
//! options of the command (`options`), or the run (`stage`).

use std::time::Duration;

use super::options::{Preset, PubsubOptions};
use crate::{
    load::{Arrivals, Objective},
    native::{Profile, TransportKind},
    report::duration,
};

/// A load that the suite measures, with the required results. Each scenario is one line of the report.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Name of the scenario in the report.
    pub name: String,
    /// Transport of the connections to the server.
    pub carrier: TransportKind,
    /// Options of the scenario's publishers, subscribers, messages and pace.
    pub options: PubsubOptions,
    /// Additional argument of the server that changes one tuning option; `None` to change none.
    pub knob: Option<&'static str>,
    /// Objective of a search for the highest rate that meets it; `None` for no search. After the search the scenario
    /// also runs at 80 % of that rate.
    pub knee: Option<Objective>,
    /// Deliveries per second that the scenario must reach; `None` if nothing is required.
    pub floor: Option<f64>,
    /// Upper bounds of the 50th and the 99th percentile of the delivery times; `None` if nothing is required.
    pub below: Option<(Duration, Duration)>,
    /// Goal over QUIC: smallest share of the machine's raw speed. Reaching it is enough if `floor` is not reached.
    pub bare_share: Option<f64>,
}

impl Scenario {
    /// Creates the one scenario that the command-line options describe.
    pub(super) fn from_options(options: &PubsubOptions, carrier: TransportKind) -> Self {
        let name = format!("{} → {}", options.publishers, options.fan_out);
        let options = options.clone();
        Self { name, carrier, options, knob: None, knee: None, floor: None, below: None, bare_share: None }
    }

    /// Returns the scenarios of a preset.
    pub(super) fn of_preset(preset: Preset, options: &PubsubOptions, carrier: TransportKind) -> Vec<Self> {
        let base = Self {
            bare_share: (carrier == TransportKind::Quic).then_some(0.7),
            ..Self::from_options(options, carrier)
        };
        match preset {
            Preset::Goals => goals(&base),
            Preset::RowF => row_f(&base),
            Preset::Profiles => profiles(&base),
            Preset::Lanes => lanes(&base),
            Preset::Singles => singles(&base),
            Preset::Knobs => knobs(&base),
        }
    }

    /// Returns this scenario in an open loop at the given rate, without the requirements on its own rate.
    pub(super) fn at(&self, rate: f64, arrivals: Arrivals) -> Self {
        let options = PubsubOptions { rate: Some(rate), arrivals, ..self.options.clone() };
        Self { options, knee: None, floor: None, bare_share: None, ..self.clone() }
    }

    /// Returns the arguments with which a server is started for this scenario.
    pub(super) fn tuning(&self) -> Vec<String> {
        let profile = self.options.server_profile.map(|profile| format!("--profile={}", profile.name()));
        profile.into_iter().chain(self.knob.into_iter().flat_map(str::split_whitespace).map(str::to_owned)).collect()
    }

    /// Describes the scenario, its transport and its pace.
    pub(super) fn label(&self) -> String {
        format!("{}, {}, {}", self.name, self.carrier.name(), pace_name(&self.options))
    }

    /// Describes the scenario with its load. Only loads with equal descriptions can be compared.
    pub(super) fn describe(&self) -> String {
        let PubsubOptions { payload, batch, publishers, fan_out, queue_members, in_flight, .. } = self.options;
        let members = if queue_members > 0 { format!(" groups of {queue_members}") } else { String::new() };
        let linger = self.options.linger.map_or_else(String::new, |linger| format!(", linger {}", duration(linger)));
        format!(
            "{}, {payload} B × {batch}{linger}, {publishers} publishers on {}, {in_flight} batches in flight, \
             {fan_out}{members} subscriptions on {}, {}, {}",
            self.label(),
            self.options.publish(),
            self.options.subscribe(),
            self.options.policy.name(),
            self.options.load.describe_run()
        )
    }

    /// Returns a scenario with these publishers, subscriptions and messages. Each publisher has a connection of its
    /// own. The subscriptions share `subscribing` connections.
    fn with(&self, payload: usize, batch: u32, publishers: usize, fan_out: usize, subscribing: usize) -> Self {
        let options = PubsubOptions {
            payload,
            batch,
            publishers,
            connections: Some(publishers),
            streams: 1,
            fan_out,
            queue_members: 0,
            subscriber_connections: Some(subscribing),
            subscriber_streams: 1,
            rate: None,
            ..self.options.clone()
        };
        Self { options, ..self.clone() }
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

/// Describes the pace of messages in words.
pub(super) fn pace_name(options: &PubsubOptions) -> String {
    options.pace().name(" msg/s")
}

fn goals(base: &Scenario) -> Vec<Scenario> {
    let fastest =
        |name: &str, payload: usize, fan_out: usize| base.with(payload, 64, 1, fan_out, fan_out).named(name.to_owned());
    let scheduled = |name: &str, fan_out: usize, p50: u64, p99: u64| Scenario {
        below: Some((Duration::from_micros(p50), Duration::from_micros(p99))),
        ..base.with(128, 1, 1, fan_out, fan_out).at(2000.0, Arrivals::Poisson).named(name.to_owned())
    };
    vec![
        fastest("128 B, 1 → 1", 128, 1),
        fastest("128 B, 1 → 10", 128, 10),
        fastest("4 KiB, 1 → 10", 4096, 10),
        scheduled("128 B, 1 → 1, on schedule", 1, 110, 250),
        scheduled("128 B, 1 → 10, on schedule", 10, 160, 400),
    ]
}

/// Returns the scenario of a published benchmark (row F of docs/performance.md) as its authors ran it: 4 connections of
/// 2 streams publish, 8 connections subscribe. It has no goals; callers add them.
fn row_f_base(base: &Scenario, fan_out: usize) -> Scenario {
    let mut row = base.with(4096, 64, 8, fan_out, 8).named(format!("4 KiB × 64, 8 → {fan_out}"));
    (row.options.connections, row.options.streams, row.options.linger) = (Some(4), 2, None);
    row
}

fn row_f(base: &Scenario) -> Vec<Scenario> {
    let knee: Option<Objective> = "p99<5ms".parse().ok();
    let row = |fan_out, floor| Scenario { knee: knee.clone(), floor: Some(floor), ..row_f_base(base, fan_out) };
    vec![row(10, 68_200.0), row(20, 44_800.0)]
}

/// Returns a copy of the scenario whose server starts with a tuning profile.
fn profiled(scenario: Scenario, profile: Profile) -> Scenario {
    Scenario { options: PubsubOptions { server_profile: Some(profile), ..scenario.options }, ..scenario }
}

fn profiles(base: &Scenario) -> Vec<Scenario> {
    let row = |profile: Profile, floor: f64, p50: u64, p99: u64| Scenario {
        name: format!("4 KiB × 64, 8 → 10, {}", profile.name()),
        floor: Some(floor),
        below: Some((Duration::from_micros(p50), Duration::from_micros(p99))),
        knee: "p99<5ms".parse().ok(),
        ..profiled(row_f_base(base, 10), profile)
    };
    vec![
        row(Profile::Balanced, 150_000.0, 800, 4_000),
        row(Profile::Latency, 50_000.0, 300, 1_000),
        row(Profile::Throughput, 300_000.0, 3_000, 15_000),
    ]
}

fn lanes(base: &Scenario) -> Vec<Scenario> {
    let row = |(fan_out, connections): (usize, usize)| {
        let mut row = row_f_base(base, fan_out);
        row.options.subscriber_connections = Some(connections);
        row.named(format!("4 KiB × 64, 8 → {fan_out} over {connections} connections"))
    };
    let all = [10, 20].into_iter().flat_map(|fan_out| [1, 2, 4, 8, 16].map(|connections| (fan_out, connections)));
    all.filter(|(fan_out, connections)| connections <= fan_out).map(row).collect()
}

fn singles(base: &Scenario) -> Vec<Scenario> {
    let profiles = [Profile::Balanced, Profile::Latency, Profile::Throughput];
    let of = |profile: Profile| {
        [None, Some(2000.0), Some(50_000.0)].map(|rate| {
            let name = format!("128 B singly, 1 → 10, {}", profile.name());
            profiled(single(base, rate), profile).named(name)
        })
    };
    profiles.into_iter().flat_map(of).collect()
}

/// Returns a scenario of single messages, not batches, to ten subscriptions, in a closed loop or at the given rate.
fn single(base: &Scenario, rate: Option<f64>) -> Scenario {
    let mut single = base.with(128, 1, 1, 10, 10);
    (single.options.rate, single.options.arrivals, single.bare_share) = (rate, Arrivals::Poisson, None);
    single
}

/// Arguments of the server. Each changes one tuning option of the default profile far enough to show an effect.
const KNOBS: [&str; 9] = [
    "--batch-messages=1",
    "--batch-messages=1024",
    "--batch-bytes=4KiB",
    "--batch-delay=2ms --batch-when-idle=wait",
    "--subscription-messages=1024",
    "--subscription-bytes=256KiB",
    "--max-link-bytes=1MiB --subscription-bytes=1MiB",
    "--max-link-bytes=256MiB --subscription-bytes=128MiB --subscription-messages=1048576",
    "--max-queued-bytes=1MiB --max-link-bytes=1MiB --subscription-bytes=1MiB",
];

fn knobs(base: &Scenario) -> Vec<Scenario> {
    let of = |knob: Option<&'static str>| {
        [None, Some(50_000.0)].map(|rate| Scenario {
            name: format!("128 B singly, 1 → 10, {}", knob.unwrap_or("balanced")),
            knob,
            ..profiled(single(base, rate), Profile::Balanced)
        })
    };
    std::iter::once(None).chain(KNOBS.map(Some)).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parsed;
    use clap::ValueEnum as _;
    use std::collections::HashSet;

    #[test]
    fn presets_are_lines_with_names_of_their_own_that_can_be_run() {
        let options: PubsubOptions = parsed([]).unwrap();
        options.check().unwrap();
        for preset in Preset::value_variants() {
            let lines = Scenario::of_preset(*preset, &options, TransportKind::Tcp);
            let names: HashSet<String> =
                lines.iter().map(|line| format!("{} {}", line.name, pace_name(&line.options))).collect();
            assert_eq!(names.len(), lines.len(), "{preset:?}");
            for line in lines {
                let bytes = super::super::batch::batch_bytes(line.options.batch, line.options.payload);
                let (publish, subscribe) = (line.options.publish().count(), line.options.subscribe().count());
                assert!(bytes < 1 << 24 && publish >= 1 && subscribe <= 20, "{}", line.name);
                assert!(line.options.fan_out >= 1 && line.options.publishers >= publish, "{}", line.name);
            }
        }
    }

    #[test]
    fn the_table_of_lanes_has_the_same_subscriptions_over_more_and_more_connections() {
        let options: PubsubOptions = parsed([]).unwrap();
        let lines = Scenario::of_preset(Preset::Lanes, &options, TransportKind::Tcp);
        let of = |fan_out: usize| -> Vec<usize> {
            let of = lines.iter().map(|line| &line.options).filter(|options| options.fan_out == fan_out);
            of.map(|options| options.subscribe().connections).collect()
        };
        assert_eq!((of(10), of(20)), (vec![1, 2, 4, 8], vec![1, 2, 4, 8, 16]));
    }

    #[test]
    fn shares_of_a_bare_stream_are_asked_over_quic_only() {
        let options: PubsubOptions = parsed([]).unwrap();
        let share = |carrier| Scenario::of_preset(Preset::RowF, &options, carrier)[0].bare_share;
        assert_eq!((share(TransportKind::Tcp), share(TransportKind::Quic)), (None, Some(0.7)));
    }
}
