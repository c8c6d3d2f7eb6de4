//! The handle that users hold.
//!
//! A [`Database`] is a pointer to what is open plus the level of writes that name none. Keyspaces and
//! streams are such handles too, with an id. All work is done by the layers below; here a call is turned
//! into a command, and an outcome into an ack or an error.

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

/// A thread keeps its command buffer up to this size between calls.
const MAX_KEPT_COMMAND_BYTES: usize = 256 * 1024;

thread_local! {
    static COMMAND: RefCell<Framed> = RefCell::default();
}

/// What an acknowledged write says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The level that was reached.
    pub durability: Durability,
    /// The command's revision. `None` where a command has none (creating, trimming, configuring,
    /// deleting a stream) and at level `none`, which answers before the outcome is known.
    pub revision: Option<Revision>,
    /// Per append of the commit, where its records went; empty at level `none`.
    pub appends: Vec<AppendedAt>,
    /// Whether the write happened before, and this is its first answer once more: a producer sent it
    /// again. `appends` are then those of producers only.
    pub duplicate: bool,
}

/// Whether writes are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// They are.
    Good,
    /// Writes of new data are refused, or will be when the segment in use is full; reads, deletes and trims go on.
    DiskFull {
        /// Bytes free.
        free_bytes: u64,
    },
    /// None are, until the node is restarted or repaired; reads go on.
    Failed {
        /// What failed.
        reason: String,
    },
    /// The database has been closed.
    Closed,
}

/// An open database; cheap to clone, safe from many threads.
///
/// Dropping the last handle stops the background and releases the directory; nothing acknowledged is
/// lost, but the next open replays. [`close`](Self::close) makes the next open fast.
#[derive(Clone)]
pub struct Database {
    /// Dropped first: it waits for the thread, which holds `inner` during a round. So the last handle's drop
    /// releases the directory, and not that thread some time later.
    background: Arc<Background>,
    pub(crate) inner: Arc<Inner>,
    level: Durability,
}

/// What all handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) open: Opened,
    pub(crate) options: Options,
    pub(crate) rounds: Mutex<Rounds>,
    pub(crate) totals: Mutex<Maintenance>,
    /// Keep segments of the log from being freed.
    pub(crate) snapshots: Arc<Pins>,
    pub(crate) snapshot_counters: Arc<Counters>,
    /// How many views Redis commands have read.
    pub(crate) redis_views: AtomicU64,
    /// Why the last round of maintenance failed, if it did.
    complaint: Mutex<Option<String>>,
    pub(crate) digests: Digests,
    closed: AtomicBool,
}

