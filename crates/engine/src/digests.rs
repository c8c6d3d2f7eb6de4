//! The last computed digest of the state, and the ids of digest commands.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicU64};

use thalweg_state::digest::StateDigest;
use thalweg_types::Lsn;

/// The last state digest of a database, and the id for the next digest command.
#[derive(Debug)]
pub(crate) struct Digests {
    /// Id of the next digest command. It distinguishes concurrent commands on this node; a view that an earlier run of
    /// the node has requested is dropped when the database opens.
    pub(crate) next_id: AtomicU64,
    pub(crate) last: Mutex<Option<Arc<DigestReport>>>,
}

impl Digests {
    pub(crate) fn new(applied: Lsn) -> Self {
        Self { next_id: AtomicU64::new(applied.0), last: Mutex::default() }
    }

    pub(crate) fn keep(&self, report: DigestReport) -> Arc<DigestReport> {
        let report = Arc::new(report);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Two digests may be computed concurrently; the result of the later entry stays.
        if last.as_ref().is_none_or(|last| last.state.applied.index <= report.state.applied.index) {
            *last = Some(Arc::clone(&report));
        }
        report
    }
}

/// A digest of the state, with the log position that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestReport {
    /// Id of the digest command; `None` if the digest was computed without a command.
    pub id: Option<u64>,
    /// Digest of the state and the position of that state. The running hash is `state.applied.running_hash`.
    pub state: StateDigest,
}
