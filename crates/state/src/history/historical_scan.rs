//! Scans of a keyspace as of a past revision. A scan reads the rows of current values ("own rows") and of former values
//! ("versions") in pages, and merges them in the order of keys.
//!
//! Owns: the two sources and their merge. Does not own: reads of single keys (`historical_view`).
//!
//! A backend calls back for each row and cannot scan two ranges at a time. So the scan reads alternately about one page
//! of own rows and one page of versions ahead. A key with many versions is not scanned completely: after some versions,
//! the scan restarts at the version of the requested revision.

use std::{
    collections::{HashMap, VecDeque},
    ops::{Bound, ControlFlow},
};

use thalweg_store::Direction;
use thalweg_types::{LeaseId, Revision, budget, steps::ROW};

use crate::{
    error::MachineError,
    expiry::rows::{Expiry, Lease},
    history::{
        historical_view::{HistoricalView, HistoryError},
        rows::{
            HistoryKey, VersionRow, VersionUpperBound, escape, forgotten_row, key_prefix, version_row, versions_prefix,
        },
    },
    keys::{DATA_PREFIX_LEN, KeyRange, data_prefix},
    keyspaces::{
        read_view::{Fetch, Item, ScanRange},
        values::decode_value,
    },
};

/// Maximum number of rows that a scan of the past reads ahead from each of its sources: current and former values.
const PAGE_ROWS: usize = 256;
/// Bytes of rows after which a scan of the past stops reading ahead in one of its sources.
const PAGE_BYTES: usize = 1024 * 1024;

impl HistoricalView<'_> {
    /// Visits the keys and values of the past revision in order until the range ends, the limit is reached, or `visit`
    /// breaks. Reads about 1 MiB of rows ahead.
    pub fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), HistoryError> {
        let full = KeyRange::of_keyspace(self.keyspace, range.prefix, range.start, range.end);
        if full.is_empty() {
            return Ok(());
        }
        self.check_known(self.gone)?;
        let mut versions = VersionSource::new(self, &full, range.direction);
        let mut own =
            OwnSource { past: self, range: full, direction: range.direction, page: VecDeque::new(), all: false };
        let mut left = range.limit;
        let mut leases = HashMap::new();
        while left > 0 {
            own.refill()?;
            versions.refill()?;
            let first = match (own.page.front(), versions.page.front()) {
                (None, None) => return Ok(()),
                (Some(_), None) => NextSource::Own,
                (None, Some(_)) => NextSource::Version,
                (Some(own), Some(version)) => match (own.key.cmp(&version.key), range.direction) {
                    (std::cmp::Ordering::Equal, _) => NextSource::Both,
                    (std::cmp::Ordering::Less, Direction::Forward)
                    | (std::cmp::Ordering::Greater, Direction::Reverse) => NextSource::Own,
                    _ => NextSource::Version,
                },
            };
            let version = if first == NextSource::Own { None } else { versions.page.pop_front() };
            let own = if first == NextSource::Version { None } else { own.page.pop_front() };
            let (key, row) = match (own, version) {
                (Some(own), _) => (own.key, own.row),
                (None, Some(VersionItem { key, row: RowAtRevision::Row(row) })) => (key, row),
                (None, Some(VersionItem { row: RowAtRevision::Unknown { oldest }, .. })) => {
                    self.check_known(oldest)?;
                    continue;
                }
                (None, None) => return Ok(()),
            };
            let found = decode_value(&key, &row)?;
            // The version source has already excluded versions that had ended.
            let is_own = first != NextSource::Version;
            if is_own && !self.is_live(&found.expiry, &mut leases)? {
                continue;
            }
            let value = (range.fetch == Fetch::Values).then_some(found.value);
            let item = Item { key: &key, revision: found.revision, value, expiry: found.expiry };
            left -= 1;
            if visit(item).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn is_live(&self, expiry: &Expiry, leases: &mut HashMap<LeaseId, Option<Lease>>) -> Result<bool, MachineError> {
        expiry.is_live(self.time, |id| match leases.get(&id) {
            Some(known) => Ok(*known),
            None => {
                let lease = Lease::in_view(self.snapshot.view(), id)?;
                leases.insert(id, lease);
                Ok(lease)
            }
        })
    }
}

/// Source with the next key: current values, versions (former values), or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextSource {
    Own,
    Version,
    Both,
}

