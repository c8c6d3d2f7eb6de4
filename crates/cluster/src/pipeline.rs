//! Appends that a leader has sent to a follower and that the follower has not acknowledged yet (appends in flight).
//!
//! Owns: the limit on their bytes, and the rule that tells a follower that it is far behind. Does not own: the appends
//! (`network`, `service`).
//!
//! At most [`MAX_PIPELINED_BYTES`] of entries are in flight, so a follower with a slow disk holds at most that much in
//! memory. Old entries, for a follower that lacks many, have a lower limit: [`OLD_WINDOW_BYTES`] plus the bytes that a
//! fast network carries in the shortest round trip of an append. The follower processes and syncs everything in flight
//! at full speed, on processors and disks that may also serve clients. The lower limit keeps such a burst to a few
//! milliseconds. The reading of further entries waits for the follower's acknowledgements.
//!
//! The round trip can change. So from time to time an append of old entries is sent while no other is in flight, and
//! its time replaces the shortest one. Behind other appends, the time would include their processing at the follower.
//! With a slow follower, each measurement would then be longer than the one before, and the limit would grow.

use std::{cell::Cell, sync::Arc, time::Duration};

use openraft::raft::AppendEntriesRequest;
use thalweg_types::limits::MAX_PIPELINED_BYTES;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::types::Types;

/// Size in bytes of an append from which on a node lets other work run first. The leader lets the other tasks of its
/// consensus thread run, and a follower that is far behind lets other threads run.
pub(crate) const YIELD_FROM_BYTES: usize = 64 * 1024;
/// Maximum bytes of old entries in flight to a follower, for a round trip of zero. Longer round trips raise this limit.
const OLD_WINDOW_BYTES: usize = 2 * 1024 * 1024;
/// Number of bytes by which the limit on old entries in flight rises for each microsecond that an append and its
/// acknowledgement take.
const OLD_BYTES_PER_MICRO: usize = 256;

/// Interval at which the round trip to a follower that lacks many entries is measured: one append of such entries is
/// sent while no other append is in flight. Each measurement costs one round trip without other appends.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// Number of committed entries after an append's last entry, from which the follower that receives the append counts as
/// far behind.
const FAR_BEHIND_ENTRIES: u64 = 64;

const _: () = assert!(OLD_WINDOW_BYTES <= MAX_PIPELINED_BYTES);

/// Age of the entries of an append: new, or old because the follower is far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryAge {
    /// The follower is not far behind, or the append has no entries.
    New,
    /// The follower is far behind: the entries are no longer in memory, or many later entries are committed.
    Old,
}

/// Limits the bytes that one stream of appends to a follower has in flight (sent and not acknowledged).
#[derive(Debug)]
pub(crate) struct Pipeline {
    room: Arc<Semaphore>,
    /// Shortest time between sending an append of old entries and its acknowledgement, since the last append that was
    /// sent alone.
    shortest: Cell<Option<Duration>>,
    /// Time at which an append of old entries was last sent alone; at first, the time at which the stream began.
    measured_at: Cell<Instant>,
}

impl Default for Pipeline {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_PIPELINED_BYTES));
        Self { room, shortest: Cell::new(None), measured_at: Cell::new(Instant::now()) }
    }
}

impl Pipeline {
    /// Reserves bytes in flight for an append with entries of `bytes` bytes, until the permit is dropped. Waits while
    /// too many bytes are in flight. Before a large append, lets other tasks of the consensus thread run. Otherwise the
    /// stream of appends would use its whole limit before consensus continues on that thread.
    pub(crate) async fn room_for(&self, bytes: usize, age: EntryAge) -> OwnedSemaphorePermit {
        if bytes >= YIELD_FROM_BYTES {
            tokio::task::yield_now().await;
        }
        self.room_at(bytes, age, Instant::now()).await
    }

    async fn room_at(&self, bytes: usize, age: EntryAge, now: Instant) -> OwnedSemaphorePermit {
        let measured_at = self.measured_at.get();
        let is_alone = age == EntryAge::Old && now.saturating_duration_since(measured_at) >= MEASURE_EVERY;
        let wanted = if is_alone { MAX_PIPELINED_BYTES } else { self.charge(bytes, age) };
        let room = Arc::clone(&self.room).acquire_many_owned(wanted as u32).await;
        if is_alone {
            self.measured_at.set(now);
            self.shortest.set(None);
        }
        room.expect("the semaphore is never closed")
    }

    /// Returns the number of permits for log entries of `bytes` bytes. The semaphore has one permit for each byte of
    /// new entries; old entries need more.
    fn charge(&self, bytes: usize, age: EntryAge) -> usize {
        let charge = match age {
            EntryAge::New => bytes,
            EntryAge::Old => bytes.saturating_mul(MAX_PIPELINED_BYTES) / self.old_window(),
        };
        charge.min(MAX_PIPELINED_BYTES)
    }

    /// Maximum bytes of old log entries in flight at present, according to the measured round trip.
    fn old_window(&self) -> usize {
        let micros = self.shortest.get().map_or(0, |shortest| shortest.as_micros() as usize);
        OLD_WINDOW_BYTES.saturating_add(micros.saturating_mul(OLD_BYTES_PER_MICRO)).min(MAX_PIPELINED_BYTES)
    }

