//! Scans within a transaction, and conditions on what was scanned before: the backend's rows merged with what the entry made of keys so far.

use std::{cmp::Ordering, iter::Peekable, ops::ControlFlow};

use bytes::Bytes;
use thalweg_types::{
    KeyspaceId, Revision,
    command::{OperationError, ScanOperation, ScanPage, ScannedItem, UnchangedRange},
    limits::{MAX_KEY_BYTES, MAX_TRANSACTION_RESULT_BYTES, MAX_TRANSACTION_SCAN_ITEMS, MAX_TRANSACTION_SCAN_ROWS},
    record::Malformed,
};

use crate::{
    backend::Direction,
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::{Decoded, decode_value},
    machine::{
        MachineError,
        entry::{Applying, Refused},
        live::{LiveKey, LiveValue, is_live},
        overlay::Overlay,
    },
};

/// Bytes that a pair costs beside its key and value.
const ITEM_BYTES: usize = 32;

/// One page of a range. `room` is what the transaction's reads may still come to.
pub(super) fn page(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    scan: &ScanOperation<'_>,
    room: &mut usize,
) -> Result<Result<ScanPage, OperationError>, MachineError> {
    let (start, end) = scan.bounds();
    let range = KeyRange::of_keyspace(keyspace, scan.prefix, start, end);
    let mut page = Page {
        applying,
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
        merge(applying, overlay, keyspace, scan, &range, &mut page)?;
    }
    let after = match page.end {
        Some(End::TooLarge) => {
            return Ok(Err(OperationError::ResultTooLarge { limit: MAX_TRANSACTION_RESULT_BYTES }));
        }
        Some(End::Full) => page.last.map(Bytes::from),
        None => None,
    };
    Ok(Ok(ScanPage { items: page.items, after }))
}

/// Whether a range is as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unchanged {
    Holds,
    /// It is not; with the revision of the first pair that is newer, if there is one.
    Changed(Option<Revision>),
    /// More rows than may be looked at.
    TooLong,
}

/// Compares a range from `start` on with what was read of it. `rows` is how many may still be looked at.
pub(super) fn check_unchanged(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
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
        applying,
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
        merge(applying, overlay, keyspace, &scan, &range, &mut page)?;
    }
    *rows -= page.looked_at;
    let newer = page.items.iter().find(|item| item.revision > read.since);
    Ok(match newer {
        Some(item) => Unchanged::Changed(Some(item.revision)),
        None if page.end.is_some() => Unchanged::TooLong,
        None if page.items.len() != read.count as usize => Unchanged::Changed(None),
        None => Unchanged::Holds,
    })
}

fn merge(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    scan: &ScanOperation<'_>,
    range: &KeyRange,
    page: &mut Page<'_, '_>,
) -> Result<(), MachineError> {
    let direction = if scan.reverse { Direction::Reverse } else { Direction::Forward };
    let (lower, upper) = user_bounds(scan);
    let mine = overlay.range(keyspace, &lower, upper.as_deref());
    let mine: Box<dyn Iterator<Item = _>> = if scan.reverse { Box::new(mine.rev()) } else { Box::new(mine) };
    let mut mine = mine.peekable();
    let sight = applying.sight(keyspace);
    let mut failure = None;
    let view = applying.machine.backend.view();
    view.scan(range.lower(), range.upper(), direction, &mut |full, value| {
        let key = full.get(DATA_PREFIX_LEN..).unwrap_or_default();
        let mut visit = || {
            if page.take_before(&mut mine, key, direction)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if let Some((_, live)) = mine.next_if(|(own, _)| *own == key) {
                return page.look_at_own(key, live);
            }
            let Decoded { revision, value, expiry } = decode_value(full, value)?;
            let shown = !overlay.is_cleared(keyspace, key) && sight.shows(key, revision) && is_live(applying, &expiry)?;
            let value = LiveValue::Stored(value.to_owned());
            page.look_at(key, shown.then_some(&LiveKey { revision, value, expiry }))
        };
        visit().unwrap_or_else(|error| {
            failure = Some(error);
            ControlFlow::Break(())
        })
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    while page.end.is_none()
        && let Some((key, live)) = mine.next()
    {
        if page.look_at_own(key, live)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The lowest user key wanted, and the first above those wanted.
fn user_bounds(scan: &ScanOperation<'_>) -> (Vec<u8>, Option<Vec<u8>>) {
    let lower = scan.start.map_or(scan.prefix, |start| start.max(scan.prefix)).to_vec();
    let upper = match (scan.end, keys::after_prefix(scan.prefix)) {
        (Some(end), Some(after)) => Some(after.min(end.to_vec())),
        (Some(end), None) => Some(end.to_vec()),
        (None, after) => after,
    };
    (lower, upper)
}

/// Why a page ends before its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It holds as much as it may.
    Full,
    /// Not even one pair has room.
    TooLarge,
}

/// A page being filled.
struct Page<'p, 'm> {
    applying: &'p Applying<'m>,
    limit: usize,
    keys_only: bool,
    room: &'p mut usize,
    items: Vec<ScannedItem>,
    max_rows: usize,
    looked_at: usize,
    /// The last key that is done with.
    last: Option<Vec<u8>>,
    end: Option<End>,
}

impl Page<'_, '_> {
    /// Takes the entry's own keys that come before `key`.
    fn take_before<'o, 'l: 'o>(
        &mut self,
        mine: &mut Peekable<impl Iterator<Item = (&'o [u8], Option<&'o LiveKey<'l>>)>>,
        key: &[u8],
        direction: Direction,
    ) -> Result<ControlFlow<()>, MachineError> {
        let before = match direction {
            Direction::Forward => Ordering::Less,
            Direction::Reverse => Ordering::Greater,
        };
        while let Some((own, live)) = mine.next_if(|(own, _)| (*own).cmp(key) == before) {
            if self.look_at_own(own, live)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A key as the entry left it. It may have ended since, with a lease that a later command revoked.
    fn look_at_own(&mut self, key: &[u8], live: Option<&LiveKey<'_>>) -> Result<ControlFlow<()>, MachineError> {
        match live {
            Some(live) if !is_live(self.applying, &live.expiry)? => self.look_at(key, None),
            live => self.look_at(key, live),
        }
    }

    fn look_at(&mut self, key: &[u8], live: Option<&LiveKey<'_>>) -> Result<ControlFlow<()>, MachineError> {
        if self.looked_at == self.max_rows {
            return Ok(self.end(End::Full));
        }
        self.looked_at += 1;
        // A hash or a stream has no bytes to be shown.
        if let Some(live) = live.filter(|live| live.collection().is_none()) {
            let value_bytes = if self.keys_only { 0 } else { live.value_len() };
            if self.items.len() == self.limit {
                return Ok(self.end(End::Full));
            }
            let Some(room) = self.room.checked_sub(key.len() + value_bytes + ITEM_BYTES) else {
                return Ok(self.end(if self.items.is_empty() { End::TooLarge } else { End::Full }));
            };
            *self.room = room;
            let value = if self.keys_only { None } else { Some(live.bytes(self.applying)?) };
            self.items.push(ScannedItem { key: Bytes::copy_from_slice(key), revision: live.revision, value });
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(ControlFlow::Continue(()))
    }

    fn end(&mut self, end: End) -> ControlFlow<()> {
        self.end = Some(end);
        ControlFlow::Break(())
    }
}
