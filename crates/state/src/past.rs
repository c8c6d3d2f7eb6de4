//! Reads of the past: keyspaces with history as they were at a revision, and a key's versions.
//!
//! Owns the rule by which a key was there at a revision, and the merging of the keys' own rows with their versions.
//! Does not own what is kept (see `machine/versions.rs`).
//!
//! The rule: of a key's own row and its versions, one at most covers a revision. It is its own row if that is not
//! younger, and no deleted prefix had hidden it by then; else the version that was there from no later than the
//! revision, and until after it. What had ended is hidden by the time that the reader names: a page of a scan names
//! the time of the first one. Who names a revision only, names no time: then what ends is there up to the revision
//! of the entry that removed it.

use std::{
    collections::{HashMap, VecDeque},
    ops::{Bound, ControlFlow},
};

use bytes::Bytes;
use thalweg_types::{Action, BlobRef, Classified, KeyspaceId, LeaseId, Revision, SpaceTime};

pub use crate::versions::Ending;
use crate::{
    backend::{BackendError, Direction},
    expiry::{Expiry, Lease},
    keys::{DATA_PREFIX_LEN, KeyRange, data_prefix, with_data_key},
    keyspaces::{Fetch, Item, ScanRange, Snapshot, Stored, StoredRef, StoredValue, decode_owned, decode_value},
    machine::MachineError,
    versions::{
        HistoryRow, PastKey, Until, VersionRow, Work, escape, forgotten_row, key_prefix, version_row, versions_prefix,
    },
};

/// Rows that a scan reads ahead of each of its two sources.
const PAGE_ROWS: usize = 256;
/// Bytes after which it stops reading ahead.
const PAGE_BYTES: usize = 1024 * 1024;

/// Why the past could not be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PastError {
    /// The keyspace keeps no history, or does not exist.
    #[error("the keyspace keeps no history: only its newest state can be read")]
    NoHistory,
    /// What was there at the revision is not kept any more, or was before the history began.
    #[error("revision {requested} is not kept any more: the oldest that can be read is {oldest}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be read: of the keyspace, or of the key that was come across.
        oldest: Revision,
    },
    /// The revision has not been used yet.
    #[error("revision {requested} has not been used yet: the newest is {newest}")]
    NotYet {
        /// What was asked for.
        requested: Revision,
        /// The newest.
        newest: Revision,
    },
    /// The state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

impl From<BackendError> for PastError {
    fn from(error: BackendError) -> Self {
        Self::Machine(error.into())
    }
}

impl Classified for PastError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoHistory => "no_history",
            Self::Compacted { .. } => "compacted",
            Self::NotYet { .. } => "future_revision",
            Self::Machine(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Machine(error) => error.action(),
            _ => Action::Fix,
        }
    }
}

/// A keyspace as it was at a revision.
#[derive(Clone, Copy, Debug)]
pub struct Past<'s> {
    snapshot: &'s Snapshot,
    keyspace: KeyspaceId,
    revision: Revision,
    /// What had ended by then is hidden.
    time: SpaceTime,
}

/// How long a value was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// It is.
    Current,
    /// Its deadline or its lease's has passed; the entry that removes it is to come.
    Ended,
    /// Up to, and without, a revision.
    Until {
        /// The first revision at which it was not.
        revision: Revision,
        /// The space time of the entry that took it away, or in a delete of many keys somewhat later; `None` if
        /// that is not known yet.
        time: Option<SpaceTime>,
        /// What took it away.
        ending: Ending,
    },
}

/// What a key was for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The value, since when, and when it was to end.
    pub stored: Stored,
    /// How long.
    pub lasting: Lasting,
}

/// Versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Those asked for.
    pub versions: Vec<Version>,
    /// Whether there are older ones that are kept.
    pub more: bool,
    /// From this revision on all versions of the key are kept.
    pub oldest: Revision,
}

impl Snapshot {
    /// Whether there may be versions of a keyspace's keys.
    pub fn has_versions(&self, keyspace: KeyspaceId) -> Result<bool, MachineError> {
        Ok(HistoryRow::in_view(self.view(), keyspace)?.is_some())
    }

    /// Where in the log the value of a key's own row lies, as long as somebody may read it: be it ended or not, and
    /// where there may be versions also if a deleted prefix hides it.
    pub fn value_blob(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<BlobRef>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(Stored { revision, value: StoredValue::Blob(blob), .. }) = own else { return Ok(None) };
        let shown = self.sight_at(keyspace, self.applied().revision).shows(key, revision);
        Ok((shown || self.has_versions(keyspace)?).then_some(blob))
    }

