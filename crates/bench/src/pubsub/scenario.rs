//! The lines of the report, and the presets made of such lines.

use std::{fmt, time::Duration};

use thalweg_wire::Policy;

use super::options::PubsubOptions;
use crate::{
    load::{pace::Pace, schedule::Arrivals, search::Objective},
    native::{place::Carrier, server::Profile},
};

/// Unit of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Whole batches: all messages of a batch are due at the same time.
    Batch,
    /// Single messages; those that are due go out together, up to a batch.
    Message {
        /// Longest time that a message waits for others.
        linger: Duration,
    },
}

/// Connections, and streams of each. Over TCP each stream is a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Number of connections.
    pub connections: usize,
    /// Streams of each connection.
    pub streams: usize,
}

impl Channels {
    /// Returns this many connections with one stream each.
    #[must_use]
    pub fn connections(connections: usize) -> Self {
        Self { connections, streams: 1 }
    }

    /// Returns the number of streams.
    #[must_use]
    pub fn count(self) -> usize {
        self.connections * self.streams
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.streams {
            1 => write!(f, "{}", self.connections),
            streams => write!(f, "{} × {streams}", self.connections),
        }
    }
}

/// Scenarios that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Small and large messages to one and to ten as fast as they go, and 2,000 messages/s on a schedule.
    Goals,
    /// Row F: 4096 B in batches of 64 from 8 publishers to 10 and to 20, and p99 at 80 % of the knee.
    RowF,
    /// Row F's profiles: each on a server started with it.
    Profiles,
    /// More writers: 10 and 20 subscriptions over 1, 2, 4, 8 and 16 connections, each with one writer.
    Lanes,
    /// Single messages that the server gathers, and the bounds of queues: what each profile's knobs do.
    Singles,
    /// One knob after the other turned away from the default profile: what each costs and does.
    Knobs,
}

/// A line of the report.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name in the report.
    pub name: String,
    /// Transport.
    pub carrier: Carrier,
    /// Profile of the server; none: the one it was started with.
    pub profile: Option<Profile>,
    /// More arguments of the server, which turn one knob.
    pub knob: Option<&'static str>,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Messages of a batch.
    pub batch: u32,
    /// Number of publishers.
    pub publishers: usize,
    /// Channels of the publishers.
    pub publish: Channels,
    /// Number of subscriptions, or of queue groups.
    pub fan_out: usize,
    /// Members of each group; 0: no groups.
    pub members: usize,
    /// Channels of the subscribers.
    pub subscribe: Channels,
    /// Policy at a full queue.
    pub policy: Policy,
    /// Acks that a publisher may wait for.
    pub in_flight: u32,
    /// Pacing of messages.
    pub pace: Pace,
    /// Unit of the schedule.
    pub unit: Unit,
    /// Objective of a search for the knee; the scenario also runs at 80 % of the knee.
    pub knee: Option<Objective>,
    /// Required deliveries per second.
    pub floor: Option<f64>,
    /// Bounds of p50 and p99.
    pub below: Option<(Duration, Duration)>,
    /// Deliveries per received byte that there should be, as a share of a bare stream in the same run; over QUIC it
    /// takes the place of `floor` where that is higher.
    pub bare_share: Option<f64>,
}

impl Scenario {
    /// Creates the scenario of the options.
    #[must_use]
    pub fn from_options(options: &PubsubOptions, carrier: Carrier) -> Self {
        let publish =
            Channels { connections: options.connections.unwrap_or(options.publishers), streams: options.streams };
        let subscriptions = options.fan_out * options.queue_members.max(1);
        let subscribe = Channels {
            connections: options.subscriber_connections.unwrap_or(subscriptions),
            streams: options.subscriber_streams,
        };
        Self {
            name: format!("{} → {}", options.publishers, options.fan_out),
            carrier,
            profile: options.profile,
            knob: None,
            payload_bytes: options.payload,
            batch: options.batch,
            publishers: options.publishers,
            publish,
            fan_out: options.fan_out,
            members: options.queue_members,
            subscribe,
            policy: options.policy.into(),
            in_flight: options.in_flight,
            pace: Pace::of_rate(options.rate, options.arrivals),
            unit: options.unit(),
            knee: None,
            floor: None,
            below: None,
            bare_share: None,
        }
    }

