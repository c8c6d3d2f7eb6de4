//! Options of `thalweg bench pubsub`.
//!
//! Owns: the options, the presets' names, the numbers of channels, and the checks of options that exclude each other.
//! Does not own: the scenarios of a preset (`scenario`), or the options that all suites of the native protocol share
//! (`thalweg_load`).

use std::{fmt, ops::Range, path::PathBuf, time::Duration};

use thalweg_types::limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES, MAX_RECORD_BYTES};
use thalweg_wire::Policy;

use super::{batch::batch_bytes, recorder::Deliveries};
use crate::{
    BenchError, ProfileOptions,
    load::{Arrivals, Objective, Pace, Tally},
    native::{Depth, HEAD_BYTES, LoadOptions, Profile, ServerOptions},
    options::{max_rate_within, parse_duration, rate_within, require, scheduled, steady, within},
};

/// Options of one scenario that cannot be combined with a preset, because its scenarios set them.
const OF_SCENARIOS: [&str; 10] = [
    "payload",
    "batch",
    "publishers",
    "connections",
    "streams",
    "fan_out",
    "queue_members",
    "subscriber_connections",
    "subscriber_streams",
    "rate",
];

/// Options of `thalweg bench pubsub`.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("searches").args(["search", "preset"])))]
pub struct PubsubOptions {
    #[command(flatten)]
    pub(super) server: ServerOptions,
    /// A fixed set of scenarios to run, instead of the one scenario of the options.
    #[arg(long, value_enum, conflicts_with_all = OF_SCENARIOS)]
    pub preset: Option<Preset>,
    /// Size of a message in bytes; its first 24 bytes identify it.
    #[arg(long, default_value_t = 128)]
    pub payload: usize,
    /// Number of messages that a publisher puts into a batch.
    #[arg(long, default_value_t = 64)]
    pub batch: u32,
    /// Number of publishers, which all publish to one subject.
    #[arg(long, default_value_t = 1)]
    pub publishers: usize,
    /// Number of connections that publish; by default one for each publisher.
    #[arg(long)]
    pub connections: Option<usize>,
    /// Number of streams on each publishing connection. Over TCP each stream is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Number of subscriptions that get every message; with --queue-members, the number of queue groups.
    #[arg(long, default_value_t = 1)]
    pub fan_out: usize,
    /// Number of members in each queue group, of which one gets each message; 0: no queue groups.
    #[arg(long, default_value_t = 0)]
    pub queue_members: usize,
    /// Number of connections that subscribe; by default one for each subscription.
    #[arg(long)]
    pub subscriber_connections: Option<usize>,
    /// Number of streams on each subscribing connection. Over TCP each stream is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub subscriber_streams: usize,
    /// Policy of the server for messages that arrive at a subscription's full queue.
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyChoice,
    /// Maximum number of messages in a subscription's queue at the server; 0: the server's default.
    #[arg(long, default_value_t = 0)]
    pub queue_messages: u64,
    /// Maximum size of a subscription's queue at the server in bytes; 0: the server's default.
    #[arg(long, default_value_t = 0)]
    pub queue_bytes: u64,
    /// Credit window of a subscriber: messages that the server may send before the subscriber has consumed them.
    #[arg(long, default_value_t = 65_536)]
    pub window_messages: u64,
    /// Credit window of a subscriber: bytes that the server may send before the subscriber has consumed them.
    #[arg(long, default_value_t = 4 << 20)]
    pub window_bytes: u64,
    /// Maximum number of batches without an ack on each publishing connection. 0: publish without acks, limited by the
    /// connection's flow control.
    #[arg(long, default_value_t = 0)]
    pub in_flight: u32,
    /// Tuning profile with which the benchmark starts the server.
    #[arg(long, value_enum, conflicts_with = "target")]
    pub server_profile: Option<Profile>,
    /// Options for profiling the server.
    #[command(flatten)]
    pub profile: ProfileOptions,
    /// Messages per second by a schedule. Without a rate, publishers send as fast as the server accepts, which hides
    /// stalls: measure throughput in this way, never latency.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Distribution of the scheduled messages over time: constant, poisson, ramp:FROM:TIME (the rate changes evenly
    /// from FROM/s to --rate within TIME after the warm-up), step:FROM:TIME (FROM/s until TIME after the warm-up, then
    /// --rate), or replay:FILE (the times in seconds on the lines of FILE, stretched to --rate on average and
    /// repeated).
    #[arg(long, default_value_t)]
    pub arrivals: Arrivals,
    /// Schedule single messages instead of batches. Messages that are due together share a batch; a message waits at
    /// most this long for others, such as 250us.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Search for the highest rate that meets an objective, such as p99<5ms, or p50<1ms,max<1s for
    /// several bounds; the search begins at --rate.
    #[arg(long, conflicts_with = "preset", value_parser = Objective::of_times)]
    pub search: Option<Objective>,
    /// Highest rate that the search tries, in messages per second.
    #[arg(long, default_value_t = 2e7, requires = "searches")]
    pub max_rate: f64,
    /// Compare every byte of messages above 512 B too. Otherwise the benchmark compares their head, their end, and 64
    /// bytes at a position that differs from message to message.
    #[arg(long)]
    pub verify_all: bool,
    /// Duration of each measurement of the machine's loopback speed before a run, over the same transport without a
    /// server; 0: none.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub bare: Duration,
    /// Write plots of the percentiles as SVG files to this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    #[command(flatten)]
    pub(super) load: LoadOptions,
}

