//! Moves: changes that a node makes to its own log and to the pointers into it. Other nodes do not see them.

use crate::{
    codec::{Field, Malformed, Reader, put_checked, structure, variants},
    command::history::HistoryFloor,
    ids::{BlobRef, KeyspaceId, Offset, StreamId},
};

/// Contents of a move. Most moves copy bytes forward and replace the pointer to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// Old position of the bytes. The move is void unless the state still points there.
    pub from: BlobRef,
    /// Owner of the bytes.
    pub target: MoveTarget<'a>,
    /// Bytes at their new position.
    pub bytes: &'a [u8],
    /// Offset of the bytes within the payload.
    pub bytes_at: usize,
}

variants! {
    /// Owner of the bytes of a [`Move`], or the change that a move without bytes makes.
    #[derive(Copy)]
    MoveTarget<'a> as "known move target" {
        /// A value of a key.
        Value = 0 "value" {
            /// Keyspace of the key.
            keyspace: KeyspaceId,
            /// Key that has the value.
            key: &'a [u8],
        },
        /// A batch of a stream.
        Batch = 1 "batch" {
            /// Id of the stream.
            stream: StreamId,
            /// First offset of the batch.
            first: Offset,
        },
        /// Remains of consecutive batches of a stream after compaction. The bytes are a sparse batch, and `from` states
        /// only their length and checksum.
        Compacted[compacted: Compacted] = 2 "compacted batches",
        /// A stretch of a stream has at most one record per key. The move has no bytes.
        Cleaned = 3 "cleaned stretch" {
            /// Id of the stream.
            stream: StreamId,
            /// Exclusive end of the stretch, which begins at the start of the stream.
            before: Offset,
        },
        /// Index entries of a stream's trimmed or deleted batches are forgotten. The move has no bytes.
        Reclaimed = 4 "reclaimed index entries" {
            /// Id of the stream.
            stream: StreamId,
            /// Maximum number of entries.
            max: u32,
        },
        /// Rows that help to read the history of the log below a floor are forgotten. The move has no bytes.
        HistoryFloor = 5 "history floor" {
            /// New floor. A floor below the present one changes nothing.
            floor: HistoryFloor,
            /// Maximum number of rows.
            max: u32,
        },
    }
}

impl MoveTarget<'_> {
    /// Encodes the payload of a move without bytes.
    #[must_use]
    pub fn encode_alone(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Move::encode(&mut out, &BlobRef::NOWHERE, self, &[]);
        out
    }
}

structure! {
    /// Batches that a sparse batch replaces.
    #[derive(Copy)]
    Compacted as "compacted batches" {
        /// Id of the stream.
        stream: StreamId,
        /// Offset of the first record of the first batch.
        first: Offset,
        /// Exclusive end: the offset after the last batch.
        end: Offset,
        /// Number of batches.
        sources: u32,
        /// CRC-32C of their index entries, keys and rows, in order. The move is void if an entry has changed.
        rows_crc: u32,
        /// Number of records kept.
        kept: u32,
    }
}

impl<'a> Move<'a> {
    /// Appends an encoded move.
    pub fn encode(out: &mut Vec<u8>, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        out.extend_from_slice(&from.encode());
        put_checked(out, target);
        out.extend_from_slice(bytes);
    }

    /// Decodes the payload of a move record.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(payload, 0);
        let from = BlobRef::decode(reader.take(BlobRef::ENCODED_LEN, "blob reference")?)
            .ok_or(Malformed { at: 0, expected: "blob reference" })?;
        let target = MoveTarget::take(&mut reader, "move target")?;
        let bytes_at = reader.position();
        Ok(Self { from, target, bytes: reader.rest(), bytes_at })
    }
}