    /// Returns the lines of a preset.
    #[must_use]
    pub fn of_preset(preset: Preset, options: &PubsubOptions, carrier: Carrier) -> Vec<Self> {
        let base =
            Self { bare_share: (carrier == Carrier::Quic).then_some(0.7), ..Self::from_options(options, carrier) };
        match preset {
            Preset::Goals => goals(&base),
            Preset::RowF => row_f(&base),
            Preset::Profiles => profiles(&base),
            Preset::Lanes => lanes(&base),
            Preset::Singles => singles(&base),
            Preset::Knobs => knobs(&base),
        }
    }

    /// Returns the pacing in words.
    #[must_use]
    pub fn pace_name(&self) -> String {
        pace_name(self.pace)
    }

    /// Subscriptions over all groups.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.fan_out * self.members.max(1)
    }

    /// Describes the publishers.
    #[must_use]
    pub fn publishers_name(&self) -> String {
        format!("{} on {}", self.publishers, self.publish)
    }

    /// Describes the subscribers.
    #[must_use]
    pub fn subscribers_name(&self) -> String {
        let what = match self.members {
            0 => format!("{}", self.fan_out),
            members => format!("{} groups of {members}", self.fan_out),
        };
        format!("{what} on {}", self.subscribe)
    }
}

/// Returns the pacing in words.
#[must_use]
pub fn pace_name(pace: Pace) -> String {
    pace.name(" msg/s")
}

/// Returns a policy's name.
#[must_use]
pub fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Block => "block",
        Policy::DropNew => "drop_new",
        Policy::DropOld => "drop_old",
        Policy::Disconnect => "disconnect",
    }
}

fn goals(base: &Scenario) -> Vec<Scenario> {
    let fastest = |name: &str, payload_bytes: usize, fan_out: usize| Scenario {
        name: name.to_owned(),
        payload_bytes,
        batch: 64,
        publishers: 1,
        publish: Channels::connections(1),
        fan_out,
        members: 0,
        subscribe: Channels::connections(fan_out),
        pace: Pace::Closed,
        ..base.clone()
    };
    let scheduled = |name: &str, fan_out: usize, p50: u64, p99: u64| Scenario {
        batch: 1,
        pace: Pace::Open { rate: 2000.0, arrivals: Arrivals::Poisson },
        below: Some((Duration::from_micros(p50), Duration::from_micros(p99))),
        bare_share: None,
        ..fastest(name, 128, fan_out)
    };
    vec![
        fastest("128 B, 1 → 1", 128, 1),
        fastest("128 B, 1 → 10", 128, 10),
        fastest("4 KiB, 1 → 10", 4096, 10),
        scheduled("128 B, 1 → 1, on schedule", 1, 110, 250),
        scheduled("128 B, 1 → 10, on schedule", 10, 160, 400),
    ]
}

/// The base of row F as its authors ran it: 4 connections of 2 streams publish, 8 connections subscribe.
fn row_f_base(base: &Scenario, fan_out: usize) -> Scenario {
    Scenario {
        name: format!("4 KiB × 64, 8 → {fan_out}"),
        payload_bytes: 4096,
        batch: 64,
        publishers: 8,
        publish: Channels { connections: 4, streams: 2 },
        fan_out,
        members: 0,
        subscribe: Channels::connections(8),
        pace: Pace::Closed,
        unit: Unit::Batch,
        ..base.clone()
    }
}

fn row_f(base: &Scenario) -> Vec<Scenario> {
    let knee = "p99<5ms".parse().ok();
    let row = |fan_out, floor| Scenario { knee, floor: Some(floor), ..row_f_base(base, fan_out) };
    vec![row(10, 68_200.0), row(20, 44_800.0)]
}

