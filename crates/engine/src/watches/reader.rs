//! Reading the changes of commits from the log, from any revision that the log still has.
//!
//! Owns: finding the position of a revision, pairing entries with their verdicts (rows about facts that an entry's
//! bytes do not determine), and counting revisions. Bound: the log's read buffer (about 1 MiB, or one entry) and
//! [`VERDICT_BYTES`]. Invariants: only applied entries are read, and none that a truncation has undone. The revisions
//! counted must match those of the state; otherwise the data is corrupt.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_log::{Log, LogRecord, RecordKind, Records};
use thalweg_replica::Valid;
use thalweg_state::{
    changes::{EntryCommit, EntryCommits},
    machine::Machine,
};
use thalweg_types::{Index, Lsn, Revision, SpaceId, SpaceTime};

use crate::{error::ReadError, watches::error::WatchError};

/// Number of verdicts (rows about single log entries) fetched from the state at a time.
const VERDICT_ROWS: usize = 256;
/// Number of bytes after which a fetch of verdicts (rows about single log entries) from the state ends.
const VERDICT_BYTES: usize = 1024 * 1024;

/// The log and the state of a space, from which changes are read.
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
    /// The reader reached the end of the entries that were applied when the read began.
    End,
    /// The callback that visits commits requested the stop.
    Stop,
}

/// Callback that receives each commit and the time of its log entry.
pub(crate) type Visit<'a> = dyn FnMut(SpaceTime, &EntryCommit<'_>) -> Result<ControlFlow<()>, WatchError> + 'a;

/// Reader of the changes in the log. The next read continues where the previous one stopped.
#[derive(Debug)]
pub(crate) struct Reader {
    source: Source,
    records: Records,
    /// Decides which records are valid. It knows all truncations that the log has gained since the reader was opened
    /// and that the reader has not passed.
    valid: Valid,
    /// LSN of the last record read; before the first read, of the first record to read.
    position: Lsn,
    /// Record that was read from the log before the state had applied it, kept for the next read.
    held: Option<LogRecord>,
    /// Log entry in which the callback stopped the last read, and the state's row about this entry, if there is one.
    pending: Option<(LogRecord, Option<Bytes>)>,
    /// Last revision used before the entry `pending`, or before the next record if there is no such entry.
    counted: Revision,
    /// Revision up to which all commits have been visited or were not wanted. `counted <= done`, unless the position
    /// was just found, which lies before the wanted revision.
    done: Revision,
    verdicts: VecDeque<(Index, Bytes)>,
    /// Index of the last log entry for which the state's row about it has been fetched.
    known: Option<Index>,
    /// Number of times that another state had replaced the state when the reader was opened. After another replacement
    /// the reader ends, because the log may lack the entries that led to the new state.
    replacements: u64,
}

impl Reader {
    /// Opens a reader whose first visited commit is that of the revision `from`.
    pub(crate) fn open(source: &Source, from: Revision) -> Result<Self, WatchError> {
        let done = Revision(from.0.saturating_sub(1));
        let replacements = source.machine.replacements();
        let Some(mark) = source.machine.history_mark(done)? else { return Err(source.compacted(from)) };
        Self::at(source, mark.lsn, mark.revision, done, replacements)
    }

    /// Opens a reader that visits only commits after the present applied position.
    pub(crate) fn at_end(source: &Source) -> Result<Self, WatchError> {
        let replacements = source.machine.replacements();
        let applied = source.machine.applied();
        Self::at(source, applied.lsn, applied.revision, applied.revision, replacements)
    }

    fn at(source: &Source, lsn: Lsn, counted: Revision, done: Revision, replacements: u64) -> Result<Self, WatchError> {
        // Read the truncations before the records: data freed in between is in neither.
        let valid = Valid::of(&source.log, source.space);
        let records = source.log.records_from(lsn).map_err(|error| explain(source, done, error))?;
        let (source, position) = (source.clone(), lsn);
        Ok(Self {
            source,
            records,
            valid,
            position,
            held: None,
            pending: None,
            counted,
            done,
            verdicts: VecDeque::new(),
            known: None,
            replacements,
        })
    }

    /// Returns the revision up to which all commits have been visited.
    pub(crate) fn done(&self) -> Revision {
        self.done
    }

    /// Visits commits in order until `visit` stops, or all commits applied at the time of the call have been visited.
    pub(crate) fn read(&mut self, visit: &mut Visit<'_>) -> Result<ReadEnd, WatchError> {
        let applied = self.source.machine.applied();
        // Do this after reading the applied position: if it is of the new state, the number has been raised.
        if self.source.machine.replacements() != self.replacements {
            return Err(self.source.compacted(self.done.next()));
        }
        let extended = self.source.log.extend_records(&mut self.records);
        extended.map_err(|error| explain(&self.source, self.done, error))?;
        // Do this after reading the applied position: by then all truncations of the records below it are known.
        self.valid.update(&self.source.log, self.position);
        while let Some((record, verdict)) = self.next_entry(applied.lsn)? {
            let mut commits = EntryCommits::new(&record.payload, verdict.as_deref(), self.counted);
            while let Some(commit) = commits.next_commit().map_err(|error| corrupt(&record, &error))? {
                if commit.revision <= self.done {
                    continue;
                }
                let flow = visit(record.time, &commit)?;
                self.done = commit.revision;
                if flow.is_break() {
                    self.pending = Some((record, verdict));
                    return Ok(ReadEnd::Stop);
                }
            }
            self.counted = commits.revision();
        }
        if self.counted != applied.revision {
            let (counted, revision) = (self.counted, applied.revision);
            let message = format!("the log has revisions up to {counted}, the state has applied {revision}");
            return Err(ReadError::Corrupt(message).into());
        }
        self.done = self.done.max(applied.revision);
        Ok(ReadEnd::End)
    }

    /// Returns the next valid log entry below the LSN `end`, with the state's row about it if there is one; `None` if
    /// no such entry follows.
    fn next_entry(&mut self, end: Lsn) -> Result<Option<(LogRecord, Option<Bytes>)>, WatchError> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        loop {
            let record = match self.held.take() {
                Some(record) => record,
                None => match self.records.next() {
                    None => return Ok(None),
                    Some(record) => record.map_err(|error| explain(&self.source, self.done, error))?,
                },
            };
            self.position = record.lsn;
            if record.lsn >= end {
                self.held = Some(record);
                return Ok(None);
            }
            if record.kind == RecordKind::Entry && self.valid.is_entry(&record) {
                let verdict = self.verdict_of(record.index)?;
                return Ok(Some((record, verdict)));
            }
        }
    }

    /// Returns the state's row about an applied log entry (its verdict); `None` if there is none. Must be called in
    /// the order of entries.
    fn verdict_of(&mut self, index: Index) -> Result<Option<Bytes>, WatchError> {
        if self.known.is_none_or(|known| known < index) {
            let found = self.source.machine.verdicts(index, VERDICT_ROWS, VERDICT_BYTES)?;
            if index < found.floor.index {
                // The verdict may have been forgotten while this reader held on to its segment.
                return Err(self.source.compacted(self.done.next()));
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
