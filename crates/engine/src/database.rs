//! The database handle that applications hold.
//!
//! A [`Database`] is a pointer to the open database plus the default level of its writes. Keyspaces and streams are
//! such handles too, with an id. The layers below do all work; this module turns a call into a command, and an outcome
//! into an ack or an error.

use std::{
    cell::RefCell,
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;
use thalweg_disk::Disk;
use thalweg_log::Purpose;
use thalweg_replica::{Committed, ProposeError};
use thalweg_state::keyspaces::StoredValue;
use thalweg_types::{
    BlobRef, Clock, Durability, KeyspaceId, Revision, StreamId,
    command::{
        AppendedAt, CommandError, CommitBuilder, Framed, KeyspaceConfig, Outcome, StreamConfig, encode_create_keyspace,
        encode_create_stream,
    },
};

use crate::{
    async_database::AsyncDatabase,
    error::{OpenError, ReadError, WriteError, refusal},
    keyspace::{Keyspace, KeyspaceInfo, holds},
    maintenance::{Background, Maintenance, Rounds},
    open::{self, OpenReport, Opened},
    options::Options,
    snapshot::{Counters, Pins},
    state_digest::Digests,
    stats::Stats,
    stream::{Stream, StreamInfo},
};

/// Largest command buffer in bytes that a thread keeps between calls.
const MAX_KEPT_COMMAND_BYTES: usize = 256 * 1024;

thread_local! {
    static COMMAND: RefCell<Framed> = RefCell::default();
}

/// Acknowledgement of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Durability level that the write reached.
    pub durability: Durability,
    /// Revision of the command. `None` for commands without one (creating, trimming, configuring or deleting a stream)
    /// and at level `none`, which answers before the outcome is known.
    pub revision: Option<Revision>,
    /// Positions of the commit's appends; empty at level `none`.
    pub appends: Vec<AppendedAt>,
    /// True if a producer sent the write again: it happened before, and this is its first answer. `appends` then
    /// contains only the appends of producers.
    pub duplicate: bool,
}

/// Ability of the database to accept writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The database accepts writes.
    Good,
    /// The database rejects new data, or will when the segment in use is full. Reads, deletes and trims go on.
    DiskFull {
        /// Free bytes on the disk.
        free_bytes: u64,
    },
    /// The database accepts no writes until it is restarted or repaired. Reads go on.
    Failed {
        /// Description of the failure.
        reason: String,
    },
    /// The database has been closed.
    Closed,
}

/// An open database. It is cheap to clone and safe to use from many threads.
///
/// Dropping the last handle stops the background thread and releases the directory. No acknowledged write is lost, but
/// the next open replays the log. [`close`](Self::close) makes the next open fast.
#[derive(Clone)]
pub struct Database {
    /// Dropped first: the drop waits for the thread, which holds `inner` during a round. The drop of the last handle
    /// therefore releases the directory, and not that thread some time later.
    background: Arc<Background>,
    pub(crate) inner: Arc<Inner>,
    level: Durability,
}

/// Data that all handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) open: Opened,
    pub(crate) options: Options,
    pub(crate) rounds: Mutex<Rounds>,
    pub(crate) totals: Mutex<Maintenance>,
    /// Pins that keep segments of the log from being freed.
    pub(crate) snapshots: Arc<Pins>,
    pub(crate) snapshot_counters: Arc<Counters>,
    /// Number of views that Redis commands have read.
    pub(crate) redis_views: AtomicU64,
    /// Error of the last round of maintenance, if it failed.
    complaint: Mutex<Option<String>>,
    pub(crate) digests: Digests,
    closed: AtomicBool,
}

