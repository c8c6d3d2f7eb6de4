//! Bytes that the state points to in the log, for what must look at them while an entry is applied.
//!
//! A condition on a value, and a read within a transaction, need the bytes of a value that stayed in the
//! log. They are read from there rather than kept as a hash in the state: a hash strong enough to decide
//! by would be paid by every large put, the length and the CRC-32C beside the pointer already decide
//! almost every comparison that fails, and one that holds is read once, mostly from the page cache. The
//! log holds the same bytes on every node, so outcomes stay the same everywhere. The pointer can't be
//! stale: segments are freed only when the state, persisted, does not point into them.

use std::fmt;

use bytes::Bytes;
use thalweg_types::{BlobRef, LogPosition};

/// Reads bytes of the node's log.
pub trait Blobs: Send + Sync + fmt::Debug {
    /// The bytes, checked against the pointer's checksum.
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable>;
}

/// The bytes behind a pointer could not be read. Whoever applies entries must stop: going on would
/// decide differently from a node that can read them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BlobUnreadable(pub String);

/// For a machine that was given no log.
#[derive(Debug)]
pub(crate) struct NoBlobs;

impl Blobs for NoBlobs {
    fn read(&self, _: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        Err(BlobUnreadable("the state machine was opened without its log".to_owned()))
    }
}

/// A pointer to these bytes, which lie at `at`.
pub(crate) fn blob_at(at: LogPosition, bytes: &[u8]) -> BlobRef {
    BlobRef { generation: at.generation, offset: at.offset, len: bytes.len() as u32, crc: crc_fast::crc32_iscsi(bytes) }
}

/// Where byte `offset` of what begins at `at` lies.
pub(crate) fn within(at: LogPosition, offset: usize) -> LogPosition {
    LogPosition { offset: at.offset + offset as u32, ..at }
}
