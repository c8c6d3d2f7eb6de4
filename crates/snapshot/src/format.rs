//! Binary layouts of a snapshot: its chunks, and the payloads of the first and the last chunk. See
//! `docs/formats/snapshot.md`.
//!
//! Owns: the layouts. Does not own: reading files, compression, or the meaning of rows.
//!
//! ```text
//! chunk  := magic "TWSN" | version u8 | kind u8 | compression u8 | 0 u8 | number u64
//!         | stored u32 | plain u32 | chain u32 | crc u32 | stored bytes                  32 bytes, then the contents
//! begin  := part u8 | node u64 | since u64 | applied | before | membership
//! membership := nothing, or term u64 | index u64 | removed u32 | node u64* | members
//! applied := lsn u64 | term u64 | index u64 | revision u64 | time u64 | running_hash u64
//! before := term u64 | index u64 | time u64
//! row    := 0 | key_len u16 | value_len u32 | key | value
//!         | 1 | key_len u16 | value_len u32 | bytes_len u32 | key | value | bytes
//! entry  := kind u8 | lsn u64 | term u64 | index u64 | time u64 | len u32 | payload
//! end    := rows u64 | row_bytes u64 | carried_bytes u64 | entries u64 | entry_bytes u64
//! ```
//! All integers are little-endian. `crc` covers the header before it and the stored bytes. `chain` is the `crc` of the
//! previous chunk, so a chunk that is missing, out of order or of another snapshot is detected.

use std::collections::BTreeSet;

use bytes::Bytes;
use thalweg_replica::Membership;
use thalweg_state::membership::{AppliedMembership, LogId};
use thalweg_store::Applied;
use thalweg_types::{
    Index, Lsn, NodeId, Revision, SpaceTime, Term,
    codec::{Malformed, Reader},
    limits::{MAX_COMMAND_BYTES, MAX_ENTRY_BYTES, MAX_VALUE_BYTES},
};

pub(crate) const MAGIC: [u8; 4] = *b"TWSN";
pub(crate) const VERSION: u8 = 3;
/// Oldest format version that can be read. Snapshots of version 2 do not contain the cluster's members.
pub(crate) const OLDEST_VERSION: u8 = 2;
pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const BEGIN_BYTES: usize = 1 + 8 + 8 + 48 + 24;
pub(crate) const END_BYTES: usize = 40;

const _: () = assert!(BEGIN_BYTES == 89);

/// Maximum length in bytes of the first chunk's contents, which list the cluster's members: at most 1024, with long
/// names and addresses.
pub(crate) const MAX_BEGIN_BYTES: usize = 2 << 20;

/// Exclusive upper bound of the LSNs, terms, indexes, revisions and times in a snapshot. It is half of the bound in the
/// log, so that a restored node has numbers left to count on. Higher numbers, which could wrap, occur only in forged
/// snapshots.
const MAX_NUMBER: u64 = thalweg_log::format::MAX_NUMBER / 2;

const _: () = assert!(MAX_NUMBER == 1 << 61);

/// Length in bytes of the header before each log entry in a snapshot.
const ENTRY_HEADER_BYTES: usize = 37;
/// Maximum length of a log entry's payload in bytes. An entry gathers commands until it has [`MAX_ENTRY_BYTES`], and
/// the last command may have the maximum length of a command.
const MAX_ENTRY_PAYLOAD_BYTES: usize = MAX_COMMAND_BYTES + MAX_ENTRY_BYTES;
/// Maximum length of a row's value in bytes: the longest value of a user, and the fields that the state puts before it.
const MAX_ROW_VALUE_BYTES: usize = MAX_VALUE_BYTES + MAX_POINTING_ROW_BYTES;
/// Maximum length in bytes of a row's value that contains a pointer into the log.
const MAX_POINTING_ROW_BYTES: usize = 64 * 1024;

/// Compression of a snapshot's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// The contents of chunks are stored uncompressed.
    None,
    /// LZ4: fast, but saves only about half as many bytes as zstd.
    Lz4,
    /// The contents are compressed with zstd at level 1.
    #[default]
    Zstd,
}

