//! Moves: changes that a node makes to its own log and to the pointers into it. Other nodes do not see them.

use crate::{
    command::HistoryFloor,
    ids::{BlobRef, KeyspaceId, Offset, StreamId},
    record::{Malformed, Reader, put_u32},
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

/// Owner of the bytes of a [`Move`], or the change that a move without bytes makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveTarget<'a> {
    /// A value of a key.
    Value {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key that has the value.
        key: &'a [u8],
    },
    /// A batch of a stream.
    Batch {
        /// Id of the stream.
        stream: StreamId,
        /// First offset of the batch.
        first: Offset,
    },
    /// Remains of consecutive batches of a stream after compaction. The bytes are a sparse batch, and `from` states
    /// only their length and checksum.
    Compacted(Compacted),
    /// A stretch of a stream has at most one record per key. The move has no bytes.
    Cleaned {
        /// Id of the stream.
        stream: StreamId,
        /// Exclusive end of the stretch, which begins at the start of the stream.
        before: Offset,
    },
    /// Index entries of a stream's trimmed or deleted batches are forgotten. The move has no bytes.
    Reclaimed {
        /// Id of the stream.
        stream: StreamId,
        /// Maximum number of entries.
        max: u32,
    },
    /// Rows that help to read the history of the log below a floor are forgotten. The move has no bytes.
    HistoryFloor {
        /// New floor. A floor below the present one changes nothing.
        floor: HistoryFloor,
        /// Maximum number of rows.
        max: u32,
    },
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

/// Batches that a sparse batch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Id of the stream.
    pub stream: StreamId,
    /// Offset of the first record of the first batch.
    pub first: Offset,
    /// Exclusive end: the offset after the last batch.
    pub end: Offset,
    /// Number of batches.
    pub sources: u32,
    /// CRC-32C of their index entries, keys and rows, in order. The move is void if an entry has changed.
    pub rows_crc: u32,
    /// Number of records kept.
    pub kept: u32,
}

impl<'a> Move<'a> {
    /// Appends an encoded move.
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
