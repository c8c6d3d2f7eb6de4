//! Subscriptions that the channel feeds itself: tails, pushes, watches.
//!
//! A [`Source`] is asked for one frame at a time, in a *step*: a future that owns the source while it runs and gives it
//! back with what it found. A step begins only while credit is left, and the next only when the last one's frame is in the
//! outbox: so a subscription holds one frame in memory beside that, and a source whose receiver permits nothing costs
//! nothing.
//!
//! Owns: the account of credit and limit, stopping. Does not own what is in the frames (`tail`, `push`, `watching`).

use std::{future::Future, pin::Pin, sync::Arc};

use thalweg_serving::admission::Held;
use thalweg_wire::{CancelMode, Credit, Permit, SendCredit};
use tokio::sync::Notify;

use super::{
    failure::Failure,
    push::Pushing,
    replies::Replies,
    step::{Found, Patience, Wanted},
    tail::Tail,
    watching::Watching,
};

/// Where a subscription's frames come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A stream.
    Tail(Box<Tail>),
    /// A consumer group.
    Push(Box<Pushing>),
    /// A keyspace.
    Watch(Box<Watching>),
}

/// A step under way.
pub(crate) type Step = Pin<Box<dyn Future<Output = (Source, Found)> + Send>>;

impl Source {
    fn step(self, wanted: Wanted) -> Step {
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
            }
        })
    }

    /// Where a later subscription goes on, if it can.
    fn next(&self) -> Option<u64> {
        match self {
            Self::Tail(tail) => Some(tail.next().0),
            Self::Push(_) => None,
            Self::Watch(watch) => Some(watch.next().0),
        }
    }
}

/// A subscription that the channel feeds.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// `None` while a step runs.
    source: Option<Source>,
    /// Where a later one goes on, if it can: behind what is in the outbox, though a step may have found more.
    next: Option<u64>,
    credit: SendCredit,
    /// Messages until it ends by itself.
    left: u64,
    /// Why it is about to end.
    ending: Option<(Failure, CancelMode)>,
    stop: Arc<Notify>,
    _held: Held,
}

/// What to do with a subscription next.
pub(crate) enum Next {
    /// This step.
    Step(Step),
    /// Nothing, until a step ends or more is permitted.
    Rest,
    /// It is over.
    End(Failure),
}

impl Subscription {
    /// Over a source; `limit` is the request's.
    #[must_use]
    pub(crate) fn new(source: Source, permit: &Permit, limit: Option<u64>, held: Held) -> Self {
        let (credit, left) = (SendCredit::new(permit), limit.unwrap_or(u64::MAX));
        let next = source.next();
        Self { source: Some(source), next, credit, left, ending: None, stop: Arc::default(), _held: held }
    }

    /// What to do now.
    pub(crate) fn next(&mut self, max_frame_bytes: usize) -> Next {
        let Some(source) = self.source.take() else { return Next::Rest };
        if self.left == 0 {
            return Next::End(self.told(super::failure::limit_reached()));
        }
        let may_send = self.credit.may_send();
        let patience = match &self.ending {
            Some((why, CancelMode::Now)) => return Next::End(self.told(why.clone())),
            Some((why, CancelMode::Drain)) if !may_send => return Next::End(self.told(why.clone())),
            Some((_, CancelMode::Drain)) => Patience::TakeWhatIsThere,
            None if !may_send => {
                self.source = Some(source);
                return Next::Rest;
            }
            None => Patience::Wait,
        };
        let stop = Arc::clone(&self.stop);
        let (max_messages, credit) = (self.left, self.credit.left());
        Next::Step(source.step(Wanted { max_messages, credit, max_frame_bytes, patience, stop }))
    }

    /// A step has ended: puts what it found into the outbox. `Some`: the subscription is over.
    pub(crate) fn stepped(&mut self, id: u32, source: Source, found: Found, out: &mut Replies) -> Option<Failure> {
        let over = match found {
            // What came too late for a client that wants nothing more.
            Found::Frame { .. } if matches!(self.ending, Some((_, CancelMode::Now))) => None,
            Found::Frame { messages, bytes, encode } => {
                self.credit.sent(messages, bytes);
                self.left = self.left.saturating_sub(messages);
                let failed = encode(out, id).err();
                if failed.is_none() {
                    self.next = source.next();
                }
                failed
            }
            Found::Nothing => {
                self.next = source.next();
                match &self.ending {
                    Some((why, CancelMode::Drain)) => Some(why.clone()),
                    _ => None,
                }
            }
            Found::Over(failure) => Some(failure),
        };
        self.source = Some(source);
        over.map(|failure| self.told(failure))
    }

    /// The receiver permits more.
    pub(crate) fn permit(&mut self, credit: &Credit) {
        self.credit.raise(credit);
    }

    /// Ends it, for a reason. What is drained already is not drained anew; a drain may be cut short.
    pub(crate) fn end(&mut self, why: Failure, mode: CancelMode) {
        if !matches!(self.ending, Some((_, CancelMode::Now))) {
            self.ending = Some((why, mode));
            // A permit is kept if the step does not wait at this moment.
            self.stop.notify_one();
        }
    }

    /// A failure that says where to go on.
    fn told(&self, failure: Failure) -> Failure {
        match self.next {
            Some(next) if !failure.has("next") => failure.with("next", next),
            _ => failure,
        }
    }
}
