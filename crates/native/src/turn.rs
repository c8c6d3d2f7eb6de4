//! The context of a handler, and its answers. The crate's documentation describes how they work together.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use thalweg_engine::{Carried, CommandUnderWay};
use thalweg_serving::app::App;
use thalweg_wire::{Frame, put_outcome};

use super::{failure::Failure, replies::Replies, subjects::Subjects, subscription::Source};

/// What every handler may use while a frame is dealt with.
pub(crate) struct Turn<'t> {
    /// Database, configuration, admission.
    pub app: &'t Arc<App>,
    /// Where replies go.
    pub out: &'t mut Replies,
    /// The channel's subscriptions to subjects.
    pub subjects: &'t mut Subjects,
    /// Nobody else has been at work lately: what blocks for a moment holds up nobody.
    pub is_alone: bool,
}

/// A reply that is still to come.
pub(crate) type Later = Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>;

/// How a request goes on.
pub(crate) enum Handled {
    /// Its reply is in the outbox, or none is wanted.
    Replied,
    /// A command is under way, and its outcome is the reply. Can't be stopped.
    Write(CommandUnderWay),
    /// The reply comes with this future. A cancel drops it, and the answer is `cancelled`; so does the request's timeout.
    Later(Later),
    /// The reply comes with this future, and nothing stops it: it writes. If the request's time is up it goes on unheard.
    Unstoppable(Later),
    /// The same as [`Later`](Self::Later), and no further frame of the channel is looked at before it is done: for publishers that must wait.
    /// A subscription has begun: its begin is in the outbox, and the channel feeds it from this source.
    Began(Source),
    /// A subscription has begun that [`Subjects`] feeds.
    BeganSubject,
}

impl Handled {
    /// Answered by a future.
    pub(crate) fn later(reply: impl Future<Output = Result<Reply, Failure>> + Send + 'static) -> Self {
        Self::Later(Box::pin(reply))
    }
}

impl fmt::Debug for Handled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replied => "Replied",
            Self::Write(_) => "Write",
            Self::Later(_) => "Later",
            Self::Unstoppable(_) => "Unstoppable",
            Self::Began(_) => "Began",
            Self::BeganSubject => "BeganSubject",
        })
    }
}

type Encode = Box<dyn FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send>;

/// A reply that came later.
pub(crate) enum Reply {
    /// What a command came to.
    Outcome(Carried),
    /// A frame, or several, put into the outbox by this.
    Frame(Encode),
    /// What was put together aside.
    Aside(Replies),
}

impl Reply {
    /// A frame that borrows nothing.
    #[must_use]
    pub(crate) fn frame(frame: impl for<'f> Frame<'f> + Send + 'static) -> Self {
        Self::encode(move |out, id| out.reply(id, &frame))
    }

    /// A frame that is encoded when it is its turn.
    #[must_use]
    pub(crate) fn encode(encode: impl FnOnce(&mut Replies, u32) -> Result<(), Failure> + Send + 'static) -> Self {
        Self::Frame(Box::new(encode))
    }

    /// Puts it into the outbox.
    pub(crate) fn put(self, out: &mut Replies, id: u32) -> Result<(), Failure> {
        match self {
            Self::Frame(encode) => encode(out, id),
            Self::Aside(replies) => {
                out.append(replies);
                Ok(())
            }
            Self::Outcome((durability, outcome)) => {
                let told = out.told(id, |out| put_outcome(out, id, durability, outcome.as_ref()))?;
                debug_assert!(told, "clients send no commands whose outcome is not told: {outcome:?}");
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome(carried) => f.debug_tuple("Outcome").field(carried).finish(),
            Self::Frame(_) => f.write_str("Frame"),
            Self::Aside(replies) => f.debug_tuple("Aside").field(replies).finish(),
        }
    }
}
