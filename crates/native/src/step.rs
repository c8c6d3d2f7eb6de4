//! A step of a subscription: its bounds ([`Wanted`]) and its result ([`Found`]). `subscription` decides when a step begins.

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

/// Whether a step that finds nothing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until there is something, or it is told to stop.
    Wait,
    /// No: what is there is all that is wanted.
    TakeWhatIsThere,
}

/// What a step may bring, and when it ends early.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
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
    pub(crate) fn room_for(&self, app: &App, bytes: u64) -> Option<Room> {
        if bytes <= NATIVE_PAGE_BYTES {
            return Some(Room::Elsewhere);
        }
        match app.admission.reply_bytes.take_quietly(bytes) {
            Some(held) => Some(Room::Given(held)),
            None => (self.patience == Patience::TakeWhatIsThere).then_some(Room::Owed),
        }
    }

    /// Lets others go on before there is another look whether there is room. Whether the step is to end instead.
    pub(crate) async fn pause(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.notified() => true,
            () = tokio::time::sleep(ROOM_PAUSE) => false,
        }
    }

    /// Waits until there is [room](Self::room_for), with what the frame is made of in hand. One that is told to end waits no
    /// longer.
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

/// What a step found.
pub(crate) enum Found {
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
