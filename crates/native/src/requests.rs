//! Pending work of a channel: the frame ids in use, the futures of pending replies, and the handles that stop these
//! futures.
//!
//! Owns: ids, the futures of pending replies, the steps of subscriptions, and limits on their numbers. Does not own:
//! the work of these futures, nor the time at which they are polled (`channel`).
//!
//! The channel's task polls two sets: the futures of requests, and the steps of subscriptions. It polls only futures
//! that were woken, and no request needs a task of its own.
//!
//! Invariants: an id is in the table from the arrival of its request until its last frame is in the outbox. At most
//! `max_requests` requests are pending at a time, and each counts against the server's limit on requests in progress.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::{BuildHasherDefault, Hasher},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::{Stream as _, stream::FuturesUnordered};
use thalweg_engine::PendingCommand;
use thalweg_serving::admission::{Account, Reservation, Resource};
use thalweg_wire::Kind;
use tokio::sync::Notify;

use super::{
    failure::{self, Failure},
    step::StepResult,
    subscription::{Source, Step, Subscription},
    turn::{PendingReply, Reply},
};

/// Current use of a frame id on a channel (a TCP connection or a QUIC stream): a request or a subscription.
#[derive(Debug)]
pub(crate) enum IdUse {
    /// The id belongs to a pending request. Contains the handle that stops the request; `None` if the request cannot be
    /// stopped.
    Request(Option<Arc<Notify>>),
    /// The id belongs to a subscription that the channel feeds: a tail of a stream, a push of group records, or a watch
    /// of keys or of the cluster.
    Subscription(Box<Subscription>),
    /// The id belongs to a subscription to subjects, which the broker feeds.
    Subject,
}

/// A request whose reply is pending.
#[derive(Clone, Debug)]
pub(crate) struct PendingRequest {
    /// Id that the client has given to the pending request.
    pub id: u32,
    /// Kind of the request's frame. Metrics count the request by it.
    pub kind: Kind,
    /// Time at which the server received the request.
    pub received: Instant,
    /// Name that the client has given to the request for logs and errors.
    pub trace: Option<Box<str>>,
}

/// Result of work that has completed on the channel (a TCP connection or a QUIC stream): the reply to a request, or the
/// next frame of a subscription.
#[derive(Debug)]
pub(crate) enum Finished {
    /// A request has completed with this reply or failure.
    Request(PendingRequest, Result<Reply, Failure>),
    /// The next frame of the subscription with this id is ready. The source that produces the subscription's frames is
    /// returned with the result.
    Step(u32, Source, StepResult),
}

enum PendingWork {
    Write(PendingCommand),
    Later(PendingReply),
}

/// Future of the reply to a request.
struct RequestTask {
    waiting: PendingRequest,
    work: PendingWork,
    _held: Reservation,
}

/// Future that produces the next frame of a subscription.
struct StepTask {
    id: u32,
    step: Step,
}

impl Future for RequestTask {
    type Output = Finished;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        let Self { waiting, work, .. } = self.get_mut();
        let reply = match work {
            PendingWork::Write(write) => Pin::new(write).poll(context).map(|outcome| match outcome {
                Ok(outcome) => Ok(Reply::Outcome(outcome)),
                Err(error) => Err(error.into()),
            }),
            PendingWork::Later(later) => later.as_mut().poll(context),
        };
        reply.map(|reply| Finished::Request(waiting.clone(), reply))
    }
}

impl Future for StepTask {
    type Output = Finished;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished> {
        let Self { id, step } = self.get_mut();
        step.as_mut().poll(context).map(|(source, found)| Finished::Step(*id, source, found))
    }
}

/// Hasher for frame ids. Clients usually assign these in sequence. A client that causes collisions slows down only its
/// own channel.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Table of the pending requests and the subscriptions of a channel (a TCP connection or a QUIC stream); see the
/// module's documentation.
pub(crate) struct Requests {
    tasks: FuturesUnordered<RequestTask>,
    /// Futures that produce the next frames of subscriptions. They are separate from those of requests, because the
    /// channel (a TCP connection or a QUIC stream) sends such frames only in its turn for bulk output.
    steps: FuturesUnordered<StepTask>,
    ids: HashMap<u32, IdUse, BuildHasherDefault<IdHasher>>,
    requests: usize,
    max_requests: usize,
    subscriptions: usize,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("requests", &self.requests).field("ids", &self.ids.len()).finish()
    }
}

impl Requests {
    /// Creates an empty table that accepts up to `max_requests` pending requests.
    #[must_use]
    pub(crate) fn new(max_requests: u32) -> Self {
        Self {
            tasks: FuturesUnordered::new(),
            steps: FuturesUnordered::new(),
            ids: HashMap::default(),
            requests: 0,
            max_requests: max_requests as usize,
            subscriptions: 0,
        }
    }

    /// Returns true if a pending request or a subscription uses this frame id.
    #[inline]
    #[must_use]
    pub(crate) fn is_in_use(&self, id: u32) -> bool {
        !self.ids.is_empty() && self.ids.contains_key(&id)
    }

