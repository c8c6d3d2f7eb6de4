//! Reading changes from the log, from any revision that it still has.
//!
//! Owns: finding the position, pairing entries with their verdicts, and counting revisions. Bound: the log's read
//! buffer (about 1 MiB, or one entry) and [`VERDICT_BYTES`]. Invariants: only applied entries are read, and none that
//! a truncation has undone. The revisions counted must match those of the state; otherwise the data is corrupt.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_log::{Log, LogRecord, RecordKind, Records};
use thalweg_replica::Valid;
use thalweg_state::{
    changes::{EntryCommit, EntryCommits},
    machine::Machine,
};
use thalweg_types::{Index, Lsn, Revision, SpaceId, SpaceTime};

use crate::{error::ReadError, watch::error::WatchError};

/// Number of verdicts fetched at a time.
const VERDICT_ROWS: usize = 256;
/// Number of bytes of verdicts after which no more are fetched.
const VERDICT_BYTES: usize = 1024 * 1024;

/// Log and state of a space.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) log: Log,
    pub(crate) machine: Arc<Machine>,
    pub(crate) space: SpaceId,
}

impl Source {
    /// Returns the first readable revision.
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

/// Reason why a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It reached the end of everything that was applied when it began.
    End,
    /// The visitor stopped it.
    Stop,
}

/// Function that is called with each commit and the time of its entry.
pub(crate) type Visit<'a> = dyn FnMut(SpaceTime, &EntryCommit<'_>) -> Result<ControlFlow<()>, WatchError> + 'a;

/// Position in the log. Reading continues where it stopped.
#[derive(Debug)]
pub(crate) struct Reader {
    source: Source,
    records: Records,
    /// Valid records, according to all truncations in the log since the reader was opened that it has not passed.
    valid: Valid,
    /// LSN of the last record read, or of the first one to read.
    position: Lsn,
    /// Record that was read before it was applied.
    held: Option<LogRecord>,
    /// Entry in which the visitor stopped, and its verdict.
    pending: Option<(LogRecord, Option<Bytes>)>,
    /// Last revision used before `pending`, or before the next record.
    counted: Revision,
    /// Revision up to which everything has been visited or was not wanted. `counted <= done`, unless the position was
    /// just found: a mark lies before the wanted revision.
    done: Revision,
    verdicts: VecDeque<(Index, Bytes)>,
    /// Index up to which verdicts have been fetched.
    known: Option<Index>,
}

impl Reader {
    /// Opens a reader that visits `from` first.
    pub(crate) fn open(source: &Source, from: Revision) -> Result<Self, WatchError> {
        let done = Revision(from.0.saturating_sub(1));
        let Some(mark) = source.machine.history_mark(done)? else { return Err(source.compacted(from)) };
        Self::at(source, mark.lsn, mark.revision, done)
    }

    /// Opens a reader that visits only commits after the present applied position.
    pub(crate) fn at_end(source: &Source) -> Result<Self, WatchError> {
        let applied = source.machine.applied();
        Self::at(source, applied.lsn, applied.revision, applied.revision)
    }

    fn at(source: &Source, lsn: Lsn, counted: Revision, done: Revision) -> Result<Self, WatchError> {
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
        })
    }

    /// Revision up to which everything has been visited.
    pub(crate) fn done(&self) -> Revision {
        self.done
    }

    /// Visits commits in order until `visit` stops it, or everything applied at the time of the call has been visited.
    pub(crate) fn read(&mut self, visit: &mut Visit<'_>) -> Result<Reached, WatchError> {
        let applied = self.source.machine.applied();
        let extended = self.source.log.extend_records(&mut self.records);
        extended.map_err(|error| explain(&self.source, self.done, error))?;
        // Do this after reading the applied position: by then all truncations of the records below it are known.
        self.valid.go_on(&self.source.log, self.position);
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
                    return Ok(Reached::Stop);
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
        Ok(Reached::End)
    }

    /// Returns the next valid entry below `end`, with its verdict if it has one.
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

    /// Returns the verdict of an applied entry. Call it in the order of entries.
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