impl Database {
    /// Opens the directory at `path`, or creates it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let opened = open::real(path.as_ref(), &options)?;
        Ok(Self::start(opened, options))
    }

    /// Opens a directory on any disk, with any clock and seed. The LSM and SQLite backends need a disk with a path in
    /// the operating system; the memory and redb backends also work on a simulated disk.
    pub fn open_on(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, seed: u64, options: Options) -> Result<Self, OpenError> {
        let opened = open::on(disk, &clock, seed, &options)?;
        Ok(Self::start(opened, options))
    }

    fn start(open: Opened, options: Options) -> Self {
        let level = options.durability;
        let interval = options.maintenance_interval;
        // A replayed command may have left a view that no caller of this process has requested.
        open.machine.drop_digest_view();
        let digests = Digests::new(open.machine.applied().lsn);
        let inner = Arc::new(Inner {
            open,
            options,
            rounds: Mutex::default(),
            totals: Mutex::default(),
            snapshots: Arc::default(),
            snapshot_counters: Arc::default(),
            redis_views: AtomicU64::new(0),
            complaint: Mutex::default(),
            digests,
            closed: AtomicBool::new(false),
        });
        let background = Arc::new(Background::start(Arc::downgrade(&inner), interval));
        Self { background, inner, level }
    }

    /// Report of the open: what it found and did.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.inner.open.report
    }

    /// Commits queued writes, persists the state, and attests the log. Later writes fail with `Closed`, also those of
    /// other handles. Reads go on until the last handle is dropped.
    pub fn close(&self) -> Result<(), WriteError> {
        let inner = &self.inner;
        if inner.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.background.stop();
        // Reads have hidden expired keys. Without an entry after those deadlines, a wall clock that is set back before
        // the next open would show the keys again. A full disk or a failed log may reject that entry, which is
        // ignored.
        let _ = inner.note_passed_deadlines();
        inner.open.solo.close();
        inner.open.tails.close();
        inner.open.watches.close();
        // Do both: a state that cannot be flushed only makes the next open slower.
        let flushed = inner.open.backend.flush();
        inner.open.log.close()?;
        flushed?;
        Ok(())
    }

    /// Returns a handle whose writes default to `level`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { background: self.background.clone(), inner: self.inner.clone(), level }
    }

    /// Default level of this handle's writes.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.level
    }

    /// The async interface of the same database.
    #[must_use]
    pub fn to_async(&self) -> AsyncDatabase {
        AsyncDatabase::new(self.clone())
    }

    /// Returns the keyspace with this name, and creates it if it is missing.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        if let Some(found) = self.find_keyspace(name) {
            return Ok(found);
        }
        let outcome = self.inner.propose(self.level.max(Durability::Os), Purpose::Data, |out| {
            encode_create_keyspace(out, name, &KeyspaceConfig::default())
        })?;
        self.created_keyspace(outcome)
    }

    pub(crate) fn created_keyspace(&self, committed: Committed) -> Result<Keyspace, WriteError> {
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Keyspace { id, .. }) => Ok(Keyspace::new(self.clone(), id)),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Returns the keyspace with this name, if it exists.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        self.inner.open.machine.keyspace_id(name).map(|id| Keyspace::new(self.clone(), id))
    }

    /// Returns all keyspaces.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let all = self.inner.open.machine.keyspaces();
        all.into_iter().map(|(id, row)| KeyspaceInfo::of(id, &row)).collect()
    }

    /// Returns the stream with this name, and creates it without limits if it is missing.
    pub fn stream(&self, name: &str) -> Result<Stream, WriteError> {
        match self.find_stream(name) {
            Some(found) => Ok(found),
            None => self.create_stream(name, &StreamConfig::default()).map(|(stream, _)| stream),
        }
    }

    /// Like [`stream`](Self::stream), with a configuration for a new stream. The flag is true if the stream was
    /// created. An existing stream keeps its configuration.
    pub fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(Stream, bool), WriteError> {
        let outcome = self
            .inner
            .propose(self.level.max(Durability::Os), Purpose::Data, |out| encode_create_stream(out, name, config))?;
        self.created_stream(outcome)
    }

    pub(crate) fn created_stream(&self, committed: Committed) -> Result<(Stream, bool), WriteError> {
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Stream { id, created }) => Ok((Stream::new(self.clone(), id), created)),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Returns the stream with this name, if it exists.
    #[must_use]
    pub fn find_stream(&self, name: &str) -> Option<Stream> {
        self.inner.open.machine.stream_id(name).map(|id| Stream::new(self.clone(), id))
    }

    /// Returns a handle of the stream with this id, which need not exist.
    #[must_use]
    pub(crate) fn stream_with_id(&self, id: StreamId) -> Stream {
        Stream::new(self.clone(), id)
    }

    /// Returns at most `limit` streams with ids above `after`, in the order of their creation.
    #[must_use]
    pub fn streams_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamInfo> {
        self.inner.open.machine.streams_after(after, limit).into_iter().map(StreamInfo::from).collect()
    }

    /// Returns all streams. There may be millions: [`streams_after`](Self::streams_after) returns them in pages.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.inner.open.machine.streams().into_iter().map(StreamInfo::from).collect()
    }

    /// Commits at the handle's level. The commit refers to objects by id: [`Keyspace::id`], [`Stream::id`].
    pub fn commit(&self, commit: &CommitBuilder) -> Result<Ack, WriteError> {
        check_outcome_known(commit.is_conditional(), self.level)?;
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok::<_, CommandError>(())
        };
        self.inner.propose_for_ack(self.level, Purpose::Data, encode)
    }

    /// Returns the durability of the results of all reads that have ended: `Disk` if everything that they may have
    /// seen is on disk, else `Os`. Call it after the read.
    #[must_use]
    pub fn visible_durability(&self) -> Durability {
        let open = &self.inner.open;
        if open.machine.visible() <= open.log.durable() { Durability::Disk } else { Durability::Os }
    }

    /// Fsyncs everything written so far.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.inner.open.log.sync()?;
        Ok(())
    }

    /// Persists the state, so that the next open replays only later entries.
    pub fn flush(&self) -> Result<(), WriteError> {
        self.inner.open.backend.flush()?;
        Ok(())
    }

    /// Persists the state and removes overwritten and deleted data, as far as the backend can do so on request. The
    /// LSM backend merges all its tables into one run; the other backends only flush. Reads and writes go on.
    pub fn compact(&self) -> Result<(), WriteError> {
        self.inner.open.backend.compact()?;
        Ok(())
    }

    /// Runs one round of maintenance: retention, reclaiming, flushing, moving and freeing.
    pub fn maintain(&self) -> Result<Maintenance, WriteError> {
        let mut rounds = self.inner.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.maintain(&mut rounds)
    }

    /// Returns the statistics of the database.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Returns the database's ability to accept writes, and the reason if it does not.
    #[must_use]
    pub fn health(&self) -> Health {
        let inner = &self.inner;
        if let Some(reason) = inner.open.log.failure().or_else(|| inner.open.solo.failure()) {
            return Health::Failed { reason };
        }
        if inner.closed.load(Ordering::SeqCst) {
            return Health::Closed;
        }
        if inner.is_disk_full() { Health::DiskFull { free_bytes: inner.free_bytes() } } else { Health::Good }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report();
        let mut debug = f.debug_struct("Database");
        debug.field("node", &report.node).field("backend", &report.backend).field("level", &self.level);
        debug.finish_non_exhaustive()
    }
}