    /// Records the time between sending an append of old entries and its acknowledgement.
    pub(crate) fn acknowledged(&self, took: Duration) {
        self.shortest.set(Some(self.shortest.get().map_or(took, |shortest| shortest.min(took))));
    }
}

/// Returns true if an append shows that its receiver is far behind: the leader has committed many entries after the
/// append's last one.
pub(crate) fn is_far_behind(request: &AppendEntriesRequest<Types>) -> bool {
    let (last, committed) = (request.entries.last(), request.leader_commit.as_ref());
    let lacks = last.zip(committed).map(|(last, committed)| committed.index.saturating_sub(last.log_id.index));
    lacks >= Some(FAR_BEHIND_ENTRIES)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use openraft::EntryPayload;
    use thalweg_raft::{RaftEntry, RaftLogId};
    use thalweg_state::membership::LogId;
    use thalweg_types::{Index, NodeId, Term};

    use super::*;
    use crate::convert::raft_vote;

    const PIECE: usize = 32 * 1024;

    /// Fills the pipeline with appends of 32 KiB, and returns the number of bytes in flight at which the next one has
    /// to wait.
    fn fill(pipeline: &Pipeline, age: EntryAge) -> usize {
        let permits = std::iter::from_fn(|| pipeline.room_for(PIECE, age).now_or_never());
        permits.collect::<Vec<_>>().len() * PIECE
    }

    #[test]
    fn fewer_bytes_of_old_entries_are_on_their_way_unless_the_network_is_slow() {
        let pipeline = Pipeline::default();
        assert_eq!(fill(&pipeline, EntryAge::New), MAX_PIPELINED_BYTES);
        assert_eq!(fill(&pipeline, EntryAge::Old), OLD_WINDOW_BYTES);
        pipeline.acknowledged(Duration::from_millis(60));
        assert_eq!(fill(&pipeline, EntryAge::Old), MAX_PIPELINED_BYTES);
        pipeline.acknowledged(Duration::from_millis(8));
        let window = fill(&pipeline, EntryAge::Old);
        assert!((2 * OLD_WINDOW_BYTES - 4 * PIECE..=2 * OLD_WINDOW_BYTES).contains(&window), "{window}");
        pipeline.acknowledged(Duration::from_millis(9));
        assert_eq!(fill(&pipeline, EntryAge::Old), window, "the shortest time counts");
    }

    #[test]
    fn the_time_of_the_network_is_measured_again_by_an_append_that_travels_alone() {
        let pipeline = Pipeline::default();
        pipeline.acknowledged(Duration::from_millis(1));
        let near = fill(&pipeline, EntryAge::Old);
        let later = pipeline.measured_at.get() + MEASURE_EVERY;
        let room_at = |age, now| pipeline.room_at(PIECE, age, now).now_or_never();
        let before = room_at(EntryAge::New, later).expect("only old entries measure");
        assert!(room_at(EntryAge::Old, later).is_none(), "another append is on its way");
        drop(before);
        let alone = room_at(EntryAge::Old, later).expect("nothing is on its way");
        assert!(room_at(EntryAge::New, later).is_none(), "it travels alone");
        drop(alone);
        pipeline.acknowledged(Duration::from_millis(60));
        let far = fill(&pipeline, EntryAge::Old);
        assert!(far > near && far == MAX_PIPELINED_BYTES, "{near}, {far}");
    }

    #[test]
    fn a_follower_is_far_behind_if_many_later_entries_are_committed() {
        let id = |index| -> RaftLogId { thalweg_raft::raft_log_id(LogId { term: Term(1), index: Index(index) }) };
        let vote = thalweg_wire::peer::PeerVote { term: Term(1), node: NodeId(1), committed: true };
        let append = |committed: Option<u64>, entry: Option<u64>| -> AppendEntriesRequest<Types> {
            let entries = entry.map(|at| RaftEntry { log_id: id(at), payload: EntryPayload::Blank });
            AppendEntriesRequest {
                vote: raft_vote(&vote),
                prev_log_id: Some(id(9)),
                leader_commit: committed.map(id),
                entries: entries.into_iter().collect(),
            }
        };
        assert!(is_far_behind(&append(Some(10 + FAR_BEHIND_ENTRIES), Some(10))));
        assert!(!is_far_behind(&append(Some(9 + FAR_BEHIND_ENTRIES), Some(10))));
        assert!(!is_far_behind(&append(None, Some(10))), "nothing is committed");
        assert!(!is_far_behind(&append(Some(1000), None)), "a heartbeat");
    }

    #[test]
    fn an_entry_above_the_bound_travels_alone() {
        let pipeline = Pipeline::default();
        let large = [(MAX_PIPELINED_BYTES + 1, EntryAge::New), (OLD_WINDOW_BYTES + 1, EntryAge::Old)];
        for (bytes, age) in large {
            assert_eq!(pipeline.charge(bytes, age), MAX_PIPELINED_BYTES);
        }
    }
}
