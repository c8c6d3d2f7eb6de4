//! The state digest: a hash over all rows that are equal on all replicas.
//!
//! Owns: the replicated form of each kind of row ([`replicated_row`], byte by byte in `docs/formats/state.md`), and
//! the hash over the forms of all rows of a view ([`state_digest`]). Does not own: the layout of rows, or the index
//! at which replicas are compared.
//!
//! ```text
//! digest := XXH3-128 over the rows of the map in the order of their keys, without node-local rows:
//!           key_len u32 | key | form_len u32 | form          little-endian
//! ```
//! Invariants: a replicated form is a function of the committed entries alone, independent of the node's options,
//! restarts, compactions and moves. A value contributes its length and CRC-32C, wherever its bytes are stored, so
//! the digest reads nothing from the log.

use std::{
    convert::Infallible,
    fmt,
    ops::{Bound, ControlFlow},
};

use thalweg_store::{Applied, View};
use thalweg_types::BlobRef;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    error::MachineError,
    history::rows::{HistoryKey, VERSION_HEAD_LEN, VersionRow},
    keys,
    keyspaces::values::{FORM_BLOB, FORM_INLINE, StoredRef, decode_value},
    row_kinds::{self, Form, RowKind},
    streams::heads::Head,
};

/// Scope of a row: replicated on all nodes of the Raft group, or of this node alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowScope {
    /// The row is a function of the committed log entries, so it is the same on every replica.
    Replicated,
    /// The row is about this node, its log or its own maintenance.
    NodeLocal,
}

/// Appends to `out` the replicated form of a row: those bytes that are the same on every replica. Returns
/// [`RowScope::NodeLocal`], and appends nothing, if the row belongs to this node alone.
///
/// # Errors
/// Returns [`MachineError::Corrupt`] for a row that does not decode or has an unknown kind. `out` may then end with
/// part of a form.
#[inline]
pub fn replicated_row(key: &[u8], row: &[u8], out: &mut Vec<u8>) -> Result<RowScope, MachineError> {
    match RowKind::of(key)?.sharing().digest {
        Form::Nothing => return Ok(RowScope::NodeLocal),
        Form::Row => out.extend_from_slice(row),
        Form::Value => value_form(key, row, out)?,
        Form::Version => version_form(key, row, out)?,
        Form::StreamHead => {
            let head = Head::decode(key, row)?;
            if head.is_empty_marker() {
                return Ok(RowScope::NodeLocal);
            }
            head.encode_replicated(out);
        }
    }
    Ok(RowScope::Replicated)
}

/// The fields that the digest hashes of a value without deadline and lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastingValue {
    pub(crate) revision: u64,
    pub(crate) len: u32,
    pub(crate) crc: u32,
}

/// Returns the fields that the digest hashes of a row, if the row is a value without deadline and lease; `None` for all
/// other rows. Unlike [`replicated_row`], allocates nothing: most rows that log entries write are such values.
#[inline]
pub(crate) fn lasting_value(key: &[u8], row: &[u8]) -> Option<LastingValue> {
    if key.first() != Some(&keys::TAG_DATA) {
        return None;
    }
    let ([form, revision @ ..], value) = row.split_first_chunk::<9>()?;
    let (len, crc) = match *form {
        FORM_INLINE => (value.len() as u32, crc_fast::crc32_iscsi(value)),
        FORM_BLOB => BlobRef::decode(value).map(|blob| (blob.len, blob.crc))?,
        _ => return None,
    };
    Some(LastingValue { revision: u64::from_le_bytes(*revision), len, crc })
}

/// Appends the replicated form of a value's row: its length and checksum instead of its bytes. The row of a Redis
/// collection is appended unchanged.
#[inline]
fn value_form(key: &[u8], row: &[u8], out: &mut Vec<u8>) -> Result<(), MachineError> {
    let decoded = decode_value(key, row)?;
    let (len, crc) = match decoded.value {
        StoredRef::Inline(bytes) => (bytes.len() as u32, crc_fast::crc32_iscsi(bytes)),
        StoredRef::Blob(blob) => (blob.len, blob.crc),
        StoredRef::Collection(_) => {
            out.extend_from_slice(row);
            return Ok(());
        }
    };
    out.extend_from_slice(&decoded.inline_head());
    if let Some(expiry) = decoded.stored_expiry() {
        out.extend_from_slice(&expiry);
    }
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Appends the replicated form of a version's row, which contains the length and checksum of the former value. A row
/// which records that versions were forgotten is appended unchanged.
fn version_form(key: &[u8], row: &[u8], out: &mut Vec<u8>) -> Result<(), MachineError> {
    if HistoryKey::of_version(key)?.revision.is_none() {
        out.extend_from_slice(row);
        return Ok(());
    }
    let version = VersionRow::decode(key, row)?;
    out.extend_from_slice(&row[..VERSION_HEAD_LEN]);
    value_form(key, version.value, out)
}

/// A 128-bit hash, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The digest of a state, and the log position up to which this state has applied the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// Hash over all replicated rows.
    pub digest: Digest,
    /// Number of replicated rows in the view.
    pub rows: u64,
    /// Log position up to which the view had applied entries. `lsn` is a position in this node's own log; replicas
    /// compare the other fields.
    pub applied: Applied,
    /// Digests of the groups of rows with the same first key byte, in ascending order of that byte. If the digests of
    /// two replicas differ, these show the kinds of rows that differ.
    pub kinds: Vec<KindDigest>,
}

