//! Errors of requests, as HTTP status and JSON.
//!
//! Owns: the mapping from typed errors of the layers below to HTTP statuses, and the error object `{code, message,
//! retry, request_id, ...}`. The native protocol sends the same codes and messages. Does not own: the HTTP reply
//! (`http::reply`). Invariant: every error reply of a handler is made here, so each has a code and states what to do
//! next. There is one exception: hyper rejects malformed requests (such as a head that is not HTTP) before a handler
//! runs, with an empty body.

use std::borrow::Cow;

use http::StatusCode;
use serde_json::{Map, Value};
use thalweg_broker::{
    BatchError, CacheError, CreateCacheError, RequestError, SubjectError, SubscribeError, TooManyLinks, WouldBlock,
};
use thalweg_engine::{
    Database, DigestError, GroupError, ReadError, WatchError, WriteError, snapshot::SnapshotError, space::SpaceError,
};
use thalweg_types::{
    Action, Classified, Durability, GroupId, StreamId,
    command::{CommandError, OperationError, ProducerRefusal},
    limits::{MAX_RECORD_BYTES, MAX_VALUE_BYTES},
    record::RecordError,
};

/// Maximum number of bytes of the message of a [shortened](ApiError::shortened) error.
const MAX_SHORT_MESSAGE_BYTES: usize = 128;

/// An error of a request, in the form that clients receive.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// HTTP status of the error reply.
    pub status: StatusCode,
    /// Stable code of the error, such as `no_such_stream`, for client programs.
    pub code: &'static str,
    /// Message for people: what happened, and what to do next.
    pub message: Cow<'static, str>,
    /// Next step that the client program should take: retry, fix the request, or stop.
    pub action: Action,
    /// A named number that helps the client to continue, such as the stream's next offset; `None` if there is none.
    pub detail: Option<(&'static str, u64)>,
    /// The part of the request that caused the error, such as the failed condition of a commit; `None` if no part is
    /// named.
    pub culprit: Option<Box<Map<String, Value>>>,
    /// Durability level of the data that the error reveals, such as a stored revision; `None` if it reveals
    /// no data.
    pub shown: Option<Durability>,
    /// Object whose id is in the message; see [`with_names`](Self::with_names).
    pub subject: Option<Subject>,
}

/// Object that an error is about. Commands contain ids only, so the layers that execute them do not know its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The error is about a stream, which the message names by its id, as `stream 7`.
    Stream(StreamId),
    /// The error is about a consumer group, which the message names by its id, as `consumer group 7`.
    Group(GroupId),
}

impl Subject {
    /// Replaces the object's id in a message by its name. Returns the message unchanged if the object no longer exists.
    #[must_use]
    pub fn named_in(self, message: Cow<'static, str>, db: &Database) -> Cow<'static, str> {
        let names = match self {
            Self::Stream(id) => {
                let info = db.stream_by_id(id).info().ok();
                info.map(|info| (format!("stream {id}"), format!("stream {:?}", info.name)))
            }
            Self::Group(id) => {
                let info = db.group_by_id(id).ok().flatten().and_then(|group| group.info().ok());
                info.map(|info| (format!("consumer group {id}"), format!("consumer group {:?}", info.name)))
            }
        };
        match names {
            Some((id, name)) => message.replacen(&id, &name, 1).into(),
            None => message,
        }
    }
}

impl ApiError {
    /// Creates an error with a status, a code, a next step and a message, but without further details.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, action: Action, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), action, detail: None, culprit: None, shown: None, subject: None }
    }

