//! Moves: what a node does to its own log and to what points into it, and no other node learns of.

use crate::{
    command::HistoryFloor,
    ids::{BlobRef, KeyspaceId, Offset, StreamId},
    record::{Malformed, Reader, put_u32},
};

/// What a move carries: mostly bytes copied forward and the pointer that they replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<'a> {
    /// Where the bytes lay; the move is void unless the state still points there.
    pub from: BlobRef,
    /// Whose bytes they are.
    pub target: MoveTarget<'a>,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Where the bytes begin within the payload.
    pub bytes_at: usize,
}

/// Whose bytes a [`Move`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveTarget<'a> {
    /// The value of a key.
    Value {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// A stream's batch.
    Batch {
        /// The stream.
        stream: StreamId,
        /// The batch's first offset.
        first: Offset,
    },
    /// What compaction leaves of consecutive batches of a stream: the bytes are a sparse batch, and `from`
    /// says only their length and checksum.
    Compacted(Compacted),
    /// No older record of a key lies below a newer one in a stretch of a stream; there are no bytes.
    Cleaned {
        /// The stream.
        stream: StreamId,
        /// The stretch is all that lies before this offset.
        before: Offset,
    },
    /// Index entries of a stream's trimmed or deleted batches are forgotten; there are no bytes.
    Reclaimed {
        /// The stream.
        stream: StreamId,
        /// At most so many.
        max: u32,
    },
    /// What helps to read the log below a floor as history is forgotten; there are no bytes.
    HistoryFloor {
        /// The new floor; a lower one than before counts as that.
        floor: HistoryFloor,
        /// At most so many rows.
        max: u32,
    },
}

impl MoveTarget<'_> {
    /// The payload of a move without bytes.
    #[must_use]
    pub fn encode_alone(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Move::encode(&mut out, &BlobRef::NOWHERE, self, &[]);
        out
    }
}

/// Which batches a sparse batch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The stream.
    pub stream: StreamId,
    /// Offset of the first record of the first batch.
    pub first: Offset,
    /// The offset after the last batch.
    pub end: Offset,
    /// How many batches.
    pub sources: u32,
    /// CRC-32C of their index entries, keys and rows, in order: the move is void if one has changed.
    pub rows_crc: u32,
    /// How many records are left.
    pub kept: u32,
}

impl<'a> Move<'a> {
    /// Appends the encoding of a move.
    pub fn encode(out: &mut Vec<u8>, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        out.extend_from_slice(&from.encode());
        match target {
            MoveTarget::Value { keyspace, key } => {
                out.push(0);
                out.extend_from_slice(&keyspace.0.to_le_bytes());
                put_u32(out, key.len());
                out.extend_from_slice(key);
            }
            MoveTarget::Batch { stream, first } => {
                out.push(1);
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&first.0.to_le_bytes());
            }
            MoveTarget::Compacted(compacted) => {
                out.push(2);
                out.extend_from_slice(&compacted.stream.0.to_le_bytes());
                out.extend_from_slice(&compacted.first.0.to_le_bytes());
                out.extend_from_slice(&compacted.end.0.to_le_bytes());
                out.extend_from_slice(&compacted.sources.to_le_bytes());
                out.extend_from_slice(&compacted.rows_crc.to_le_bytes());
                out.extend_from_slice(&compacted.kept.to_le_bytes());
            }
            MoveTarget::Cleaned { stream, before } => {
                out.push(3);
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&before.0.to_le_bytes());
            }
            MoveTarget::Reclaimed { stream, max } => {
                out.push(4);
                out.extend_from_slice(&stream.0.to_le_bytes());
                out.extend_from_slice(&max.to_le_bytes());
            }
            MoveTarget::HistoryFloor { floor, max } => {
                out.push(5);
                out.extend_from_slice(&floor.encode());
                out.extend_from_slice(&max.to_le_bytes());
            }
        }
        out.extend_from_slice(bytes);
    }

    /// Decodes the payload of a move record.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(payload, 0);
        let from = BlobRef::decode(reader.take(BlobRef::ENCODED_LEN, "blob reference")?)
            .ok_or(Malformed { at: 0, expected: "blob reference" })?;
        let at = reader.position();
        let target = match reader.u8("move target")? {
            0 => {
                let keyspace = KeyspaceId(reader.u32("keyspace id")?);
                let len = reader.u32("key length")? as usize;
                MoveTarget::Value { keyspace, key: reader.take(len, "key")? }
            }
            1 => MoveTarget::Batch {
                stream: StreamId(reader.u32("stream id")?),
                first: Offset(reader.u64("first offset")?),
            },
            2 => MoveTarget::Compacted(Compacted {
                stream: StreamId(reader.u32("stream id")?),
                first: Offset(reader.u64("first offset")?),
                end: Offset(reader.u64("end offset")?),
                sources: reader.u32("batch count")?,
                rows_crc: reader.u32("checksum of index entries")?,
                kept: reader.u32("record count")?,
            }),
            3 => MoveTarget::Cleaned {
                stream: StreamId(reader.u32("stream id")?),
                before: Offset(reader.u64("offset")?),
            },
            4 => MoveTarget::Reclaimed {
                stream: StreamId(reader.u32("stream id")?),
                max: reader.u32("index entry count")?,
            },
            5 => MoveTarget::HistoryFloor { floor: HistoryFloor::decode(&mut reader)?, max: reader.u32("row count")? },
            _ => return Err(Malformed { at, expected: "known move target" }),
        };
        let bytes_at = reader.position();
        Ok(Self { from, target, bytes: reader.rest(), bytes_at })
    }
}
