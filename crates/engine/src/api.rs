//! The public face of the engine.
#![allow(clippy::todo, missing_docs, unused_variables, clippy::needless_pass_by_value)]

use std::{
    future::Future,
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use thalweg_disk::Disk;
use thalweg_types::{
    Action, Classified, Clock, Durability, KeyspaceId, NodeId, Offset, Revision, SpaceTime, StreamId,
    command::{AppendedAt, CommandError, CommitBuilder, Expect, StreamConfig},
    record::{Malformed, Record, RecordBatch, RecordError},
};

/// Which state backend a directory uses; fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendKind {
    Memory,
    #[default]
    Lsm,
}

/// How to open a database. `Options::default()` suits a small server; every field says what it costs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Backend for a new directory; an existing one keeps its own and refuses another by name.
    pub backend: Option<BackendKind>,
    /// Level of writes that name none.
    pub durability: Durability,
    /// Create the directory if it is missing.
    pub create: Create,
    pub repair: Repair,
    pub segment_bytes: u32,
    pub spare_segments: u32,
    pub sync_interval: Duration,
    pub reserve_bytes: u64,
    pub history_bytes: u64,
    pub history_age: Duration,
    pub commit_delay: Duration,
    pub inline_value_bytes: usize,
    pub cache_bytes: u64,
    pub memtable_bytes: u64,
    /// Bytes of commands that may wait for the writer.
    pub max_queue_bytes: usize,
    /// How often maintenance looks for retention, moving and freeing.
    pub maintenance_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    #[default]
    IfMissing,
    Never,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    #[default]
    Refuse,
    CutAtCorruption,
}

impl Default for Options {
    fn default() -> Self {
        todo!()
    }
}

/// What opening found and did.
#[derive(Clone, Debug)]
pub struct OpenReport {
    pub created: bool,
    pub node: NodeId,
    pub backend: BackendKind,
    /// The log was closed cleanly the last time.
    pub clean: bool,
    /// Bytes cut from the log's end: torn, never acknowledged as durable.
    pub cut_bytes: u64,
    pub replayed_records: u64,
    pub replayed_bytes: u64,
    pub took: Duration,
    /// What `--repair` gave up, in words.
    pub repaired: Option<String>,
}

/// A database; cheap to clone, safe from many threads. Dropping the last handle is like a crash that
/// loses nothing acknowledged; [`close`](Self::close) makes the next open fast.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<()>,
}

impl Database {
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        todo!()
    }
    /// Opens on any disk; the LSM backend needs one with an OS path.
    pub fn open_on(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, seed: u64, options: Options) -> Result<Self, OpenError> {
        todo!()
    }
    pub fn report(&self) -> &OpenReport {
        todo!()
    }
    /// Stops writes, flushes the state, attests the log. Later writes fail with `Closed`; reads go on.
    pub fn close(&self) -> Result<(), WriteError> {
        todo!()
    }
    /// A handle whose writes default to `level`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        todo!()
    }
    pub fn durability(&self) -> Durability {
        todo!()
    }
    /// The async face of the same database.
    pub fn to_async(&self) -> AsyncDatabase {
        todo!()
    }

    /// The keyspace of that name, created if missing.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        todo!()
    }
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        todo!()
    }
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        todo!()
    }
    /// The stream of that name, created with no limits if missing.
    pub fn stream(&self, name: &str) -> Result<Stream, WriteError> {
        todo!()
    }
    /// As `stream`, with a configuration for a new one; says whether it was created.
    pub fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(Stream, bool), WriteError> {
        todo!()
    }
    pub fn find_stream(&self, name: &str) -> Option<Stream> {
        todo!()
    }
    pub fn streams(&self) -> Vec<StreamInfo> {
        todo!()
    }
    /// Commits at the handle's level. `commit` is built from ids: `Keyspace::id`, `Stream::id`.
    pub fn commit(&self, commit: &CommitBuilder) -> Result<Ack, WriteError> {
        todo!()
    }

    /// Whether what a read shows now is already on disk (`Disk`) or may include weaker writes (`Os`).
    pub fn visible_durability(&self) -> Durability {
        todo!()
    }
    /// fsyncs everything written so far.
    pub fn sync(&self) -> Result<(), WriteError> {
        todo!()
    }
    /// Persists the state, so that the next open replays nothing.
    pub fn flush(&self) -> Result<(), WriteError> {
        todo!()
    }
    /// One round of what the background does: retention, reclaiming, moving, freeing.
    pub fn maintain(&self) -> Result<Maintenance, WriteError> {
        todo!()
    }
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// `Ok` while writes are accepted; else why not.
    pub fn health(&self) -> Health {
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// Writes of new data are refused, reads, deletes and trims go on.
    DiskFull {
        free_bytes: u64,
    },
    /// The node must be restarted or repaired; reads go on.
    Failed {
        reason: String,
    },
    Closed,
}