    /// Where in the log the values of a key's versions lie: for whoever looks after the bytes.
    pub fn version_blobs(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Vec<BlobRef>, MachineError> {
        let mut blobs = Vec::new();
        crate::machine::load_rows(self.view(), &KeyRange::with_prefix(&key_prefix(keyspace, key)), |full, row| {
            if PastKey::of_version(full)?.revision.is_some() {
                blobs.extend(VersionRow::decode(full, row)?.blob(full)?);
            }
            Ok(())
        })?;
        Ok(blobs)
    }

    /// A version of a key by its own revision, be it its newest value or an older one.
    pub fn version(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
    ) -> Result<Option<StoredValue>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        if let Some(own) = own.filter(|own| own.revision == revision) {
            return Ok(Some(own.value));
        }
        let full = version_row(keyspace, key, revision);
        let Some(row) = self.view().get(&full)? else { return Ok(None) };
        Ok(Some(owned(VersionRow::decode(&full, &row)?.decoded(&full)?.value)))
    }

    /// The keyspace as it was at a revision that its history reaches back to. What had ended at `time` is
    /// hidden; [`SpaceTime`] 0 hides nothing.
    pub fn past(&self, keyspace: KeyspaceId, revision: Revision, time: SpaceTime) -> Result<Past<'_>, PastError> {
        let oldest = self.history_floor(keyspace)?;
        let newest = self.applied().revision;
        if revision > newest {
            return Err(PastError::NotYet { requested: revision, newest });
        }
        if revision < oldest {
            return Err(PastError::Compacted { requested: revision, oldest });
        }
        Ok(Past { snapshot: self, keyspace, revision, time })
    }

    /// The oldest revision that a keyspace's history reaches back to.
    pub fn history_floor(&self, keyspace: KeyspaceId) -> Result<Revision, PastError> {
        match HistoryRow::in_view(self.view(), keyspace)? {
            Some(HistoryRow { floor, work: Work::Settled | Work::Conform { .. } }) => Ok(floor),
            _ => Err(PastError::NoHistory),
        }
    }

    /// The versions of a key, newest first: at most `limit`, and only those from before a revision.
    pub fn versions(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        before: Option<Revision>,
        limit: usize,
    ) -> Result<Versions, PastError> {
        let floor = self.history_floor(keyspace)?;
        let forgotten = forgotten_row(keyspace, key);
        let forgotten = self.view().get(&forgotten)?.map(|row| Until::of_forgotten(&forgotten, &row)).transpose()?;
        let oldest = floor.max(forgotten.unwrap_or_default().revision);
        let mut found = Versions { versions: Vec::new(), more: false, oldest };
        let before = before.unwrap_or(Revision::MAX);
        let is_asked_for = |own: &Version| {
            let is_old = matches!(own.lasting, Lasting::Until { revision, .. } if revision <= oldest);
            own.stored.revision < before && !is_old
        };
        found.versions.extend(self.own_version(keyspace, key)?.filter(is_asked_for));
        let prefix = key_prefix(keyspace, key);
        let lower = version_row(keyspace, key, Revision(before.0.saturating_sub(1)));
        let (mut failure, mut more) = (None, false);
        let upper = forgotten_row(keyspace, key);
        let bounds = (Bound::Included(lower.as_slice()), Bound::Excluded(upper.as_slice()));
        debug_assert!(lower.starts_with(&prefix));
        self.view().scan(bounds.0, bounds.1, Direction::Forward, &mut |full, row| {
            match version(full, row) {
                Err(error) => failure = Some(error),
                // What a lowered bound or an earlier history has left, and a sweep will remove.
                Ok((_, until)) if until.revision <= oldest => {}
                Ok(_) if found.versions.len() >= limit => more = true,
                Ok((version, _)) => {
                    found.versions.push(version);
                    return ControlFlow::Continue(());
                }
            }
            ControlFlow::Break(())
        })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        found.more = more || found.versions.len() > limit;
        found.versions.truncate(limit);
        Ok(found)
    }

    /// What a key's own row says.
    fn own_version(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Version>, MachineError> {
        let own = with_data_key(keyspace, key, |full| decode_owned(full, self.view().get(full)?))?;
        let Some(stored) = own else { return Ok(None) };
        let hidden = self.sight_at(keyspace, self.applied().revision).hidden_since(key, stored.revision);
        let lasting = match hidden {
            Some(revision) => Lasting::Until { revision, time: None, ending: Ending::Deleted },
            None if stored.expiry.is_live(self.time(), |id| Lease::in_view(self.view(), id))? => Lasting::Current,
            None => Lasting::Ended,
        };
        Ok(Some(Version { stored, lasting }))
    }
}