impl Compression {
    /// All kinds of compression. A snapshot uses one of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    /// Returns the name of the compression that requests and the command line use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the compression with this name; `None` if no compression has this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.name() == name)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Kind of a snapshot: the full state, or an increment (the changes since an LSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A full snapshot, with all rows of the state.
    Full,
    /// An increment: all log entries from an LSN on.
    Increment,
}

/// Term, index and time of a log entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryId {
    /// Term of the log entry.
    pub term: Term,
    /// Index of the log entry.
    pub index: Index,
    /// Time of the log entry, by the clock that all replicas share (space time).
    pub time: SpaceTime,
}

/// Description of a snapshot, stored in its first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Kind of the snapshot: the full state, or an increment (the changes since an LSN).
    pub kind: PartKind,
    /// Id of the node that took the snapshot. Snapshots of different nodes cannot be combined.
    pub node: NodeId,
    /// LSN at which an increment (snapshot of changes) begins; 0 for a full snapshot.
    pub since: Lsn,
    /// Log position up to which entries are applied to the state that restoring this snapshot gives. The next increment
    /// begins at the LSN of this position.
    pub applied: Applied,
    /// Last log entry before the start of an increment (snapshot of changes), if the log still had it. Otherwise, and
    /// in a full snapshot, all fields of this value are 0.
    pub before: EntryId,
}

impl SnapshotInfo {
    fn encode(&self) -> [u8; BEGIN_BYTES] {
        let Applied { lsn, term, index, revision, time, running_hash } = self.applied;
        let numbers = [
            self.node.0,
            self.since.0,
            lsn.0,
            term.0,
            index.0,
            revision.0,
            time.0,
            running_hash,
            self.before.term.0,
            self.before.index.0,
            self.before.time.0,
        ];
        let mut out = [0; BEGIN_BYTES];
        out[0] = match self.kind {
            PartKind::Full => 1,
            PartKind::Increment => 2,
        };
        for (place, number) in out[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = match reader.u8("part").ok()? {
            1 => PartKind::Full,
            2 => PartKind::Increment,
            _ => return None,
        };
        let mut next = || reader.u64("number").ok();
        let (node, since) = (NodeId(next()?), Lsn(next()?));
        let applied = Applied {
            lsn: Lsn(next()?),
            term: Term(next()?),
            index: Index(next()?),
            revision: Revision(next()?),
            time: SpaceTime(next()?),
            running_hash: next()?,
        };
        let before = EntryId { term: Term(next()?), index: Index(next()?), time: SpaceTime(next()?) };
        let Applied { lsn, term, index, revision, time, .. } = applied;
        let numbers = [lsn.0, term.0, index.0, revision.0, time.0, before.term.0, before.index.0, before.time.0];
        let is_valid = since <= lsn && numbers.iter().all(|number| *number < MAX_NUMBER);
        is_valid.then_some(Self { kind, node, since, applied, before })
    }
}

/// Contents of the first chunk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) info: SnapshotInfo,
    /// Members of the cluster at the time of the snapshot, and the log entry that contained them. `None` in an
    /// increment, and in a snapshot of format version 2.
    pub(crate) membership: Option<AppliedMembership>,
}

impl Begin {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.info.encode().to_vec();
        if let Some(AppliedMembership { id, payload, removed }) = &self.membership {
            out.extend_from_slice(&id.term.0.to_le_bytes());
            out.extend_from_slice(&id.index.0.to_le_bytes());
            // The number of removed members fits into 32 bits, because each removal is a change that a person makes.
            out.extend_from_slice(&(removed.len() as u32).to_le_bytes());
            removed.iter().for_each(|node| out.extend_from_slice(&node.0.to_le_bytes()));
            out.extend_from_slice(payload);
        }
        out
    }

    pub(crate) fn decode(version: u8, payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(payload, 0);
        let info = SnapshotInfo::decode(&mut reader)?;
        if reader.is_empty() {
            return Some(Self { info, membership: None });
        }
        let id = LogId { term: Term(reader.u64("term").ok()?), index: Index(reader.u64("index").ok()?) };
        let mut removed = BTreeSet::new();
        for _ in 0..reader.u32("number of removed nodes").ok()? {
            let node = NodeId(reader.u64("removed node").ok()?);
            if removed.last().is_some_and(|last| *last >= node) {
                return None;
            }
            removed.insert(node);
        }
        let payload = Bytes::copy_from_slice(reader.rest());
        let is_valid = version > 2
            && info.kind == PartKind::Full
            && id.index <= info.applied.index
            && id.term.0 < MAX_NUMBER
            && Membership::decode(&payload).is_some();
        is_valid.then_some(Self { info, membership: Some(AppliedMembership { id, payload, removed }) })
    }
}

