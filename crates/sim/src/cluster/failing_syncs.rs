//! The fault of failing fsyncs, and the restart of a node that stops because of one.
//!
//! Owns: the beginning and the end of the fault, and the restart. In reality, an operator or a supervisor restarts the
//! node. Does not own: the fsyncs that fail (`crate::failing_syncs`).

use std::time::Duration;

use super::Cluster;
use crate::{
    failing_syncs::{FailingSyncs, SYNC_FAILED},
    faults::FaultKind,
    runtime::{OUTSIDE, ProcessId, now, random, record, sleep, spawn},
};

/// Maximum time from the end of the failing fsyncs until a node that stopped because of them runs again, unless another
/// fault affects the node.
const BACK_WITHIN: Duration = Duration::from_secs(1);

impl Cluster {
    /// Begins the fault of failing fsyncs on a node. Draws at random which of its fsyncs fail.
    pub(super) fn fail_syncs(&self, id: ProcessId) {
        let failing = FailingSyncs::random();
        record(id, failing.to_string());
        self.parts(id).fail_syncs(failing);
    }

    /// Ends the failures of a node's fsyncs. In half of the cases the machine then loses power, and the pages that a
    /// failed fsync has not written are lost.
    pub(super) async fn mend_syncs(&self, id: ProcessId) {
        self.parts(id).mend_syncs();
        if !self.ids().contains(&id) {
            return;
        }
        if random(0..2) == 0 {
            record(id, "loses power after its fsyncs were mended");
            self.crash(id, FaultKind::PowerLoss);
            sleep(Duration::from_millis(random(1..300))).await;
            self.restart(id).await;
        }
        let begun = now();
        while self.running(id).is_none() && now() < begun + BACK_WITHIN {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Restarts a node that stops because one of its fsyncs has failed. In half of the cases the machine restarts too.
    pub(super) fn restart_after_failed_sync(&self, id: ProcessId, reason: &str) {
        record(id, format!("{SYNC_FAILED}: {reason}"));
        let kind = if random(0..2) == 0 { FaultKind::PowerLoss } else { FaultKind::Kill };
        self.crash(id, kind);
        let cluster = self.clone();
        spawn(OUTSIDE, async move {
            sleep(Duration::from_millis(random(50..500))).await;
            cluster.restart(id).await;
        });
    }

    /// Records that a process of a node cannot continue. Does nothing if this process has crashed in the meantime.
    /// `crashes` is the number of crashes of the node before this process started, which identifies the process.
    pub(super) fn run_failed(&self, id: ProcessId, crashes: u64, reason: &str) {
        if self.parts(id).crashes.get() == crashes {
            self.node_failed(id, reason);
        }
    }
}
