//! Scans within a transaction, and conditions on ranges that were scanned before.
//!
//! Owns: the page of a scan with its limits, and the comparison of a range with an earlier read of it.

use std::ops::ControlFlow;

use bytes::Bytes;
use thalweg_store::{Direction, View};
use thalweg_types::{
    KeyspaceId, Revision,
    codec::Malformed,
    command::{OperationError, ScanOperation, ScanPage, ScannedItem, UnchangedRange},
    limits::{MAX_KEY_BYTES, MAX_TRANSACTION_RESULT_BYTES, MAX_TRANSACTION_SCAN_ITEMS, MAX_TRANSACTION_SCAN_ROWS},
    steps::read_bytes,
};

use crate::{
    error::MachineError,
    keys::{DATA_PREFIX_LEN, KeyRange},
    keyspaces::{
        live::is_live,
        read_view::VisitRow,
        values::{Decoded, StoredRef, decode_value},
    },
    machine::applying::Applying,
    refused::Refused,
};

/// Bytes that a pair in a scan's result counts in addition to its key and value.
const ITEM_BYTES: usize = 32;

/// Source of rows for a transaction: the log entry that is being applied, or a view.
pub(crate) trait RangeReader {
    /// Charges `steps` of work to the transaction, which has a budget of them.
    fn charge(&self, steps: u64);
    /// Returns an error if the transaction may do no more work.
    fn check_budget(&self) -> Result<(), Refused>;
    /// Returns the bytes of a value, read from the log if necessary.
    fn bytes_of(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        value: StoredRef<'_>,
    ) -> Result<Bytes, MachineError>;
    /// Visits the rows of a range of a keyspace in order until `visit` breaks. A hidden row (of a deleted or ended key)
    /// comes without a value.
    fn rows(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), MachineError>;
}

impl RangeReader for Applying<'_> {
    fn charge(&self, steps: u64) {
        self.charge(steps);
    }

    fn check_budget(&self) -> Result<(), Refused> {
        self.check_budget()
    }

    fn bytes_of(&self, _: KeyspaceId, _: &[u8], _: Revision, value: StoredRef<'_>) -> Result<Bytes, MachineError> {
        self.charge(read_bytes(value.value_len()));
        self.bytes_of_ref(value)
    }

    fn rows(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), MachineError> {
        let sight = self.visibility(keyspace);
        let mut failure = None;
        self.view().scan(range.lower(), range.upper(), direction, &mut |full, value| {
            let key = full.get(DATA_PREFIX_LEN..).unwrap_or_default();
            let mut show = || {
                let Decoded { revision, value, expiry } = decode_value(full, value)?;
                let shown = sight.shows(key, revision) && is_live(self, &expiry)?;
                visit(key, shown.then_some((revision, value)))
            };
            show().unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        })?;
        failure.map_or(Ok(()), Err)
    }
}

/// Reads one page of a range for a transaction. `room` is the number of bytes left for the results of all its reads.
pub(crate) fn page<R: RangeReader>(
    reader: &R,
    keyspace: KeyspaceId,
    scan: &ScanOperation<'_>,
    room: &mut usize,
) -> Result<Result<ScanPage, OperationError>, MachineError> {
    let (start, end) = scan.bounds();
    let range = KeyRange::of_keyspace(keyspace, scan.prefix, start, end);
    let mut page = Page {
        reader,
        keyspace,
        limit: (scan.limit as usize).min(MAX_TRANSACTION_SCAN_ITEMS),
        keys_only: scan.keys_only,
        room,
        items: Vec::new(),
        max_rows: MAX_TRANSACTION_SCAN_ROWS,
        looked_at: 0,
        last: None,
        end: None,
    };
    if !range.is_empty() && page.limit > 0 {
        fill(reader, scan, &range, &mut page)?;
    }
    let after = match page.end {
        Some(PageEnd::TooLarge) => {
            return Ok(Err(OperationError::ResultTooLarge { limit: MAX_TRANSACTION_RESULT_BYTES }));
        }
        Some(PageEnd::Full) => page.last.map(Bytes::from),
        None => None,
    };
    Ok(Ok(ScanPage { items: page.items, after }))
}