    /// Returns the current use of a frame id; `None` if the id is free.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut IdUse> {
        self.ids.get_mut(&id)
    }

    /// Number of requests whose reply is pending.
    #[must_use]
    pub(crate) fn waiting(&self) -> usize {
        self.requests
    }

    /// Returns true if the channel (a TCP connection or a QUIC stream) may have another pending request.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.requests < self.max_requests
    }

    /// Number of subscriptions on the channel (a TCP connection or a QUIC stream).
    #[must_use]
    pub(crate) fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Adds a request whose command was proposed. If the command is already done, returns the request and its reply
    /// instead of adding it. This is common for commands that need no fsync.
    pub(crate) fn write(
        &mut self,
        waiting: PendingRequest,
        mut write: PendingCommand,
        account: &Arc<Account>,
    ) -> Option<(PendingRequest, Result<Reply, Failure>)> {
        // Polled with a waker that has no effect. If the write is not finished, the set polls it again with a real one.
        if let Poll::Ready(outcome) = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop())) {
            return Some((waiting, outcome.map(Reply::Outcome).map_err(Failure::from)));
        }
        self.begin(waiting, PendingWork::Write(write), None, account.count(Resource::Requests));
        None
    }

    /// Adds a request that writes. Neither a cancel nor a timeout stops its work. The client waits for its reply at
    /// most for `timeout`.
    pub(crate) fn add_write(
        &mut self,
        waiting: PendingRequest,
        later: PendingReply,
        timeout: Option<Duration>,
        held: Reservation,
    ) {
        let reply = async move {
            match timeout {
                None => later.await,
                Some(timeout) => match tokio::time::timeout(timeout, later).await {
                    Ok(reply) => reply,
                    Err(_) => Err(failure::timed_out().with_unknown_effect()),
                },
            }
        };
        self.begin(waiting, PendingWork::Later(Box::pin(reply)), None, held);
    }

    /// Adds a request whose work stops at a cancel or at the request's timeout. While the flag `begun` is set, the work
    /// may have had an effect, and the failure then says so.
    pub(crate) fn add_pending(
        &mut self,
        waiting: PendingRequest,
        later: PendingReply,
        begun: Option<Arc<AtomicBool>>,
        timeout: Option<Duration>,
        held: Reservation,
    ) {
        let stop = Arc::new(Notify::new());
        let reply = stoppable(later, begun, Arc::clone(&stop), timeout);
        self.begin(waiting, PendingWork::Later(Box::pin(reply)), Some(stop), held);
    }

    fn begin(&mut self, waiting: PendingRequest, work: PendingWork, stop: Option<Arc<Notify>>, held: Reservation) {
        self.requests += 1;
        if waiting.id != 0 {
            self.ids.insert(waiting.id, IdUse::Request(stop));
        }
        self.tasks.push(RequestTask { waiting, work, _held: held });
    }

    /// Adds a subscription, with `used` as the current use of its frame id.
    pub(crate) fn subscribed(&mut self, id: u32, used: IdUse) {
        self.subscriptions += 1;
        self.ids.insert(id, used);
    }

    /// Adds the future that produces the next frame of a subscription.
    pub(crate) fn step(&mut self, id: u32, step: Step) {
        self.steps.push(StepTask { id, step });
    }

    /// Removes a subscription. Its frame id is free again.
    pub(crate) fn unsubscribed(&mut self, id: u32) {
        if self.ids.remove(&id).is_some() {
            self.subscriptions -= 1;
        }
    }

    /// Stops all pending requests that can be stopped.
    pub(crate) fn stop_waiting(&self) {
        for used in self.ids.values() {
            if let IdUse::Request(Some(stop)) = used {
                stop.notify_one();
            }
        }
    }

    /// Returns the ids of all subscriptions.
    #[must_use]
    pub(crate) fn subscribed_ids(&self) -> Vec<u32> {
        self.ids.iter().filter(|(_, used)| !matches!(used, IdUse::Request(_))).map(|(id, _)| *id).collect()
    }

    /// Removes all subscriptions, and drops the futures that produce their next frames.
    pub(crate) fn drop_subscriptions(&mut self) {
        self.steps.clear();
        self.ids.retain(|_, used| matches!(used, IdUse::Request(_)));
        self.subscriptions = 0;
    }

    /// Returns true if the next frame of a subscription is being produced.
    #[inline]
    #[must_use]
    pub(crate) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Polls the futures that produce the next frames of subscriptions; ready with the first one that has completed.
    pub(crate) fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        match Pin::new(&mut self.steps).poll_next(context) {
            Poll::Ready(Some(finished)) => Poll::Ready(finished),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Polls the futures of pending requests; ready with the first one that has completed.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Finished> {
        match Pin::new(&mut self.tasks).poll_next(context) {
            Poll::Ready(Some(finished)) => {
                if let Finished::Request(waiting, _) = &finished {
                    self.requests -= 1;
                    self.ids.remove(&waiting.id);
                }
                Poll::Ready(finished)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

async fn stoppable(
    later: PendingReply,
    begun: Option<Arc<AtomicBool>>,
    stop: Arc<Notify>,
    timeout: Option<Duration>,
) -> Result<Reply, Failure> {
    let time_is_up = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let failure = tokio::select! {
        biased;
        reply = later => return reply,
        () = stop.notified() => failure::cancelled(),
        () = time_is_up => failure::timed_out(),
    };
    match begun {
        Some(begun) if begun.load(Ordering::Relaxed) => Err(failure.with_unknown_effect()),
        _ => Err(failure),
    }
}