/// Policy of the server for messages that arrive at a subscription's full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum PolicyChoice {
    /// Publishers wait until the queue has room.
    #[default]
    Block,
    /// The server drops messages that arrive at a full queue.
    DropNew,
    /// The server drops the oldest messages of the queue.
    DropOld,
    /// The server closes the subscriber's connection.
    Disconnect,
}

impl PolicyChoice {
    /// Returns the policy as a value of the protocol.
    pub(super) fn wire(self) -> Policy {
        match self {
            Self::Block => Policy::Block,
            Self::DropNew => Policy::DropNew,
            Self::DropOld => Policy::DropOld,
            Self::Disconnect => Policy::Disconnect,
        }
    }

    /// Returns the policy's name, for the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::DropNew => "drop_new",
            Self::DropOld => "drop_old",
            Self::Disconnect => "disconnect",
        }
    }
}

/// Named sets of scenarios with fixed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Small and large messages to one and to ten subscriptions in a closed loop, and 2,000 messages/s on a schedule.
    Goals,
    /// Load of a published benchmark of another message server (row F of docs/performance.md): 4096 B in batches of 64
    /// from 8 publishers to 10 and 20 subscriptions, and the p99 at 80 % of the highest rate.
    RowF,
    /// The load of row-f, once on a server with each tuning profile.
    Profiles,
    /// 10 and 20 subscriptions over 1, 2, 4, 8 and 16 connections; each connection has a writer task of its own at the
    /// server.
    Lanes,
    /// Single messages, which the server gathers into batches, and short queues, once on a server with each tuning
    /// profile.
    Singles,
    /// The default profile with one tuning option of the server changed at a time: the cost and the effect of each
    /// option.
    Knobs,
}

/// Number of connections, and number of streams on each. Over TCP each stream is a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    /// Number of connections.
    pub connections: usize,
    /// Number of streams on each connection.
    pub streams: usize,
}

