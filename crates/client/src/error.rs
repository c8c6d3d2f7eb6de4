//! Errors of the client. Each error states its cause and the caller's next step.
//!
//! Owns: [`Error`] of requests and subscriptions, [`ConnectError`] of new clients, [`Lost`] of connections. Each
//! implements [`Classified`], so a caller can learn its next step: retry, fix the request, or stop.

use std::{io, sync::Arc, time::Duration};

use thalweg_transport::DialError;
use thalweg_types::{Action, Classified, Durability, classified, command::CommandError, record::RecordError};
use thalweg_wire::{
    BatchError, DecodeError, Effect, EncodeError, Ended, Failed, Fields, FrameError, PutWriteError, Reason,
    handshake::HandshakeError, session::RouteError,
};

/// Reason why a request failed, or why a subscription ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server reported a failure.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// The request timed out.
    #[error("no reply within {after:?}{}: the server is slow or down; try again, or allow more time", unknown(*effect))]
    TimedOut {
        /// Time that the client waited for the reply to the request.
        after: Duration,
        /// Effect of the request on the server: none, or unknown.
        effect: Effect,
    },
    /// The connection was lost while the request was in progress.
    #[error("{why}{}", unknown(*effect))]
    Lost {
        /// Cause for which the connection was lost.
        why: Lost,
        /// Effect of the request on the server: none, or unknown.
        effect: Effect,
    },
    /// The server may or may not have carried out a write, and a repetition could carry it out twice. Read the data
    /// before you repeat the write.
    #[error("the write may or may not have happened, and was not repeated: {cause}")]
    OutcomeUnknown {
        /// Error with which the last attempt to send the request failed.
        cause: Box<Self>,
    },
    /// The client had no connection during the whole time that the request could wait.
    #[error("not connected: {why}")]
    NotConnected {
        /// Error of the last attempt to connect.
        why: Arc<ConnectError>,
    },
    /// The client cannot reach the member of the cluster that has this key of a [spread cache](crate::SpreadCache).
    /// Keys on other members are still available.
    #[error("node {node:016x} cannot be reached, and no other node has its part of the cache: {why}")]
    NodeAway {
        /// Id of the member that the client cannot reach.
        node: u64,
        /// Error of the last attempt to connect to the member.
        why: Arc<ConnectError>,
    },
    /// The frames that the server sent violate the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// The client cannot send the request, because the request itself is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The server has restarted since the client looked up an id that is valid only for one run of the server. The
    /// client looks the id up again, and returns this error only if the server keeps restarting.
    #[error("the server has restarted: try again")]
    OtherRun,
    /// The server has other data than when the handle or subscription began, because it was restored from a backup or
    /// replaced by another server. The ids that the client had looked up may stand for other keyspaces or streams now.
    #[error("the server has other data than before, because it was restored or replaced: begin again")]
    OtherData,
    /// The client has been closed.
    #[error("the client is closed: connect again")]
    Closed,
}

fn unknown(effect: Effect) -> &'static str {
    match effect {
        Effect::Nothing => "",
        Effect::Unknown => " (it is unknown whether the request was carried out)",
    }
}

/// Failure that the server reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code}{})", .trace.as_ref().map_or(String::new(), |trace| format!(", request {trace}")))]
pub struct Failure {
    /// Next step for the caller: retry, fix the request, or stop.
    pub action: Action,
    /// Effect of the request on the server: none, or unknown.
    pub effect: Effect,
    /// Durability level of the stored data that the error reveals, such as a key's revision; `None` if it reveals no
    /// data.
    pub shown: Option<Durability>,
    /// Stable code of the error, for programs.
    pub code: String,
    /// Message of the server for people.
    pub message: String,
    /// Named figures that help the caller to recover, such as `next` or `revision`.
    pub details: Vec<(String, u64)>,
    /// Name of the request in the server's logs; `None` if the server states none. It is the name that
    /// [`Client::trace`](crate::Client::trace) set, or a name that the server chose because the server itself failed.
    pub trace: Option<String>,
    /// Address at which the leader of the cluster serves the native protocol. Present only with the code `not_leader`,
    /// and only if the server knows the address.
    pub leader: Option<String>,
}

impl Failure {
    /// Returns the figure of the failure with the given name, such as `revision`.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<u64> {
        self.details.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }

    pub(crate) fn of_reply(failed: &Failed<'_>, fields: &Fields<'_>) -> Self {
        Self {
            action: failed.class,
            effect: failed.effect,
            shown: failed.shown.0,
            code: failed.code.to_owned(),
            message: failed.message.to_owned(),
            details: failed.details.iter().map(|detail| (detail.name.to_owned(), detail.value)).collect(),
            trace: fields.trace.map(str::to_owned),
            leader: fields.leader.map(str::to_owned),
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
            trace: None,
            leader: None,
        }
    }
}

/// Reason why the client cannot send a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A command of the request breaks a limit, for example on the length of a key.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A record or message of the request breaks a limit, for example on its size.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The request does not fit into a frame of the protocol.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The append has no records.
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