fn version(full: &[u8], row: &[u8]) -> Result<(Version, Until), MachineError> {
    let row = VersionRow::decode(full, row)?;
    let value = row.decoded(full)?;
    let Until { revision, time } = row.until;
    let stored = Stored { revision: value.revision, value: owned(value.value), expiry: value.expiry };
    let lasting = Lasting::Until { revision, time: Some(time), ending: row.ending };
    Ok((Version { stored, lasting }, row.until))
}

fn owned(value: StoredRef<'_>) -> StoredValue {
    match value {
        StoredRef::Inline(bytes) => StoredValue::Inline(Bytes::copy_from_slice(bytes)),
        StoredRef::Blob(blob) => StoredValue::Blob(blob),
    }
}

impl<'s> Past<'s> {
    /// The revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The value that a key had.
    pub fn get(&self, key: &[u8]) -> Result<Option<Stored>, PastError> {
        let view = self.snapshot.view();
        let own = with_data_key(self.keyspace, key, |full| decode_owned(full, view.get(full)?))?;
        if let Some(own) = own.filter(|own| own.revision <= self.revision) {
            let shown = self.snapshot.sight_at(self.keyspace, self.revision).shows(key, own.revision);
            let is_there = shown && own.expiry.is_live(self.time, |id| Lease::in_view(view, id))?;
            return Ok(is_there.then_some(own));
        }
        let lower = version_row(self.keyspace, key, self.revision);
        let upper = forgotten_row(self.keyspace, key);
        let mut found = Ok(None);
        view.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward, &mut |full, row| {
            found = VersionRow::decode(full, row).and_then(|row| match row.until.revision > self.revision {
                true => Ok(Some((owned_row(full, &row)?, row.end))),
                false => Ok(None),
            });
            ControlFlow::Break(())
        })?;
        match found? {
            Some((stored, end)) => Ok((end > self.time).then_some(stored)),
            None => {
                let forgotten = view.get(&upper)?.map(|row| Until::of_forgotten(&upper, &row)).transpose()?;
                self.check_known(forgotten.unwrap_or_default().revision).map(|()| None)
            }
        }
    }

    /// Nothing is known of a key for below `oldest`.
    fn check_known(&self, oldest: Revision) -> Result<(), PastError> {
        if oldest > self.revision {
            return Err(PastError::Compacted { requested: self.revision, oldest });
        }
        Ok(())
    }

    /// Visits pairs in order until the range or the limit ends or `visit` breaks. Reads about 1 MiB ahead.
    pub fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), PastError> {
        let full = KeyRange::of_keyspace(self.keyspace, range.prefix, range.start, range.end);
        if full.is_empty() {
            return Ok(());
        }
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
                (Some(_), None) => Turn::Own,
                (None, Some(_)) => Turn::Version,
                (Some(own), Some(version)) => match (own.key.cmp(&version.key), range.direction) {
                    (std::cmp::Ordering::Equal, _) => Turn::Both,
                    (std::cmp::Ordering::Less, Direction::Forward)
                    | (std::cmp::Ordering::Greater, Direction::Reverse) => Turn::Own,
                    _ => Turn::Version,
                },
            };
            let version = if first == Turn::Own { None } else { versions.page.pop_front() };
            let own = if first == Turn::Version { None } else { own.page.pop_front() };
            let (key, row) = match (own, version) {
                (Some(own), _) => (own.key, own.row),
                (None, Some(PastRow { key, row: Known::Row(row) })) => (key, row),
                (None, Some(PastRow { row: Known::Not { oldest }, .. })) => {
                    self.check_known(oldest)?;
                    continue;
                }
                (None, None) => return Ok(()),
            };
            let found = decode_value(&key, &row)?;
            // A version that had ended was left out already.
            let is_own = first != Turn::Version;
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

fn owned_row(full: &[u8], row: &VersionRow<'_>) -> Result<Stored, MachineError> {
    let value = row.decoded(full)?;
    Ok(Stored { revision: value.revision, value: owned(value.value), expiry: value.expiry })
}

/// Which source has the next key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    Version,
    Both,
}

struct OwnRow {
    key: Vec<u8>,
    row: Vec<u8>,
}

