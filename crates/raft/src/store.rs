//! The replicated log of one space (one Raft group's data), as openraft writes it.
//!
//! Owns: the order of the space's records, and the wait for free space in the log. Does not own: reading (see
//! `reader`), the fsync (see `sync_queue`).
//!
//! | call | record | returns |
//! |---|---|---|
//! | `append` | entries, in batches | when readers see them; the callback follows the fsync |
//! | `save_vote` | vote | after the fsync |
//! | `truncate_after` | truncate | when written: later records become durable only together with it, and an install syncs the log before it switches |
//! | `purge` | purged | after the fsync, so the entries may be freed |
//!
//! Nothing blocks the thread. If the log has no prepared segment, the call waits asynchronously; on a full disk it
//! tries again every [`RETRY_AFTER`] until the log has room, or until consensus stops. In the meantime this space makes
//! no progress, but other spaces do. A failed write or fsync is final: every later call returns the error.

use std::{cell::Cell, fmt, io, io::IoSlice, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use openraft::{
    EntryPayload, LogState, OptionalSend,
    async_runtime::AsyncRuntime,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use thalweg_log::{AppendError, Appended, Draft, Log, LogRecord, Purpose, RecordKind, TryAppendError};
use thalweg_replica::{Member, ReplicationStage};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, Lsn, SpaceId, SpaceTime, Term, limits::NEWEST_ENTRY_BYTES};

use crate::{
    convert::{log_id, raft_log_id, record_of, vote},
    error::StoreError,
    reader::LogReader,
    recovery::{Base, recover},
    sync_queue::{SyncDriver, SyncQueue, SyncTiming},
    types::{RaftEntry, RaftLogId, RaftVote, Types},
    written::Written,
};

/// Time after which an append to a full disk is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Maximum size in bytes of a batch with several entries. The limit is lower if a log segment is smaller. A larger
/// entry becomes a batch of its own.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size in bytes of a log batch's header and padding.
const BATCH_OVERHEAD_BYTES: u64 = 56;

/// Returns the maximum payload size in bytes of an entry, which is reached if the entry is a batch of its own.
pub(crate) fn max_payload_bytes(log: &Log) -> u64 {
    log.max_batch_bytes().saturating_sub(BATCH_OVERHEAD_BYTES + thalweg_log::RECORD_HEADER_BYTES as u64)
}
/// Maximum number of entries that one batch of the log contains.
const MAX_BATCH_ENTRIES: usize = 4096;

/// Bounds of the memory that the replicated log takes on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Maximum size in bytes of the newest entries that are kept in memory.
    pub max_tail_bytes: usize,
    /// Maximum payload bytes of entries that one read for a follower or for the state returns; one entry may exceed it.
    pub max_read_bytes: usize,
}

impl StoreOptions {
    /// Default value of every option.
    pub const DEFAULTS: Self = Self { max_tail_bytes: NEWEST_ENTRY_BYTES, max_read_bytes: 1024 * 1024 };
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// The replicated log of one space (one Raft group's data) in this node's log. openraft owns the value;
/// [`reader`](Self::reader) serves the other parts of the node.
pub struct LogStore<Rt: AsyncRuntime> {
    reader: LogReader,
    queue: Arc<SyncQueue<Rt>>,
    driver: Arc<dyn SyncDriver>,
    member: Option<Member>,
    is_stopping: Rc<Cell<bool>>,
}

impl<Rt: AsyncRuntime> fmt::Debug for LogStore<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore").field("reader", &self.reader).finish_non_exhaustive()
    }
}

/// A record that is about to be appended to the node's log.
struct Planned {
    kind: RecordKind,
    id: LogId,
    time: SpaceTime,
    payload: Bytes,
}

impl<Rt: AsyncRuntime> LogStore<Rt> {
    /// Opens the replicated log of `space` (a Raft group) in the node's log. All spaces of a node share the queue of
    /// fsyncs of that log, and the driver that performs them.
    pub fn open(
        log: Log,
        space: SpaceId,
        base: &Base,
        options: StoreOptions,
        queue: Arc<SyncQueue<Rt>>,
        driver: Arc<dyn SyncDriver>,
    ) -> Result<Self, StoreError> {
        let space_log = recover(&log, space, base, options.max_tail_bytes)?;
        let reader = LogReader::new(log, space, options.max_read_bytes, space_log);
        Ok(Self { reader, queue, driver, member: None, is_stopping: Rc::default() })
    }

