//! Rows of versions: former values of keys in keyspaces with history.
//!
//! Owns: the rows under `12` and their bytes. Does not own: writing them (`history/keep_versions.rs`), removing them
//! (`history/prune.rs`), or reading them (`history/historical_view.rs`).
//!
//! ```text
//! 12 | 0 | keyspace u32 BE                                        a keyspace's history
//! 12 | 1 | keyspace u32 BE | escaped key | !revision u64 BE       a version of a key, newest first
//! 12 | 1 | keyspace u32 BE | escaped key | 2^64-1                 a mark of a key's forgotten versions
//! 12 | 2 | keyspace u32 BE | time u64 BE | rest of a row of 12|1  empty: the time at which it was superseded
//!
//! history   := floor u64 | gone u64 | work
//! work      := 0                                      settled
//!            | 1 | kept u32 | rest of a row of 12|1   being adapted to new bounds, done up to that row
//!            | 2                                      being removed
//! version   := until revision u64 | until time u64 | end u64 | ending u8 | value
//! forgotten := until revision u64 | until time u64
//! ```
//! Values are little-endian. `value` is the row that the key had (see `keyspaces`). If the keyspace's history is
//! bounded by age, each row `12|1` has a row `12|2`; otherwise only versions that a deletion or a deadline ended
//! have one.
//!
//! A version contains the value of the key from its own revision until `until revision`, exclusive. So a deletion
//! needs no row: it is the gap before the next version. The newest value is not here but in the key's own row, even
//! if a deleted prefix hides that.
//!
//! Escaped keys keep their order, and none is a prefix of another. They consist of groups of 8 bytes, each followed
//! by a byte with the number of valid bytes in it (255: all 8, and another group follows). The last group is padded
//! with zeros and never full.
//!
//! Invariants: the versions of a key do not overlap. For each key, all versions exist whose `until` is above each
//! of these: the keyspace's floor, the key's `forgotten`, and the lower of the keyspace's `gone` and the oldest
//! revision in the key's rows. So a key whose rows do not reach back below `gone` may have had a value there.

use thalweg_store::View;
use thalweg_types::{
    BlobRef, KeyspaceId, Revision, SpaceTime,
    codec::{Malformed, Reader},
};

use crate::{
    error::MachineError,
    keys::{KeyRange, TAG_VERSIONS},
    keyspaces::values::{Decoded, decode_value},
};

const OF_HISTORIES: u8 = 0;
const OF_VERSIONS: u8 = 1;
const OF_TIMES: u8 = 2;

/// Number of bytes (tag, kind and keyspace) before the key in the row key of a version (former value).
pub(crate) const PREFIX_LEN: usize = 6;
const GROUP: usize = 8;
const FULL_GROUP: u8 = 0xff;
/// Last 8 bytes in the key of the row which records that versions of a key were removed (forgotten). Row keys of
/// versions have their inverted revision there, so the row of forgotten versions comes after them.
const FORGOTTEN: [u8; 8] = [0xff; 8];

fn prefix(kind: u8, keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    let [a, b, c, d] = keyspace.0.to_be_bytes();
    [TAG_VERSIONS, kind, a, b, c, d]
}

/// Returns the row key under which the history of a keyspace is stored.
pub(crate) fn history_row(keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    prefix(OF_HISTORIES, keyspace)
}

/// Returns the range of the history rows of all keyspaces.
pub(crate) fn history_rows() -> KeyRange {
    KeyRange::with_prefix(&[TAG_VERSIONS, OF_HISTORIES])
}

/// Decodes the keyspace from the key of a keyspace's history row.
pub(crate) fn keyspace_of_history(key: &[u8]) -> Option<KeyspaceId> {
    let id = key.strip_prefix(&[TAG_VERSIONS, OF_HISTORIES])?;
    Some(KeyspaceId(u32::from_be_bytes(id.try_into().ok()?)))
}