/// Numbers of rows, log entries and bytes in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of rows of the state in the snapshot.
    pub rows: u64,
    /// Bytes of the keys and values of all rows.
    pub row_bytes: u64,
    /// Bytes outside of the rows, such as large values and batches of streams. Rows point to them in the log, and the
    /// snapshot contains them beside the rows.
    pub carried_bytes: u64,
    /// Number of log entries in the snapshot.
    pub entries: u64,
    /// Bytes of the payloads of all log entries.
    pub entry_bytes: u64,
}

impl Totals {
    pub(crate) fn encode(&self) -> [u8; END_BYTES] {
        let numbers = [self.rows, self.row_bytes, self.carried_bytes, self.entries, self.entry_bytes];
        let mut out = [0; END_BYTES];
        for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let (numbers, rest) = payload.as_chunks::<8>();
        let [rows, row_bytes, carried_bytes, entries, entry_bytes] =
            <[_; 5]>::try_from(numbers).ok()?.map(u64::from_le_bytes);
        rest.is_empty().then_some(Self { rows, row_bytes, carried_bytes, entries, entry_bytes })
    }

    /// Returns the total number of bytes in the snapshot before compression.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.row_bytes + self.carried_bytes + self.entry_bytes
    }

    /// Adds the numbers of one row or log entry to these totals.
    pub fn add(&mut self, item: &Item<'_>) {
        match item {
            Item::Row { key, value, bytes } => {
                self.rows += 1;
                self.row_bytes += (key.len() + value.len()) as u64;
                self.carried_bytes += bytes.map_or(0, <[u8]>::len) as u64;
            }
            Item::Entry(entry) => {
                self.entries += 1;
                self.entry_bytes += entry.payload.len() as u64;
            }
        }
    }
}

/// Kind of a chunk in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChunkKind {
    Begin = 1,
    Rows = 2,
    Entries = 3,
    End = 4,
}

/// Header that precedes the stored bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub(crate) kind: ChunkKind,
    pub(crate) compression: Compression,
    pub(crate) number: u64,
    pub(crate) stored: u32,
    pub(crate) plain: u32,
    pub(crate) chain: u32,
    pub(crate) crc: u32,
}

impl ChunkHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4..7].copy_from_slice(&[VERSION, self.kind as u8, self.compression as u8]);
        out[8..16].copy_from_slice(&self.number.to_le_bytes());
        for (at, field) in [(16, self.stored), (20, self.plain), (24, self.chain), (28, self.crc)] {
            out[at..at + 4].copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// Decodes the header of a chunk; `None` if it is malformed. The caller has checked the magic number and the
    /// version before.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = match bytes[5] {
            1 => ChunkKind::Begin,
            2 => ChunkKind::Rows,
            3 => ChunkKind::Entries,
            4 => ChunkKind::End,
            _ => return None,
        };
        (bytes[7] == 0).then_some(Self {
            kind,
            compression: Compression::from_byte(bytes[6])?,
            number: u64::from(u32_at(12)) << 32 | u64::from(u32_at(8)),
            stored: u32_at(16),
            plain: u32_at(20),
            chain: u32_at(24),
            crc: u32_at(28),
        })
    }

    /// Returns the CRC-32C of a chunk's header and stored bytes.
    pub(crate) fn checksum(header: &[u8; HEADER_BYTES], stored: &[u8]) -> u32 {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&header[..HEADER_BYTES - 4]);
        digest.update(stored);
        digest.finalize() as u32
    }
}

