//! A step of a subscription, which produces the subscription's next frame: its bounds ([`StepLimits`]) and its result
//! ([`StepResult`]). `subscription` decides when a step begins.

use std::{fmt, sync::Arc};

use thalweg_serving::{
    admission::{Account, Resource},
    limits::{NATIVE_PAGE_BYTES, ROOM_PAUSE},
};
use tokio::sync::Notify;

use super::{
    failure::Failure,
    replies::{FrameMemory, Replies},
};

/// Behaviour of the work that produces a subscription's next frame (a step) if there are no messages to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    /// The work waits until there are messages, or until it is stopped.
    Wait,
    /// The work ends immediately. Used for a cancelled subscription that still sends its pending messages.
    Return,
}

/// Limits of a step, the work that produces a subscription's next frame, and the signal that stops it.
#[derive(Clone, Debug)]
pub(crate) struct StepLimits {
    /// Maximum number of messages in the next frame: those that the subscription may still send until it reaches its
    /// limit.
    pub max_messages: u64,
    /// Remaining credit of the client, in messages and in bytes. A frame stays within it if possible, but a single
    /// message may exceed it.
    pub credit: (u64, u64),
    /// Maximum size in bytes of a frame that the client accepts.
    pub max_frame_bytes: usize,
    /// Behaviour of the work for the next frame if the subscription has no messages to send.
    pub when_empty: WhenEmpty,
    /// Account of the connection, in which large frames count.
    pub account: Arc<Account>,
    /// Signal that the work for the next frame must end without a result.
    pub stop: Arc<Notify>,
}

impl StepLimits {
    /// Returns the memory for a frame with `bytes` bytes of messages. Returns `None` if the frame is large and must
    /// wait until memory is free. A frame of a subscription is never dropped for lack of memory: it waits, or, if the
    /// subscription is ending, it is sent even above the limit.
    pub(crate) fn room_for(&self, bytes: u64) -> Option<FrameMemory> {
        if bytes <= NATIVE_PAGE_BYTES {
            return Some(FrameMemory::CountedBySource);
        }
        match self.account.take_quietly(Resource::ReplyBytes, bytes) {
            Some(held) => Some(FrameMemory::Reserved(held)),
            None => (self.when_empty == WhenEmpty::Return).then_some(FrameMemory::Exceed),
        }
    }

    /// Waits until memory for a frame with `bytes` bytes of messages can be [reserved](Self::room_for). During the
    /// wait, the caller must hold neither the frame nor its data. Returns `None` if the wait was stopped.
    pub(crate) async fn wait_for_room(&self, bytes: u64) -> Option<FrameMemory> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => return None,
                () = tokio::time::sleep(ROOM_PAUSE) => {}
            }
            if let Some(room) = self.room_for(bytes) {
                return Some(room);
            }
        }
    }
}

type Encode = Box<dyn FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send>;

/// Result of the work for a subscription's next frame: the frame, nothing, or the end of the subscription.
pub(crate) enum StepResult {
    /// One frame, or several that belong together, and the credit that they cost the client.
    Frame {
        /// Number of messages, records or changes in the frames.
        messages: u64,
        /// Bytes of the messages in the frames, as the client's credit counts them.
        bytes: u64,
        /// Function that encodes the step's frames into the outbox.
        encode: Encode,
    },
    /// The work has produced no frame, because the subscription has no messages to send now.
    Nothing,
    /// The subscription has ended for this reason; no more messages will follow.
    Ended(Failure),
}

impl StepResult {
    /// Creates the result of a step that has produced one frame, or several that belong together, with `messages`
    /// messages of `bytes` bytes. `encode` encodes the frames.
    pub(crate) fn frame(
        messages: u64,
        bytes: u64,
        encode: impl FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send + 'static,
    ) -> Self {
        Self::Frame { messages, bytes, encode: Box::new(encode) }
    }
}

impl fmt::Debug for StepResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame { messages, bytes, .. } => write!(f, "Frame({messages} messages, {bytes} bytes)"),
            Self::Nothing => f.write_str("Nothing"),
            Self::Ended(failure) => f.debug_tuple("Ended").field(failure).finish(),
        }
    }
}