impl Inner {
    fn free_bytes(&self) -> u64 {
        self.open.disk.free_bytes().unwrap_or(u64::MAX)
    }

    /// Returns true if the database rejects new data for lack of space, or will when the segment in use is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.open.log.short_bytes() > 0
    }

    /// Stores the result of a round of maintenance for [`Stats`].
    pub(crate) fn note_round(&self, error: Option<&WriteError>) {
        *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }

    pub(crate) fn complaint(&self) -> Option<String> {
        self.complaint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Encodes a command into this thread's buffer and proposes it.
    #[inline]
    pub(crate) fn propose<E>(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Committed, WriteError>
    where
        WriteError: From<E>,
    {
        COMMAND.with_borrow_mut(|command| {
            command.encode(encode)?;
            let committed = self.open.solo.propose(command, level, purpose);
            command.shrink(MAX_KEPT_COMMAND_BYTES);
            Ok(committed?)
        })
    }

    /// Like [`propose`](Self::propose), for a command whose outcome is an [`Ack`] on success.
    #[inline]
    pub(crate) fn propose_for_ack<E>(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Ack, WriteError>
    where
        WriteError: From<E>,
    {
        let mut ack = Ack { durability: level, revision: None, appends: Vec::new(), duplicate: false };
        COMMAND.with_borrow_mut(|command| {
            command.encode(encode)?;
            let proposed = self.open.solo.propose_then(command, level, purpose, |durability, outcome| {
                ack.durability = durability;
                ack.take(outcome)
            });
            command.shrink(MAX_KEPT_COMMAND_BYTES);
            match proposed {
                Ok(None) => Ok(()),
                Ok(Some(outcome)) => refusal(outcome).map(drop),
                Err(error) => Err(<WriteError as From<ProposeError>>::from(error)),
            }
        })?;
        Ok(ack)
    }

    /// Reads the bytes of a value that stays in the log. The node moves bytes that are still needed before it frees
    /// their segment. In that case the pointer is looked up again; if the key's revision has changed, so has the
    /// value.
    pub(crate) fn resolve(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        blob: BlobRef,
    ) -> Result<Bytes, ReadError> {
        let mut blob = blob;
        loop {
            match self.open.log.read_blob(&blob) {
                Err(thalweg_log::ReadError::Gone { .. }) => {}
                read => return Ok(read?),
            }
            // The value may have expired. It is not hidden here, because the view shows all keys that had not expired
            // when it was taken.
            let now = self.open.machine.stored(keyspace, key)?;
            match now {
                Some(stored) if stored.revision == revision => match stored.value {
                    StoredValue::Blob(moved) if moved != blob => blob = moved,
                    StoredValue::Blob(_) => {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {}", blob.generation)));
                    }
                    StoredValue::Inline(bytes) => return Ok(bytes),
                    StoredValue::Collection(collection) => return Err(holds(&collection)),
                },
                // The value has been replaced. It is still readable if the keyspace keeps history.
                _ => match self.open.machine.read_view().version(keyspace, key, revision)? {
                    Some(StoredValue::Blob(moved)) if moved != blob => blob = moved,
                    Some(StoredValue::Blob(_)) => {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {}", blob.generation)));
                    }
                    Some(StoredValue::Inline(bytes)) => return Ok(bytes),
                    Some(StoredValue::Collection(collection)) => return Err(holds(&collection)),
                    None => return Err(ReadError::ViewExpired),
                },
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.open.solo.close();
        self.open.tails.close();
        self.open.watches.close();
    }
}

/// Fails for a conditional request at level `none`, since its outcome would be unknown when it is acknowledged.
pub(crate) fn check_outcome_known(conditional: bool, level: Durability) -> Result<(), WriteError> {
    if conditional && level == Durability::None { Err(WriteError::OutcomeUnknown) } else { Ok(()) }
}

/// Returns the ack of a command that was carried out, or the error of a rejected one.
pub(crate) fn ack(mut committed: Committed) -> Result<Ack, WriteError> {
    let mut ack = Ack { durability: committed.durability, revision: None, appends: Vec::new(), duplicate: false };
    match ack.take(committed.outcome.as_mut()) {
        Some(outcome) => refusal(outcome).map(|_| ack),
        None => Ok(ack),
    }
}

impl Ack {
    /// Takes the contents of a successful outcome; returns any other outcome.
    #[inline]
    fn take(&mut self, outcome: Option<&mut Outcome>) -> Option<Outcome> {
        let outcome = outcome?;
        match outcome {
            Outcome::Committed { revision, appends } => {
                self.revision = Some(*revision);
                self.appends = std::mem::take(appends);
                None
            }
            Outcome::Duplicate { revision, appends } => {
                *self = Self { revision: Some(*revision), appends: std::mem::take(appends), duplicate: true, ..*self };
                None
            }
            Outcome::Dropped { revision } => {
                self.revision = Some(*revision);
                None
            }
            _ => Some(std::mem::replace(outcome, Outcome::Done)),
        }
    }
}

pub(crate) fn unexpected(outcome: Option<&Outcome>) -> WriteError {
    debug_assert!(thread::panicking(), "an outcome of another command: {outcome:?}");
    WriteError::StateFailed { reason: format!("the state answered another command: {outcome:?}") }
}
