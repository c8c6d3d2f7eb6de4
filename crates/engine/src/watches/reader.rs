//! Reads the changes of commits from the log for watches, from any revision that the log still has.
//!
//! Owns: finding the position of a revision, pairing entries with their verdicts (rows about facts that an entry's
//! bytes do not determine), and counting revisions. Bound: while a reader reads, the log's read buffer ([`CHUNK_BYTES`]
//! for a watch, or one batch) and [`VERDICT_BYTES`]. A resting reader uses no buffers and keeps no segment of the log.
//!
//! Invariants: only applied entries are read, and no entry that a truncation has voided. The revisions counted must
//! match those of the state; otherwise the data is corrupt.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use thalweg_log::{Log, LogRecord, RecordKind, Records};
use thalweg_replica::Valid;
use thalweg_state::{
    changes::{EntryCommit, EntryCommits},
    machine::Machine,
};
use thalweg_types::{Index, Lsn, Revision, SpaceId, SpaceTime};

use crate::{error::ReadError, watches::error::WatchError};

/// Number of bytes of the log that the reader of one watch loads at a time: about a page of the watch.
const CHUNK_BYTES: usize = 256 * 1024;
/// Number of bytes of the log that the dispatcher thread's reader loads at a time. A database has one such reader.
const FOLLOWING_CHUNK_BYTES: usize = 1024 * 1024;
/// Number of verdicts (rows about single log entries) fetched from the state at a time.
const VERDICT_ROWS: usize = 256;
/// Number of bytes after which a fetch of verdicts (rows about single log entries) from the state ends.
const VERDICT_BYTES: usize = 1024 * 1024;

/// The log and the state of a database, from which changes are read.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) log: Log,
    pub(crate) machine: Arc<Machine>,
    pub(crate) space: SpaceId,
}

impl Source {
    /// Returns the first revision whose changes can be read from the log.
    pub(crate) fn oldest(&self) -> Result<Revision, WatchError> {
        let begin = self.machine.history_begin(self.log.start())?;
        Ok(begin.map_or_else(|| self.machine.applied().revision, |mark| mark.revision).next())
    }

    fn compacted(&self, requested: Revision) -> WatchError {
        match self.oldest() {
            Ok(oldest) => WatchError::Compacted { requested, oldest },
            Err(error) => error,
        }
    }
}

/// Reason why reading changes from the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The reader reached the end of the log entries that were applied when the read began.
    End,
    /// The callback that visits commits requested the stop.
    Stop,
}

/// Decision of the callback about a commit: whether the commit is done, and whether the read continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visited {
    /// The reader visits the next commit.
    Continue,
    /// The read ends after this commit.
    Last,
    /// The read ends before this commit. The next read visits the commit again.
    NotYet,
}

/// Callback that receives each commit and the time of its log entry.
pub(crate) type Visit<'a> = dyn FnMut(SpaceTime, &EntryCommit<'_>) -> Result<Visited, WatchError> + 'a;

/// Position up to which a reader has read: in the log, and as a revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderPosition {
    /// LSN of the first record that has not been visited completely.
    next: Lsn,
    /// Revision of the last commit before the log record at `next`.
    counted: Revision,
    /// Revision up to which all commits have been visited or were not requested. At least `counted`, except right after
    /// the search for a requested revision.
    done: Revision,
    /// Number of installed snapshots that had replaced the state when the reader was opened. After another one the
    /// reader ends, because the log may lack the entries that led to the new state.
    replacements: u64,
}

/// Reader of the changes in the log. The next read continues where the previous one stopped.
#[derive(Debug)]
pub(crate) struct Reader {
    source: Source,
    position: ReaderPosition,
    /// Number of bytes of the log that the reader loads at a time.
    chunk_bytes: usize,
    /// Buffers and the iteration over the log; `None` while the reader is not in use.
    open: Option<OpenReader>,
}

/// The parts of a reader that use memory and keep log segments from being freed.
#[derive(Debug)]
struct OpenReader {
    records: Records,
    /// Rule that decides which records are valid. It knows all truncations that the reader has not passed yet.
    valid: Valid,
    /// LSN of the last record read; before the first read, LSN of the first record to read.
    last: Lsn,
    /// Record that was read from the log before the state had applied it, kept for the next read.
    held: Option<LogRecord>,
    /// Log entry in which the callback stopped the last read, and the state's row about this entry, if there is one.
    pending: Option<(LogRecord, Option<Bytes>)>,
    verdicts: VecDeque<(Index, Bytes)>,
    /// Last log index that the fetched verdicts cover. A verdict is the state's row about a log entry.
    known: Option<Index>,
}

impl Reader {
    /// Opens a reader whose first visited commit is that of the revision `from`.
    pub(crate) fn open(source: &Source, from: Revision) -> Result<Self, WatchError> {
        let done = Revision(from.0.saturating_sub(1));
        let replacements = source.machine.replacements();
        let Some(mark) = source.machine.history_mark(done)? else { return Err(source.compacted(from)) };
        let position = ReaderPosition { next: mark.lsn, counted: mark.revision, done, replacements };
        let mut reader = Self::resting(source, position);
        reader.wake()?;
        Ok(reader)
    }

    /// Opens a reader that visits only commits after the present applied position.
    pub(crate) fn at_end(source: &Source) -> Result<Self, WatchError> {
        let replacements = source.machine.replacements();
        let applied = source.machine.applied();
        let (counted, done) = (applied.revision, applied.revision);
        let position = ReaderPosition { next: applied.lsn, counted, done, replacements };
        let mut reader = Self { chunk_bytes: FOLLOWING_CHUNK_BYTES, ..Self::resting(source, position) };
        reader.wake()?;
        Ok(reader)
    }

