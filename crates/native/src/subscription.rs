//! Subscriptions that the channel feeds itself, without the broker: tails, pushes, watches of keys and of the cluster.
//!
//! A [`Source`] produces one frame at a time, in a *step*. A step is a future that owns the source while it runs, and
//! returns it with the result. A step begins only while the client has granted credit, and after the previous step's
//! frame is in the outbox. So a subscription holds one frame in memory in addition to the outbox, and does no work
//! while its client grants no credit.
//!
//! Owns: the accounting of credit and limit, and stopping. Does not own: the contents of frames (`tail`, `push`,
//! `watch_source`, `event_source`).

use std::{future::Future, pin::Pin, sync::Arc};

use thalweg_serving::admission::Reservation;
use thalweg_wire::{CancelMode, Credit, Permit, SendCredit};
use tokio::sync::Notify;

use super::{
    event_source::EventSource,
    failure::Failure,
    push::PushSource,
    replies::Replies,
    step::{StepLimits, StepResult, WhenEmpty},
    tail::Tail,
    watch_source::WatchSource,
};

/// Source that produces a subscription's frames.
#[derive(Debug)]
pub(crate) enum Source {
    /// The subscription sends the records of a stream.
    Tail(Box<Tail>),
    /// The subscription sends the deliveries of a consumer group to a member.
    Push(Box<PushSource>),
    /// The subscription sends the changes of keys in a keyspace.
    Watch(Box<WatchSource>),
    /// The subscription sends the events of the cluster.
    Events(EventSource),
}

/// Future that produces the next frame of a subscription. It owns the source while it runs, and returns it with the
/// result.
pub(crate) type Step = Pin<Box<dyn Future<Output = (Source, StepResult)> + Send>>;

impl Source {
    fn step(self, wanted: StepLimits) -> Step {
        Box::pin(async move {
            match self {
                Self::Tail(mut tail) => {
                    let found = tail.step(wanted).await;
                    (Self::Tail(tail), found)
                }
                Self::Push(mut push) => {
                    let found = push.step(wanted).await;
                    (Self::Push(push), found)
                }
                Self::Watch(mut watch) => {
                    let found = watch.step(wanted).await;
                    (Self::Watch(watch), found)
                }
                Self::Events(mut events) => {
                    let found = events.step(wanted).await;
                    (Self::Events(events), found)
                }
            }
        })
    }

    /// Position (an offset or a revision) at which a later subscription can resume. `None` for a push of group records,
    /// for a tail that has no start yet, and for events of the cluster, which have numbers of their own.
    fn next(&self) -> Option<u64> {
        match self {
            Self::Tail(tail) => tail.next().map(|next| next.0),
            Self::Push(_) | Self::Events(_) => None,
            Self::Watch(watch) => Some(watch.next().0),
        }
    }

    /// Returns true if the next frame of the source is the reply to the request that began the subscription.
    fn is_starting(&self) -> bool {
        matches!(self, Self::Tail(tail) if tail.next().is_none())
    }
}

/// A subscription that the channel feeds: a tail of a stream, a push of group records, or a watch of keys or of the
/// cluster.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// Source of the subscription's frames. `None` while the source is producing a frame, because the future of this
    /// work owns it.
    source: Option<Source>,
    /// Position at which a later subscription can resume: after the messages of the frames in the outbox, even if the
    /// source has read further. `None` for a push of group records and for events of the cluster.
    next: Option<u64>,
    /// True until the reply to the client's request is in the outbox. Producing this reply needs no credit.
    is_starting: bool,
    credit: SendCredit,
    /// Number of messages that the subscription may still send before it reaches the limit that its client has set.
    left: u64,
    /// Reason why the subscription must end, and the mode: immediately, or after its pending messages were sent. `None`
    /// if it need not end.
    ending: Option<(Failure, CancelMode)>,
    stop: Arc<Notify>,
    held: Reservation,
    /// Name that the client has given to the request that began the subscription, for log lines.
    trace: Option<Box<str>>,
}

/// Action that the channel (a TCP connection or a QUIC stream) must take next for a subscription.
pub(crate) enum NextAction {
    /// The channel (a TCP connection or a QUIC stream) runs this future, which produces the next frame.
    Step(Step),
    /// The channel (a TCP connection or a QUIC stream) waits until the current frame is produced, or until the client
    /// grants credit.
    Wait,
    /// The channel (a TCP connection or a QUIC stream) ends the subscription and reports this failure to the client as
    /// the reason.
    End(Failure),
}

