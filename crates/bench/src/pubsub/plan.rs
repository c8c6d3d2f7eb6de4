//! What one run does, in numbers.

use std::time::Duration;

use thalweg_wire::{Permit, Policy};

use crate::{
    latency::nanos,
    load::schedule::Arrivals,
    native::{payload::Depth, place::Place},
};

/// How publishing is paced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as the server takes it.
    Closed,
    /// By a schedule, whatever the server does.
    Open {
        /// Messages per second, over all publishers.
        rate: f64,
        /// Their shape.
        arrivals: Arrivals,
    },
}

/// What is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A batch of so many messages as the plan says, all due at once.
    Batch,
    /// A message; those that are due go out together, up to a batch of so many as the plan says, and one waits for others at most so
    /// long.
    Message {
        /// How long.
        linger: Duration,
    },
}

/// What one run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the server is.
    pub place: Place,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// How much of it is compared.
    pub depth: Depth,
    /// Messages of a batch.
    pub batch: u32,
    /// Publishers, all to one subject.
    pub publishers: usize,
    /// Channels that publish.
    pub publish_channels: Channels,
    /// Subscriptions, or queue groups.
    pub fan_out: usize,
    /// Members of each queue group; 0: plain subscriptions.
    pub members: usize,
    /// Channels that subscribe.
    pub subscribe_channels: Channels,
    /// What happens at a full queue.
    pub policy: Policy,
    /// Bounds of a subscription's queue; 0: as the server likes.
    pub queue: Permit,
    /// A subscriber's credit.
    pub window: Permit,
    /// Batches whose acks a publisher has not got; 0: none are asked for.
    pub in_flight: u32,
    /// Pacing.
    pub pace: Pace,
    /// What is scheduled in an open loop.
    pub unit: Unit,
    /// Published but not counted.
    pub warmup: Duration,
    /// Counted.
    pub duration: Duration,
    /// Longest wait, after the last publish, for what is still under way.
    pub give_up: Duration,
    /// 99th percentile of the generator's own lateness above which the run is void.
    pub max_lag: Duration,
    /// Feeds content and arrivals.
    pub seed: u64,
    /// Threads.
    pub workers: usize,
}

/// How many connections, and streams of each. Over TCP each is a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Connections.
    pub connections: usize,
    /// Streams of each.
    pub streams: usize,
}

impl Channels {
    /// One stream on each of so many connections.
    #[must_use]
    pub fn connections(connections: usize) -> Self {
        Self { connections, streams: 1 }
    }

    /// How many channels that is.
    #[must_use]
    pub fn count(self) -> usize {
        self.connections * self.streams
    }
}

impl Plan {
    /// Subscriptions over all groups.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.fan_out * self.members.max(1)
    }

    /// Nanoseconds from the begin of the load in which it is counted.
    #[must_use]
    pub fn counted(&self) -> std::ops::Range<u64> {
        nanos(self.warmup)..nanos(self.warmup + self.duration)
    }
}