fn profiles(base: &Scenario) -> Vec<Scenario> {
    let row = |profile: Profile, floor: f64, p50: u64, p99: u64| Scenario {
        name: format!("4 KiB × 64, 8 → 10, {}", profile.name()),
        profile: Some(profile),
        floor: Some(floor),
        below: Some((Duration::from_micros(p50), Duration::from_micros(p99))),
        knee: "p99<5ms".parse().ok(),
        ..row_f_base(base, 10)
    };
    vec![
        row(Profile::Balanced, 150_000.0, 800, 4_000),
        row(Profile::Latency, 50_000.0, 300, 1_000),
        row(Profile::Throughput, 300_000.0, 3_000, 15_000),
    ]
}

fn lanes(base: &Scenario) -> Vec<Scenario> {
    let row = |fan_out: usize, connections: usize| Scenario {
        name: format!("4 KiB × 64, 8 → {fan_out} over {connections} connections"),
        subscribe: Channels::connections(connections),
        ..row_f_base(base, fan_out)
    };
    let all = [10, 20].into_iter().flat_map(|fan_out| [1, 2, 4, 8, 16].map(|connections| (fan_out, connections)));
    all.filter(|(fan_out, connections)| connections <= fan_out)
        .map(|(fan_out, connections)| row(fan_out, connections))
        .collect()
}

fn singles(base: &Scenario) -> Vec<Scenario> {
    let profiles = [Profile::Balanced, Profile::Latency, Profile::Throughput];
    let of = |profile: Profile| {
        [None, Some(2000.0), Some(50_000.0)].map(|rate| Scenario {
            name: format!("128 B singly, 1 → 10, {}", profile.name()),
            profile: Some(profile),
            ..single(base, rate)
        })
    };
    profiles.into_iter().flat_map(of).collect()
}

/// Returns a scenario of single messages to ten subscriptions, as fast as they go or on a schedule.
fn single(base: &Scenario, rate: Option<f64>) -> Scenario {
    Scenario {
        payload_bytes: 128,
        batch: 1,
        publishers: 1,
        publish: Channels::connections(1),
        fan_out: 10,
        members: 0,
        subscribe: Channels::connections(10),
        pace: Pace::of_rate(rate, Arrivals::Poisson),
        bare_share: None,
        ..base.clone()
    }
}

/// Knobs of the default profile, each turned so far that it shows.
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
            profile: Some(Profile::Balanced),
            knob,
            ..single(base, rate)
        })
    };
    std::iter::once(None).chain(KNOBS.map(Some)).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Parser as _, ValueEnum as _};
    use std::collections::HashSet;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: PubsubOptions,
    }

    #[test]
    fn presets_are_lines_with_names_of_their_own_that_can_be_run() {
        let options = Cli::parse_from(["bench"]).options;
        options.check().unwrap();
        for preset in Preset::value_variants() {
            let lines = Scenario::of_preset(*preset, &options, Carrier::Tcp);
            let names: HashSet<String> =
                lines.iter().map(|line| format!("{} {}", line.name, line.pace_name())).collect();
            assert_eq!(names.len(), lines.len(), "{preset:?}");
            for line in lines {
                let bytes = super::super::publisher::batch_bytes(line.batch, line.payload_bytes);
                assert!(bytes < 1 << 24 && line.publish.count() >= 1 && line.subscribe.count() <= 20, "{}", line.name);
                assert!(line.fan_out >= 1 && line.publishers >= line.publish.count(), "{}", line.name);
            }
        }
    }

    #[test]
    fn the_table_of_lanes_has_the_same_subscriptions_over_more_and_more_connections() {
        let options = Cli::parse_from(["bench"]).options;
        let lines = Scenario::of_preset(Preset::Lanes, &options, Carrier::Tcp);
        let of = |fan_out: usize| -> Vec<usize> {
            lines.iter().filter(|line| line.fan_out == fan_out).map(|line| line.subscribe.connections).collect()
        };
        assert_eq!((of(10), of(20)), (vec![1, 2, 4, 8], vec![1, 2, 4, 8, 16]));
    }

    #[test]
    fn shares_of_a_bare_stream_are_asked_over_quic_only() {
        let options = Cli::parse_from(["bench"]).options;
        let share = |carrier| Scenario::of_preset(Preset::RowF, &options, carrier)[0].bare_share;
        assert_eq!((share(Carrier::Tcp), share(Carrier::Quic)), (None, Some(0.7)));
    }
}
