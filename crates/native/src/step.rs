//! A step of a subscription: its bounds ([`Wanted`]) and its result ([`Found`]). `subscription` decides when a step
//! begins.

use std::{fmt, sync::Arc};

use thalweg_serving::{
    app::App,
    limits::{NATIVE_PAGE_BYTES, ROOM_PAUSE},
};
use tokio::sync::Notify;

use super::{
    failure::Failure,
    replies::{Replies, Room},
};

/// Behaviour of a step that finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Wait until there is something or the step is stopped.
    Wait,
    /// Return immediately: a drain only takes pending messages.
    TakeWhatIsThere,
}

/// Bounds of a step, and its stop signal.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Maximum number of messages: the remainder of the subscription's limit.
    pub max_messages: u64,
    /// Remaining credit in messages and bytes. A frame may exceed it, but no step aims for a larger frame.
    pub credit: (u64, u64),
    /// Maximum frame size in bytes that the client takes.
    pub max_frame_bytes: usize,
    /// Behaviour of the step if there are no messages.
    pub patience: Patience,
    /// Notified to end the step without a result.
    pub stop: Arc<Notify>,
}

impl Wanted {
    /// Returns the reservation for a frame of `bytes` bytes; `None` if a large frame has to wait for memory. No frame
    /// of a subscription is dropped: it waits, except that a drain exceeds the limit.
    pub(crate) fn room_for(&self, app: &App, bytes: u64) -> Option<Room> {
        if bytes <= NATIVE_PAGE_BYTES {
            return Some(Room::Elsewhere);
        }
        match app.admission.reply_bytes.take_quietly(bytes) {
            Some(held) => Some(Room::Given(held)),
            None => (self.patience == Patience::TakeWhatIsThere).then_some(Room::Owed),
        }
    }

    /// Sleeps before the next check for memory. Returns true if the step was stopped instead.
    pub(crate) async fn pause(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.notified() => true,
            () = tokio::time::sleep(ROOM_PAUSE) => false,
        }
    }

    /// Waits for a [reservation](Self::room_for) while it keeps the frame's data in memory. A stopped step does not
    /// wait.
    pub(crate) async fn wait_for_room(&self, app: &App, bytes: u64) -> Room {
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

/// Result of a subscription's step.
pub(crate) enum Found {
    /// A frame, or several that belong together, with their cost in credit.
    Frame {
        /// Number of messages, records or changes.
        messages: u64,
        /// Their bytes, as credit counts them.
        bytes: u64,
        /// Function that puts them into the outbox.
        encode: Encode,
    },
    /// There is nothing to send now.
    Nothing,
    /// The subscription has ended; no more messages will follow.
    Over(Failure),
}

impl Found {
    /// Creates a frame of `messages` messages and `bytes` bytes.
    pub(crate) fn frame(
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
