//! Appends over the native protocol. Each request appends one batch of records to one stream, and is acknowledged at a
//! durability level.

use std::sync::Arc;

use thalweg_transport::Outbox;
use thalweg_types::{Durability, StreamId, command::CommandError};
use thalweg_wire::{Committed, Frame as _, Kind, Level, RawFrame, put_write};

use crate::native::{ChannelError, ChannelRequests, Head, Payloads, body, unexpected};

/// Makes the append requests of one publisher, and checks their replies.
pub(super) struct AppendWork {
    stream: StreamId,
    level: Durability,
    publisher: u32,
    batch: u32,
    next: u64,
    /// Number of records after which the publisher stops.
    until: u64,
    payloads: Arc<Payloads>,
    /// Number of acknowledged records of this publisher. They must be readable after the run.
    acked: u64,
}

impl AppendWork {
    /// Creates the append requests of publisher number `publisher` to one stream.
    pub(super) fn new(
        stream: StreamId,
        level: Durability,
        publisher: usize,
        batch: u32,
        payloads: Arc<Payloads>,
    ) -> Self {
        Self { stream, level, publisher: publisher as u32, batch, next: 0, until: u64::MAX, payloads, acked: 0 }
    }

    /// Returns the number of records that the server acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// Makes the publisher stop when it has appended at least this number of records.
    pub(super) fn until(self, records: u64) -> Self {
        Self { until: records, ..self }
    }
}

/// Encodes the commit of one append directly in the output buffer. A `CommitBuilder` would make the same bytes with two
/// more copies.
fn put_append(out: &mut Vec<u8>, stream: StreamId, payloads: &Payloads, publisher: u32, records: std::ops::Range<u64>) {
    let count = (records.end - records.start) as u32;
    let bytes = count as usize * (5 + payloads.payload_bytes());
    out.reserve(30 + bytes);
    out.push(1); // a commit
    out.extend_from_slice(&0_u32.to_le_bytes()); // without conditions
    out.extend_from_slice(&1_u32.to_le_bytes()); // of one write
    out.push(3); // an append
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&u64::MAX.to_le_bytes()); // at any offset
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(bytes as u32).to_le_bytes());
    for sequence in records {
        payloads.put_record(Head { sequence, due: 0, publisher }, out);
    }
}

impl ChannelRequests for AppendWork {
    #[inline]
    fn ask(&mut self, _slot: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError> {
        if self.next >= self.until {
            return Ok(false);
        }
        let records = self.next..self.next + u64::from(self.batch);
        let put = put_write(out.buffer(), id, Level(Some(self.level)), |out| {
            put_append(out, self.stream, &self.payloads, self.publisher, records.clone());
            Ok::<_, CommandError>(())
        });
        put.map_err(ChannelError::protocol)?;
        self.next = records.end;
        Ok(true)
    }

    #[inline]
    fn judge(&mut self, _slot: usize, reply: RawFrame<'_>) -> Result<u64, ChannelError> {
        if reply.header.kind != Kind::Committed as u16 {
            return Err(unexpected(reply));
        }
        let committed = Committed::decode_body(body(&reply))?;
        let mut appends = committed.appends.iter();
        let right = committed.durability >= self.level
            && !committed.duplicate
            && appends.next().is_some_and(|append| append.stream == self.stream && append.count == self.batch)
            && appends.next().is_none();
        if !right {
            return Err(ChannelError::Protocol(format!("an append of {} was answered with {committed:?}", self.batch)));
        }
        self.acked += u64::from(self.batch);
        Ok(u64::from(self.batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::Depth;
    use thalweg_types::{command::CommitBuilder, command::ExpectedOffset, record::RecordBatch};

    #[test]
    fn the_command_is_what_the_builder_makes() {
        let payloads = Payloads::new(100, 1, Depth::Full);
        let (mut batch, mut wanted, mut got) = (RecordBatch::new(), Vec::new(), Vec::new());
        for sequence in 4..7 {
            let mut payload = Vec::new();
            payloads.put(Head { sequence, due: 0, publisher: 2 }, &mut payload);
            batch.push_payload(&payload).unwrap();
        }
        let mut commit = CommitBuilder::new();
        commit.append(StreamId(9), ExpectedOffset::Any, &batch).unwrap().encode(&mut wanted);
        put_append(&mut got, StreamId(9), &payloads, 2, 4..7);
        assert_eq!(got, wanted);
    }
}
