//! Moves: log records by which a node moves stored bytes within its own log, and updates the references to them. Other
//! nodes never get these records.

use crate::{
    codec::{Field, Malformed, Reader, put_checked, structure, variants},
    command::history::HistoryFloor,
    ids::{BlobRef, KeyspaceId, Offset, StreamId},
};

/// Decoded contents of a move. Most moves copy bytes to the end of the log and make the state refer to the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// Old position of the copied bytes. If the state no longer refers to this position, the move has no effect.
    pub from: BlobRef,
    /// Owner of the copied bytes: the key whose value they are, or the stream whose records they are. The move updates
    /// the owner's reference to the bytes. For a move without bytes, this field describes the change that the move
    /// makes.
    pub target: MoveTarget<'a>,
    /// Bytes that the move copies, at their new position. Empty for a move without bytes.
    pub bytes: &'a [u8],
    /// Byte offset of the copied bytes within the move's payload.
    pub bytes_at: usize,
}

variants! {
    /// Owner of the bytes that a [`Move`] copies, or the change that a move without bytes makes.
    #[derive(Copy)]
    MoveTarget<'a> as "known move target" {
        /// The copied bytes are the value of a key.
        Value = 0 "value" {
            /// Keyspace of the key.
            keyspace: KeyspaceId,
            /// Key whose value is copied.
            key: &'a [u8],
        },
        /// The copied bytes are a batch of records of a stream.
        Batch = 1 "batch" {
            /// Id of the stream to which the batch belongs.
            stream: StreamId,
            /// First offset of the batch.
            first: Offset,
        },
        /// Compaction has replaced consecutive batches of a stream by one sparse batch, which has gaps where records
        /// were removed. The sparse batch is the move's `bytes`. The move's `from` states only the length and the
        /// checksum of these bytes.
        Compacted[compacted: Compacted] = 2 "compacted batches",
        /// Compaction has found that no key has more than one record in a range of a stream, so this range needs no
        /// compaction. The move has no bytes.
        Cleaned = 3 "cleaned stretch" {
            /// Id of the stream that contains the range.
            stream: StreamId,
            /// Exclusive end of the range, which begins at the start of the stream.
            before: Offset,
        },
        /// The node removes index entries (rows with the log positions of batches) of a stream whose batches were
        /// trimmed or deleted. The move has no bytes.
        Reclaimed = 4 "reclaimed index entries" {
            /// Id of the stream whose index entries are removed.
            stream: StreamId,
            /// Maximum number of index entries to remove.
            max: u32,
        },
        /// The node removes the rows that are needed only to read history below a history floor (the oldest revision
        /// from which changes can be read). The move has no bytes.
        HistoryFloor = 5 "history floor" {
            /// New history floor: the oldest revision and entry index from which changes can be read. A floor below the
            /// present one changes nothing.
            floor: HistoryFloor,
            /// Maximum number of rows that the move removes.
            max: u32,
        },
    }
}

impl MoveTarget<'_> {
    /// Encodes the payload of a move that has no bytes.
    #[must_use]
    pub fn encode_alone(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Move::encode(&mut out, &BlobRef::NOWHERE, self, &[]);
        out
    }
}

structure! {
    /// Consecutive batches of a stream that compaction replaces by one sparse batch, which has gaps where records were
    /// removed.
    #[derive(Copy)]
    Compacted as "compacted batches" {
        /// Id of the compacted stream.
        stream: StreamId,
        /// Offset of the first record of the first batch.
        first: Offset,
        /// Exclusive end of the replaced batches: the offset after the last one.
        end: Offset,
        /// Number of batches that the sparse batch replaces.
        sources: u32,
        /// CRC-32C of the index entries (rows with log positions) of the replaced batches: their keys and contents, in
        /// order. If one of these rows has changed, the move has no effect.
        rows_crc: u32,
        /// Number of records that the sparse batch keeps.
        kept: u32,
    }
}

impl<'a> Move<'a> {
    /// Encodes the payload of a move record, by which a node moves stored bytes within its own log, and appends it to
    /// `out`. The parameters are the fields of the same names.
    pub fn encode(out: &mut Vec<u8>, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        out.extend_from_slice(&from.encode());
        put_checked(out, target);
        out.extend_from_slice(bytes);
    }

    /// Decodes the payload of a move record, by which a node moves stored bytes within its own log.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(payload, 0);
        let from = BlobRef::decode(reader.take(BlobRef::ENCODED_LEN, "blob reference")?)
            .ok_or(Malformed { at: 0, expected: "blob reference" })?;
        let target = MoveTarget::take(&mut reader, "move target")?;
        let bytes_at = reader.position();
        Ok(Self { from, target, bytes: reader.rest(), bytes_at })
    }
}