    /// Creates an error with HTTP status 400: the request is invalid.
    #[must_use]
    pub fn bad_request(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, Action::Fix, message)
    }

    /// Creates an error with HTTP status 404: the requested object does not exist.
    #[must_use]
    pub fn not_found(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, Action::Fix, message)
    }

    /// Creates an error with HTTP status 503: the server is at one of its bounds on work or memory.
    #[must_use]
    pub fn overloaded(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", Action::Retry, message)
    }

    /// Returns the error as a JSON object.
    #[must_use]
    pub fn to_json(&self, request_id: Option<&str>) -> Value {
        let mut object = Map::new();
        object.insert("code".into(), self.code.into());
        object.insert("message".into(), self.message.as_ref().into());
        object.insert("retry".into(), self.action.name().into());
        if let Some((name, value)) = self.detail {
            object.insert(name.into(), value.into());
        }
        object.extend(self.culprit.iter().flat_map(|culprit| (**culprit).clone()));
        if let Some(id) = request_id {
            object.insert("request_id".into(), id.into());
        }
        Value::Object(object)
    }

    /// Converts an error of a lower layer, such as the database, to an error with the HTTP status `status`.
    pub fn classified(status: StatusCode, error: &impl Classified) -> Self {
        Self::new(status, error.code(), error.action(), error.to_string())
    }

    /// Replaces the id of a stream or a consumer group in the message by its name, which clients know.
    #[must_use]
    pub fn with_names(mut self, db: &Database) -> Self {
        if let Some(subject) = self.subject {
            self.message = subject.named_in(self.message, db);
        }
        self
    }

    /// Returns the error with a short message and without the part of the request that caused it. Meant for a client
    /// that holds too many bytes to get a long reply.
    #[must_use]
    pub fn shortened(self) -> Self {
        let end = self.message.floor_char_boundary(MAX_SHORT_MESSAGE_BYTES);
        Self { message: self.message[..end].to_owned().into(), culprit: None, ..self }
    }

    fn with(mut self, name: &'static str, value: u64) -> Self {
        self.detail = Some((name, value));
        self
    }
}

fn command_status(error: &CommandError) -> StatusCode {
    match error {
        CommandError::ValueTooLong { .. }
        | CommandError::CommitTooLarge
        | CommandError::TooManyRanges
        | CommandError::TooManyScans => StatusCode::PAYLOAD_TOO_LARGE,
        CommandError::KeyTooLong { .. }
        | CommandError::BadName { .. }
        | CommandError::BadGroup { .. }
        | CommandError::BadProducerId { .. }
        | CommandError::BadTtl { .. }
        | CommandError::BadHistory { .. }
        | CommandError::BadLeaseId => StatusCode::BAD_REQUEST,
    }
}

fn record_status(error: &RecordError) -> StatusCode {
    match error {
        RecordError::TooLarge { .. } | RecordError::BatchTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RecordError::KeyTooLong { .. } | RecordError::Headers | RecordError::Tombstone => StatusCode::BAD_REQUEST,
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        Self::from(WriteError::from(error))
    }
}

