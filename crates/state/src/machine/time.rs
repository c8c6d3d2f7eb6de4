//! The time of reads, and reads about time.
//!
//! Owns: where reads get the time from, whether they need it at all, and what readers can learn of deadlines
//! and leases. Does not own the time of entries, which comes with them.
//!
//! A space without deadlines asks nobody for the time: neither its reads nor whoever stamps its entries pays
//! for it. The flag that says so is set before the first deadline can be seen, and stays.

use std::{
    fmt,
    ops::{Bound, ControlFlow},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use thalweg_store::{Direction, View};
use thalweg_types::{KeyspaceId, LeaseId, SpaceTime};

use crate::{
    expiry::{Ending, Expiry, Lease, attached_prefix, attached_rows, lease_of_row, lease_row},
    keys::{self, KeyRange, TAG_DEADLINE, TAG_LEASE},
    keyspaces::{Snapshot, Stored, decode_owned},
    machine::{Machine, MachineError, read},
};

/// Where reads get the space's time from.
pub trait ReadTime: Send + Sync + fmt::Debug {
    /// The time now, for whoever shows only what has not ended by it.
    fn now(&self) -> SpaceTime;
    /// The time now, for whoever hides what has ended by it: no entry that is not applied yet may have, or
    /// get, a lower one.
    fn read_time(&self) -> SpaceTime;
}

/// What the machine knows of time beside its entries.
#[derive(Debug, Default)]
pub(crate) struct TimeOfReads {
    has_deadlines: AtomicBool,
    source: OnceLock<Arc<dyn ReadTime>>,
}

impl TimeOfReads {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let mut found = false;
        let range = KeyRange::with_prefix(&[TAG_DEADLINE]);
        view.scan(range.lower(), range.upper(), Direction::Forward, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
        Ok(Self { has_deadlines: AtomicBool::new(found), source: OnceLock::new() })
    }
}

/// How many leases there are, ended ones that wait to be removed included.
pub(crate) fn count_leases(view: &dyn View) -> Result<usize, MachineError> {
    let mut count = 0;
    crate::machine::load_rows(view, &KeyRange::with_prefix(&[TAG_LEASE]), |_, _| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// A lease as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: LeaseId,
    /// What it is.
    pub lease: Lease,
}

/// Where a list of a lease's keys goes on: after this key of this keyspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachedKey {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The key.
    pub key: Vec<u8>,
}

impl Machine {
    /// Says where reads get the time from; before that, it is the last entry's. Once; later calls change
    /// nothing.
    pub fn read_by(&self, source: Arc<dyn ReadTime>) {
        let _ = self.time_of_reads.source.set(source);
    }

    /// Whether anything ends, or has since the machine was opened: only then do reads ask for the time.
    #[must_use]
    #[inline]
    pub fn has_deadlines(&self) -> bool {
        self.time_of_reads.has_deadlines.load(Ordering::Acquire)
    }

    /// Before the first row that says when something ends becomes visible.
    pub(crate) fn note_deadline(&self) {
        if !self.has_deadlines() {
            self.time_of_reads.has_deadlines.store(true, Ordering::Release);
        }
    }

    fn read_time(&self) -> SpaceTime {
        self.time_of_reads.source.get().map_or_else(|| self.applied().time, |source| source.read_time())
    }

    /// The newest consistent view, of this moment.
    ///
    /// The time is taken before the view. So every entry stamped below it is in the view; and what the view
    /// shows beyond, it shows as of its own last entry.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let time = if self.has_deadlines() { self.read_time() } else { SpaceTime(0) };
        // A clear may be settled between looking at the table and taking the view, or the other way round:
        // only a table that was there all the while goes with the view.
        let mut clears = read(&self.published.clears).clone();
        loop {
            let view = self.backend.view();
            let after = read(&self.published.clears).clone();
            if Arc::ptr_eq(&clears, &after) {
                let time = time.max(view.applied().time);
                return Snapshot::new(view, clears, time);
            }
            clears = after;
        }
    }

    /// The newest value of a key.
    #[inline]
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        // Asked before the backend is: what a clear that comes later hides was still there when we began.
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.snapshot().get(keyspace, key);
        }
        match self.row(keyspace, key)? {
            Some(stored) if stored.expiry != Expiry::NEVER => self.get_ending(keyspace, key, stored),
            stored => Ok(stored),
        }
    }

    #[inline(never)]
    fn get_ending(&self, keyspace: KeyspaceId, key: &[u8], stored: Stored) -> Result<Option<Stored>, MachineError> {
        let now = || self.time_of_reads.source.get().map_or_else(|| self.applied().time, |source| source.now());
        // It was there when it was read, if it still is now.
        if stored.expiry.lease.is_none() && stored.expiry.deadline.is_none_or(|deadline| deadline > now()) {
            return Ok(Some(stored));
        }
        self.snapshot().get(keyspace, key)
    }

    /// The newest value of a key, whether it has ended or not: for whoever looks after the bytes. Nobody may
    /// be shown it.
    pub fn stored(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.snapshot().stored(keyspace, key);
        }
        self.row(keyspace, key)
    }

    #[inline]
    fn row(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        keys::with_data_key(keyspace, key, |full| decode_owned(full, self.backend.get(full)?))
    }
}

impl Snapshot {
    /// A lease that has not ended at the view's time.
    pub fn lease(&self, id: LeaseId) -> Result<Option<Lease>, MachineError> {
        Ok(Lease::in_view(self.view(), id)?.filter(|lease| lease.is_live(self.time())))
    }

    /// When what ends so ends by the view: at the earlier of its deadline and its lease's. `None`: never.
    pub fn end_of(&self, expiry: &Expiry) -> Result<Option<SpaceTime>, MachineError> {
        let of_lease = match expiry.lease {
            Some(id) => Some(Lease::in_view(self.view(), id)?.map_or(SpaceTime(0), |lease| lease.deadline)),
            None => None,
        };
        Ok(expiry.deadline.into_iter().chain(of_lease).min())
    }

    /// The leases that have not ended, by id, those up to `after` left out: at most `limit`.
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
                leases.push(LeaseInfo { id, lease });
            }
            if leases.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failure.map_or(Ok(leases), Err)
    }

    /// The keys attached to a lease, those up to `after` left out: at most `limit`. None of one that has ended.
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
                let Some(Ending::Attached { keyspace, key, .. }) = Ending::of_row(row) else {
                    return Err(MachineError::corrupt("attachment", row, "key of a wrong length"));
                };
                // A blind put or delete leaves the row behind.
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
