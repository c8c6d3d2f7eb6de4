//! Reads the rows or log entries of which a snapshot consists, and packs them into the contents of chunks.
//!
//! Owns: [`Source`], the origin of rows and entries, and [`Gatherer`], which reads them. Does not own: the thread on
//! which a gatherer runs, or the compression of the gathered bytes (see `pipeline`).

use std::{
    io,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_log::{Log, ReadError, RecordKind, Records};
use thalweg_replica::Valid;
use thalweg_state::{
    machine::Machine,
    membership::AppliedMembership,
    portable::{self, Row},
};
use thalweg_store::{Applied, Backend, View};
use thalweg_types::{Index, Lsn, NodeId, SpaceId};

use crate::{
    error::SnapshotError,
    format::{Begin, ChunkKind, EntryId, EntryItem, EntryKind, Item, PartKind, SnapshotInfo, Totals},
    stop::Stop,
};

/// Number of LSNs that are searched backwards from the start of an increment to find the last log entry before it.
const LOOK_BACK: u64 = 64;
/// Bytes reserved in a chunk's buffer for its last row. This row may extend beyond the intended size of a chunk.
const SLACK_BYTES: usize = 64 * 1024;

/// Position up to which a snapshot has been read, and the totals up to this position.
#[derive(Clone, Debug)]
pub(crate) enum Cursor {
    Begin,
    /// The snapshot continues with the first row whose key is above this key; `None` for the first row of all.
    Rows(Option<Vec<u8>>, Totals),
    /// The snapshot continues with the log entries from this LSN on. The index is that of the last entry before this
    /// LSN; it is `None` if the log no longer has that entry.
    Entries(Lsn, Option<Index>, Totals),
    End(Totals),
    Done(Totals),
}

impl Cursor {
    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Begin => Totals::default(),
            Self::Rows(_, totals) | Self::Entries(_, _, totals) | Self::End(totals) | Self::Done(totals) => *totals,
        }
    }
}

/// Origin of a snapshot's contents: a view of the state, or the log.
#[derive(Clone)]
pub(crate) enum Source {
    State {
        view: Arc<dyn View>,
        log: Log,
    },
    /// The log entries from `since` up to but excluding `end`. Entries that a later truncation of the log has undone
    /// are left out.
    Log {
        log: Log,
        valid: Valid,
        since: Lsn,
        end: Lsn,
        /// Index of the last entry before `since`; `None` if the log no longer has it.
        before: Option<Index>,
        /// Index of the last log entry before the LSN `end`, where the increment ends.
        last: Index,
    },
}

impl Source {
    /// Creates a source of the present state, and the contents of the snapshot's first chunk. The caller must prevent
    /// the freeing of log segments from before this call until the source is dropped.
    pub(crate) fn of_state(node: NodeId, log: &Log, backend: &dyn Backend) -> Result<(Self, Begin), SnapshotError> {
        let view = backend.view();
        let info = SnapshotInfo {
            kind: PartKind::Full,
            node,
            since: Lsn::ZERO,
            applied: view.applied(),
            before: EntryId::default(),
        };
        let membership = AppliedMembership::in_view(&*view)?;
        Ok((Self::State { view, log: log.clone() }, Begin { info, membership }))
    }

    /// Creates a source of the changes since an LSN, up to the applied position of the state. The caller must prevent
    /// the freeing of log segments from before this call until the source is dropped.
    ///
    /// # Errors
    /// [`SnapshotError::Compacted`] if the log no longer has the entries from this LSN on, or if the node has replaced
    /// its state by that of another node after this LSN.
    pub(crate) fn of_log(
        node: NodeId,
        log: &Log,
        machine: &Machine,
        since: Lsn,
    ) -> Result<(Self, Begin), SnapshotError> {
        let applied = machine.applied();
        if since > applied.lsn {
            return Err(SnapshotError::PastEnd { since, applied: applied.lsn });
        }
        let log = log.clone();
        let valid = Valid::of(&log, SpaceId::ZERO);
        let (before, follows) = last_entry_before(&log, &valid, since, &applied)?;
        if !follows {
            check_begins_after_install(machine, since, &applied)?;
        }
        let info = SnapshotInfo { kind: PartKind::Increment, node, since, applied, before };
        let (end, last) = (applied.lsn, applied.index);
        let known = Some(before.index).filter(|index| *index > Index::ZERO);
        Ok((Self::Log { log, valid, since, end, before: known, last }, Begin { info, membership: None }))
    }

    pub(crate) fn first(&self) -> Cursor {
        match self {
            Self::State { .. } => Cursor::Rows(None, Totals::default()),
            Self::Log { since, before, .. } => Cursor::Entries(*since, *before, Totals::default()),
        }
    }
}

