//! The interface through which the state machine, while it applies an entry, reads values that are stored only in the
//! log.
//!
//! Values above a configured length stay in the log; the state stores a pointer to each. A condition on such a value,
//! or a read within a transaction, needs the value's bytes, and reads them from the log. The alternative would be a
//! hash of each value in the state. It would have to be a cryptographic one, which every large put would have to
//! compute. The length and the CRC-32C beside the pointer already decide almost every comparison that fails. A
//! comparison of equal values reads the value once, mostly from the page cache. The log has the same bytes on every
//! node, so outcomes are the same on all nodes. The pointer cannot be stale: a segment is freed only after the
//! persisted state no longer points into it.

use std::fmt;

use bytes::Bytes;
use thalweg_types::{BlobRef, LogPosition};

/// Reads bytes of the node's log.
pub trait Blobs: Send + Sync + fmt::Debug {
    /// Reads the bytes that `blob` points to in the log, and verifies them against the pointer's checksum.
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable>;
}

/// Error returned when the log bytes that a pointer refers to cannot be read. The node must stop applying entries,
/// because other nodes can read these bytes and may decide differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BlobUnreadable(pub String);

/// Reader of log values for a machine that was opened without its log; every read fails.
#[derive(Debug)]
pub(crate) struct NoBlobs;

impl Blobs for NoBlobs {
    fn read(&self, _: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        Err(BlobUnreadable("the state machine was opened without its log".to_owned()))
    }
}

/// Creates a pointer to `bytes`, which begin at position `at` in the log; computes their checksum.
pub(crate) fn blob_at(at: LogPosition, bytes: &[u8]) -> BlobRef {
    BlobRef { generation: at.generation, offset: at.offset, len: bytes.len() as u32, crc: crc_fast::crc32_iscsi(bytes) }
}

/// Returns the position of byte `offset` in a payload that begins at `at`.
pub(crate) fn within(at: LogPosition, offset: usize) -> LogPosition {
    LogPosition { offset: at.offset + offset as u32, ..at }
}