/// Decodes the keyspace from the row key of a former value or of removed former values (`12|1`); returns `None` for
/// other keys.
pub(crate) fn keyspace_of_version(key: &[u8]) -> Option<KeyspaceId> {
    let id = key.strip_prefix(&[TAG_VERSIONS, OF_VERSIONS])?.first_chunk()?;
    Some(KeyspaceId(u32::from_be_bytes(*id)))
}

/// Returns the prefix of the row keys of all versions (former values) in a keyspace.
pub(crate) fn versions_prefix(keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    prefix(OF_VERSIONS, keyspace)
}

/// Returns the key prefix of the rows that list a keyspace's versions by the time at which they were superseded.
pub(crate) fn times_prefix(keyspace: KeyspaceId) -> [u8; PREFIX_LEN] {
    prefix(OF_TIMES, keyspace)
}

/// Appends the escaped form of a key to `out`. The end of the escaped form is recognisable without a length.
pub(crate) fn escape(key: &[u8], out: &mut Vec<u8>) {
    let (full, rest) = key.as_chunks::<GROUP>();
    for group in full {
        out.extend_from_slice(group);
        out.push(FULL_GROUP);
    }
    let mut last = [0; GROUP];
    last[..rest.len()].copy_from_slice(rest);
    out.extend_from_slice(&last);
    out.push(rest.len() as u8);
}

/// Decodes the escaped key at the beginning of `bytes`. Returns the original key with the bytes that follow the
/// escaped form.
pub(crate) fn unescape(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut key = Vec::with_capacity(bytes.len());
    let mut left = bytes;
    loop {
        let (group, rest) = left.split_first_chunk::<{ GROUP + 1 }>()?;
        left = rest;
        match group[GROUP] {
            FULL_GROUP => key.extend_from_slice(&group[..GROUP]),
            count if usize::from(count) < GROUP => {
                key.extend_from_slice(&group[..usize::from(count)]);
                return Some((key, left));
            }
            _ => return None,
        }
    }
}

/// Returns the prefix of the row keys of all versions (former values) of one key.
pub(crate) fn key_prefix(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_LEN + key.len() + key.len() / GROUP + GROUP + 2);
    out.extend_from_slice(&versions_prefix(keyspace));
    escape(key, &mut out);
    out
}

/// Returns the row key of the version (former value) of a key that began at the given revision.
pub(crate) fn version_row(keyspace: KeyspaceId, key: &[u8], revision: Revision) -> Vec<u8> {
    let mut row = key_prefix(keyspace, key);
    row.extend_from_slice(&(!revision.0).to_be_bytes());
    row
}

/// Returns the key of the row which records that versions of a key were forgotten. It sorts after all versions of the
/// key.
pub(crate) fn forgotten_row(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    let mut row = key_prefix(keyspace, key);
    row.extend_from_slice(&FORGOTTEN);
    row
}

/// Returns the key of the index row by time of a version, or of a row of forgotten versions. `row` is the key of the
/// indexed row.
pub(crate) fn time_row(keyspace: KeyspaceId, time: SpaceTime, row: &[u8]) -> Vec<u8> {
    [&times_prefix(keyspace), time.0.to_be_bytes().as_slice(), &row[PREFIX_LEN..]].concat()
}

/// Decoded key of the row of a version, or of the row which records that older versions of a key were removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryKey {
    pub(crate) key: Vec<u8>,
    /// Revision at which the version (former value) began; `None` for the row which records removed versions.
    pub(crate) revision: Option<Revision>,
}

impl HistoryKey {
    /// Decodes the bytes that follow the keyspace in the row key of a version (former value).
    fn decode(rest: &[u8]) -> Option<Self> {
        let (key, revision) = unescape(rest)?;
        let revision: [u8; 8] = revision.try_into().ok()?;
        let revision = (revision != FORGOTTEN).then(|| Revision(!u64::from_be_bytes(revision)));
        Some(Self { key, revision })
    }

    /// Returns true for the row key of a version (former value) or of removed versions (`12|1`).
    pub(crate) fn is_of_version(row: &[u8]) -> bool {
        row.starts_with(&[TAG_VERSIONS, OF_VERSIONS])
    }