fn log_error(since: Lsn, error: &ReadError) -> SnapshotError {
    match error {
        ReadError::Compacted { oldest } => SnapshotError::Compacted { since, oldest: *oldest },
        ReadError::Gone { .. } => SnapshotError::Expired,
        other => SnapshotError::Log(other.to_string()),
    }
}

/// Finds the last entry before the LSN `since`, at which an increment begins. Its fields are all 0 if the log no longer
/// has this entry, or if the first entry of the increment does not continue it. For an increment without entries,
/// returns the last applied entry.
///
/// The second value is false if the log has an entry before `since` that the increment does not continue. This happens
/// after the node has installed the state of another node: the log may then end with entries that do not belong to the
/// history of the installed state.
fn last_entry_before(
    log: &Log,
    valid: &Valid,
    since: Lsn,
    applied: &Applied,
) -> Result<(EntryId, bool), SnapshotError> {
    let from = Lsn(since.0.saturating_sub(LOOK_BACK)).max(log.start()).min(since);
    let mut last = EntryId::default();
    for record in log.records_from(from).map_err(|error| log_error(since, &error))? {
        let record = record.map_err(|error| log_error(since, &error))?;
        if record.lsn >= applied.lsn {
            break;
        }
        if !valid.is_entry(&record) {
            continue;
        }
        if record.lsn >= since {
            return Ok(match record.index == last.index.next() {
                true => (last, true),
                false => (EntryId::default(), last.index == Index::ZERO),
            });
        }
        last = EntryId { term: record.term, index: record.index, time: record.time };
    }
    // If the increment has no entries, it must end at the last entry.
    let follows = last.index == Index::ZERO || last.index == applied.index;
    Ok((EntryId { term: applied.term, index: applied.index, time: applied.time }, follows))
}

/// Checks the start of an increment that does not continue the log entry before it. This happens if the node has
/// replaced its state by that of another node (an install). The increment must begin after the install. Otherwise it
/// would lack the changes that came with the installed state.
fn check_begins_after_install(machine: &Machine, since: Lsn, applied: &Applied) -> Result<(), SnapshotError> {
    // The install has left a mark. The first mark at or above the history floor is this one or a later one.
    let oldest = machine.history_begin(Lsn::ZERO)?.map_or(applied.lsn, |mark| mark.lsn);
    if since < oldest { Err(SnapshotError::Compacted { since, oldest }) } else { Ok(()) }
}

/// Uncompressed contents of a chunk, and the position of the snapshot after this chunk.
pub(crate) struct GatheredChunk {
    pub(crate) kind: ChunkKind,
    pub(crate) plain: Vec<u8>,
    pub(crate) after: Cursor,
}

/// Reads a snapshot's source, and returns the contents of one chunk at a time.
pub(crate) struct Gatherer {
    source: Source,
    next: Cursor,
    records: Option<Records>,
    chunk_bytes: usize,
    /// Signal by which another thread stops the gathering: the chunk in progress then ends with an error.
    stop: Arc<Stop>,
}

impl Gatherer {
    pub(crate) fn new(
        source: Source,
        next: Cursor,
        chunk_bytes: usize,
        stop: Arc<Stop>,
    ) -> Result<Self, SnapshotError> {
        let records = match (&source, &next) {
            (Source::Log { log, since, .. }, Cursor::Entries(from, ..)) => {
                Some(log.records_from(*from).map_err(|error| log_error(*since, &error))?)
            }
            _ => None,
        };
        Ok(Self { source, next, records, chunk_bytes, stop })
    }

    /// Returns the database's log. Other threads write to this log concurrently.
    pub(crate) fn log(&self) -> &Log {
        match &self.source {
            Source::State { log, .. } | Source::Log { log, .. } => log,
        }
    }

    /// Gathers the contents of the next chunk into the empty buffer `plain`; returns `None` if no chunk follows.
    pub(crate) fn next(&mut self, mut plain: Vec<u8>) -> Option<Result<GatheredChunk, SnapshotError>> {
        if !matches!(self.next, Cursor::Rows(..) | Cursor::Entries(..)) {
            return None;
        }
        plain.reserve(self.chunk_bytes + SLACK_BYTES.min(self.chunk_bytes));
        let kind = self.gather(&mut plain);
        Some(kind.map(|kind| GatheredChunk { kind, plain, after: self.next.clone() }))
    }

    fn gather(&mut self, plain: &mut Vec<u8>) -> Result<ChunkKind, SnapshotError> {
        let bounds = (self.chunk_bytes, &*self.stop);
        match (&self.source, &self.next) {
            (Source::State { view, log }, Cursor::Rows(after, totals)) => {
                self.next = rows(&**view, log, after.as_deref(), *totals, bounds, plain)?;
                Ok(ChunkKind::Rows)
            }
            (Source::Log { valid, since, end, last, .. }, Cursor::Entries(from, before, totals)) => {
                let records = self.records.as_mut().ok_or_else(stopped)?;
                let range = EntryRange { valid, since: *since, from: *from, end: *end, last: *last };
                self.next = entries(records, &range, *before, *totals, bounds, plain)?;
                Ok(ChunkKind::Entries)
            }
            _ => Err(SnapshotError::Io(stopped())),
        }
    }
}