/// Violation of the protocol by the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A reply belongs to no request, or pushed items exceed the credit that the client gave.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A frame is larger than the client accepts.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The bytes of a received frame do not have the layout that the frame's kind requires.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A batch of messages is malformed, or its checksum does not match.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A reply has a kind of frame that cannot answer the request.
    #[error("a request was answered with a frame of kind {kind:#06x}")]
    WrongReply {
        /// Number that the protocol assigns to the kind of the wrong reply.
        kind: u16,
    },
    /// A frame has another number of records than it states, or a record does not decode.
    #[error("the records from offset {first} on are malformed, or their number is not the stated one")]
    Records {
        /// Offset of the first record in the frame.
        first: u64,
    },
}

/// Cause of the loss of a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The socket of the connection failed.
    #[error("the connection broke: {message}")]
    Broken {
        /// Kind of the socket's I/O error.
        kind: io::ErrorKind,
        /// Message of the operating system.
        message: String,
    },
    /// The server closed the connection without a goodbye.
    #[error("the server closed the connection")]
    Closed,
    /// The server said goodbye.
    #[error("the server said goodbye: {message}")]
    Goodbye {
        /// Reason that the server stated in its goodbye.
        reason: Reason,
        /// Advice of the server to the client: connect again, fix the cause, or stop.
        class: Action,
        /// Message of the server for people.
        message: String,
    },
    /// The client received nothing from the server for three times the keep-alive interval.
    #[error("the client heard nothing from the server for too long")]
    Silent,
    /// The server violated the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// The client moved to another node of the cluster, such as a new leader.
    #[error("the client has moved to another node of the cluster")]
    Moved,
    /// The client itself ended the connection, because the client was closed.
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

classified!(Lost {
    Self::Broken { .. } | Self::Closed => "connection_lost", Retry;
    Self::Goodbye { class, .. } => "goodbye", *class;
    Self::Silent => "silent", Retry;
    Self::Moved => "moved", Retry;
    Self::Protocol(_) => "protocol", Stop;
    Self::ByClient => "closed", Stop;
});

/// Reason why the client has no connection to the server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Dialling the server's address failed.
    #[error(transparent)]
    Dial(DialError),
    /// The handshake with the server failed.
    #[error(transparent)]
    Handshake(HandshakeError),
    /// The connection was lost before the server's welcome (its reply to the client's hello) arrived.
    #[error("{0} (during the handshake)")]
    Lost(Lost),
    /// The server sent no welcome (its reply to the client's hello) within the timeout.
    #[error("no welcome within {after:?}: is this the server's native port?")]
    TimedOut {
        /// Time that the client waited for the server's welcome.
        after: Duration,
    },
    /// No node has told the client the address at which this member serves the native protocol.
    #[error("the client does not know the address of the node")]
    NoAddress,
    /// The node that answers at the address is not the wanted one.
    #[error("node {found:016x} answers at the address of the node")]
    OtherNode {
        /// Id of the node that answers at the address.
        found: u64,
    },
    /// The client has not finished any attempt to connect.
    #[error("the client has not finished an attempt to connect yet")]
    NotYet,
}

classified!(ConnectError {
    Self::Dial(error) => error.code(), error.action();
    Self::Handshake(error) => error.code(), error.action();
    Self::Lost(lost) => lost.code(), lost.action();
    Self::TimedOut { .. } => "connect_timeout", Retry;
    Self::NoAddress => "no_address", Retry;
    Self::OtherNode { .. } => "other_node", Retry;
    Self::NotYet => "not_connected", Retry;
});

impl Error {
    /// Effect of the request on the server: [`Effect::Unknown`] if the server may have carried out the request.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Failed(failure) => failure.effect,
            Self::TimedOut { effect, .. } | Self::Lost { effect, .. } => *effect,
            Self::NotConnected { .. } | Self::NodeAway { .. } => Effect::Nothing,
            Self::Invalid(_) | Self::OtherRun | Self::OtherData | Self::Closed => Effect::Nothing,
            Self::Protocol(_) | Self::OutcomeUnknown { .. } => Effect::Unknown,
        }
    }

    /// Returns the failure that the server reported, if this error is one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::OutcomeUnknown { cause } => cause.failure(),
            _ => None,
        }
    }

    /// Returns true if the server reported a failure with this code.
    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.failure().is_some_and(|failure| failure.code == code)
    }

    /// Code of the error; for a [`Failure`] it is the server's code.
    #[must_use]
    pub fn code_text(&self) -> &str {
        if matches!(self, Self::OutcomeUnknown { .. }) {
            return self.code();
        }
        self.failure().map_or_else(|| self.code(), |failure| &failure.code)
    }
}

classified!(
    /// The [`code`](Classified::code) of a [`Failure`] is always `failed`. [`Error::code_text`] returns the server's
    /// code instead.
    Error {
    Self::Failed(failure) => "failed", failure.action;
    Self::TimedOut { .. } => "timeout", Retry;
    Self::Lost { why, .. } => why.code(), why.action();
    Self::OutcomeUnknown { cause } => "outcome_unknown", cause.action();
    Self::NotConnected { why } => "not_connected", why.action();
    Self::NodeAway { .. } => "node_away", Retry;
    Self::Protocol(_) => "protocol", Stop;
    Self::Invalid(_) => "invalid", Fix;
    Self::OtherRun => "other_run", Retry;
    Self::OtherData => "other_data", Fix;
    Self::Closed => "closed", Stop;
});