    /// Returns the flag that ends writes which wait for space on a full disk. Such a write would keep openraft from
    /// stopping.
    pub(crate) fn stop_switch(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.is_stopping)
    }

    /// Attaches this node's replica, which applies the entries of this log. The log sets the replica's clock forward to
    /// the times of its entries. It takes the time of an installed snapshot from the replica's state.
    #[must_use]
    pub fn with_member(self, member: Member) -> Self {
        member.clock().continue_from(self.reader.space_log().last_time);
        Self { member: Some(member), ..self }
    }

    /// Returns a reader of this replicated log.
    #[must_use]
    pub fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    /// Writes a batch of records to the node's log. Waits for free space in the log without blocking the thread.
    async fn write(&self, batch: &[Planned]) -> Result<Appended, StoreError> {
        loop {
            let appended = {
                let parts: Vec<_> = batch.iter().map(|planned| [IoSlice::new(&planned.payload)]).collect();
                let draft = |(planned, payload): (&Planned, _)| Draft {
                    space: self.reader.space,
                    kind: planned.kind,
                    term: planned.id.term,
                    index: planned.id.index,
                    time: planned.time,
                    payload,
                };
                let drafts: Vec<_> = batch.iter().zip(parts.iter().map(|part| &part[..])).map(draft).collect();
                // The leader already refuses new data while a disk is nearly full. Records that arrive here are needed,
                // so they may use the reserve.
                self.reader.log.try_append(&drafts, Purpose::Reclaim)
            };
            match appended {
                Ok(appended) => return Ok(appended),
                Err(TryAppendError::WouldBlock(_)) => {}
                Err(TryAppendError::Append(error)) => return Err(error.into()),
            }
            match self.reader.log.append_ready(Purpose::Reclaim).await {
                Ok(()) => {}
                Err(AppendError::DiskFull { .. } | AppendError::NoSegment { .. }) => {
                    // Nothing of the record was written. Its proposers get an unknown outcome, as after a kill.
                    if self.is_stopping.get() {
                        return Err(StoreError::Closed);
                    }
                    Types::<Rt>::sleep(RETRY_AFTER).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn write_one(&self, kind: RecordKind, id: LogId, time: SpaceTime, payload: Bytes) -> io::Result<Appended> {
        Ok(self.write(&[Planned { kind, id, time, payload }]).await?)
    }

    /// Waits until all records of the node's log below `lsn` are durable.
    async fn sync(&self, lsn: Lsn) -> io::Result<()> {
        let (sender, receiver) = Types::<Rt>::oneshot();
        self.flush(lsn, 0, IOFlushed::signal(sender), None);
        receiver.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    fn flush(&self, lsn: Lsn, bytes: u64, done: IOFlushed<Types<Rt>>, timing: Option<SyncTiming>) {
        self.queue.push(lsn, bytes, done, timing);
        self.driver.notify();
    }

    /// Writes entries and makes them readable. Returns the LSN after the last entry, and the payload bytes of the
    /// entries.
    async fn append_entries(&self, entries: Vec<RaftEntry>) -> io::Result<(Lsn, u64)> {
        let mut entries = entries.into_iter().peekable();
        let (mut next_lsn, mut bytes) = (self.reader.log.end(), 0);
        while entries.peek().is_some() {
            let batch = self.next_batch(&mut entries)?;
            let appended = self.write(&batch).await?;
            bytes += batch.iter().map(|planned| planned.payload.len() as u64).sum::<u64>();
            self.learn(batch, &appended)?;
            next_lsn = appended.next;
        }
        Ok((next_lsn, bytes))
    }

    /// Notes the times of an append of the entries from `first` to `last`, whose write began at `begun` and has just
    /// ended. On a follower, adds the time of the write to the metrics of replication; the leader does this later, once
    /// for each command. Returns the timing of the fsync.
    fn note_written(&self, member: &Member, (first, last): (u64, u64), begun: Duration) -> SyncTiming {
        let ended = member.monotonic();
        let written = Written { first: Index(first), last: Index(last), begun, ended };
        self.reader.space_log().written.push(written);
        let leads = member.leads();
        if !leads {
            member.note_stage(ReplicationStage::FollowerWrite, ended.saturating_sub(begun));
        }
        let stage = if leads { ReplicationStage::Sync } else { ReplicationStage::FollowerSync };
        SyncTiming { member: member.clone(), stage, since: ended }
    }

    /// Takes from the front of `entries` as many entries as fit in one batch, and returns them as records.
    fn next_batch(
        &self,
        entries: &mut std::iter::Peekable<std::vec::IntoIter<RaftEntry>>,
    ) -> Result<Vec<Planned>, StoreError> {
        let space_log = self.reader.space_log();
        let mut time = space_log.last_time;
        let mut expected: Option<Index> = None;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let room = self.reader.log.max_batch_bytes().saturating_sub(BATCH_OVERHEAD_BYTES);
        let max_bytes = MAX_BATCH_BYTES.min(usize::try_from(room).unwrap_or(usize::MAX));
        while let Some(entry) = entries.peek() {
            let (kind, payload) = record_of(entry)?;
            bytes += payload.len() + thalweg_log::RECORD_HEADER_BYTES;
            if !batch.is_empty() && (bytes > max_bytes || batch.len() == MAX_BATCH_ENTRIES) {
                break;
            }
            if let EntryPayload::Normal(commands) = &entry.payload {
                time = time.max(commands.time);
            }
            let id = log_id(&entry.log_id);
            match expected {
                Some(expected) if expected != id.index => return Err(StoreError::Gap { expected, found: id.index }),
                Some(_) => {}
                None => space_log.check_next(id.index)?,
            }
            expected = Some(id.index.next());
            batch.push(Planned { kind, id, time, payload });
            entries.next();
        }
        Ok(batch)
    }

    /// Makes the entries of a written batch visible to readers of the log.
    fn learn(&self, batch: Vec<Planned>, appended: &Appended) -> Result<(), StoreError> {
        let mut payload_at = appended.payload_at;
        let mut space_log = self.reader.space_log();
        for (planned, number) in batch.into_iter().zip(0..) {
            let Planned { kind, id, time, payload } = planned;
            let record = LogRecord {
                lsn: appended.first.plus(number),
                space: self.reader.space,
                kind,
                term: id.term,
                index: id.index,
                time,
                payload,
                payload_at,
            };
            if let Some(member) = &self.member
                && kind == RecordKind::Entry
            {
                member.clock().received(time);
            }
            payload_at.offset += (record.payload.len() + thalweg_log::RECORD_HEADER_BYTES) as u32;
            space_log.push(&record)?;
            space_log.tail.push(record);
        }
        Ok(())
    }

    /// Returns the time of an entry that an installed snapshot contains and the log does not. Later blank entries carry
    /// this time, so it must be equal on all nodes.
    fn snapshot_time(&self, index: Index) -> SpaceTime {
        let applied = self.member.as_ref().map(|member| member.machine().applied());
        let applied = applied.filter(|applied| applied.index == index);
        applied.map_or_else(|| self.reader.space_log().last_time, |applied| applied.time)
    }

    /// Returns the time of the last entry before `index`, by the members' common clock.
    fn time_before(&self, index: Index) -> Result<SpaceTime, StoreError> {
        let space_log = self.reader.space_log();
        if index <= space_log.index.first() {
            return Ok(space_log.purged_time);
        }
        drop(space_log);
        self.reader.time_of(Index(index.0 - 1))
    }
}

impl<Rt: AsyncRuntime> RaftLogStorage<Types<Rt>> for LogStore<Rt> {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<Rt>>> {
        let space_log = self.reader.space_log();
        Ok(LogState {
            last_purged_log_id: space_log.purged.map(raft_log_id),
            last_log_id: space_log.last().map(raft_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader()
    }

    async fn save_vote(&mut self, raft: &RaftVote) -> io::Result<()> {
        let vote = vote(raft);
        let id = LogId { term: vote.term, index: Index::ZERO };
        let time = self.reader.space_log().last_time;
        let appended = self.write_one(RecordKind::Vote, id, time, vote.encode().into()).await?;
        self.sync(appended.next).await?;
        self.reader.space_log().vote = Some(vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<Rt>>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.queue.room().await?;
        let begun = self.member.as_ref().map(Member::monotonic);
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        let indexes = entries.first().zip(entries.last()).map(|(first, last)| (first.log_id.index, last.log_id.index));
        let (next_lsn, bytes) = self.append_entries(entries).await?;
        let written = self.member.as_ref().zip(indexes).zip(begun);
        let timing = written.map(|((member, indexes), begun)| self.note_written(member, indexes, begun));
        self.flush(next_lsn, bytes, callback, timing);
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        let index = last.map_or(Index::ZERO, |last| Index(last.index).next());
        if index >= self.reader.space_log().index.next() {
            return Ok(());
        }
        let time = self.time_before(index)?;
        self.write_one(RecordKind::Truncate, LogId { term: Term::ZERO, index }, time, Bytes::new()).await?;
        self.reader.space_log().truncate(index, time);
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        let id = log_id(&upto);
        let (first, next) = {
            let space_log = self.reader.space_log();
            (space_log.index.first(), space_log.index.next())
        };
        let time = if first <= id.index && id.index < next {
            self.reader.time_of(id.index)?
        } else {
            self.snapshot_time(id.index)
        };
        let appended = self.write_one(RecordKind::Purged, id, time, Bytes::new()).await?;
        self.sync(appended.next).await?;
        self.reader.space_log().purge(id, time);
        Ok(())
    }
}