/// What an acknowledged write says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The level that was reached.
    pub durability: Durability,
    /// The command's revision; `None` at level `none`, which answers before the outcome is known.
    pub revision: Option<Revision>,
    /// Per append of the commit, where its records went; empty at level `none`.
    pub appends: Vec<AppendedAt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: Bytes,
    pub revision: Revision,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    pub name: String,
    pub id: KeyspaceId,
}

/// A keyspace; cheap to clone.
#[derive(Clone, Debug)]
pub struct Keyspace {
    inner: Arc<()>,
}

impl Keyspace {
    pub fn id(&self) -> KeyspaceId {
        todo!()
    }
    pub fn name(&self) -> String {
        todo!()
    }
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        todo!()
    }
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn put_if(&self, key: &[u8], value: &[u8], expect: Expect) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn delete(&self, key: &[u8]) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn delete_if(&self, key: &[u8], expect: Expect) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        todo!()
    }
    /// Existence, size and revision without reading a value that stays in the log.
    pub fn head(&self, key: &[u8]) -> Result<Option<Head>, ReadError> {
        todo!()
    }
    /// Visits pairs in order from one consistent view, borrowed for the call.
    pub fn scan(
        &self,
        range: &ScanRange,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        todo!()
    }
    /// Iterates over owned pairs from one consistent view, in bounded memory.
    pub fn iter(&self, range: ScanRange) -> KeyspaceIter {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub revision: Revision,
    pub value_bytes: u64,
}

