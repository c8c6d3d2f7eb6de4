//! Trait of a protocol in which replies arrive in the order of the requests.
//!
//! Implementations encode requests and check replies; the loop (`worker`) provides sockets, pace, times and
//! counts. All calls on the path of a request are dispatched statically.

use std::{fmt::Display, time::Duration};

use super::{
    connection::Connection,
    live::FsyncCount,
    pace::Pace,
    tally::{Merge, Tally},
};
use crate::{
    BenchError,
    random::{Generator, KeyChooser},
};

/// Number of requests that a worker sends with one write call on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each request is a write call of its own. Each reply permits one more request.
    PerRequest,
    /// Requests that are due together share one write call. In a closed loop, a connection sends its next requests
    /// after the replies to all of its last requests, as redis-benchmark does.
    Burst,
}

/// Reaction of a worker to the loss of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The worker counts the loss and opens a new connection.
    Reconnect,
    /// The loss ends the run, because figures with fewer connections would belong to another scenario.
    End,
}

/// A complete, right reply at the start of a connection's input.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<R> {
    /// Length of the reply in bytes.
    pub bytes: usize,
    /// Details of the reply, which the worker passes to [`Protocol::count`].
    pub reply: R,
    /// True if the server closes the connection after this reply.
    pub closes: bool,
}

/// A wrong reply, or input bytes that are not a reply at all.
#[derive(Debug)]
pub struct BadReply<R, F> {
    /// Description of the fault of the reply.
    pub fault: F,
    /// The decoded reply if the connection can still be used; the run then continues with the next reply. Otherwise
    /// `None`.
    pub decoded: Option<Decoded<R>>,
}

/// A protocol over which a load generator sends requests: encodes requests and checks replies. One instance serves all
/// workers of a run.
pub trait Protocol: Sync {
    /// Data that the worker stores about a request until the reply arrives.
    type Request: Copy;
    /// Details of a reply. The worker passes them to [`count`](Self::count).
    type Reply: Copy;
    /// Fault of a reply; its `Display` text describes the fault.
    type Fault: Display;
    /// State that the protocol keeps for each connection between replies.
    type State: Default;
    /// Counters of this protocol, in addition to those of [`Tally`].
    type Counts: Merge + Send;

    /// Number of requests that a worker sends with one write call on a socket.
    const BATCHING: Batching;
    /// Reaction of a worker to the loss of a connection.
    const ON_LOSS: OnLoss;

    /// Opens a connection that is ready for requests; its socket is non-blocking.
    fn connect(&self) -> Result<Connection, BenchError>;

    /// Returns the number of kinds that the protocol divides its requests into. The response times of each kind are
    /// counted in a histogram of their own.
    fn kinds(&self) -> usize;

    /// Called when the load begins. Each thread calls this once, after its connections are open.
    #[inline]
    fn begun(&self) {}

    /// Chooses the operation of the next request. The request uses the key with this index.
    fn choose(&self, index: u64, rng: &mut Generator) -> Self::Request;

    /// Called when a request is sent, `late` nanoseconds after the moment at which it was due.
    #[inline]
    fn asked(&self, _request: Self::Request, _late: u64) {}

    /// Consumes bytes at the start of `bytes` that answer no request, such as a ping, and appends the answer to `out`.
    /// Returns the number of consumed bytes, or `None` if the message is incomplete. `bytes` is not empty.
    #[inline]
    fn aside(&self, _bytes: &[u8], _out: &mut Vec<u8>) -> Option<usize> {
        Some(0)
    }

    /// Returns the kind of a request. It is below the number that [`kinds`](Self::kinds) returns.
    fn kind(request: Self::Request) -> usize;

    /// Appends the bytes of a request to `out`.
    fn encode(&self, request: Self::Request, out: &mut Vec<u8>);

    /// Decodes and checks the reply to `request` at the start of `bytes`, which is not empty. Returns `None` if the
    /// reply is incomplete. Faults are returned as an error, apart from the replies, because right replies are the
    /// usual case.
    #[expect(clippy::type_complexity, reason = "an alias could not name the associated types")]
    fn decode(
        &self,
        request: Self::Request,
        state: &mut Self::State,
        bytes: &[u8],
    ) -> Result<Option<Decoded<Self::Reply>>, BadReply<Self::Reply, Self::Fault>>;

    /// Returns the request that the connection sends next because of this right reply. `None` ends the operation. Both
    /// requests belong to one operation, which ends with the reply to its last request. Only that reply is counted, and
    /// its response time counts from the moment at which the first request was due.
    #[inline]
    fn follow_up(&self, _request: Self::Request, _reply: Self::Reply) -> Option<Self::Request> {
        None
    }

    /// Counts a reply. Called for right replies to requests that were due after the warm-up, and for all wrong replies.
    /// `service` is the time in nanoseconds from sending the request to its reply; it is `None` if the reply was wrong.
    fn count(&self, counts: &mut Self::Counts, reply: Self::Reply, service: Option<u64>);

    /// Returns a description of the errors that make the benchmark run's figures invalid; `None` without such errors.
    fn errors(&self, tally: &Tally<Self::Counts>) -> Option<String>;
}

/// Parameters of a run of the load generator.
#[derive(Clone, Debug)]
pub struct Plan<P> {
    /// Protocol that encodes requests and checks replies.
    pub protocol: P,
    /// Number of connections over all workers.
    pub connections: usize,
    /// Number of worker threads.
    pub workers: usize,
    /// Maximum number of unanswered requests on each connection; 1 means no pipelining.
    pub pipeline: usize,
    /// How requests are paced: by a schedule or by the replies.
    pub pace: Pace,
    /// Chooses the key of each request.
    pub keys: KeyChooser,
    /// Duration of the warm-up, in which requests are sent but not counted.
    pub warmup: Duration,
    /// Time after the warm-up in which requests are counted.
    pub duration: Duration,
    /// Length of the windows of the benchmark run's [`Timeline`](super::Timeline); `None` for the usual length.
    pub window: Option<Duration>,
    /// Longest wait for a reply. If a reply takes longer, the benchmark run is aborted.
    pub give_up: Duration,
    /// Maximum lateness of the generator's own sends, as a 99th percentile. Above it the figures of a run with a
    /// schedule are invalid.
    pub max_lag: Duration,
    /// Seed of the random keys, operations and arrival times.
    pub seed: u64,
    /// Id of the server's process; `None` if it is not known. The run measures the CPU time and the memory of this
    /// process.
    pub server: Option<u32>,
    /// Source of the server's number of fsyncs, for the live view and the windows of the benchmark run; `None` if it is
    /// not known.
    pub fsyncs: Option<FsyncCount>,
}