impl Channels {
    /// Returns the total number of streams over all connections.
    pub(super) fn count(self) -> usize {
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

/// Maximum number of channels (streams of connections to the server) on which publishers send, and of those on which
/// subscribers receive. Also the maximum of `--fan-out`.
const MAX_CHANNELS: usize = 20_000;

impl PubsubOptions {
    /// Returns how much of each received payload the subscribers compare with the published one: all bytes, or some of
    /// them.
    pub(super) fn depth(&self) -> Depth {
        if self.payload <= 512 || self.verify_all { Depth::Full } else { Depth::Spot }
    }

    /// Returns the pace of the messages of all publishers together.
    pub(super) fn pace(&self) -> Pace {
        Pace::of_rate(self.rate, self.arrivals)
    }

    /// Returns the part of a run in which due messages are counted, in nanoseconds since the start of the run.
    pub(super) fn counted(&self) -> Range<u64> {
        self.pace().counted(self.load.warmup, self.load.duration)
    }

    /// Creates counts that are all zero, with the windows into which a run is divided.
    pub(super) fn empty_tally(&self) -> Tally<Deliveries> {
        Tally::with_windows(1, &self.counted(), self.load.window)
    }

    /// Returns the number of connections on which publishers send, and of streams on each.
    pub(super) fn publish(&self) -> Channels {
        Channels { connections: self.connections.unwrap_or(self.publishers), streams: self.streams }
    }

    /// Returns the number of connections on which subscribers receive, and of streams on each.
    pub(super) fn subscribe(&self) -> Channels {
        let connections = self.subscriber_connections.unwrap_or(self.subscriptions());
        Channels { connections, streams: self.subscriber_streams }
    }

    /// Returns the number of subscriptions, summed over all queue groups.
    pub(super) fn subscriptions(&self) -> usize {
        self.fan_out * self.queue_members.max(1)
    }

    pub(super) fn check(&self) -> Result<(), BenchError> {
        self.load.check()?;
        let fits = (HEAD_BYTES..MAX_RECORD_BYTES).contains(&self.payload);
        require(fits, "--payload", format!("must be {HEAD_BYTES} to {}", MAX_RECORD_BYTES - 1))?;
        within("--batch", self.batch, MAX_PUBLISH_MESSAGES as usize)?;
        let above = format!("a batch of {} × {} B is above {MAX_PUBLISH_BYTES}", self.batch, self.payload);
        require(batch_bytes(self.batch, self.payload) <= MAX_PUBLISH_BYTES, "--batch", above)?;
        within("--publishers", self.publishers, 10_000)?;
        within("--fan-out", self.fan_out, MAX_CHANNELS)?;
        within("--fan-out, --queue-members", self.fan_out.saturating_mul(self.queue_members.max(1)), 100_000)?;
        within("--connections, --streams", self.connections.unwrap_or(1).saturating_mul(self.streams), MAX_CHANNELS)?;
        let subscribing = self.subscriber_connections.unwrap_or(1).saturating_mul(self.subscriber_streams);
        within("--subscriber-connections, --subscriber-streams", subscribing, MAX_CHANNELS)?;
        let can_send = self.window_messages > 0 && self.window_bytes > 0;
        require(can_send, "--window-messages, --window-bytes", "nothing would ever be sent: must be above 0")?;
        rate_within(self.rate, 1_000_000_000)?;
        max_rate_within(self.max_rate)?;
        self.check_preset()?;
        steady(self.search.as_ref(), self.arrivals)?;
        let is_scheduled = self.rate.is_some() || self.search.is_some() || self.preset.is_some();
        let is_valid = self.linger.is_none() || is_scheduled;
        require(is_valid, "--linger", "is about messages on a schedule: give --rate or --search")?;
        scheduled(self.arrivals, is_scheduled)
    }

    /// Returns an error if a preset is combined with an option that its scenarios set.
    fn check_preset(&self) -> Result<(), BenchError> {
        let Some(preset) = self.preset else { return Ok(()) };
        let searches = matches!(preset, Preset::RowF | Preset::Profiles);
        let is_own = self.arrivals == Arrivals::Constant || (searches && self.arrivals.change().is_none());
        require(is_own, "--arrivals", "the scenarios of this preset have their own")?;
        let batches = matches!(preset, Preset::RowF | Preset::Profiles | Preset::Lanes);
        require(!batches || self.linger.is_none(), "--linger", "the scenarios of this preset publish whole batches")?;
        let tunes = matches!(preset, Preset::Profiles | Preset::Singles | Preset::Knobs);
        let is_untuned = !tunes || self.server_profile.is_none();
        require(is_untuned, "--server-profile", "the scenarios of this preset choose the profiles")
    }
}
