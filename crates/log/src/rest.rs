//! Rest of a log to which nothing is appended: its prepared segments go back to the disk.
//!
//! Owns: the conditions under which a log rests, and the end of its rest. Does not own: noticing that nothing is
//! appended, which the log's user does, or removing and creating the files (see `prepare`).
//!
//! A log that rests has room for appends in its active segment only. So that appends rarely wait for a new segment, and
//! so that deletes find room on a disk that fills up meanwhile:
//!
//! * the log rests only while at least a quarter of the active segment is free, and while the disk has much more room
//!   than the segments take;
//! * the rest ends with the first append after [`REST_BYTES`], long before the segment is full, and with an append that
//!   needs another segment. Prepared segments are then written again;
//! * a rest must be worth while, because the first burst of appends after it may have to wait for zeroes: the user of
//!   the log says how many bytes the disk must gain;
//! * a log does not rest while an append waits for a segment;
//! * a rest costs zeroes, so a log rests again only after it has written a segment, or after [`MIN_AWAKE`].

use std::time::Duration;

use crate::{log::Log, shared::Shared, writer_rest::RestBounds, writer_role::Core};

/// Number of bytes that may be appended before a rest ends. In small segments it is one in [`REST_SHARE`] of a segment.
const REST_BYTES: u32 = 1 << 20;
const REST_SHARE: u32 = 16;
/// Time after which a log may rest again although it has written less than a segment since its last rest.
const MIN_AWAKE: Duration = Duration::from_secs(600);
/// Share of the active segment that must be free at the beginning of a rest: one in this number.
const FREE_SHARE: u32 = 4;
/// Number of segments, beyond the reserve and the prepared segments, for which the disk must have room.
const ROOM_SEGMENTS: u64 = 4;

impl Log {
    /// Removes the prepared segments if they take more than `worth_bytes` and the log can do without them for now. The
    /// log's user calls this repeatedly while nothing is appended; appends end the rest. If the disk has become nearly
    /// full meanwhile, the call ends it, too.
    pub fn rest(&self, worth_bytes: u64) {
        let shared = self.shared();
        let (pool, segment_bytes) = (&shared.segment_pool, shared.options.segment_bytes);
        let (free, is_low) = pool.check_free_space();
        let segments = u64::from(shared.options.spare_segments) + ROOM_SEGMENTS;
        let needed = pool.reserve_bytes().saturating_add(segments * u64::from(segment_bytes));
        let mut core = shared.core();
        if is_low || free < needed {
            shared.end_rest(&mut core);
            return;
        }
        if pool.is_at_rest() || pool.ready_bytes() <= worth_bytes || core.free_bytes() < segment_bytes / FREE_SHARE {
            return;
        }
        let now = shared.clock.monotonic();
        let is_early = pool.rest_ended().is_some_and(|ended| {
            core.counters.bytes - core.rest.began < u64::from(segment_bytes) && now.saturating_sub(ended) < MIN_AWAKE
        });
        if !is_early && pool.rest() {
            let until = core.written_bytes() + REST_BYTES.min(segment_bytes / REST_SHARE);
            core.rest = RestBounds { until, began: core.counters.bytes };
        }
    }
}

impl Shared {
    /// Ends the rest of the log, if it rests: segments are prepared again.
    #[cold]
    pub(crate) fn end_rest(&self, core: &mut Core) {
        core.rest.until = u32::MAX;
        self.segment_pool.end_rest();
    }
}
