//! The trait of a protocol whose replies come in the order of its requests.
//!
//! Implementations provide bytes and judgements; the loop (`load::worker`) provides sockets, pace, times and counts.
//! All calls on the path of a request are dispatched statically.

use std::{fmt::Display, time::Duration};

use super::{
    connection::Connection,
    pace::Pace,
    tally::{Merge, Tally},
};
use crate::{
    BenchError,
    random::{Generator, KeyChooser},
};

/// How requests share writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each request is a write of its own, and each reply makes room for one request.
    PerRequest,
    /// Requests that are due together share a write. In a closed loop a connection sends its next requests when all of
    /// its last ones are answered, as redis-benchmark does.
    Burst,
}

/// Consequence of losing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The worker counts it and connects again.
    Reconnect,
    /// The run ends: figures of fewer connections would be another scenario's.
    End,
}

/// A complete reply at the start of a connection's input.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<R> {
    /// Bytes of the reply.
    pub bytes: usize,
    /// Details of the reply, for [`Protocol::count`].
    pub reply: R,
    /// True if the server closes the connection after this reply.
    pub closes: bool,
}

/// A wrong reply, or bytes that are none.
#[derive(Debug)]
pub struct BadReply<R, F> {
    /// The fault.
    pub fault: F,
    /// The reply, if the connection can still be used: the run goes on with the next one.
    pub decoded: Option<Decoded<R>>,
}

/// Makes requests and judges replies. One instance serves all workers of a run.
pub trait Protocol: Sync {
    /// Everything that is remembered of a request until its reply comes.
    type Request: Copy;
    /// Details of a reply, for [`count`](Self::count).
    type Reply: Copy;
    /// A fault of a reply; it is displayed in words.
    type Fault: Display;
    /// State of a connection between its replies.
    type State: Default;
    /// Counts beside those of [`Tally`].
    type Counts: Merge + Send;

    /// How requests share writes.
    const BATCHING: Batching;
    /// Consequence of losing a connection.
    const ON_LOSS: OnLoss;

    /// Opens a connection on which requests can be sent; its socket does not block.
    fn connect(&self) -> Result<Connection, BenchError>;

    /// Returns the number of kinds of requests; each has a histogram of its own.
    fn kinds(&self) -> usize;

    /// Chooses what the next request does to the key of this index.
    fn choose(&self, index: u64, rng: &mut Generator) -> Self::Request;

    /// Returns the kind of a request, below [`kinds`](Self::kinds).
    fn kind(request: Self::Request) -> usize;

    /// Appends the bytes of a request.
    fn encode(&self, request: Self::Request, out: &mut Vec<u8>);

    /// Reads and judges the reply to `request` at the start of `bytes`, which is not empty; `None` if it is incomplete.
    /// A right reply is the usual case: faults are kept out of its return value.
    #[expect(clippy::type_complexity, reason = "an alias could not name the associated types")]
    fn decode(
        &self,
        request: Self::Request,
        state: &mut Self::State,
        bytes: &[u8],
    ) -> Result<Option<Decoded<Self::Reply>>, BadReply<Self::Reply, Self::Fault>>;

    /// Counts a reply to a request of the counted time; `service` is the time since it was sent, in nanoseconds, of a
    /// right reply.
    fn count(&self, counts: &mut Self::Counts, reply: Self::Reply, service: Option<u64>);

    /// Returns what makes the run's figures void, in words, if anything does.
    fn errors(&self, tally: &Tally<Self::Counts>) -> Option<String>;
}

/// Everything that a run does.
#[derive(Clone, Debug)]
pub struct Plan<P> {
    /// Makes requests and judges replies.
    pub protocol: P,
    /// Connections over all workers.
    pub connections: usize,
    /// Number of threads.
    pub workers: usize,
    /// Requests that may be under way on each connection; 1 is no pipelining.
    pub pipeline: usize,
    /// How requests are paced.
    pub pace: Pace,
    /// How requests spread over the keys.
    pub keys: KeyChooser,
    /// Time in which requests are sent but not counted.
    pub warmup: Duration,
    /// Time in which requests are counted.
    pub duration: Duration,
    /// Longest wait for a reply before the run is given up.
    pub give_up: Duration,
    /// 99th percentile of the generator's own lateness above which a scheduled run is void.
    pub max_lag: Duration,
    /// Seed of keys, operations and arrivals.
    pub seed: u64,
    /// The server's process, for its CPU time and memory.
    pub server: Option<u32>,
}
