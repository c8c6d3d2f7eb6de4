//! Why something did not work, and what to do.
//!
//! Owns: [`Error`] of requests and subscriptions, [`ConnectError`] of making a client, [`Lost`] of connections.
//! Each implements [`Classified`]: retry, fix, or stop.

use std::{io, sync::Arc, time::Duration};

use thalweg_transport::DialError;
use thalweg_types::{Action, Classified, Durability, command::CommandError, record::RecordError};
use thalweg_wire::{
    BatchError, DecodeError, Effect, EncodeError, Ended, Failed, FrameError, PutWriteError, Reason,
    handshake::HandshakeError, session::RouteError,
};

/// Why a request was not answered as wanted, or a subscription ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server says so.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The time was up.
    #[error("no reply within {after:?}{}: the server is slow or gone; try again, or allow more time", unknown(*effect))]
    TimedOut {
        /// How long it was waited.
        after: Duration,
        /// Whether it may have happened all the same.
        effect: Effect,
    },
    /// The connection went while the request was under way.
    #[error("{why}{}", unknown(*effect))]
    Lost {
        /// How.
        why: Lost,
        /// Whether it may have happened all the same.
        effect: Effect,
    },
    /// There was no connection for as long as the request could wait.
    #[error("not connected: {why}")]
    NotConnected {
        /// Why the last attempt failed.
        why: Arc<ConnectError>,
    },
    /// What the server sent is not what the protocol says.
    #[error("the server broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// It can't be sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server has started anew since an id of its run was asked for, or keeps doing so.
    #[error("the server has started anew: try again")]
    OtherRun,
    /// The client was closed.
    #[error("the client is closed: connect again")]
    Closed,
}

fn unknown(effect: Effect) -> &'static str {
    match effect {
        Effect::Nothing => "",
        Effect::Unknown => " (it is unknown whether the request was carried out)",
    }
}

/// The server's answer to what it did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Failure {
    /// What to do.
    pub action: Action,
    /// Whether it may have happened all the same.
    pub effect: Effect,
    /// The level of what the error shows of the data, if it shows some.
    pub shown: Option<Durability>,
    /// Stable, for programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// Figures, such as `next` or `revision`.
    pub details: Vec<(String, u64)>,
}

impl Failure {
    /// The figure of that name.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<u64> {
        self.details.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }

    pub(crate) fn of_reply(failed: &Failed<'_>) -> Self {
        Self {
            action: failed.class,
            effect: failed.effect,
            shown: failed.shown.0,
            code: failed.code.to_owned(),
            message: failed.message.to_owned(),
            details: failed.details.iter().map(|detail| (detail.name.to_owned(), detail.value)).collect(),
        }
    }

    pub(crate) fn of_end(ended: &Ended<'_>) -> Self {
        Self {
            action: ended.class,
            effect: Effect::Nothing,
            shown: None,
            code: ended.code.to_owned(),
            message: ended.message.to_owned(),
            details: ended.details.iter().map(|detail| (detail.name.to_owned(), detail.value)).collect(),
        }
    }
}

/// What can't be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A command outside its limits.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A record or message outside its limits.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It does not fit into a frame.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// An append without records.
    #[error("an append needs at least one record")]
    NoRecords,
}

impl From<PutWriteError> for Invalid {
    fn from(error: PutWriteError) -> Self {
        match error {
            PutWriteError::Command(error) => Self::Command(error),
            PutWriteError::Encode(error) => Self::Encode(error),
        }
    }
}

macro_rules! invalid {
    ($($source:ident),*) => {$(
        impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::Invalid(error.into())
            }
        }
    )*};
}

invalid!(CommandError, RecordError, EncodeError, PutWriteError);

/// What of the server's frames is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame that belongs to nothing, or more than was permitted.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A frame above what the client takes.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that is not what its kind says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A batch of messages that is none, or not the one that was published.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An answer of a kind that does not belong to the request.
    #[error("a request was answered with a frame of kind {kind:#06x}")]
    WrongReply {
        /// Which.
        kind: u16,
    },
    /// Records that are not as many as they say, or do not decode.
    #[error("records from offset {first} on are not as many as they say, or malformed")]
    Records {
        /// The first.
        first: u64,
    },
}