    /// Decodes the row key of a version (former value) or of removed versions (`12|1`).
    pub(crate) fn of_version(row: &[u8]) -> Result<Self, MachineError> {
        let rest = row.get(PREFIX_LEN..).and_then(Self::decode);
        rest.ok_or_else(|| MachineError::corrupt("version", row, "key does not decode"))
    }

    /// Decodes the key of an index row by time (`12|2`). Returns the time and the decoded key of the indexed row.
    pub(crate) fn of_time(row: &[u8]) -> Result<(SpaceTime, Self), MachineError> {
        let corrupt = || MachineError::corrupt("time of a version", row, "key does not decode");
        let (time, rest) = row.get(PREFIX_LEN..).and_then(<[u8]>::split_first_chunk::<8>).ok_or_else(corrupt)?;
        Ok((SpaceTime(u64::from_be_bytes(*time)), Self::decode(rest).ok_or_else(corrupt)?))
    }

    /// Returns the key of the row that stores this version (layout `12|1` in `docs/formats/state.md`).
    pub(crate) fn row(&self, keyspace: KeyspaceId) -> Vec<u8> {
        match self.revision {
            Some(revision) => version_row(keyspace, &self.key, revision),
            None => forgotten_row(keyspace, &self.key),
        }
    }
}

/// Kind of operation that ended a version (former value of a key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionEnd {
    /// A put of another value replaced the value.
    Overwritten,
    /// A delete of the key, or of a prefix of it, removed the value.
    Deleted,
    /// The value ended at its deadline, or at the deadline of its lease.
    Expired,
}

/// Exclusive end of a version (former value of a key), as a revision and as a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionUpperBound {
    /// First revision at which the version was no longer current (exclusive end).
    pub(crate) revision: Revision,
    /// Time of the log entry that replaced or removed this value of the key.
    pub(crate) time: SpaceTime,
}

impl VersionUpperBound {
    const ENCODED_LEN: usize = 16;

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        out[..8].copy_from_slice(&self.revision.0.to_le_bytes());
        out[8..].copy_from_slice(&self.time.0.to_le_bytes());
        out
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { revision: Revision(reader.u64("revision")?), time: SpaceTime(reader.u64("time")?) })
    }

    /// Decodes the row which records the revision and time up to which versions of a key were removed. `key` is the
    /// row's key, for error messages.
    pub(crate) fn of_forgotten(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let mut reader = Reader::at(row, 0);
        let until = Self::read(&mut reader).ok().filter(|_| reader.is_empty());
        until.ok_or_else(|| MachineError::corrupt("forgotten versions", key, "row of a wrong length"))
    }
}

/// Content of a version's row: a former value of a key, and the end of the period in which the key had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionRow<'a> {
    pub(crate) until: VersionUpperBound,
    /// Time at which the value had ended by its deadline or its lease; `SpaceTime::MAX` if it had not ended when it
    /// was superseded.
    pub(crate) end: SpaceTime,
    pub(crate) ending: VersionEnd,
    /// The former value, encoded like the current value of a key.
    pub(crate) value: &'a [u8],
}

/// Number of bytes before the value in the row of a version (former value).
pub(crate) const VERSION_HEAD_LEN: usize = VersionUpperBound::ENCODED_LEN + 9;

/// End time in the row of a version whose value had no end, or had not ended when it was superseded.
pub(crate) const NO_END: SpaceTime = SpaceTime(u64::MAX);

impl<'a> VersionRow<'a> {
    /// Encodes the fields that precede the value in the row of a version (former value).
    pub(crate) fn head(&self) -> [u8; VERSION_HEAD_LEN] {
        let mut out = [0; VERSION_HEAD_LEN];
        out[..16].copy_from_slice(&self.until.encode());
        out[16..24].copy_from_slice(&self.end.0.to_le_bytes());
        out[24] = match self.ending {
            VersionEnd::Overwritten => 0,
            VersionEnd::Deleted => 1,
            VersionEnd::Expired => 2,
        };
        out
    }