impl Subscription {
    /// Creates a subscription with this source. `limit` is the maximum number of messages in the client's request, and
    /// `trace` is the name that the client has given to the request.
    #[must_use]
    pub(crate) fn new(
        source: Source,
        permit: &Permit,
        limit: Option<u64>,
        held: Reservation,
        trace: Option<Box<str>>,
    ) -> Self {
        let (credit, left) = (SendCredit::new(permit), limit.unwrap_or(u64::MAX));
        let (next, is_starting) = (source.next(), source.is_starting());
        Self { source: Some(source), next, is_starting, credit, left, ending: None, stop: Arc::default(), held, trace }
    }

    /// Returns true if the request that began the subscription has no reply yet.
    pub(crate) fn is_starting(&self) -> bool {
        self.is_starting
    }

    /// Returns the name that the client has given to the request that began the subscription, if it has one.
    pub(crate) fn trace(&self) -> Option<&str> {
        self.trace.as_deref()
    }

    /// Returns the action that the channel (a TCP connection or a QUIC stream) must take next for the subscription.
    pub(crate) fn next(&mut self, max_frame_bytes: usize) -> NextAction {
        let Some(source) = self.source.take() else { return NextAction::Wait };
        if self.left == 0 && !self.is_starting {
            return NextAction::End(self.with_position(super::failure::limit_reached()));
        }
        let may_send = self.credit.may_send() || self.is_starting;
        let patience = match &self.ending {
            Some((why, CancelMode::Now)) => return NextAction::End(self.with_position(why.clone())),
            Some((why, CancelMode::Drain)) if !may_send => return NextAction::End(self.with_position(why.clone())),
            Some((_, CancelMode::Drain)) => WhenEmpty::Return,
            None if !may_send => {
                self.source = Some(source);
                return NextAction::Wait;
            }
            None => WhenEmpty::Wait,
        };
        let (stop, account) = (Arc::clone(&self.stop), Arc::clone(self.held.account()));
        let (max_messages, credit) = (self.left, self.credit.left());
        let when_empty = patience;
        NextAction::Step(source.step(StepLimits { max_messages, credit, max_frame_bytes, when_empty, account, stop }))
    }

    /// Puts the produced frames of the subscription into the outbox. Returns the reason if the subscription has ended;
    /// `None` if it continues.
    pub(crate) fn stepped(&mut self, id: u32, source: Source, found: StepResult, out: &mut Replies) -> Option<Failure> {
        let over = match found {
            // The client has cancelled before this frame was ready, so the frame is dropped.
            StepResult::Frame { .. } if matches!(self.ending, Some((_, CancelMode::Now))) => None,
            StepResult::Frame { messages, bytes, encode } => {
                self.credit.sent(messages, bytes);
                self.left = self.left.saturating_sub(messages);
                let failed = encode(out, id).err();
                if failed.is_none() {
                    (self.next, self.is_starting) = (source.next(), source.is_starting());
                }
                failed
            }
            StepResult::Nothing => {
                self.next = source.next();
                match &self.ending {
                    Some((why, CancelMode::Drain)) => Some(why.clone()),
                    _ => None,
                }
            }
            StepResult::Ended(failure) => Some(failure),
        };
        self.source = Some(source);
        over.map(|failure| self.with_position(failure))
    }

    /// Adds credit that the client has granted to the subscription.
    pub(crate) fn permit(&mut self, credit: &Credit) {
        self.credit.raise(credit);
    }

    /// Requests the end of the subscription for the reason `why`. With the mode `Drain`, pending messages are sent
    /// first; a second drain changes only the reason. With `Now`, the subscription ends immediately, even if it is
    /// draining already.
    pub(crate) fn end(&mut self, why: Failure, mode: CancelMode) {
        if !matches!(self.ending, Some((_, CancelMode::Now))) {
            self.ending = Some((why, mode));
            // If the step is not waiting now, `Notify` keeps the signal for its next wait.
            self.stop.notify_one();
        }
    }

    /// Adds to the reason of a subscription's end the position at which the client can resume.
    fn with_position(&self, failure: Failure) -> Failure {
        match self.next {
            Some(next) if !failure.has("next") => failure.with("next", next),
            _ => failure,
        }
    }
}