/// How a connection went.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The socket failed.
    #[error("the connection broke: {message}")]
    Broken {
        /// What kind of error.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// The server closed it without a word.
    #[error("the server closed the connection")]
    Closed,
    /// The server said goodbye.
    #[error("the server said goodbye: {message}")]
    Goodbye {
        /// Why.
        reason: Reason,
        /// Whether connecting again helps.
        class: Action,
        /// For people.
        message: String,
    },
    /// Nothing was heard for three times the keep-alive interval.
    #[error("nothing was heard from the server for too long")]
    Silent,
    /// The server sent what it may not.
    #[error("the server broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// The client was closed.
    #[error("the client was closed")]
    ByClient,
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Broken { kind: error.kind(), message: error.to_string() }
    }
}

macro_rules! protocol {
    ($($source:ident),*) => {$(
        impl From<$source> for Lost {
            fn from(error: $source) -> Self {
                Self::Protocol(error.into())
            }
        }

        impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::Protocol(error.into())
            }
        }
    )*};
}

protocol!(RouteError, FrameError, DecodeError, BatchError);

impl Classified for Lost {
    fn code(&self) -> &'static str {
        match self {
            Self::Broken { .. } | Self::Closed => "connection_lost",
            Self::Goodbye { .. } => "goodbye",
            Self::Silent => "silent",
            Self::Protocol(_) => "protocol",
            Self::ByClient => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Broken { .. } | Self::Closed | Self::Silent => Action::Retry,
            Self::Goodbye { class, .. } => *class,
            Self::Protocol(_) | Self::ByClient => Action::Stop,
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers at the address.
    #[error(transparent)]
    Dial(DialError),
    /// The two sides don't understand each other.
    #[error(transparent)]
    Handshake(HandshakeError),
    /// It went before the welcome.
    #[error("{0}, before its welcome")]
    Lost(Lost),
    /// There was no welcome in time.
    #[error("no welcome within {after:?}: is this the server's native port?")]
    TimedOut {
        /// How long it was waited.
        after: Duration,
    },
    /// No attempt was made yet.
    #[error("no attempt to connect has ended yet")]
    NotYet,
}

impl Classified for ConnectError {
    fn code(&self) -> &'static str {
        match self {
            Self::Dial(error) => error.code(),
            Self::Handshake(error) => error.code(),
            Self::Lost(lost) => lost.code(),
            Self::TimedOut { .. } => "connect_timeout",
            Self::NotYet => "not_connected",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Dial(error) => error.action(),
            Self::Handshake(error) => error.action(),
            Self::Lost(lost) => lost.action(),
            Self::TimedOut { .. } | Self::NotYet => Action::Retry,
        }
    }
}

impl Error {
    /// Whether the request may have been carried out all the same.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Failed(failure) => failure.effect,
            Self::TimedOut { effect, .. } | Self::Lost { effect, .. } => *effect,
            Self::NotConnected { .. } | Self::Invalid(_) | Self::OtherRun | Self::Closed => Effect::Nothing,
            Self::Protocol(_) => Effect::Unknown,
        }
    }

    /// What the server said, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the server said so with this code.
    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.failure().is_some_and(|failure| failure.code == code)
    }

    /// Its code, which for a [`Failure`] is the server's.
    #[must_use]
    pub fn code_text(&self) -> &str {
        self.failure().map_or_else(|| self.code(), |failure| &failure.code)
    }
}

/// [`code`](Classified::code) of a [`Failure`] is `failed`: the server's own is in it, see [`Error::code_text`].
impl Classified for Error {
    fn code(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::TimedOut { .. } => "timeout",
            Self::Lost { why, .. } => why.code(),
            Self::NotConnected { .. } => "not_connected",
            Self::Protocol(_) => "protocol",
            Self::Invalid(_) => "invalid",
            Self::OtherRun => "other_run",
            Self::Closed => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Failed(failure) => failure.action,
            Self::TimedOut { .. } | Self::OtherRun => Action::Retry,
            Self::Lost { why, .. } => why.action(),
            Self::NotConnected { why } => why.action(),
            Self::Invalid(_) => Action::Fix,
            Self::Protocol(_) | Self::Closed => Action::Stop,
        }
    }
}