    /// Decodes the row of a version (former value); `key` is the row's key, for error messages.
    pub(crate) fn decode(key: &[u8], row: &'a [u8]) -> Result<Self, MachineError> {
        Self::read(row).map_err(|_| MachineError::corrupt("version", key, "row does not decode"))
    }

    fn read(row: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let until = VersionUpperBound::read(&mut reader)?;
        let end = SpaceTime(reader.u64("end")?);
        let ending = match reader.u8("ending")? {
            0 => VersionEnd::Overwritten,
            1 => VersionEnd::Deleted,
            2 => VersionEnd::Expired,
            _ => return Err(Malformed { at: 24, expected: "known ending" }),
        };
        Ok(Self { until, end, ending, value: reader.rest() })
    }

    /// Decodes the former value of the key that the version's row contains.
    pub(crate) fn decoded(&self, key: &[u8]) -> Result<Decoded<'a>, MachineError> {
        decode_value(key, self.value)
    }

    /// Returns the log position of the former value; `None` if the row contains the value itself.
    pub(crate) fn blob(&self, key: &[u8]) -> Result<Option<BlobRef>, MachineError> {
        Ok(self.decoded(key)?.value.blob())
    }
}

/// Pending work on the rows of a keyspace's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HistoryWork {
    /// All rows of former values conform to the keyspace's settings; no work is pending.
    Settled,
    /// The settings have changed, and the rows of former values are adapted to them in order. All rows up to `last`
    /// (without the keyspace prefix) are done. So far, `kept` versions of the key in that row are kept.
    ApplyBounds { kept: u32, last: Vec<u8> },
    /// All rows of former values must be removed, because the keyspace was dropped or no longer keeps history.
    Remove,
}

/// The row of a keyspace's history: how far back it reaches, and pending work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryRow {
    /// Oldest revision at which the keyspace can be read.
    pub(crate) floor: Revision,
    /// Lowest revision from which a key without rows is known not to have existed. Below it, versions of keys that
    /// were deleted long ago may have been forgotten, which leaves no row.
    pub(crate) gone: Revision,
    pub(crate) work: HistoryWork,
}