/// What a scan covers. Default: everything, ascending, with values.
#[derive(Clone, Debug)]
pub struct ScanRange {
    /// Only keys that start with this (empty: all); combined with the bounds.
    pub prefix: Vec<u8>,
    pub start: Bound<Vec<u8>>,
    pub end: Bound<Vec<u8>>,
    pub order: Order,
    pub limit: Option<u64>,
    pub values: Values,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Ascending,
    Descending,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Values {
    #[default]
    Include,
    Omit,
}
impl Default for ScanRange {
    fn default() -> Self {
        todo!()
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ScanItem<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub revision: Revision,
}

#[derive(Debug)]
pub struct KeyspaceIter {
    inner: (),
}
impl KeyspaceIter {
    /// The next pairs, at most so many and about so many bytes; empty at the end.
    pub fn next_page(&mut self, max_items: usize, max_bytes: usize) -> Result<Vec<(Bytes, Entry)>, ReadError> {
        todo!()
    }
}
impl Iterator for KeyspaceIter {
    type Item = Result<(Bytes, Entry), ReadError>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    pub name: String,
    pub id: StreamId,
    pub config: StreamConfig,
    /// Oldest kept.
    pub start: Offset,
    /// Next to assign; equals the high watermark on one node.
    pub next: Offset,
    /// Encoded bytes of the kept batches.
    pub bytes: u64,
    /// Space time of the newest record.
    pub last_time: SpaceTime,
}

/// A stream; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stream {
    inner: Arc<()>,
}

impl Stream {
    pub fn id(&self) -> StreamId {
        todo!()
    }
    pub fn name(&self) -> String {
        todo!()
    }
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        todo!()
    }
    pub fn info(&self) -> Result<StreamInfo, ReadError> {
        todo!()
    }
    pub fn append(&self, batch: &RecordBatch) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn append_expecting(&self, batch: &RecordBatch, expected: Offset) -> Result<Ack, WriteError> {
        todo!()
    }
    /// Records from `from` on: at least one batch if there is any, else none (the end).
    /// `Trimmed` if `from` is below the start, `BeyondEnd` above the end.
    pub fn read(&self, from: Offset, max_records: u64, max_bytes: u64) -> Result<StreamPage, ReadError> {
        todo!()
    }
    /// The first offset whose record is not older than `time`; the end if all are.
    pub fn offset_at(&self, time: SpaceTime) -> Result<Offset, ReadError> {
        todo!()
    }
    /// Blocks until the stream holds a record at `offset`, is deleted, the database closes, or the time is up; says whether there is one.
    pub fn wait_for(&self, offset: Offset, timeout: Duration) -> Result<bool, ReadError> {
        todo!()
    }
    pub fn trim(&self, before: Offset) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn configure(&self, config: &StreamConfig) -> Result<Ack, WriteError> {
        todo!()
    }
    pub fn delete(&self) -> Result<Ack, WriteError> {
        todo!()
    }
}

