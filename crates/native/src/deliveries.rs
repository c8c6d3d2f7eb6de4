//! Encoding of a consumer group's deliveries as frames. The frames share the bytes of records with the log, like pages
//! of records.

use thalweg_engine::{Delivery, StreamRun};
use thalweg_wire::{HEADER_BYTES, Kind};

use super::{
    failure::Failure,
    records::{put_runs, runs_bytes},
    replies::{FrameMemory, Replies},
};

/// Number of bytes at the beginning of a delivery's frame, before its parts: durability, attempt, deadline, number of
/// parts. A part has records that were delivered equally often.
const DELIVERY_HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Number of bytes at the beginning of a part of a delivery, before its records: number of deliveries, and number of
/// runs. A run has consecutive records of one append.
const PART_HEAD_BYTES: usize = 4 + 4;

/// Returns the maximum bytes and the maximum number of records of a delivery, so that its frame has at most
/// `max_frame_bytes`. Half of the frame is for the bytes of the records. The other half is for their framing, at 64
/// bytes for each record.
pub(crate) fn delivery_limits(max_frame_bytes: usize) -> (u64, u32) {
    let half = max_frame_bytes / 2;
    (half as u64, u32::try_from(half / 64).unwrap_or(u32::MAX))
}

/// A delivery to a member of a consumer group, ready to be encoded as a frame.
#[derive(Debug)]
pub(crate) struct DeliveryFrame {
    durability: thalweg_types::Durability,
    /// Number of the attempt (the delivery). The member states it when it acks or nacks the records.
    pub attempt: thalweg_types::Attempt,
    deadline: thalweg_types::SpaceTime,
    /// Records of the delivery, grouped by the number of times that they were delivered, including this time. A run has
    /// consecutive records of one append.
    pub parts: Vec<(u32, Vec<StreamRun>)>,
}

impl DeliveryFrame {
    /// Converts a delivery of the engine to the fields of a frame.
    pub(crate) fn of(delivery: Delivery) -> Result<Self, Failure> {
        let (durability, deadline) = (delivery.durability, delivery.deadline);
        // The attempt of an empty delivery is not used, so it is sent as 0.
        let attempt = if delivery.is_empty() { thalweg_types::Attempt(0) } else { delivery.attempt };
        Ok(Self { durability, attempt, deadline, parts: delivery.into_runs()? })
    }

    /// Returns the size in bytes of the delivery's frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        HEADER_BYTES + DELIVERY_HEAD_BYTES + self.parts_bytes()
    }

    fn parts_bytes(&self) -> usize {
        self.parts.iter().map(|(_, runs)| PART_HEAD_BYTES + runs_bytes(runs)).sum()
    }

    /// Puts the delivery into the outbox, as a frame of the given kind.
    pub(crate) fn put(self, out: &mut Replies, kind: Kind, id: u32, room: FrameMemory) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        let body_bytes = DELIVERY_HEAD_BYTES + self.parts_bytes();
        out.states(self.durability);
        out.shared(kind, id, body_bytes, room, |parts| {
            let head = parts.bytes();
            head.push(self.durability as u8);
            head.extend_from_slice(&self.attempt.0.to_le_bytes());
            head.extend_from_slice(&self.deadline.0.to_le_bytes());
            head.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
            for (deliveries, runs) in self.parts {
                parts.bytes().extend_from_slice(&deliveries.to_le_bytes());
                put_runs(parts, runs);
            }
        })
    }
}
