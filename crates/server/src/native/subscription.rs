//! Subscriptions that the channel feeds itself: tails, pushes, watches.
//!
//! A [`Source`] is asked for one frame at a time, in a *step*: a future that owns the source while it runs and gives it
//! back with what it found. A step begins only while credit is left, and the next only when the last one's frame is in the
//! outbox: so a subscription holds one frame in memory beside that, and a source whose receiver permits nothing costs
//! nothing.
//!
//! Owns: the account of credit and limit, stopping. Does not own what is in the frames (`streams`, `groups`, `watches`).

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use thalweg_wire::{CancelMode, Credit, Permit, SendCredit};
use tokio::sync::Notify;

use super::{
    failure::Failure,
    groups::Pushing,
    replies::{Replies, Room},
    streams::Tail,
    watches::Watching,
};
use crate::{
    admission::Held,
    app::App,
    limits::{NATIVE_PAGE_BYTES, ROOM_PAUSE},
};

/// Where a subscription's frames come from.
#[derive(Debug)]
pub enum Source {
    /// A stream.
    Tail(Box<Tail>),
    /// A consumer group.
    Push(Box<Pushing>),
    /// A keyspace.
    Watch(Box<Watching>),
}

/// Whether a step that finds nothing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until there is something, or it is told to stop.
    Wait,
    /// No: what is there is all that is wanted.
    TakeWhatIsThere,
}

/// What a step may bring, and when it ends early.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// At most so many messages: what is left of the subscription's limit.
    pub max_messages: u64,
    /// What is left of the credit: a frame may pass it, a larger one than this is not begun on purpose.
    pub credit: (u64, u64),
    /// What the client takes in a frame.
    pub max_frame_bytes: usize,
    /// Whether to wait.
    pub patience: Patience,
    /// Notified when the step is to end with nothing.
    pub stop: Arc<Notify>,
}

impl Wanted {
    /// Room for a frame of so many bytes, if it is a large one and there is some. Nothing of a subscription is shed: it waits,
    /// unless it takes what is there to end.
    pub fn room_for(&self, app: &App, bytes: u64) -> Option<Room> {
        if bytes <= NATIVE_PAGE_BYTES {
            return Some(Room::Elsewhere);
        }
        match app.admission.reply_bytes.take_quietly(bytes) {
            Some(held) => Some(Room::Given(held)),
            None => (self.patience == Patience::TakeWhatIsThere).then_some(Room::Owed),
        }
    }

    /// Lets others go on before there is another look whether there is room. Whether the step is to end instead.
    pub async fn pause(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.notified() => true,
            () = tokio::time::sleep(ROOM_PAUSE) => false,
        }
    }

    /// Waits until there is [room](Self::room_for), with what the frame is made of in hand. One that is told to end waits no
    /// longer.
    pub async fn wait_for_room(&self, app: &App, bytes: u64) -> Room {
        loop {
            if let Some(room) = self.room_for(app, bytes) {
                return room;
            }
            if self.pause().await {
                return Room::Owed;
            }
        }
    }
}

type Encode = Box<dyn FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send>;

/// What a step found.
pub enum Found {
    /// A frame, or several that belong together, and what it counts against the credit.
    Frame {
        /// Messages, records or changes.
        messages: u64,
        /// Their bytes, as credit counts them.
        bytes: u64,
        /// Puts it into the outbox.
        encode: Encode,
    },
    /// Nothing more for now.
    Nothing,
    /// There will be nothing more.
    Over(Failure),
}

impl Found {
    /// A frame of so much.
    pub fn frame(
        messages: u64,
        bytes: u64,
        encode: impl FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send + 'static,
    ) -> Self {
        Self::Frame { messages, bytes, encode: Box::new(encode) }
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame { messages, bytes, .. } => write!(f, "Frame({messages} messages, {bytes} bytes)"),
            Self::Nothing => f.write_str("Nothing"),
            Self::Over(failure) => f.debug_tuple("Over").field(failure).finish(),
        }
    }
}

/// A step under way.
pub type Step = Pin<Box<dyn Future<Output = (Source, Found)> + Send>>;

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
pub struct Subscription {
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
pub enum Next {
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
    pub fn new(source: Source, permit: &Permit, limit: Option<u64>, held: Held) -> Self {
        let (credit, left) = (SendCredit::new(permit), limit.unwrap_or(u64::MAX));
        let next = source.next();
        Self { source: Some(source), next, credit, left, ending: None, stop: Arc::default(), _held: held }
    }

    /// What to do now.
    pub fn next(&mut self, max_frame_bytes: usize) -> Next {
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
    pub fn stepped(&mut self, id: u32, source: Source, found: Found, out: &mut Replies) -> Option<Failure> {
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
    pub fn permit(&mut self, credit: &Credit) {
        self.credit.raise(credit);
    }

    /// Ends it, for a reason. What is drained already is not drained anew; a drain may be cut short.
    pub fn end(&mut self, why: Failure, mode: CancelMode) {
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