struct OwnRow {
    key: Vec<u8>,
    row: Vec<u8>,
}

/// Iterates in order over the keys whose newest value was already current at the past revision.
struct OwnSource<'p> {
    past: &'p HistoricalView<'p>,
    range: KeyRange,
    direction: Direction,
    page: VecDeque<OwnRow>,
    all: bool,
}

impl OwnSource<'_> {
    fn refill(&mut self) -> Result<(), MachineError> {
        if self.all || !self.page.is_empty() {
            return Ok(());
        }
        let HistoricalView { snapshot, keyspace, revision, .. } = *self.past;
        let sight = snapshot.visibility_at(keyspace, revision);
        let (mut bytes, mut failure, mut last) = (0, None, None);
        snapshot.view().scan(self.range.lower(), self.range.upper(), self.direction, &mut |full, row| {
            budget::charge(ROW)?;
            let written = match decode_value(full, row) {
                Ok(found) => found.revision,
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            };
            let key = &full[DATA_PREFIX_LEN..];
            if written > revision || !sight.shows(key, written) {
                return ControlFlow::Continue(());
            }
            bytes += full.len() + row.len();
            self.page.push_back(OwnRow { key: key.to_vec(), row: row.to_vec() });
            if self.page.len() < PAGE_ROWS && bytes < PAGE_BYTES {
                return ControlFlow::Continue(());
            }
            last = Some(full.to_vec());
            ControlFlow::Break(())
        })?;
        failure.map_or(Ok(()), Err)?;
        match last {
            None => self.all = true,
            Some(last) => advance_past(&mut self.range, self.direction, last.clone(), last),
        }
        self.all |= self.range.is_empty();
        Ok(())
    }
}

/// Removes the rows up to `last` from a range scanned forward, or the rows down to `first` from one scanned backward.
fn advance_past(range: &mut KeyRange, direction: Direction, first: Vec<u8>, last: Vec<u8>) {
    match direction {
        Direction::Forward => range.set_lower(Bound::Excluded(last)),
        Direction::Reverse => range.set_upper(Bound::Excluded(first)),
    }
}

struct VersionItem {
    key: Vec<u8>,
    row: RowAtRevision,
}

/// State of a key at the revision of a scan of the past.
enum RowAtRevision {
    /// The key had the value that this row of the store contains.
    Row(Vec<u8>),
    /// The key's state below the revision `oldest` is unknown, because its former values were removed.
    Unknown { oldest: Revision },
}

/// Iterates in order over the keys that have a version (former value) at the past revision, or whose state at that
/// revision is unknown.
struct VersionSource<'p> {
    past: &'p HistoricalView<'p>,
    range: KeyRange,
    direction: Direction,
    page: VecDeque<VersionItem>,
    all: bool,
}

/// State of a key, as far as the rows of its former values that were examined so far determine it.
struct KeyVersions {
    key: Vec<u8>,
    row: Option<Vec<u8>>,
    oldest: Revision,
}

impl<'p> VersionSource<'p> {
    /// Creates a source of the former values (versions) of keys in a range. `own` is the range of the row keys of their
    /// newest values.
    fn new(past: &'p HistoricalView<'p>, own: &KeyRange, direction: Direction) -> Self {
        let base = versions_prefix(past.keyspace);
        let mut range = KeyRange::with_prefix(&base);
        let escaped = |full: &[u8], tail: &[u8]| {
            let key = full.strip_prefix(&data_prefix(past.keyspace))?;
            let mut out = base.to_vec();
            escape(key, &mut out);
            out.extend_from_slice(tail);
            Some(out)
        };
        // Sorts after all rows of a key.
        const BEHIND: [u8; 8] = [0xff; 8];
        match own.lower() {
            Bound::Included(lower) => {
                escaped(lower, b"").into_iter().for_each(|key| range.set_lower(Bound::Included(key)));
            }
            Bound::Excluded(lower) => {
                escaped(lower, &BEHIND).into_iter().for_each(|key| range.set_lower(Bound::Excluded(key)));
            }
            Bound::Unbounded => {}
        }
        match own.upper() {
            Bound::Included(upper) => {
                escaped(upper, &BEHIND).into_iter().for_each(|key| range.set_upper(Bound::Included(key)));
            }
            Bound::Excluded(upper) => {
                escaped(upper, b"").into_iter().for_each(|key| range.set_upper(Bound::Excluded(key)));
            }
            Bound::Unbounded => {}
        }
        let all = range.is_empty();
        Self { past, range, direction, page: VecDeque::new(), all }
    }

