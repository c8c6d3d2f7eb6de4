//! Keeps results by which replicas are compared: digests of the state, and running hashes over the effects of entries.
//!
//! Owns: the last results, and the ids of digest commands (log commands that request a digest). Does not own: the
//! computation of digests or hashes.
//!
//! A running hash covers every entry, so it shows immediately that two replicas have applied an entry differently. Only
//! a digest of the whole state also shows damage to rows that were written long ago.
//!
//! Installing another node's snapshot drops the results of the former state. Otherwise, if that state was wrong, the
//! node would stop serving because of a state that it no longer has.
//!
//! Bounds: [`MAX_REPORTS`] digests, [`MAX_HASHES`] running hashes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
};

use thalweg_state::digest::StateDigest;
use thalweg_types::{Index, Lsn};

const MAX_REPORTS: usize = 4;
const MAX_HASHES: usize = 64;
/// Interval, in log entries, at which running hashes are kept: after each entry whose index is a multiple of this
/// number. So all replicas keep the hashes of the same entries.
pub(crate) const HASH_INTERVAL: u64 = 1024;

/// The last state digests of a database, and the id for the next digest command.
#[derive(Debug)]
pub(crate) struct Digests {
    /// Id of the next digest command. It distinguishes concurrent commands on this node. An id may be used again after
    /// a restart, because opening the database drops the views of the state that earlier digest commands kept.
    pub(crate) next_id: AtomicU64,
    /// Computed digests in the order of their log entries; the last one is the newest.
    reports: Mutex<VecDeque<Arc<DigestReport>>>,
    /// True while a digest is computed that another member has requested.
    pub(crate) is_computing: AtomicBool,
}

impl Digests {
    pub(crate) fn new(applied: Lsn) -> Self {
        Self { next_id: AtomicU64::new(applied.0), reports: Mutex::default(), is_computing: AtomicBool::new(false) }
    }

    /// Keeps a digest if `is_current` returns true, which means that no snapshot of another node has replaced the
    /// digested state. The check runs under the lock that [`forget`](Self::forget) takes after a replacement.
    pub(crate) fn keep(&self, report: DigestReport, is_current: impl FnOnce() -> bool) -> Arc<DigestReport> {
        let report = Arc::new(report);
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_current() {
            return report;
        }
        // Two digests may be computed concurrently, and their computations may end in any order.
        let at = reports.partition_point(|known| known.state.applied.index <= report.state.applied.index);
        reports.insert(at, Arc::clone(&report));
        if reports.len() > MAX_REPORTS {
            reports.pop_front();
        }
        report
    }

    /// Forgets all digests, because another node's snapshot has replaced the state.
    pub(crate) fn forget(&self) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn last(&self) -> Option<Arc<DigestReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).back().cloned()
    }

    pub(crate) fn at(&self, index: Index) -> Option<Arc<DigestReport>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.iter().rfind(|report| report.state.applied.index == index).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<DigestReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// A digest of the state, with the log position up to which the digested state had applied the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestReport {
    /// Id of the digest command; `None` if the digest was computed without a command.
    pub id: Option<u64>,
    /// Digest, and log position up to which entries are in it. The running hash is `state.applied.running_hash`.
    pub state: StateDigest,
}

/// Running hash: a hash over the effects of all log entries up to one entry. Replicas that have applied the same
/// entries with the same effects have the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashMark {
    /// Index of the last log entry that the hash covers.
    pub index: Index,
    /// Hash over the effects of all log entries up to `index`.
    pub running_hash: u64,
}

/// Running hashes of the last log entries whose index is a multiple of [`HASH_INTERVAL`].
#[derive(Debug, Default)]
pub(crate) struct HashMarks(Mutex<VecDeque<HashMark>>);

impl HashMarks {
    pub(crate) fn add(&self, mark: HashMark) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.back().is_some_and(|last| last.index >= mark.index) {
            // After an install, the state can be behind the last hash.
            marks.clear();
        }
        if marks.len() == MAX_HASHES {
            marks.pop_front();
        }
        marks.push_back(mark);
    }

    /// Forgets all running hashes, because another node's snapshot has replaced the state.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn all(&self) -> Vec<HashMark> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_state::digest::Digest;
    use thalweg_store::Applied;

    use super::*;

    fn mark(index: u64) -> HashMark {
        HashMark { index: Index(index), running_hash: index * 7 }
    }

    #[test]
    fn a_digest_is_kept_only_if_its_state_is_current_and_this_cannot_change_meanwhile() {
        let digests = Digests::new(Lsn(1));
        let state = StateDigest { digest: Digest(7), rows: 1, applied: Applied::default(), kinds: Vec::new() };
        let report = || DigestReport { id: Some(1), state: state.clone() };
        digests.keep(report(), || false);
        assert_eq!(digests.last(), None);
        let kept = digests.keep(report(), || digests.reports.try_lock().is_err());
        assert_eq!(digests.last(), Some(kept));
    }

    #[test]
    fn the_last_hashes_are_kept() {
        let marks = HashMarks::default();
        (1..=MAX_HASHES as u64 + 3).for_each(|index| marks.add(mark(index)));
        let kept = marks.all();
        assert_eq!((kept.len(), kept[0], kept[MAX_HASHES - 1]), (MAX_HASHES, mark(4), mark(MAX_HASHES as u64 + 3)));
        marks.add(mark(2));
        assert_eq!(marks.all(), [mark(2)], "a state that was replaced has other hashes");
    }
}