/// Appends the rows after the key `after` to the chunk's contents until the chunk is full. Returns the snapshot's new
/// position.
fn rows(
    view: &dyn View,
    log: &Log,
    after: Option<&[u8]>,
    mut totals: Totals,
    (chunk_bytes, stop): (usize, &Stop),
    plain: &mut Vec<u8>,
) -> Result<Cursor, SnapshotError> {
    let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
    let (mut full, mut failure, mut last) = (false, None, Vec::new());
    view.scan_once(lower, &mut |key, value| match row(log, key, value, plain, &mut totals) {
        Ok(()) if stop.is_set() => {
            failure = Some(stopped().into());
            ControlFlow::Break(())
        }
        Ok(()) if plain.len() < chunk_bytes => ControlFlow::Continue(()),
        Ok(()) => {
            full = true;
            last.extend_from_slice(key);
            ControlFlow::Break(())
        }
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    })?;
    match failure {
        Some(error) => Err(error),
        None if full => Ok(Cursor::Rows(Some(last), totals)),
        None => Ok(Cursor::End(totals)),
    }
}

fn row(log: &Log, key: &[u8], value: &[u8], plain: &mut Vec<u8>, totals: &mut Totals) -> Result<(), SnapshotError> {
    let mut add = |item: &Item<'_>| {
        totals.add(item);
        item.encode(plain);
    };
    match portable::sort(key, value)? {
        Row::Local => {}
        Row::Plain => add(&Item::Row { key, value, bytes: None }),
        Row::Pointing(pointing) => {
            let bytes = log.read_blob(&pointing.blob).map_err(|error| match error {
                ReadError::Corrupt(corruption) => SnapshotError::ValueDamaged(corruption.to_string()),
                error => log_error(Lsn::ZERO, &error),
            })?;
            let mut placeless = value.to_vec();
            let pointer = portable::without_position(&pointing.blob).encode();
            placeless[pointing.at..pointing.at + pointer.len()].copy_from_slice(&pointer);
            add(&Item::Row { key, value: &placeless, bytes: Some(&bytes) });
        }
    }
    Ok(())
}

/// Range of log entries that an increment (snapshot of changes) still has to read.
struct EntryRange<'a> {
    valid: &'a Valid,
    /// LSN at which the whole increment begins.
    since: Lsn,
    from: Lsn,
    end: Lsn,
    /// Index of the last log entry before the LSN `end`, where the range ends.
    last: Index,
}

/// Appends the valid log entries of a range to the chunk's contents, until the chunk is full or no entry is left.
/// Returns the snapshot's new position. `before` is the index of the last entry before the range; `None` if it is
/// unknown.
///
/// Fails if the indexes of the entries are not consecutive. This is the case after the install of a snapshot: the log
/// lacks entries that the new state contains, so no increment can cover them.
fn entries(
    records: &mut Records,
    range: &EntryRange<'_>,
    mut before: Option<Index>,
    mut totals: Totals,
    (chunk_bytes, stop): (usize, &Stop),
    plain: &mut Vec<u8>,
) -> Result<Cursor, SnapshotError> {
    let &EntryRange { valid, since, from, end, last } = range;
    let mut next = from;
    while next < end && plain.len() < chunk_bytes {
        let Some(record) = records.next() else { break };
        let record = record.map_err(|error| log_error(since, &error))?;
        if stop.is_set() {
            return Err(stopped().into());
        }
        if record.lsn >= end {
            break;
        }
        next = record.lsn.next();
        if !valid.is_entry(&record) {
            continue;
        }
        if before.is_some_and(|before| record.index != before.next()) {
            return Err(SnapshotError::Compacted { since, oldest: record.lsn });
        }
        before = Some(record.index);
        let (kind, payload) = match record.kind {
            RecordKind::Entry => (EntryKind::Commands, &record.payload[..]),
            _ => (EntryKind::Blank, &[][..]),
        };
        let id = EntryId { term: record.term, index: record.index, time: record.time };
        let item = Item::Entry(EntryItem { kind, lsn: record.lsn, id, payload });
        totals.add(&item);
        item.encode(plain);
    }
    if next < end && plain.len() >= chunk_bytes {
        return Ok(Cursor::Entries(next, before, totals));
    }
    if before.is_some_and(|before| before != last) {
        return Err(SnapshotError::Compacted { since, oldest: end });
    }
    Ok(Cursor::End(totals))
}

/// Creates the error that is reported if a thread of the snapshot has ended without a result.
pub(crate) fn stopped() -> io::Error {
    io::Error::other("a thread of the snapshot has stopped")
}