impl HistoryRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut row = [self.floor.0.to_le_bytes(), self.gone.0.to_le_bytes()].concat();
        match &self.work {
            HistoryWork::Settled => row.push(0),
            HistoryWork::ApplyBounds { kept, last } => {
                row.push(1);
                row.extend_from_slice(&kept.to_le_bytes());
                row.extend_from_slice(last);
            }
            HistoryWork::Remove => row.push(2),
        }
        row
    }

    fn read(row: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let (floor, gone) = (Revision(reader.u64("floor")?), Revision(reader.u64("gone")?));
        let work = match reader.u8("work")? {
            0 => HistoryWork::Settled,
            1 => HistoryWork::ApplyBounds { kept: reader.u32("versions")?, last: reader.rest().to_vec() },
            2 => HistoryWork::Remove,
            _ => return Err(Malformed { at: 16, expected: "known work" }),
        };
        if !reader.is_empty() {
            return Err(Malformed { at: reader.position(), expected: "end of the row" });
        }
        Ok(Self { floor, gone, work })
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        Self::read(row).map_err(|_| MachineError::corrupt("keyspace history", key, "row does not decode"))
    }

    /// Loads the history row of a keyspace from a view; `None` if the keyspace has no versions and keeps none.
    pub(crate) fn in_view(view: &dyn View, keyspace: KeyspaceId) -> Result<Option<Self>, MachineError> {
        let key = history_row(keyspace);
        view.get(&key)?.map(|row| Self::decode(&key, &row)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(key: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        escape(key, &mut out);
        out
    }

    #[test]
    fn layouts_are_pinned() {
        let ks = KeyspaceId(7);
        assert_eq!(history_row(ks), *b"\x12\0\0\0\0\x07");
        assert_eq!(keyspace_of_history(b"\x12\0\0\0\0\x07"), Some(ks));
        let row = version_row(ks, b"key", Revision(258));
        assert_eq!(row, b"\x12\x01\0\0\0\x07key\0\0\0\0\0\x03\xff\xff\xff\xff\xff\xff\xfe\xfd");
        let of = HistoryKey { key: b"key".to_vec(), revision: Some(Revision(258)) };
        assert_eq!((HistoryKey::of_version(&row).unwrap(), of.row(ks)), (of.clone(), row.clone()));
        let time = time_row(ks, SpaceTime(5), &row);
        assert_eq!(time, [b"\x12\x02\0\0\0\x07\0\0\0\0\0\0\0\x05", &row[6..]].concat());
        assert_eq!(HistoryKey::of_time(&time).unwrap(), (SpaceTime(5), of));
        let forgotten = forgotten_row(ks, b"12345678");
        let expected = b"\x12\x01\0\0\0\x0712345678\xff\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(forgotten, expected);
        assert_eq!(
            HistoryKey::of_version(&forgotten).unwrap(),
            HistoryKey { key: b"12345678".to_vec(), revision: None }
        );

        let until = VersionUpperBound { revision: Revision(0x0102), time: SpaceTime(3) };
        let row = VersionRow { until, end: SpaceTime(4), ending: VersionEnd::Expired, value: b"row" };
        let bytes = b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x02row";
        assert_eq!([&row.head(), row.value].concat(), bytes);
        assert_eq!(VersionRow::read(bytes), Ok(row));
        assert_eq!(VersionUpperBound::of_forgotten(b"", &until.encode()).unwrap(), until);
        for (work, tail) in [
            (HistoryWork::Settled, b"\0".as_slice()),
            (HistoryWork::ApplyBounds { kept: 258, last: b"rest".to_vec() }, b"\x01\x02\x01\0\0rest"),
            (HistoryWork::Remove, b"\x02"),
        ] {
            let history = HistoryRow { floor: Revision(6), gone: Revision(259), work };
            assert_eq!(history.encode(), [b"\x06\0\0\0\0\0\0\0\x03\x01\0\0\0\0\0\0", tail].concat());
            assert_eq!(HistoryRow::read(&history.encode()), Ok(history));
        }
    }

    #[test]
    fn escaped_keys_keep_their_order_and_their_ends() {
        let mut keys: Vec<Vec<u8>> = vec![b"".into(), b"a".into(), b"\0".into(), b"\xff".into()];
        for len in [7, 8, 9, 15, 16, 17] {
            for byte in [0, 1, 0x61, 0xff] {
                keys.push(vec![byte; len]);
                keys.push([vec![0x61; len], vec![byte]].concat());
            }
        }
        keys.sort();
        keys.dedup();
        for pair in keys.windows(2) {
            let [a, b] = [escaped(&pair[0]), escaped(&pair[1])];
            assert!(a < b && !b.starts_with(&a), "{pair:?}");
        }
        for key in &keys {
            let escaped = [escaped(key), b"rest".to_vec()].concat();
            assert_eq!(unescape(&escaped), Some((key.clone(), b"rest".as_slice())));
        }
    }

    #[test]
    fn bad_rows_are_errors() {
        for bad in [b"".as_slice(), b"12345678", b"12345678\x08", b"12345678\xff", b"\0\0\0\0\0\0\0\0\x09"] {
            assert_eq!(unescape(bad), None, "{bad:?}");
        }
        assert!(HistoryKey::of_version(b"\x12\x01\0\0\0\x07key\0\0\0\0\0\x03").is_err());
        assert!(HistoryKey::of_time(b"\x12\x02\0\0\0\x07").is_err());
        for cut in 0..VERSION_HEAD_LEN {
            assert!(VersionRow::decode(b"", &[0; VERSION_HEAD_LEN][..cut]).is_err());
        }
        assert!(VersionRow::decode(b"", &[3; VERSION_HEAD_LEN]).is_err());
        for bad in [b"".as_slice(), &[0; 16], &[0; 18], &[3; 17], &[1; 20]] {
            assert!(HistoryRow::decode(b"", bad).is_err(), "{bad:?}");
        }
    }
}
