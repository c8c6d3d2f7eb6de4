//! Queries about leases and deadlines, and the configuration of the clock that reads use.
//!
//! Owns: the clock of reads, the flag that is set once reads need it, and the queries about deadlines and leases. Does
//! not own: the time of entries, which comes with them.
//!
//! A database without deadlines never queries a clock, neither for its reads nor for the times of its log entries. The
//! flag that a clock is needed is set before the first deadline becomes visible, and stays set.

use std::{
    ops::{Bound, ControlFlow},
    sync::{Arc, atomic::Ordering},
};

use thalweg_store::{Direction, View};
use thalweg_types::{KeyspaceId, LeaseId, SpaceTime, info::LeaseInfo};

use crate::{
    error::MachineError,
    expiry::{
        rows::{DeadlineSubject, Expiry, Lease, attached_prefix, attached_rows, lease_of_row, lease_row},
        time_of_reads::ReadTime,
    },
    keys::{KeyRange, TAG_LEASE},
    keyspaces::read_view::ReadView,
    machine::state_machine::Machine,
};

/// Returns the number of leases, including ended leases that are not removed from the state yet.
pub(crate) fn count_leases(view: &dyn View) -> Result<usize, MachineError> {
    let mut count = 0;
    crate::rows::load_rows(view, &KeyRange::with_prefix(&[TAG_LEASE]), |_, _| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// A key that is attached to a lease. Also a position in the list of a lease's keys: the next page begins after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachedKey {
    /// Keyspace of the key.
    pub keyspace: KeyspaceId,
    /// Key as the user gave it.
    pub key: Vec<u8>,
}

impl Machine {
    /// Sets the clock that decides, for reads, which values have ended. Without a clock, reads use the time of the last
    /// log entry. Only the first call has an effect.
    pub fn set_read_clock(&self, source: Arc<dyn ReadTime>) {
        let _ = self.time_of_reads.source.set(source);
    }

    /// Returns true if a key or lease has a deadline, or had one since the machine was opened. Only then reads need the
    /// clock.
    #[must_use]
    #[inline]
    pub fn has_deadlines(&self) -> bool {
        self.time_of_reads.has_deadlines.load(Ordering::Acquire)
    }

    /// Sets the flag that tells reads to use a clock. Called before the first row of a deadline becomes visible.
    pub(crate) fn note_deadline(&self) {
        if !self.has_deadlines() {
            self.time_of_reads.has_deadlines.store(true, Ordering::Release);
        }
    }

    pub(crate) fn read_time(&self) -> SpaceTime {
        self.time_of_reads.source.get().map_or_else(|| self.applied().time, |source| source.read_time())
    }
}

impl Machine {
    /// Returns the number of leases, including ended ones whose keys are not all removed yet.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.published.leases.load(Ordering::Relaxed)
    }
}

impl ReadView {
    /// Returns a lease; `None` if it does not exist or has ended at the view's time.
    pub fn lease(&self, id: LeaseId) -> Result<Option<LeaseInfo>, MachineError> {
        let lease = Lease::in_view(self.view(), id)?.filter(|lease| lease.is_live(self.time()));
        Ok(lease.map(|lease| lease.describe(id, self.time())))
    }

    /// Returns the time at which a value with this expiry ends: the earlier of its deadline and its lease's
    /// deadline. `None` means never.
    pub fn end_of(&self, expiry: &Expiry) -> Result<Option<SpaceTime>, MachineError> {
        let of_lease = match expiry.lease {
            Some(id) => Some(Lease::in_view(self.view(), id)?.map_or(SpaceTime(0), |lease| lease.deadline)),
            None => None,
        };
        Ok(expiry.deadline.into_iter().chain(of_lease).min())
    }

    /// Returns at most `limit` leases that have not ended at the view's time, in the order of ids, starting after the
    /// id `after`.
    pub fn leases(&self, after: Option<LeaseId>, limit: usize) -> Result<Vec<LeaseInfo>, MachineError> {
        let mut range = KeyRange::with_prefix(&[TAG_LEASE]);
        if let Some(after) = after {
            range.set_lower(Bound::Excluded(lease_row(after).to_vec()));
        }
        let mut leases = Vec::new();
        if limit == 0 {
            return Ok(leases);
        }
        let mut failure = None;
        self.view().scan(range.lower(), range.upper(), Direction::Forward, &mut |key, row| {
            let (Some(id), Ok(lease)) = (lease_of_row(key), Lease::decode(row)) else {
                failure = Some(MachineError::corrupt("lease", key, "key or row of a wrong length"));
                return ControlFlow::Break(());
            };
            if lease.is_live(self.time()) {
                leases.push(lease.describe(id, self.time()));
            }
            if leases.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failure.map_or(Ok(leases), Err)
    }

    /// Returns at most `limit` keys attached to a lease, starting after the key `after`. An ended lease has no keys.
    pub fn lease_keys(
        &self,
        id: LeaseId,
        after: Option<&AttachedKey>,
        limit: usize,
    ) -> Result<Vec<AttachedKey>, MachineError> {
        let mut found = Vec::new();
        let mut range = attached_rows(id);
        if let Some(AttachedKey { keyspace, key }) = after {
            range.set_lower(Bound::Excluded([&attached_prefix(id, *keyspace), &key[..]].concat()));
        }
        while found.len() < limit && self.lease(id)?.is_some() {
            let rows = self.attached_page(&range, limit - found.len())?;
            let Some(last) = rows.last() else { break };
            range.set_lower(Bound::Excluded(last.clone()));
            for row in &rows {
                let Some(DeadlineSubject::Attached { keyspace, key, .. }) = DeadlineSubject::of_row(row) else {
                    return Err(MachineError::corrupt("attachment", row, "key of a wrong length"));
                };
                // A blind put or delete leaves the attachment row behind.
                if self.get(keyspace, key)?.is_some_and(|stored| stored.expiry.lease == Some(id)) {
                    found.push(AttachedKey { keyspace, key: key.to_vec() });
                }
            }
        }
        Ok(found)
    }

    fn attached_page(&self, range: &KeyRange, limit: usize) -> Result<Vec<Vec<u8>>, MachineError> {
        const PAGE: usize = 1000;
        let mut rows = Vec::new();
        self.view().scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
            rows.push(key.to_vec());
            if rows.len() == limit.min(PAGE) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(rows)
    }
}