impl From<RecordError> for ApiError {
    fn from(error: RecordError) -> Self {
        Self::from(WriteError::from(error))
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        let status = match &error {
            WriteError::Command(error) => command_status(error),
            WriteError::Record(error) => record_status(error),
            WriteError::OverStreamLimit { .. }
            | WriteError::LargerThanSegment { .. }
            | WriteError::TooExpensive { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            WriteError::ConditionFailed { .. } => StatusCode::PRECONDITION_FAILED,
            WriteError::OffsetConflict { .. }
            | WriteError::ProducerRefused { .. }
            | WriteError::TooMany { .. }
            | WriteError::VersionNotInForce { .. }
            | WriteError::VersionUnknown { .. }
            | WriteError::CannotConfigure { .. }
            | WriteError::BadGroup { .. }
            | WriteError::AttemptLapsed { .. }
            | WriteError::LeaseExists(_) => StatusCode::CONFLICT,
            WriteError::OperationFailed { error: OperationError::ResultTooLarge { .. }, .. } => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            WriteError::OperationFailed { .. } => StatusCode::CONFLICT,
            WriteError::NoSuchKeyspace(_)
            | WriteError::NoSuchStream(_)
            | WriteError::NoSuchGroup(_)
            | WriteError::NoSuchLease(_) => StatusCode::NOT_FOUND,
            WriteError::LevelTooLow | WriteError::Malformed(_) | WriteError::EmptyBatch => StatusCode::BAD_REQUEST,
            WriteError::DiskFull { .. } | WriteError::NoRoom { .. } => StatusCode::INSUFFICIENT_STORAGE,
            WriteError::Overloaded { .. }
            | WriteError::AddressOverloaded { .. }
            | WriteError::NoSegment { .. }
            | WriteError::NotLeader { .. }
            | WriteError::NoLeader
            | WriteError::LeaderRefused { .. }
            | WriteError::Behind
            | WriteError::StoppedServing { .. }
            | WriteError::LogFailed { .. }
            | WriteError::StateFailed { .. }
            | WriteError::Closed => StatusCode::SERVICE_UNAVAILABLE,
            // Not 503: many programs repeat a request after 503, although this request may have been carried out.
            WriteError::OutcomeUnknown { .. } => StatusCode::GATEWAY_TIMEOUT,
        };
        let subject = match &error {
            WriteError::ProducerRefused { stream, .. } => Some(Subject::Stream(*stream)),
            WriteError::AttemptLapsed { group, .. } => Some(Subject::Group(*group)),
            _ => None,
        };
        let api = Self { subject, ..Self::classified(status, &error) };
        match error {
            WriteError::ConditionFailed { actual: Some(revision), .. } => api.with("revision", revision.0),
            WriteError::OffsetConflict { next, .. } => api.with("next", next.0),
            WriteError::OverStreamLimit { max, .. } => api.with("limit", max),
            WriteError::ProducerRefused { refusal, .. } => match refusal {
                ProducerRefusal::DuplicateTooOld { oldest } => api.with("oldest_sequence", oldest),
                ProducerRefusal::SequenceGap { expected } => api.with("next_sequence", expected),
                ProducerRefusal::Fenced { epoch } => api.with("epoch", epoch.into()),
                ProducerRefusal::Unknown | ProducerRefusal::Mixed => api,
            },
            WriteError::AttemptLapsed { attempt, .. } => api.with("attempt", attempt.0),
            WriteError::DiskFull { free_bytes, .. } => api.with("free_bytes", free_bytes),
            WriteError::NotLeader { leader: Some((node, address)) } => {
                let leader = [("node", format!("{:016x}", node.0)), ("address", address)];
                let leader: Map<_, _> =
                    leader.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
                let culprit = Map::from_iter([("leader".to_owned(), Value::Object(leader))]);
                Self { culprit: Some(Box::new(culprit)), ..api }
            }
            _ => api,
        }
    }
}

impl From<WatchError> for ApiError {
    fn from(error: WatchError) -> Self {
        let status = match &error {
            WatchError::Read(error) => return error.clone().into(),
            WatchError::Compacted { .. } => StatusCode::GONE,
            WatchError::BeyondEnd { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            WatchError::NoSuchKeyspace(_) => StatusCode::NOT_FOUND,
            WatchError::TooMany | WatchError::NoThread | WatchError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        };
        let api = Self::classified(status, &error);
        match error {
            WatchError::Compacted { oldest, .. } => api.with("oldest", oldest.0),
            WatchError::BeyondEnd { next, .. } => api.with("next", next.0),
            _ => api,
        }
    }
}

impl From<GroupError> for ApiError {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::Write(error) => error.into(),
            GroupError::Read(error) => error.into(),
            GroupError::NoSuchGroup(_) => Self::classified(StatusCode::NOT_FOUND, &error),
            GroupError::TooManyWaiting => Self::classified(StatusCode::SERVICE_UNAVAILABLE, &error),
        }
    }
}

impl From<DigestError> for ApiError {
    fn from(error: DigestError) -> Self {
        match error {
            DigestError::Write(error) => error.into(),
            DigestError::Read(error) => error.into(),
            DigestError::Superseded | DigestError::Thread { .. } => {
                Self::classified(StatusCode::SERVICE_UNAVAILABLE, &error)
            }
        }
    }
}