/// Part of a stream as read: encoded batches, decoded as they are iterated.
#[derive(Clone, Debug, Default)]
pub struct StreamPage {
    pub batches: Vec<StreamBatch>,
    /// Read on from here.
    pub next: Offset,
    /// The stream's next offset at the time of reading.
    pub high_watermark: Offset,
}
/// Consecutive records with one timestamp.
#[derive(Clone, Debug)]
pub struct StreamBatch {
    /// Offset of the first record in `bytes`.
    pub first: Offset,
    /// How many records are wanted of it, after skipping `skip`.
    pub count: u32,
    /// Records at the start of `bytes` that lie below the wanted range (`first` counts from after them).
    pub skip: u32,
    pub time: SpaceTime,
    /// The encoded batch.
    pub bytes: Bytes,
}
impl StreamPage {
    /// Calls `visit` with each record in order.
    pub fn for_each(
        &self,
        visit: &mut dyn FnMut(Offset, SpaceTime, &Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        todo!()
    }
    pub fn record_count(&self) -> u64 {
        todo!()
    }
}

/// The async face: futures for any runtime. Reads are the same blocking calls as on [`Database`] (memory
/// or page cache mostly): call them inline for points, on a blocking thread for long scans.
#[derive(Clone, Debug)]
pub struct AsyncDatabase {
    inner: Arc<()>,
}

impl AsyncDatabase {
    pub fn blocking(&self) -> &Database {
        todo!()
    }
    /// Queues the commit at once (or answers `Overloaded`); the future resolves when `level` is reached.
    pub fn commit(
        &self,
        commit: &CommitBuilder,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn put(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        value: &[u8],
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn delete(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn append(
        &self,
        stream: StreamId,
        expected: Option<Offset>,
        batch: &RecordBatch,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn keyspace(&self, name: &str) -> impl Future<Output = Result<Keyspace, WriteError>> + Send + 'static {
        let r: Result<Keyspace, WriteError> = todo!();
        async move { r }
    }
    pub fn create_stream(
        &self,
        name: &str,
        config: &StreamConfig,
    ) -> impl Future<Output = Result<(Stream, bool), WriteError>> + Send + 'static {
        let r: Result<(Stream, bool), WriteError> = todo!();
        async move { r }
    }
    pub fn configure_stream(
        &self,
        stream: StreamId,
        config: &StreamConfig,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn trim_stream(
        &self,
        stream: StreamId,
        before: Offset,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    pub fn delete_stream(&self, stream: StreamId) -> impl Future<Output = Result<Ack, WriteError>> + Send + 'static {
        let r: Result<Ack, WriteError> = todo!();
        async move { r }
    }
    /// Resolves when the stream holds a record at `offset`, or is deleted, or the database closes (then false).
    /// No timer of its own: race it against the caller's. Dropping it is fine.
    pub fn wait_for(&self, stream: StreamId, offset: Offset) -> impl Future<Output = bool> + Send + 'static {
        let r: bool = todo!();
        async move { r }
    }
}

/// What a round of maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    pub trimmed_streams: u64,
    pub reclaimed_entries: u64,
    pub moved_bytes: u64,
    pub freed_segments: u64,
}

/// Figures for people and metrics; counters count since open.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub log: thalweg_log::LogStats,
    pub state: thalweg_state::backend::BackendStats,
    /// Log bytes that a crash now would replay.
    pub replay_bytes: u64,
    pub applied_index: u64,
    pub applied_revision: u64,
    pub queue_bytes: u64,
    pub queue_commands: u64,
    pub commands: u64,
    pub entries: u64,
    pub keyspaces: u64,
    pub streams: u64,
    pub maintenance: Maintenance,
    pub space_time: SpaceTime,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path} is in use by another process: stop it, or use another directory")]
    Locked { path: PathBuf },
    #[error("{path} does not exist")]
    Missing { path: PathBuf },
    #[error("{path} was created with the {found} backend, not {wanted}")]
    OtherBackend { path: PathBuf, found: &'static str, wanted: &'static str },
    #[error("placeholder")]
    Placeholder,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("condition {condition} failed")]
    ConditionFailed { condition: u32, actual: Option<Revision> },
    #[error("expected offset is not next: the next offset is {next}")]
    OffsetConflict { stream: StreamId, next: Offset },
    #[error("no keyspace with id {0}")]
    NoSuchKeyspace(KeyspaceId),
    #[error("no stream with id {0}")]
    NoSuchStream(StreamId),
    #[error("too many {what}: the limit is {limit}")]
    TooMany { what: &'static str, limit: usize },
    #[error("a conditional write needs at least `os`: at `none` its outcome would be unknown")]
    OutcomeUnknown,
    #[error("malformed command: {0}")]
    Malformed(Malformed),
    #[error("{queued_bytes} bytes wait for the disk: retry later")]
    Overloaded { queued_bytes: usize },
    #[error("disk full: {free_bytes} bytes free are kept for deletes and trims; delete data or add space")]
    DiskFull { free_bytes: u64 },
    #[error("the log has failed and takes no more writes: {reason}; restart the node")]
    LogFailed { reason: String },
    #[error("the state has failed: {reason}")]
    StateFailed { reason: String },
    #[error("the database is closed")]
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("offset {requested} has been trimmed: the stream starts at {start}")]
    Trimmed { requested: Offset, start: Offset },
    #[error("offset {requested} is beyond the end {next}")]
    BeyondEnd { requested: Offset, next: Offset },
    #[error("no stream with id {0}")]
    NoSuchStream(StreamId),
    #[error("the view is too old: what it shows has been overwritten and its bytes freed; start again")]
    ViewExpired,
    #[error("corrupt data: {0}")]
    Corrupt(String),
    #[error("read failed: {0}")]
    Io(String),
}

impl Classified for WriteError {
    fn code(&self) -> &'static str {
        todo!()
    }
    fn action(&self) -> Action {
        todo!()
    }
}
impl Classified for ReadError {
    fn code(&self) -> &'static str {
        todo!()
    }
    fn action(&self) -> Action {
        todo!()
    }
}
impl Classified for OpenError {
    fn code(&self) -> &'static str {
        todo!()
    }
    fn action(&self) -> Action {
        todo!()
    }
}
