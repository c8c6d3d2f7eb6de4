//! Verdict on a node that stops by itself, and the recovery after it.
//!
//! Owns: the reasons for which a node may stop, and the violation if none of them explains a stop. Does not own: the
//! restart after a failed fsync (`failing_syncs`), and the replacement of a node (`replace`).

use super::{Cluster, SWITCH_FILE};
use crate::{
    faults::FaultKind,
    runtime::{ProcessId, record},
};

/// Recovery of a node after a stop that a fault explains.
enum Recovery {
    /// The node restarts.
    Restart,
    /// The node restarts, perhaps after a power loss, because one of its fsyncs has failed.
    RestartAfterFailedSync,
    /// Another node replaces it.
    Replacement,
}

impl Cluster {
    /// Records that a node cannot continue. Reports a violation unless one of five reasons explains it: the node's
    /// files are damaged, its power is off, an fsync has failed, its switch to the state of a snapshot has failed, or
    /// redb has found the disk full. Restarts the node after the last three.
    pub(crate) fn node_failed(&self, id: ProcessId, reason: &str) {
        match self.judge_stop(id, reason) {
            None => {}
            Some(Recovery::Restart) => self.restart_soon(id),
            Some(Recovery::RestartAfterFailedSync) => self.restart_after_failed_sync(id, reason),
            Some(Recovery::Replacement) => {
                self.crash(id, FaultKind::Kill);
                self.replace_broken(id);
            }
        }
    }

    /// Reports a violation if nothing explains the stop of a node. Returns the recovery that must follow; `None` if the
    /// node stays as it is.
    ///
    /// Starts no node. The unit test calls this function alone, so its program does not compile the generic code of
    /// consensus, which the library contains already.
    fn judge_stop(&self, id: ProcessId, reason: &str) -> Option<Recovery> {
        let parts = self.parts(id);
        if parts.is_power_cut.get() {
            return None;
        }
        if reason.contains(SWITCH_FILE) && parts.mend_switch() {
            record(id, format!("stops, because it could not switch to a snapshot: {reason}"));
            return Some(Recovery::Restart);
        }
        if parts.has_failed_sync() {
            return Some(Recovery::RestartAfterFailedSync);
        }
        if parts.has_met_full_disk(reason) {
            record(id, format!("stops, because redb has found the disk full: {reason}"));
            return Some(Recovery::Restart);
        }
        if !parts.is_flipped.get() {
            self.0.truth.violation(id, format!("node {id} stops by itself: {reason}"));
            return None;
        }
        if !self.0.broken.borrow_mut().insert(id) {
            return None;
        }
        record(id, format!("found damage: {reason}"));
        Some(Recovery::Replacement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backends::NodeOptions, runtime::simulate, settings::Settings};
    use thalweg_engine::BackendKind;

    #[test]
    fn a_failing_switch_excuses_no_stop_for_another_reason() {
        let stopped = simulate(1, async {
            let cluster = Cluster::new(Settings::default());
            let parts = cluster.parts(1);
            parts.fail_switch(1);
            let recovery = cluster.judge_stop(1, "an assertion does not hold");
            (parts.fails_switch.get(), recovery.is_some(), cluster.truth().violations().len())
        });
        assert_eq!(stopped.output, Ok((true, false, 1)));
    }

    #[test]
    fn only_redb_may_stop_after_a_full_disk() {
        let stopped = simulate(1, async {
            let cluster = Cluster::new(Settings::default());
            let parts = cluster.parts(1);
            let judge = |backend, is_full| {
                parts.options.set(NodeOptions::with_backend(backend));
                if is_full {
                    parts.fill_disk(0);
                }
                cluster.judge_stop(1, "the state rejects writes after an earlier failure: I/O error").is_some()
            };
            let recovered = [(BackendKind::Redb, false), (BackendKind::Memory, true), (BackendKind::Redb, true)]
                .map(|(backend, is_full)| judge(backend, is_full));
            (recovered, cluster.truth().violations().len())
        });
        assert_eq!(stopped.output, Ok(([false, false, true], 2)));
    }
}