impl From<SpaceError> for ApiError {
    fn from(error: SpaceError) -> Self {
        match error {
            SpaceError::Read(error) => error.into(),
            SpaceError::Closed | SpaceError::Thread { .. } => Self::classified(StatusCode::SERVICE_UNAVAILABLE, &error),
            SpaceError::Open(_) | SpaceError::Log(_) => Self::classified(StatusCode::INTERNAL_SERVER_ERROR, &error),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        let status = match &error {
            ReadError::Trimmed { .. } => StatusCode::GONE,
            ReadError::BeyondEnd { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            ReadError::NoSuchStream(_) | ReadError::NoSuchKeyspace(_) => StatusCode::NOT_FOUND,
            ReadError::NoHistory | ReadError::HoldsCollection { .. } => StatusCode::CONFLICT,
            ReadError::Compacted { .. } => StatusCode::GONE,
            ReadError::FutureRevision { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            ReadError::BadCursor { .. } => StatusCode::BAD_REQUEST,
            ReadError::ViewExpired | ReadError::StoppedServing { .. } => StatusCode::SERVICE_UNAVAILABLE,
            ReadError::Corrupt(_) | ReadError::CorruptState(_) | ReadError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let api = Self::classified(status, &error);
        match error {
            ReadError::Trimmed { start, .. } => api.with("start", start.0),
            ReadError::BeyondEnd { next, .. } => api.with("next", next.0),
            ReadError::Compacted { oldest, .. } => api.with("oldest", oldest.0),
            ReadError::FutureRevision { newest, .. } => api.with("newest", newest.0),
            _ => api,
        }
    }
}

impl From<SubjectError> for ApiError {
    fn from(error: SubjectError) -> Self {
        Self::classified(StatusCode::BAD_REQUEST, &error)
    }
}

impl From<BatchError> for ApiError {
    fn from(error: BatchError) -> Self {
        Self::classified(StatusCode::PAYLOAD_TOO_LARGE, &error)
    }
}

impl From<SubscribeError> for ApiError {
    fn from(error: SubscribeError) -> Self {
        let status = match error.action() {
            Action::Retry => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::classified(status, &error)
    }
}

impl From<TooManyLinks> for ApiError {
    fn from(error: TooManyLinks) -> Self {
        Self::classified(StatusCode::SERVICE_UNAVAILABLE, &error)
    }
}

impl From<WouldBlock> for ApiError {
    fn from(error: WouldBlock) -> Self {
        Self::classified(StatusCode::SERVICE_UNAVAILABLE, &error)
    }
}

impl From<CacheError> for ApiError {
    fn from(error: CacheError) -> Self {
        let status = match error {
            CacheError::KeyTooLong { .. } => StatusCode::BAD_REQUEST,
            CacheError::ValueTooLong { .. } | CacheError::EntryTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            CacheError::ConditionFailed { .. } => StatusCode::PRECONDITION_FAILED,
            CacheError::NotANumber | CacheError::Overflow { .. } => StatusCode::CONFLICT,
        };
        let api = Self::classified(status, &error);
        match error {
            CacheError::ConditionFailed { version: Some(version) } => api.with("version", version.0),
            CacheError::EntryTooLarge { max, .. } => api.with("limit", max),
            _ => api,
        }
    }
}

impl From<CreateCacheError> for ApiError {
    fn from(error: CreateCacheError) -> Self {
        let status = match error {
            CreateCacheError::Exists
            | CreateCacheError::TooMany
            | CreateCacheError::TooManyOfAddress
            | CreateCacheError::NoRoom { .. }
            | CreateCacheError::NoShare { .. } => StatusCode::CONFLICT,
            CreateCacheError::Name { .. } | CreateCacheError::TooSmall { .. } => StatusCode::BAD_REQUEST,
        };
        Self::classified(status, &error)
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        let status = match &error {
            SnapshotError::Compacted { .. } | SnapshotError::ChunkGone { .. } => StatusCode::GONE,
            SnapshotError::PastEnd { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            SnapshotError::StoppedServing { .. } | SnapshotError::TooMany { .. } => StatusCode::SERVICE_UNAVAILABLE,
            SnapshotError::Expired => StatusCode::INSUFFICIENT_STORAGE,
            SnapshotError::State(_) | SnapshotError::Log(_) | SnapshotError::ValueDamaged(_) | SnapshotError::Io(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let mut api = Self::classified(status, &error);
        api.detail = match error {
            SnapshotError::Compacted { oldest, .. } => Some(("oldest", oldest.0)),
            SnapshotError::PastEnd { applied, .. } => Some(("applied", applied.0)),
            SnapshotError::ChunkGone { oldest, .. } => Some(("oldest_chunk", oldest)),
            _ => None,
        };
        api
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let status = match error {
            RequestError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            RequestError::NoResponders | RequestError::Overloaded | RequestError::TooMany { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::classified(status, &error)
    }
}

/// Creates error 404 for a cache that does not exist.
#[must_use]
pub fn no_such_cache(name: &str) -> ApiError {
    let message = format!("there is no cache {name:?}: the first put creates it; caches do not survive a restart");
    ApiError::not_found("no_such_cache", message)
}

/// Creates error 413 for a body above the configured bound.
#[must_use]
pub fn body_too_large(limit: u64) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        Action::Fix,
        format!(
            "the body is above {limit} bytes (max_body_bytes); a value or record may have {} bytes at most",
            MAX_VALUE_BYTES.min(MAX_RECORD_BYTES)
        ),
    )
}

/// Creates error 404 for a keyspace that does not exist.
#[must_use]
pub fn no_such_keyspace(name: &str) -> ApiError {
    ApiError::not_found("no_such_keyspace", format!("there is no keyspace {name:?}: the first write creates it"))
}

/// Creates error 404 for a stream that does not exist.
#[must_use]
pub fn no_such_stream(name: &str) -> ApiError {
    ApiError::not_found("no_such_stream", format!("there is no stream {name:?}: the first append creates it"))
}

/// Creates error 404 for a key without a value.
#[must_use]
pub fn no_such_key() -> ApiError {
    ApiError::not_found("not_found", "the key has no value")
}