/// Keys whose own row covers the revision, in order.
struct OwnSource<'p> {
    past: &'p Past<'p>,
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
        let Past { snapshot, keyspace, revision, .. } = *self.past;
        let sight = snapshot.sight_at(keyspace, revision);
        let (mut bytes, mut failure, mut last) = (0, None, None);
        snapshot.view().scan(self.range.lower(), self.range.upper(), self.direction, &mut |full, row| {
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
            Some(last) => behind(&mut self.range, self.direction, last.clone(), last),
        }
        self.all |= self.range.is_empty();
        Ok(())
    }
}

/// Goes on behind what begins with `first` and ends with `last`.
fn behind(range: &mut KeyRange, direction: Direction, first: Vec<u8>, last: Vec<u8>) {
    match direction {
        Direction::Forward => range.set_lower(Bound::Excluded(last)),
        Direction::Reverse => range.set_upper(Bound::Excluded(first)),
    }
}

struct PastRow {
    key: Vec<u8>,
    row: Known,
}

/// What is known of a key at the revision.
enum Known {
    /// It had this row.
    Row(Vec<u8>),
    /// Nothing, below `oldest`.
    Not { oldest: Revision },
}

/// Keys of which a version covers the revision, or of which nothing is known any more, in order.
struct VersionSource<'p> {
    past: &'p Past<'p>,
    range: KeyRange,
    direction: Direction,
    page: VecDeque<PastRow>,
    all: bool,
}

/// What the rows of one key have come to so far.
struct Gathered {
    key: Vec<u8>,
    row: Option<Vec<u8>>,
    oldest: Revision,
}

impl<'p> VersionSource<'p> {
    /// `own` is the range of the keys' own rows.
    fn new(past: &'p Past<'p>, own: &KeyRange, direction: Direction) -> Self {
        let base = versions_prefix(past.keyspace);
        let mut range = KeyRange::with_prefix(&base);
        let escaped = |full: &[u8], tail: &[u8]| {
            let key = full.strip_prefix(&data_prefix(past.keyspace))?;
            let mut out = base.to_vec();
            escape(key, &mut out);
            out.extend_from_slice(tail);
            Some(out)
        };
        // Behind all rows of a key.
        const BEHIND: [u8; 8] = [0xff; 8];
        match own.lower() {
            Bound::Included(lower) => {
                escaped(lower, b"").into_iter().for_each(|key| range.set_lower(Bound::Included(key)))
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
                escaped(upper, b"").into_iter().for_each(|key| range.set_upper(Bound::Excluded(key)))
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

    /// Reads whole keys, until there are enough of them or a single one has too many rows to look at in turn.
    fn read(&mut self) -> Result<(), MachineError> {
        /// Rows of one key that are looked at before the way to the one wanted is made shorter.
        const MAX_STEPS: usize = 32;
        let Past { keyspace, revision, .. } = *self.past;
        let (mut bytes, mut failure) = (0, None);
        let mut gathered: Option<Gathered> = None;
        let mut steps = 0;
        let mut jump = None;
        let mut stopped_behind = None;
        let (page, past) = (&mut self.page, self.past);
        self.past.snapshot.view().scan(self.range.lower(), self.range.upper(), self.direction, &mut |full, row| {
            let of = match PastKey::of_version(full) {
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
                gathered = Some(Gathered { key: of.key.clone(), row: None, oldest: Revision::ZERO });
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
                    behind(&mut self.range, self.direction, first, end);
                    self.all = self.range.is_empty();
                }
                None => self.all = true,
            }
            return Ok(());
        };
        match jump {
            // Straight to the version wanted; nothing of the key is known yet.
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

impl Past<'_> {
    fn gather(
        &self,
        current: &mut Gathered,
        revision: Option<Revision>,
        full: &[u8],
        row: &[u8],
    ) -> Result<(), MachineError> {
        match revision {
            None => current.oldest = Until::of_forgotten(full, row)?.revision,
            Some(revision) if revision > self.revision => {}
            Some(_) => {
                let version = VersionRow::decode(full, row)?;
                if version.until.revision > self.revision {
                    // One that had ended says that the key was not there.
                    current.oldest = Revision::ZERO;
                    current.row = Some(if version.end > self.time { version.value.to_vec() } else { Vec::new() });
                }
            }
        }
        Ok(())
    }

    fn push(&self, page: &mut VecDeque<PastRow>, done: Gathered) {
        let Gathered { key, row, oldest } = done;
        match row {
            Some(row) if row.is_empty() => {}
            Some(row) => page.push_back(PastRow { key, row: Known::Row(row) }),
            None if oldest > self.revision => page.push_back(PastRow { key, row: Known::Not { oldest } }),
            None => {}
        }
    }
}
