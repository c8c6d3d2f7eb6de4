//! Rest: a log to which nothing is appended removes its prepared segments, so that their disk space becomes free.
//!
//! Owns: the conditions under which a log rests, and the end of its rest. Does not own: noticing that nothing is
//! appended, which the log's user does, or removing and creating the files (see `prepare`).
//!
//! A log that rests can append only to its active segment. Two problems must stay rare: an append that waits for a new
//! segment, and a delete that finds no space on a disk that has filled up during the rest. Therefore:
//!
//! * the log rests only while at least a quarter of the active segment is free, and while the free disk space is much
//!   larger than the segments;
//! * the rest ends with the first append after [`REST_BYTES`], long before the segment is full, and with an append that
//!   needs another segment. Prepared segments are then written again;
//! * the first burst of appends after a rest may have to wait until new segments are filled with zeroes. So a rest must
//!   gain a minimum of disk space, and the log's user chooses this minimum;
//! * a log does not rest while an append waits for a segment;
//! * after a rest, segments are filled with zeroes again. So a log rests again only after it has written a segment's
//!   worth of bytes, or after [`MIN_AWAKE`].

use std::time::Duration;

use crate::{log::Log, shared::Shared, writer_rest::RestBounds, writer_role::Core};

/// Number of bytes that may be appended to a resting log (one without prepared segments) before it stops resting. If
/// segments are small, the number is a segment's size divided by [`REST_SHARE`].
const REST_BYTES: u32 = 1 << 20;
const REST_SHARE: u32 = 16;
/// Time for which a log does not rest again after a rest, unless it has written at least one segment since.
const MIN_AWAKE: Duration = Duration::from_secs(600);
/// Divisor of the segment size: a log begins to rest only if at least the segment size divided by this number is free
/// in the active segment.
const FREE_SHARE: u32 = 4;
/// Number of additional segments for which the disk must have space before a log begins to rest, beyond the prepared
/// segments and the reserve (the free bytes that the log's options require).
const ROOM_SEGMENTS: u64 = 4;

impl Log {
    /// Makes the log rest: removes the prepared segments, if they take more than `worth_bytes` and the log can do
    /// without them for now. The log's user calls this repeatedly while nothing is appended. The log stops resting when
    /// records are appended, or when a call finds that the disk has become nearly full.
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
    /// Makes the log stop resting (keeping no prepared segments), so that segments are prepared again. Does nothing if
    /// the log was not resting.
    #[cold]
    pub(crate) fn end_rest(&self, core: &mut Core) {
        core.rest.until = u32::MAX;
        self.segment_pool.end_rest();
    }
}
