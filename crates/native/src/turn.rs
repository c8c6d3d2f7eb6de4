//! Arguments and results of the functions that handle request frames. The crate's documentation describes their use.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

use thalweg_engine::{CommandResult, PendingCommand};
use thalweg_serving::{admission::Account, app::App};
use thalweg_types::budget::Budget;
use thalweg_wire::{Frame, put_outcome};

use super::{failure::Failure, replies::Replies, subjects::Subjects, subscription::Source, write_queue::WriteQueue};

/// The parts of a channel and of the server that a handler of a frame can use.
pub(crate) struct Turn<'t> {
    /// State of the server that all protocols share: database, configuration, admission.
    pub app: &'t Arc<App>,
    /// Account of the connection. It counts what the connection holds of the server's limited resources.
    pub account: &'t Arc<Account>,
    /// Outbox of the channel, into which handlers put replies.
    pub out: &'t mut Replies,
    /// The channel's state for subjects: publishing and subscriptions.
    pub subjects: &'t mut Subjects,
    /// Writes of the channel that wait until other threads have read rows of the state for them from the disk.
    pub writes: &'t mut Writes,
    /// Number of the channel, unique on this server.
    pub number: u64,
    /// True if no other channel or connection of the server has been active recently. A handler that blocks for a short
    /// time then delays no other client.
    pub is_sole_client: bool,
}

impl Turn<'_> {
    /// Returns the limit on the work of a short read on this thread. A read for the only active client may wait for the
    /// disk here: this is faster than a transfer to another thread, and delays no other client.
    pub(crate) fn budget(&self) -> Budget {
        if self.is_sole_client { Budget::ALONE } else { Budget::RESIDENT }
    }
}

/// Future that completes with the reply to a request.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>;

/// Queue of a channel's writes that wait until other threads have read rows of the state for them from the disk.
pub(crate) type Writes = WriteQueue<Result<PendingReply, Failure>>;

/// Result of a handler. It determines how the request is answered.
pub(crate) enum Handled {
    /// The reply is in the outbox, or the client wants no reply.
    Replied,
    /// The request's command is pending, and its outcome is the reply. Neither a cancel nor a timeout stops the
    /// command.
    Write(PendingCommand),
    /// The future returns the reply. A cancel or the request's timeout drops the future, and the channel replies with a
    /// failure: the request was cancelled, or timed out.
    Later(PendingReply),
    /// The future returns the reply. A cancel or the request's timeout drops the future, as for [`Later`](Self::Later).
    /// While the flag is set, the request may have taken effect, and the failure then says so.
    LaterWithEffect(PendingReply, Arc<AtomicBool>),
    /// The future returns the reply. It writes, so neither a cancel nor a timeout stops it. If it completes after the
    /// request's timeout, its reply is discarded.
    Unstoppable(PendingReply),
    /// A subscription has begun. Its first frame is in the outbox, and the channel gets its further frames from this
    /// source.
    Began(Source),
    /// A subscription to subjects has begun. [`Subjects`] feeds it.
    BeganSubject,
}

impl Handled {
    /// Creates the result of a handler whose reply comes from a future.
    pub(crate) fn later(reply: impl Future<Output = Result<Reply, Failure>> + Send + 'static) -> Self {
        Self::Later(Box::pin(reply))
    }

    /// Creates the result of a handler like [`later`](Self::later). While the flag `begun` is set, the request may have
    /// taken effect.
    pub(crate) fn later_with_effect(
        reply: impl Future<Output = Result<Reply, Failure>> + Send + 'static,
        begun: Arc<AtomicBool>,
    ) -> Self {
        Self::LaterWithEffect(Box::pin(reply), begun)
    }
}

impl fmt::Debug for Handled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replied => "Replied",
            Self::Write(_) => "Write",
            Self::Later(_) => "Later",
            Self::LaterWithEffect(..) => "LaterWithEffect",
            Self::Unstoppable(_) => "Unstoppable",
            Self::Began(_) => "Began",
            Self::BeganSubject => "BeganSubject",
        })
    }
}

type Encode = Box<dyn FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send>;

/// Reply to a request whose handler did not reply immediately.
pub(crate) enum Reply {
    /// The reply is the outcome of a command, with the durability level reached.
    Outcome(CommandResult),
    /// The reply consists of one or more frames, which this function puts into the outbox.
    Frame(Encode),
    /// The reply was encoded outside the channel's task. The channel appends these frames to its outbox.
    Encoded(Replies),
}

impl Reply {
    /// Creates a reply from a frame that contains no references, so that it can be kept until it is sent.
    #[must_use]
    pub(crate) fn frame(frame: impl for<'f> Frame<'f> + Send + 'static) -> Self {
        Self::encode(move |out, id| out.reply(id, &frame))
    }

    /// Creates a reply whose frame is encoded only when it is put into the outbox.
    #[must_use]
    pub(crate) fn encode(encode: impl FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send + 'static) -> Self {
        Self::Frame(Box::new(encode))
    }

    /// Puts the reply's frames into the outbox `out`, as the reply to the request with the id `id`.
    pub(crate) fn put(self, out: &mut Replies, id: u32) -> Result<(), Failure> {
        match self {
            Self::Frame(encode) => encode(out, id),
            Self::Encoded(replies) => {
                out.append(replies);
                Ok(())
            }
            Self::Outcome((durability, outcome)) => {
                out.states(durability);
                let replied = out.reply_after_effect(id, |out| put_outcome(out, id, durability, outcome.as_ref()));
                let replied = replied.map_err(Failure::after_effect)?;
                debug_assert!(replied, "clients send no commands that have no outcome to report: {outcome:?}");
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome(outcome) => f.debug_tuple("Outcome").field(outcome).finish(),
            Self::Frame(_) => f.write_str("Frame"),
            Self::Encoded(replies) => f.debug_tuple("Encoded").field(replies).finish(),
        }
    }
}