    /// Creates a reader at a [position](Self::position) of another reader. It uses no memory until it reads.
    pub(crate) fn resting(source: &Source, position: ReaderPosition) -> Self {
        Self { source: source.clone(), position, chunk_bytes: CHUNK_BYTES, open: None }
    }

    /// Releases the buffers and the log segments. The next read opens the log again, and fails if the log has freed the
    /// segment at the reader's position.
    pub(crate) fn rest(&mut self) {
        self.open = None;
    }

    /// Opens the log at the reader's position, if [`rest`](Self::rest) has released the reader's buffers and segments.
    fn wake(&mut self) -> Result<(), WatchError> {
        if self.open.is_some() {
            return Ok(());
        }
        let (source, position) = (&self.source, &self.position);
        // Get the truncations before the records. In the other order, data that is freed in between would be missing in
        // both.
        let valid = Valid::of(&source.log, source.space);
        let records = source.log.records_in_chunks(position.next, self.chunk_bytes);
        let records = records.map_err(|error| explain(source, position.done, error))?;
        let (held, pending, known, verdicts) = (None, None, None, VecDeque::new());
        self.open = Some(OpenReader { records, valid, last: position.next, held, pending, verdicts, known });
        Ok(())
    }

    /// Returns the revision up to which all commits have been visited.
    pub(crate) fn done(&self) -> Revision {
        self.position.done
    }

    /// Returns the position from which the next read continues.
    pub(crate) fn position(&self) -> ReaderPosition {
        self.position
    }

    /// Visits commits in order until `visit` stops, or all commits applied at the time of the call have been visited.
    pub(crate) fn read(&mut self, visit: &mut Visit<'_>) -> Result<ReadEnd, WatchError> {
        let applied = self.source.machine.applied();
        // This check follows the read of the applied position. If that position is of a new state, the number is
        // already raised.
        if self.source.machine.replacements() != self.position.replacements {
            return Err(self.source.compacted(self.position.done.next()));
        }
        self.wake()?;
        let Self { source, position, open: Some(open), .. } = self else { unreachable!("the reader was opened above") };
        let extended = source.log.extend_records(&mut open.records);
        extended.map_err(|error| explain(source, position.done, error))?;
        // This update follows the read of the applied position. So all truncations of the records below it are known.
        open.valid.update(&source.log, open.last);
        while let Some((record, verdict)) = open.next_entry(source, position, applied.lsn)? {
            let mut commits = EntryCommits::new(&record.payload, verdict.as_deref(), position.counted);
            while let Some(commit) = commits.next_commit().map_err(|error| corrupt(&record, &error))? {
                if commit.revision <= position.done {
                    continue;
                }
                let visited = visit(record.time, &commit)?;
                if visited != Visited::NotYet {
                    position.done = commit.revision;
                }
                if visited != Visited::Continue {
                    open.pending = Some((record, verdict));
                    return Ok(ReadEnd::Stop);
                }
            }
            (position.counted, position.next) = (commits.revision(), record.lsn.next());
        }
        if position.counted != applied.revision {
            let (counted, revision) = (position.counted, applied.revision);
            let message = format!("the log has revisions up to {counted}, the state has applied {revision}");
            return Err(ReadError::Corrupt(message).into());
        }
        position.done = position.done.max(applied.revision);
        Ok(ReadEnd::End)
    }
}

impl OpenReader {
    /// Returns the next valid log entry below the LSN `end`, with the state's row about it if there is one; `None` if
    /// no such entry follows.
    fn next_entry(
        &mut self,
        source: &Source,
        position: &mut ReaderPosition,
        end: Lsn,
    ) -> Result<Option<(LogRecord, Option<Bytes>)>, WatchError> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        loop {
            let record = match self.held.take() {
                Some(record) => record,
                None => match self.records.next() {
                    None => return Ok(None),
                    Some(record) => record.map_err(|error| explain(source, position.done, error))?,
                },
            };
            (self.last, position.next) = (record.lsn, record.lsn);
            if record.lsn >= end {
                self.held = Some(record);
                return Ok(None);
            }
            if record.kind == RecordKind::Entry && self.valid.is_entry(&record) {
                let verdict = self.verdict_of(source, position.done, record.index)?;
                return Ok(Some((record, verdict)));
            }
            position.next = record.lsn.next();
        }
    }

    /// Returns the state's row about an applied log entry (its verdict); `None` if there is none. Must be called in
    /// the order of entries.
    fn verdict_of(&mut self, source: &Source, done: Revision, index: Index) -> Result<Option<Bytes>, WatchError> {
        if self.known.is_none_or(|known| known < index) {
            let found = source.machine.verdicts(index, VERDICT_ROWS, VERDICT_BYTES)?;
            if index < found.floor.index {
                // The state may have dropped the verdict while this reader kept its log segment.
                return Err(source.compacted(done.next()));
            }
            self.known = Some(found.through);
            self.verdicts = found.rows.into();
        }
        while self.verdicts.front().is_some_and(|(at, _)| *at < index) {
            self.verdicts.pop_front();
        }
        let found = self.verdicts.front().is_some_and(|(at, _)| *at == index);
        Ok(if found { self.verdicts.pop_front().map(|(_, row)| row) } else { None })
    }
}

fn explain(source: &Source, done: Revision, error: thalweg_log::ReadError) -> WatchError {
    match error {
        thalweg_log::ReadError::Compacted { .. } | thalweg_log::ReadError::Gone { .. } => source.compacted(done.next()),
        other => WatchError::Read(other.into()),
    }
}

fn corrupt(record: &LogRecord, error: &thalweg_types::codec::Malformed) -> WatchError {
    ReadError::Corrupt(format!("the state's verdict on entry {} does not match it: {error}", record.index)).into()
}
