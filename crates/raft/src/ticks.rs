//! Work that consensus does ten times a second.
//!
//! Owns: the deadlines of queued commands, the end of a leadership that no majority supports, purges, the watchdog over
//! the fsyncs, and the check if the log has failed. Does not own: the deadlines of batches (`proposals`), and the
//! conclusions from the members' reports (`weighing`).
//!
//! **Failed log.** An idle leader writes nothing. So openraft does not notice that a background sync of the log has
//! failed, and its heartbeats go on. In this case the tick ends consensus on this node, and the followers elect another
//! leader before the next write. Otherwise that write would end with an unknown outcome.
//!
//! **Watchdog.** A leader whose fsyncs hang still commits if its followers are a majority, but its unsynced entries
//! accumulate in memory. When its oldest unsynced write is older than a second, or 64 MiB are unsynced, it transfers
//! its leadership to a voter that has all entries. If it still leads after [`MAX_TRANSFER`], it stops its heartbeats
//! and takes no proposals, so that the followers elect another leader. It also repeats the transfer from time to time.
//! It leads again when its fsyncs return.

use std::time::Duration;

use openraft::{
    async_runtime::{AsyncRuntime, WatchReceiver},
    type_config::TypeConfigExt,
};
use thalweg_log::AppendError;
use thalweg_types::Index;

use crate::{consensus::Consensus, types::Types};

/// Interval at which consensus performs its periodic work.
const TICK: Duration = Duration::from_millis(100);
/// Time after which a leader whose fsyncs hang stops its heartbeats, if a transfer of its leadership has not succeeded.
const MAX_TRANSFER: Duration = Duration::from_millis(600);

/// State of the watchdog, which gives up the leadership if this node's fsyncs hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Healthy,
    /// The fsyncs hang, and a transfer of leadership began this number of ticks ago.
    Transferring(u32),
    /// The leader's heartbeats are off, and its last transfer of leadership began this number of ticks ago.
    Silent(u32),
}

impl<Rt: AsyncRuntime> Consensus<Rt> {
    pub(crate) async fn run_ticks(self) {
        let mut watch = Watch::Healthy;
        while !self.0.is_stopped.get() {
            Types::<Rt>::sleep(TICK).await;
            if let Some(reason) = self.0.member.log().failure() {
                return self.end_with(&AppendError::Failed { reason }).await;
            }
            self.0.member.expire_queued();
            self.update_leadership();
            self.weigh_facts().await;
            self.purge().await;
            watch = self.watch(watch).await;
        }
    }

    /// Purges the entries that the node's maintenance has released. openraft purges only entries that a snapshot
    /// contains, so the function first makes the state itself openraft's snapshot.
    async fn purge(&self) {
        let wanted = self.0.member.purge_wanted();
        if wanted == Index::ZERO {
            return;
        }
        let (purged, snapshot, applied) = {
            let metrics = self.0.raft.data_metrics();
            let metrics = metrics.borrow_watched();
            let index = |id: &Option<crate::types::RaftLogId>| id.as_ref().map(|id| Index(id.index));
            (index(&metrics.purged), index(&metrics.snapshot), index(&metrics.last_applied))
        };
        if purged >= Some(wanted) {
            // The record of the purge may be the last one of the log, so it is applied here. The member keeps an error.
            let _ = self.0.member.apply_local();
        } else if applied >= Some(wanted) {
            let trigger = self.0.raft.trigger();
            // An error means that consensus has ended.
            let _ = if snapshot >= Some(wanted) { trigger.purge_log(wanted.0).await } else { trigger.snapshot().await };
        }
    }

    /// Returns true if this node's vote makes it the leader, even if it takes no proposals.
    fn holds_leadership(&self) -> bool {
        let vote = self.vote_of_this_node();
        vote.committed && vote.leader_id.voted_for == self.0.member.node().0
    }

    async fn watch(&self, watch: Watch) -> Watch {
        let unsynced = self.0.queue.unsynced();
        let options = &self.0.options;
        let hangs = unsynced.age > options.max_sync_age || unsynced.bytes > options.max_unsynced_bytes;
        match watch {
            Watch::Silent(_) if !hangs => {
                self.0.raft.runtime_config().heartbeat(true);
                self.0.is_silent.set(false);
                Watch::Healthy
            }
            _ if !hangs => Watch::Healthy,
            Watch::Silent(ticks) if TICK * ticks < MAX_TRANSFER || !self.holds_leadership() => {
                Watch::Silent(ticks.saturating_add(1))
            }
            Watch::Silent(_) => {
                // This attempt fails if no voter can take over. The next attempt may succeed.
                let _ = self.begin_silent_transfer().await;
                Watch::Silent(0)
            }
            // A leader that no majority has answered for a while takes no proposals, but still sends heartbeats.
            _ if !self.holds_leadership() => Watch::Healthy,
            Watch::Healthy => {
                // This attempt fails if no voter can take over. Then the leader stops its heartbeats.
                let _ = self.begin_transfer(None).await;
                Watch::Transferring(0)
            }
            Watch::Transferring(ticks) if TICK * ticks < MAX_TRANSFER => Watch::Transferring(ticks + 1),
            Watch::Transferring(_) => {
                self.0.raft.runtime_config().heartbeat(false);
                self.0.is_silent.set(true);
                Watch::Silent(0)
            }
        }
    }
}