    fn refill(&mut self) -> Result<(), MachineError> {
        while !self.all && self.page.is_empty() {
            self.read()?;
        }
        Ok(())
    }

    /// Reads rows of former values, key by key, until the page is full, or until one key has too many rows to examine
    /// all.
    fn read(&mut self) -> Result<(), MachineError> {
        /// Number of rows of one key that a forward scan examines one by one before it skips rows. It skips to the
        /// key's version at the requested revision. If it has found that version already, it skips to the next key.
        const MAX_STEPS: usize = 32;
        let HistoricalView { keyspace, revision, .. } = *self.past;
        let (mut bytes, mut failure) = (0, None);
        let mut gathered: Option<KeyVersions> = None;
        let mut steps = 0;
        let mut jump = None;
        let mut stopped_behind = None;
        let (page, past) = (&mut self.page, self.past);
        self.past.snapshot.view().scan(self.range.lower(), self.range.upper(), self.direction, &mut |full, row| {
            budget::charge(ROW)?;
            let of = match HistoryKey::of_version(full) {
                Ok(of) => of,
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            };
            if gathered.as_ref().is_none_or(|gathered| gathered.key != of.key) {
                if let Some(done) = gathered.take() {
                    let key = done.key.clone();
                    past.push(page, done);
                    if page.len() >= PAGE_ROWS || bytes >= PAGE_BYTES {
                        stopped_behind = Some(key);
                        return ControlFlow::Break(());
                    }
                }
                steps = 0;
                gathered = Some(KeyVersions { key: of.key.clone(), row: None, oldest: Revision::ZERO });
            }
            let current = gathered.as_mut().expect("set above");
            if let Err(error) = past.gather(current, of.revision, full, row) {
                failure = Some(error);
                return ControlFlow::Break(());
            }
            bytes += full.len() + current.row.as_ref().map_or(0, Vec::len);
            steps += 1;
            let is_newer = of.revision.is_some_and(|of| of > revision);
            if steps >= MAX_STEPS && self.direction == Direction::Forward && (is_newer || current.row.is_some()) {
                jump = Some(is_newer);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        failure.map_or(Ok(()), Err)?;
        let Some(last) = gathered else {
            match stopped_behind {
                Some(key) => {
                    let (first, end) = (key_prefix(keyspace, &key), forgotten_row(keyspace, &key));
                    advance_past(&mut self.range, self.direction, first, end);
                    self.all = self.range.is_empty();
                }
                None => self.all = true,
            }
            return Ok(());
        };
        match jump {
            // Continue directly at the requested version; no state of the key is known yet.
            Some(true) => self.range.set_lower(Bound::Included(version_row(keyspace, &last.key, revision))),
            Some(false) => {
                self.range.set_lower(Bound::Excluded(forgotten_row(keyspace, &last.key)));
                self.past.push(&mut self.page, last);
            }
            None => {
                self.past.push(&mut self.page, last);
                self.all = true;
            }
        }
        self.all |= self.range.is_empty();
        Ok(())
    }
}

impl HistoricalView<'_> {
    fn gather(
        &self,
        current: &mut KeyVersions,
        revision: Option<Revision>,
        full: &[u8],
        row: &[u8],
    ) -> Result<(), MachineError> {
        match revision {
            None => current.oldest = VersionUpperBound::of_forgotten(full, row)?.revision,
            Some(revision) if revision > self.revision => {}
            Some(_) => {
                let version = VersionRow::decode(full, row)?;
                if version.until.revision > self.revision {
                    // A version that had ended shows that the key did not exist.
                    current.oldest = Revision::ZERO;
                    current.row = Some(if version.end > self.time { version.value.to_vec() } else { Vec::new() });
                }
            }
        }
        Ok(())
    }

    fn push(&self, page: &mut VecDeque<VersionItem>, done: KeyVersions) {
        let KeyVersions { key, row, oldest } = done;
        match row {
            Some(row) if row.is_empty() => {}
            Some(row) => page.push_back(VersionItem { key, row: RowAtRevision::Row(row) }),
            None if oldest > self.revision => {
                page.push_back(VersionItem { key, row: RowAtRevision::Unknown { oldest } });
            }
            None => {}
        }
    }
}