impl Database {
    /// Opens or creates the directory at `path`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let opened = open::real(path.as_ref(), &options)?;
        Ok(Self::start(opened, options))
    }

    /// Opens on any disk, clock and seed. The LSM backend needs a disk with a path of the operating
    /// system; everything else works on a simulated one.
    pub fn open_on(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, seed: u64, options: Options) -> Result<Self, OpenError> {
        let opened = open::on(disk, &clock, seed, &options)?;
        Ok(Self::start(opened, options))
    }

    fn start(open: Opened, options: Options) -> Self {
        let level = options.durability;
        let interval = options.maintenance_interval;
        // One that a replayed command has left: nobody here has asked for it.
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

    /// What opening found and did.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.inner.open.report
    }

    /// Commits what waits, persists the state, attests the log. Later writes fail with `Closed`, also
    /// those of other handles; reads go on until the last handle is dropped.
    pub fn close(&self) -> Result<(), WriteError> {
        let inner = &self.inner;
        if inner.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.background.stop();
        // Without an entry behind the deadlines that reads have hidden keys by, a wall clock that is set back before
        // the next open would show those keys again. A full disk or a failed log may refuse it: then so be it.
        let _ = inner.note_passed_deadlines();
        inner.open.solo.close();
        inner.open.tails.close();
        inner.open.watches.close();
        // Both are tried: a state that can't be flushed only makes the next open slower.
        let flushed = inner.open.backend.flush();
        inner.open.log.close()?;
        flushed?;
        Ok(())
    }

    /// A handle whose writes default to `level`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { background: self.background.clone(), inner: self.inner.clone(), level }
    }

    /// The level of writes that name none.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.level
    }

    /// The async face of the same database.
    #[must_use]
    pub fn to_async(&self) -> AsyncDatabase {
        AsyncDatabase::new(self.clone())
    }

    /// The keyspace of that name, created if missing.
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

    /// The keyspace of that name, if it exists.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        self.inner.open.machine.keyspace_id(name).map(|id| Keyspace::new(self.clone(), id))
    }

    /// All keyspaces.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let all = self.inner.open.machine.keyspaces();
        all.into_iter().map(|(id, row)| KeyspaceInfo::of(id, &row)).collect()
    }

    /// The stream of that name, created without limits if missing.
    pub fn stream(&self, name: &str) -> Result<Stream, WriteError> {
        match self.find_stream(name) {
            Some(found) => Ok(found),
            None => self.create_stream(name, &StreamConfig::default()).map(|(stream, _)| stream),
        }
    }

    /// As [`stream`](Self::stream), with a configuration for a new one; says whether it was created.
    /// One that exists keeps its configuration.
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

    /// The stream of that name, if it exists.
    #[must_use]
    pub fn find_stream(&self, name: &str) -> Option<Stream> {
        self.inner.open.machine.stream_id(name).map(|id| Stream::new(self.clone(), id))
    }

    /// The stream with that id, whether it exists or not.
    #[must_use]
    pub(crate) fn stream_with_id(&self, id: StreamId) -> Stream {
        Stream::new(self.clone(), id)
    }

    /// At most `limit` streams after the one with an id, in the order in which they were created.
    #[must_use]
    pub fn streams_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamInfo> {
        self.inner.open.machine.streams_after(after, limit).into_iter().map(StreamInfo::from).collect()
    }

    /// All streams. There may be millions: [`streams_after`](Self::streams_after) gives them in pages.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.inner.open.machine.streams().into_iter().map(StreamInfo::from).collect()
    }

    /// Commits at the handle's level. The commit is built from ids: [`Keyspace::id`], [`Stream::id`].
    pub fn commit(&self, commit: &CommitBuilder) -> Result<Ack, WriteError> {
        check_outcome_known(commit.is_conditional(), self.level)?;
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok::<_, CommandError>(())
        };
        self.inner.propose_for_ack(self.level, Purpose::Data, encode)
    }

    /// How durable the result of a read is that has ended by now: `Disk` if everything that it may have seen is on
    /// disk, `Os` if some of it may not be yet. Ask after the read.
    #[must_use]
    pub fn visible_durability(&self) -> Durability {
        let open = &self.inner.open;
        if open.machine.visible() <= open.log.durable() { Durability::Disk } else { Durability::Os }
    }

    /// fsyncs everything written so far.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.inner.open.log.sync()?;
        Ok(())
    }

    /// Persists the state, so that the next open replays nothing older.
    pub fn flush(&self) -> Result<(), WriteError> {
        self.inner.open.backend.flush()?;
        Ok(())
    }

    /// Persists the state and leaves behind what was overwritten or deleted, as far as the backend can when asked: the
    /// LSM backend merges all its tables into one run; the others only flush. Reads and writes go on.
    pub fn compact(&self) -> Result<(), WriteError> {
        self.inner.open.backend.compact()?;
        Ok(())
    }

    /// One round of what the background does: retention, reclaiming, flushing, moving, freeing.
    pub fn maintain(&self) -> Result<Maintenance, WriteError> {
        let mut rounds = self.inner.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.maintain(&mut rounds)
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Whether writes are accepted, and if not, why.
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

    /// Whether new data is refused for want of space, or will be when the segment in use is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.open.log.short_bytes() > 0
    }

    /// Remembers how a round of maintenance ended, for [`Stats`].
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

    /// As [`propose`](Self::propose), for a command whose outcome is an [`Ack`] if it was carried out.
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

    /// The bytes of a value that stays in the log. Bytes that are still wanted are moved before their
    /// segment is freed: then the pointer is looked up again, and the value is the same one only if its
    /// revision is.
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
            // Not hidden, though it may have ended: a view shows what had not when it was taken.
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
                // Superseded, if the keyspace keeps what is; else gone.
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

/// A conditional request's outcome must be known when it is acknowledged.
pub(crate) fn check_outcome_known(conditional: bool, level: Durability) -> Result<(), WriteError> {
    if conditional && level == Durability::None { Err(WriteError::OutcomeUnknown) } else { Ok(()) }
}

/// The ack that a committed command stands for.
pub(crate) fn ack(mut committed: Committed) -> Result<Ack, WriteError> {
    let mut ack = Ack { durability: committed.durability, revision: None, appends: Vec::new(), duplicate: false };
    match ack.take(committed.outcome.as_mut()) {
        Some(outcome) => refusal(outcome).map(|_| ack),
        None => Ok(ack),
    }
}

impl Ack {
    /// Takes over what the outcome of a command that was carried out says; gives back any other.
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