/// Result of comparing a range of keys with an earlier read of the same range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchanged {
    Holds,
    /// The range has changed. Contains the revision of the first newer pair, if there is one.
    Changed(Option<Revision>),
    /// The range has more rows than the command's conditions may examine.
    TooLong,
}

/// Compares the range that begins at `start` with `read`, an earlier read of the range. `rows` is the number of rows
/// that the command's conditions may still examine.
pub(crate) fn check_unchanged<R: RangeReader>(
    reader: &R,
    keyspace: KeyspaceId,
    start: &[u8],
    read: &UnchangedRange<'_>,
    rows: &mut usize,
) -> Result<Unchanged, Refused> {
    if read.end.is_some_and(|end| end.len() > MAX_KEY_BYTES) {
        return Err(Malformed { at: 0, expected: "key within the limit" }.into());
    }
    let scan = ScanOperation { start: Some(start), end: read.end, keys_only: true, ..ScanOperation::default() };
    let (lower, upper) = scan.bounds();
    let range = KeyRange::of_keyspace(keyspace, b"", lower, upper);
    let mut room = usize::MAX;
    let mut page = Page {
        reader,
        keyspace,
        limit: usize::MAX,
        keys_only: true,
        room: &mut room,
        items: Vec::new(),
        max_rows: *rows,
        looked_at: 0,
        last: None,
        end: None,
    };
    if !range.is_empty() {
        fill(reader, &scan, &range, &mut page)?;
    }
    // A scan ends early if the steps are used up; then its rows mean nothing.
    reader.check_budget()?;
    *rows -= page.looked_at;
    let newer = page.items.iter().find(|item| item.revision > read.since);
    Ok(match newer {
        Some(item) => Unchanged::Changed(Some(item.revision)),
        None if page.end.is_some() => Unchanged::TooLong,
        None if page.items.len() != read.count as usize => Unchanged::Changed(None),
        None => Unchanged::Holds,
    })
}

fn fill<R: RangeReader>(
    reader: &R,
    scan: &ScanOperation<'_>,
    range: &KeyRange,
    page: &mut Page<'_, R>,
) -> Result<(), MachineError> {
    let direction = if scan.reverse { Direction::Reverse } else { Direction::Forward };
    reader.rows(page.keyspace, range, direction, &mut |key, live| page.visit_row(key, live))
}

/// Reason why a page of scan results ended before its range did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageEnd {
    /// The page has reached a limit: its number of pairs, its bytes, or the number of examined rows.
    Full,
    /// The first pair does not fit into the bytes left for the transaction's results.
    TooLarge,
}

/// A page of scan results that is being filled, with its limits.
struct Page<'p, R> {
    reader: &'p R,
    keyspace: KeyspaceId,
    limit: usize,
    keys_only: bool,
    room: &'p mut usize,
    items: Vec<ScannedItem>,
    max_rows: usize,
    looked_at: usize,
    /// Key of the row that the scan examined last.
    last: Option<Vec<u8>>,
    end: Option<PageEnd>,
}

impl<R: RangeReader> Page<'_, R> {
    fn visit_row(
        &mut self,
        key: &[u8],
        live: Option<(Revision, StoredRef<'_>)>,
    ) -> Result<ControlFlow<()>, MachineError> {
        if self.looked_at == self.max_rows {
            return Ok(self.end(PageEnd::Full));
        }
        self.looked_at += 1;
        // A hash or a stream has no bytes to return.
        if let Some((revision, value)) = live.filter(|(_, value)| value.collection().is_none()) {
            let value_bytes = if self.keys_only { 0 } else { value.value_len() };
            if self.items.len() == self.limit {
                return Ok(self.end(PageEnd::Full));
            }
            let Some(room) = self.room.checked_sub(key.len() + value_bytes + ITEM_BYTES) else {
                return Ok(self.end(if self.items.is_empty() { PageEnd::TooLarge } else { PageEnd::Full }));
            };
            *self.room = room;
            let read = || self.reader.bytes_of(self.keyspace, key, revision, value);
            let value = if self.keys_only { None } else { Some(read()?) };
            self.items.push(ScannedItem { key: Bytes::copy_from_slice(key), revision, value });
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(ControlFlow::Continue(()))
    }

    fn end(&mut self, end: PageEnd) -> ControlFlow<()> {
        self.end = Some(end);
        ControlFlow::Break(())
    }
}