/// The digest of those replicated rows whose keys begin with the same byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindDigest {
    /// First byte of the keys of all rows in this digest. It identifies their kind.
    pub tag: u8,
    /// Readable name of the kind of rows whose keys begin with this byte.
    pub name: &'static str,
    /// Hash over the replicated rows whose keys begin with this byte.
    pub digest: Digest,
    /// Number of replicated rows whose keys begin with this byte.
    pub rows: u64,
}

/// Number of rows between two calls of the `progress` callback while a digest is computed.
const PROGRESS_ROWS: u64 = 4096;

/// Hashes the replicated forms of all rows of a view. Reads every row once, in order, and reads nothing from the log.
/// Calls `progress` periodically with the number of rows visited so far, including node-local ones.
pub fn state_digest(view: &dyn View, progress: &mut dyn FnMut(u64)) -> Result<StateDigest, MachineError> {
    let mut proceed = |rows| {
        progress(rows);
        ControlFlow::<Infallible>::Continue(())
    };
    match state_digest_while(view, &mut proceed)? {
        ControlFlow::Continue(digest) => Ok(digest),
        ControlFlow::Break(never) => match never {},
    }
}

/// Computes the digest like [`state_digest`]. If `progress` breaks, returns the value of the `Break` instead.
pub fn state_digest_while<B>(
    view: &dyn View,
    progress: &mut dyn FnMut(u64) -> ControlFlow<B>,
) -> Result<ControlFlow<B, StateDigest>, MachineError> {
    let mut digester = Digester::default();
    let (mut failure, mut visited, mut ended) = (None, 0_u64, None);
    view.scan_once(Bound::Unbounded, &mut |key, row| {
        visited += 1;
        if visited.is_multiple_of(PROGRESS_ROWS) {
            ended = progress(visited).break_value();
            if ended.is_some() {
                return ControlFlow::Break(());
            }
        }
        match digester.add(key, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    match ended.or_else(|| progress(visited).break_value()) {
        Some(value) => Ok(ControlFlow::Break(value)),
        None => Ok(ControlFlow::Continue(digester.finish(view.applied()))),
    }
}

/// Hasher to which the rows of a view are added one by one, in the order of their keys.
#[derive(Default)]
struct Digester {
    all: Xxh3,
    rows: u64,
    /// Hasher of the rows whose keys begin with the current first byte.
    kind: Option<KindHasher>,
    kinds: Vec<KindDigest>,
    form: Vec<u8>,
}

struct KindHasher {
    tag: u8,
    hash: Xxh3,
    rows: u64,
}

impl KindHasher {
    fn finish(&self) -> KindDigest {
        let (tag, rows) = (self.tag, self.rows);
        KindDigest { tag, name: row_kinds::name_of_tag(tag), digest: Digest(self.hash.digest128()), rows }
    }
}

impl Digester {
    fn add(&mut self, key: &[u8], row: &[u8]) -> Result<(), MachineError> {
        self.form.clear();
        if replicated_row(key, row, &mut self.form)? == RowScope::NodeLocal {
            return Ok(());
        }
        // A key without a first byte has no kind.
        let tag = key.first().copied().unwrap_or_default();
        if self.kind.as_ref().is_none_or(|kind| kind.tag != tag) {
            let next = KindHasher { tag, hash: Xxh3::new(), rows: 0 };
            self.kinds.extend(self.kind.replace(next).map(|done| done.finish()));
        }
        self.rows += 1;
        absorb(&mut self.all, key, &self.form);
        if let Some(kind) = &mut self.kind {
            kind.rows += 1;
            absorb(&mut kind.hash, key, &self.form);
        }
        Ok(())
    }

    fn finish(mut self, applied: Applied) -> StateDigest {
        self.kinds.extend(self.kind.take().map(|done| done.finish()));
        StateDigest { digest: Digest(self.all.digest128()), rows: self.rows, applied, kinds: self.kinds }
    }
}

fn absorb(hash: &mut Xxh3, key: &[u8], form: &[u8]) {
    for part in [key, form] {
        hash.update(&(part.len() as u32).to_le_bytes());
        hash.update(part);
    }
}