/// Effect of a log entry on a restored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The log entry contains commands, which the restore applies.
    Commands,
    /// The log entry changes no data: a leader has written it at the start of its term, or it changes the members of a
    /// cluster to which the restored node does not belong.
    Blank,
}

/// A log entry in an increment (snapshot of changes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryItem<'a> {
    /// Effect of the log entry on a restored state.
    pub kind: EntryKind,
    /// LSN of the entry in the log of the node that took the snapshot.
    pub lsn: Lsn,
    /// Term, index and time of the log entry.
    pub id: EntryId,
    /// Commands of the log entry; empty for a blank entry.
    pub payload: &'a [u8],
}

/// One item in the contents of a chunk: a row or a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A row of the state. If the row points into the log, the item also has the bytes there.
    Row {
        /// Key of the row.
        key: &'a [u8],
        /// Value of the row. If the row points into the log, the log position is left out of the value, because it
        /// holds only on the node that took the snapshot.
        value: &'a [u8],
        /// Bytes that the row points to in the log; `None` if it contains no pointer.
        bytes: Option<&'a [u8]>,
    },
    /// A log entry. Occurs only in increments (snapshots of the changes since an earlier snapshot).
    Entry(EntryItem<'a>),
}

impl<'a> Item<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Row { key, value, bytes } => {
                out.push(u8::from(bytes.is_some()));
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                if let Some(bytes) = bytes {
                    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                }
                out.extend_from_slice(key);
                out.extend_from_slice(value);
                out.extend_from_slice(bytes.unwrap_or_default());
            }
            Self::Entry(entry) => {
                out.push(match entry.kind {
                    EntryKind::Commands => 0,
                    EntryKind::Blank => 1,
                });
                for number in [entry.lsn.0, entry.id.term.0, entry.id.index.0, entry.id.time.0] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(&(entry.payload.len() as u32).to_le_bytes());
                out.extend_from_slice(entry.payload);
            }
        }
    }

    /// Returns the length in bytes of the row or log entry at the beginning of `bytes`, as its header states; `None` if
    /// `bytes` ends within the header. Returns an error if the stated length exceeds the maximum for a snapshot.
    pub(crate) fn size(kind: ChunkKind, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let u32_at = |at: usize| {
            let field = bytes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*field) as usize)
        };
        let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk::<2>()?)));
        let too_large = "it has a row or an entry above the limit";
        match (kind, bytes.first()) {
            (ChunkKind::Entries, Some(_)) => match u32_at(ENTRY_HEADER_BYTES - 4) {
                Some(payload) if payload > MAX_ENTRY_PAYLOAD_BYTES => Err(too_large),
                payload => Ok(payload.map(|payload| ENTRY_HEADER_BYTES + payload)),
            },
            (ChunkKind::Rows, Some(1)) => match (u16_at(1), u32_at(3), u32_at(7)) {
                (_, Some(value), _) if value > MAX_POINTING_ROW_BYTES => Err(too_large),
                (_, _, Some(bytes)) if bytes > MAX_COMMAND_BYTES => Err(too_large),
                (Some(key), Some(value), Some(bytes)) => Ok(Some(11 + key + value + bytes)),
                _ => Ok(None),
            },
            // Rows of other kinds have another first byte, and the decoder rejects them.
            (ChunkKind::Rows, Some(_)) => match (u16_at(1), u32_at(3)) {
                (_, Some(value)) if value > MAX_ROW_VALUE_BYTES => Err(too_large),
                (Some(key), Some(value)) => Ok(Some(7 + key + value)),
                _ => Ok(None),
            },
            (ChunkKind::Begin | ChunkKind::End, _) => Err("only chunks of rows or entries can follow the first chunk"),
            (_, None) => Ok(None),
        }
    }

    pub(crate) fn decode_row(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let points = match reader.u8("row")? {
            0 => false,
            1 => true,
            _ => return Err(Malformed { at, expected: "a kind of row" }),
        };
        let key_len = reader.u16("key length")?.into();
        let value_len = reader.u32("value length")? as usize;
        let bytes_len = if points { Some(reader.u32("length of bytes")? as usize) } else { None };
        let key = reader.take(key_len, "key")?;
        let value = reader.take(value_len, "value")?;
        let bytes = bytes_len.map(|len| reader.take(len, "bytes")).transpose()?;
        Ok(Self::Row { key, value, bytes })
    }

    pub(crate) fn decode_entry(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let kind = match reader.u8("entry")? {
            0 => EntryKind::Commands,
            1 => EntryKind::Blank,
            _ => return Err(Malformed { at, expected: "a kind of entry" }),
        };
        let lsn = Lsn(reader.u64("lsn")?);
        let id = EntryId {
            term: Term(reader.u64("term")?),
            index: Index(reader.u64("index")?),
            time: SpaceTime(reader.u64("time")?),
        };
        if [lsn.0, id.term.0, id.index.0, id.time.0].iter().any(|number| *number >= MAX_NUMBER) {
            return Err(Malformed { at, expected: "entry with numbers below 2^61" });
        }
        let len = reader.u32("payload length")? as usize;
        Ok(Self::Entry(EntryItem { kind, lsn, id, payload: reader.take(len, "payload")? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_pinned() {
        let header = ChunkHeader {
            kind: ChunkKind::Rows,
            compression: Compression::Zstd,
            number: 3,
            stored: 4,
            plain: 5,
            chain: 6,
            crc: 7,
        };
        let bytes = b"TWSN\x03\x02\x02\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0\x07\0\0\0";
        assert_eq!(header.encode(), *bytes);
        assert_eq!(ChunkHeader::decode(bytes), Some(header));
        let mut out = Vec::new();
        Item::Row { key: b"k", value: b"vw", bytes: Some(b"xyz") }.encode(&mut out);
        assert_eq!(out, b"\x01\x01\0\x02\0\0\0\x03\0\0\0kvwxyz");
        out.clear();
        Item::Row { key: b"k", value: b"vw", bytes: None }.encode(&mut out);
        assert_eq!(out, b"\0\x01\0\x02\0\0\0kvw");
        out.clear();
        let id = EntryId { term: Term(2), index: Index(3), time: SpaceTime(4) };
        Item::Entry(EntryItem { kind: EntryKind::Commands, lsn: Lsn(1), id, payload: b"p" }).encode(&mut out);
        let numbers = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0";
        assert_eq!(out, [b"\0", numbers.as_slice(), b"\x01\0\0\0p"].concat());
    }

    #[test]
    fn what_is_encoded_comes_back_and_anything_shorter_does_not() {
        let id = EntryId { term: Term(2), index: Index(3), time: SpaceTime(4) };
        let applied = Applied {
            lsn: Lsn(9),
            term: Term(1),
            index: Index(2),
            revision: Revision(3),
            time: SpaceTime(4),
            running_hash: 5,
        };
        let info = SnapshotInfo { kind: PartKind::Increment, node: NodeId(7), since: Lsn(5), applied, before: id };
        let plain = |info| Begin { info, membership: None };
        assert_eq!(Begin::decode(3, &plain(info).encode()), Some(plain(info)));
        assert_eq!(Begin::decode(2, &plain(info).encode()), Some(plain(info)));
        assert_eq!(Begin::decode(3, &plain(info).encode()[1..]), None);
        assert_eq!(Begin::decode(3, &plain(SnapshotInfo { since: Lsn(10), ..info }).encode()), None);
        let items = [
            Item::Row { key: b"key", value: b"", bytes: None },
            Item::Row { key: b"key", value: b"v", bytes: Some(b"") },
            Item::Entry(EntryItem { kind: EntryKind::Blank, lsn: Lsn(1), id, payload: b"" }),
        ];
        for item in items {
            let mut out = Vec::new();
            item.encode(&mut out);
            let decode = |bytes| match item {
                Item::Row { .. } => Item::decode_row(&mut Reader::at(bytes, 0)),
                Item::Entry(_) => Item::decode_entry(&mut Reader::at(bytes, 0)),
            };
            for cut in 0..out.len() {
                assert!(decode(&out[..cut]).is_err(), "{item:?} cut to {cut}");
            }
            // The block ends the borrow of `out` by the decoded item.
            assert!(decode(&out).is_ok());
        }
        let full = SnapshotInfo { kind: PartKind::Full, ..info };
        let payload = Bytes::from(Membership::of_one(NodeId(7)).encode());
        let removed = BTreeSet::from([NodeId(5), NodeId(6)]);
        let membership = AppliedMembership { id: LogId { term: Term(1), index: Index(2) }, payload, removed };
        let begin = Begin { info: full, membership: Some(membership.clone()) };
        assert_eq!(Begin::decode(3, &begin.encode()), Some(begin.clone()));
        assert_eq!(begin.encode()[BEGIN_BYTES..][..16], *b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(begin.encode()[BEGIN_BYTES + 16..][..20], *b"\x02\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0");
        assert_eq!(begin.encode()[BEGIN_BYTES + 36..], membership.payload);
        assert_eq!(Begin::decode(2, &begin.encode()), None, "version 2 has no membership");
        assert_eq!(Begin::decode(3, &Begin { info, ..begin.clone() }.encode()), None, "nor has an increment");
        for cut in BEGIN_BYTES + 1..begin.encode().len() {
            assert_eq!(Begin::decode(3, &begin.encode()[..cut]), None, "{cut}");
        }
        let later = LogId { term: Term(1), index: Index(3) };
        let later = Begin { membership: Some(AppliedMembership { id: later, ..membership }), ..begin };
        assert_eq!(Begin::decode(3, &later.encode()), None, "it was not applied yet");
        let totals = Totals { rows: 1, row_bytes: 2, carried_bytes: 3, entries: 4, entry_bytes: 5 };
        assert_eq!(Totals::decode(&totals.encode()), Some(totals));
        assert_eq!(Totals::decode(&[0; 41]), None);
    }

    /// The highest term has no valid successor: it would wrap to 0. The highest LSN has none either: the node could not
    /// read the log after it.
    #[test]
    fn numbers_that_could_wrap_are_refused() {
        // The node's id and the running hash are not counted up, so they may have any value.
        let of_begin = [1_usize, 2, 3, 4, 5, 6, 8, 9, 10].map(|field| (field, 1 + field * 8));
        let any = |number: u64| {
            let mut begin = vec![2];
            // The fields of an increment that begins at LSN 0.
            [u64::MAX, 0, number, 0, 0, 0, 0, u64::MAX, 0, 0, 0].iter().for_each(|n| begin.extend(n.to_le_bytes()));
            begin
        };
        assert!(Begin::decode(3, &any(MAX_NUMBER - 1)).is_some());
        for (field, at) in of_begin {
            for number in [MAX_NUMBER, u64::MAX] {
                let mut begin = any(MAX_NUMBER - 1);
                begin[at..at + 8].copy_from_slice(&number.to_le_bytes());
                assert_eq!(Begin::decode(3, &begin), None, "field {field}");
            }
            let mut begin = any(MAX_NUMBER - 1);
            begin[at..at + 8].copy_from_slice(&(MAX_NUMBER - 1).to_le_bytes());
            assert!(Begin::decode(3, &begin).is_some(), "field {field}");
        }
        let payload = Bytes::from(Membership::of_one(NodeId(7)).encode());
        let info = SnapshotInfo {
            kind: PartKind::Full,
            node: NodeId(7),
            since: Lsn(0),
            applied: Applied::default(),
            before: EntryId::default(),
        };
        for (term, is_read) in [(MAX_NUMBER - 1, true), (MAX_NUMBER, false)] {
            let id = LogId { term: Term(term), index: Index(0) };
            let membership = AppliedMembership { id, payload: payload.clone(), removed: BTreeSet::new() };
            let begin = Begin { info, membership: Some(membership) };
            assert_eq!(Begin::decode(3, &begin.encode()).is_some(), is_read);
        }
        for field in 0..4 {
            for (number, is_read) in [(MAX_NUMBER - 1, true), (MAX_NUMBER, false), (u64::MAX, false)] {
                let mut entry = vec![0; ENTRY_HEADER_BYTES];
                entry[1 + field * 8..][..8].copy_from_slice(&number.to_le_bytes());
                let read = Item::decode_entry(&mut Reader::at(&entry, 0));
                assert_eq!(read.is_ok(), is_read, "field {field}: {number}");
            }
        }
    }
}
