//! Options of `thalweg bench pubsub`.

use std::{fmt, path::PathBuf, time::Duration};

use thalweg_types::limits::{MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES, MAX_RECORD_BYTES};
use thalweg_wire::Policy;

use super::batch::batch_bytes;
use crate::{
    BenchError,
    load::{Arrivals, Objective, Pace},
    native::{Depth, HEAD_BYTES, LoadOptions, Profile, ServerOptions},
    options::{parse_duration, rate_within, require, within},
};

/// Options of the subjects suite.
#[derive(Clone, Debug, clap::Args)]
pub struct PubsubOptions {
    #[command(flatten)]
    pub(super) server: ServerOptions,
    /// A fixed set of scenarios instead of one.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Bytes of a message; 24 of them say which it is.
    #[arg(long, default_value_t = 128)]
    pub payload: usize,
    /// Messages that a publisher puts into a batch.
    #[arg(long, default_value_t = 64)]
    pub batch: u32,
    /// Publishers, all to one subject.
    #[arg(long, default_value_t = 1)]
    pub publishers: usize,
    /// Connections that publish; one for each publisher by default.
    #[arg(long)]
    pub connections: Option<usize>,
    /// Streams of each; over TCP each is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// Subscriptions that get every message; with --queue-members, queue groups.
    #[arg(long, default_value_t = 1)]
    pub fan_out: usize,
    /// Members of each queue group, of which one gets each message; 0: no groups.
    #[arg(long, default_value_t = 0)]
    pub queue_members: usize,
    /// Connections that subscribe; one for each subscription by default.
    #[arg(long)]
    pub subscriber_connections: Option<usize>,
    /// Streams of each; over TCP each is a connection of its own.
    #[arg(long, default_value_t = 1)]
    pub subscriber_streams: usize,
    /// Policy of the server when a subscription's queue is full.
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyChoice,
    /// Messages that may wait in it; 0: the server's bound.
    #[arg(long, default_value_t = 0)]
    pub queue_messages: u64,
    /// Bytes that may wait in it; 0: the server's bound.
    #[arg(long, default_value_t = 0)]
    pub queue_bytes: u64,
    /// Messages that a subscriber permits to be under way to it.
    #[arg(long, default_value_t = 65_536)]
    pub window_messages: u64,
    /// Bytes that a subscriber permits to be under way to it.
    #[arg(long, default_value_t = 4 << 20)]
    pub window_bytes: u64,
    /// Batches for which a connection waits for acks at a time; 0: without acks, the connection's flow control decides.
    #[arg(long, default_value_t = 0)]
    pub in_flight: u32,
    /// Profile with which the server is started.
    #[arg(long, value_enum, conflicts_with = "target")]
    pub profile: Option<Profile>,
    /// Messages per second, whatever the server does; without it as fast as it goes, which hides stalls: use that for
    /// throughput, never for latency.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Spread of the messages over time.
    #[arg(long, value_enum, default_value_t)]
    pub arrivals: Arrivals,
    /// Schedule single messages instead of batches: those that are due go out together, and one waits for others at
    /// most so long, such as 250us.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub linger: Option<Duration>,
    /// Look for the highest rate that meets an objective, such as p99<5ms; --rate is where it begins.
    #[arg(long, conflicts_with = "preset")]
    pub search: Option<Objective>,
    /// Rate above which the search does not go.
    #[arg(long, default_value_t = 2e7)]
    pub max_rate: f64,
    /// Compare every byte also of messages above 512 B, of which otherwise head, end and a line that moves are
    /// compared.
    #[arg(long)]
    pub verify_all: bool,
    /// Time of a bare stream over the same transport, before each run; 0: none.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub bare: Duration,
    /// Write plots of the percentiles as SVG files to this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    #[command(flatten)]
    pub(super) load: LoadOptions,
}

/// Policy of the server at a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum PolicyChoice {
    /// Publishers wait for room.
    #[default]
    Block,
    /// The server drops new messages.
    DropNew,
    /// The server drops the messages that have waited longest.
    DropOld,
    /// The server ends the connection.
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

/// Number of connections, and of streams on each. Over TCP each stream is a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Number of connections.
    pub connections: usize,
    /// Number of streams on each connection.
    pub streams: usize,
}

impl Channels {
    /// Returns the total number of streams over all connections.
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

/// Maximum number of channels that the publishers, or the subscribers, may use.
const MAX_CHANNELS: usize = 20_000;

impl PubsubOptions {
    /// Returns how much of each payload is compared.
    pub(super) fn depth(&self) -> Depth {
        if self.payload <= 512 || self.verify_all { Depth::Full } else { Depth::Spot }
    }

    /// Returns how messages are paced, over all publishers.
    pub(super) fn pace(&self) -> Pace {
        Pace::of_rate(self.rate, self.arrivals)
    }

    /// Returns the number of channels on which publishers send.
    pub(super) fn publish(&self) -> Channels {
        Channels { connections: self.connections.unwrap_or(self.publishers), streams: self.streams }
    }

    /// Returns the number of channels on which subscribers receive.
    pub(super) fn subscribe(&self) -> Channels {
        let connections = self.subscriber_connections.unwrap_or(self.subscriptions());
        Channels { connections, streams: self.subscriber_streams }
    }

    /// Returns the number of subscriptions over all queue groups.
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
        let is_scheduled = self.rate.is_some() || self.search.is_some() || self.preset.is_some();
        let is_valid = self.linger.is_none() || is_scheduled;
        require(is_valid, "--linger", "is about messages on a schedule: give --rate or --search")
    }
}
