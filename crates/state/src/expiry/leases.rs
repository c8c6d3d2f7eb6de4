//! Commands that grant, keep alive and revoke leases, and the rows of keys attached to leases.
//!
//! Owns: leases as changed by the commands of an entry. Does not own: the removal of ended keys and leases from the
//! state (see `expire`).
//!
//! Invariants:
//! * A lease's row is removed only when no value in the map is attached to it. So a lease granted later with the
//!   same id never has keys of the earlier one.
//! * The id that the state machine chooses for a lease depends only on earlier commands, not on their grouping into
//!   entries.

use std::{sync::atomic::Ordering, time::Duration};

use thalweg_types::{
    KeyspaceId, LeaseId, SpaceTime,
    command::Outcome,
    limits::{MAX_LEASE_KEYS, MAX_LEASES},
};

use crate::{
    error::MachineError,
    expiry::{
        expire,
        rows::{Lease, attached_prefix, lease_deadline_row, lease_row},
    },
    machine::applying::Applying,
    refused::Refused,
};

impl Applying<'_> {
    /// Returns a lease as earlier commands of the same log entry have left it, even if the lease has ended.
    pub(crate) fn lease(&self, id: LeaseId) -> Result<Option<Lease>, MachineError> {
        Lease::from_row(id, self.get(&lease_row(id)))
    }

    /// Returns an unused lease id: the next one of a replicated counter, skipping ids that clients have chosen.
    fn free_lease_id(&mut self) -> Result<LeaseId, MachineError> {
        loop {
            let id = self.applier.meta.next_lease;
            self.applier.meta.next_lease = LeaseId(id.0.wrapping_add(1).max(1));
            if self.lease(id)?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Returns a lease if it has not ended at the log entry's time.
    pub(crate) fn live_lease(&self, id: LeaseId) -> Result<Option<Lease>, MachineError> {
        Ok(self.lease(id)?.filter(|lease| lease.is_live(self.applied.time)))
    }

    /// Replaces or removes the row of a lease, and replaces the index row of its deadline if that differs from the one
    /// in `before`.
    fn set_lease(&mut self, id: LeaseId, before: Option<&Lease>, after: Option<Lease>) {
        let batch = &mut self.applier.staged;
        let (old, new) = (before.map(|lease| lease.deadline), after.map(|lease| lease.deadline));
        if old != new {
            if let Some(deadline) = old {
                batch.delete(&[&lease_deadline_row(deadline, id)]);
            }
            if let Some(deadline) = new {
                batch.put(&[&lease_deadline_row(deadline, id)], &[]);
                self.machine.note_deadline();
            }
        }
        match after {
            Some(lease) => batch.put(&[&lease_row(id)], &[&lease.encode()]),
            None => batch.delete(&[&lease_row(id)]),
        }
    }

    /// Removes a lease. The caller has already removed or detached all keys of the lease.
    pub(crate) fn remove_lease(&mut self, id: LeaseId, lease: &Lease) {
        self.set_lease(id, Some(lease), None);
        self.applier.lease_count -= 1;
        self.show_lease_count();
    }

    /// Publishes the number of leases to readers. They use it only for estimates; it may include unpublished changes.
    fn show_lease_count(&self) {
        self.machine.published.leases.store(self.applier.lease_count, Ordering::Relaxed);
    }

    /// Attaches a key to a lease, which the caller has checked to be live.
    pub(crate) fn attach(&mut self, id: LeaseId, keyspace: KeyspaceId, key: &[u8]) -> Result<(), MachineError> {
        self.set_attached(id, keyspace, key, true)
    }

    /// Detaches a key from a lease, if the key is attached to it.
    pub(crate) fn detach(&mut self, id: LeaseId, keyspace: KeyspaceId, key: &[u8]) -> Result<(), MachineError> {
        self.set_attached(id, keyspace, key, false)
    }

    fn set_attached(
        &mut self,
        id: LeaseId,
        keyspace: KeyspaceId,
        key: &[u8],
        wanted: bool,
    ) -> Result<(), MachineError> {
        let prefix = attached_prefix(id, keyspace);
        if self.has_row(&[&prefix, key].concat())? == wanted {
            return Ok(());
        }
        match wanted {
            true => self.applier.staged.put(&[&prefix, key], &[]),
            false => self.applier.staged.delete(&[&prefix, key]),
        }
        if let Some(lease) = self.lease(id)? {
            let keys = if wanted { lease.keys.saturating_add(1) } else { lease.keys.saturating_sub(1) };
            self.set_lease(id, Some(&lease), Some(Lease { keys, ..lease }));
        }
        Ok(())
    }
}

/// Returns an error if a key cannot be attached to a lease, because the lease has ended or has the maximum number of
/// other keys. The writes of one commit can exceed the maximum, because attached keys are counted only when the writes
/// are applied.
pub(crate) fn check_attachable(
    applying: &Applying<'_>,
    id: LeaseId,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<(), Refused> {
    let Some(lease) = applying.live_lease(id)? else { return Err(Refused::Outcome(Outcome::NoSuchLease(id))) };
    let prefix = attached_prefix(id, keyspace);
    if lease.keys >= MAX_LEASE_KEYS && !applying.has_row(&[&prefix, key].concat())? {
        let what = "keys of the lease";
        return Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_LEASE_KEYS as usize }));
    }
    Ok(())
}

/// Grants a lease with the given id, or with an unused id if the given one is zero.
pub(crate) fn grant(applying: &mut Applying<'_>, id: LeaseId, ttl: Duration) -> Result<Outcome, Refused> {
    let former = if id == LeaseId::ZERO { None } else { applying.lease(id)? };
    if former.is_none() && applying.applier.lease_count >= MAX_LEASES {
        return Ok(Outcome::TooMany { what: "leases", limit: MAX_LEASES });
    }
    let id = if id == LeaseId::ZERO { applying.free_lease_id()? } else { id };
    // An ended lease is replaced immediately, unless it has keys that are not removed yet.
    if former.is_some_and(|lease| lease.keys > 0 || lease.is_live(applying.applied.time)) {
        return Ok(Outcome::LeaseExists(id));
    }
    let deadline = applying.applied.time.plus(ttl);
    applying.set_lease(id, former.as_ref(), Some(Lease { ttl, deadline, keys: 0 }));
    applying.applier.lease_count += usize::from(former.is_none());
    applying.show_lease_count();
    Ok(Outcome::Lease { id, ttl, deadline })
}

/// Keeps a lease alive: moves its deadline to a full TTL after the log entry's time.
pub(crate) fn keep(applying: &mut Applying<'_>, id: LeaseId) -> Result<Outcome, Refused> {
    let Some(lease) = applying.live_lease(id)? else { return Ok(Outcome::NoSuchLease(id)) };
    let deadline = applying.applied.time.plus(lease.ttl).max(lease.deadline);
    applying.set_lease(id, Some(&lease), Some(Lease { deadline, ..lease }));
    Ok(Outcome::Lease { id, ttl: lease.ttl, deadline })
}

/// Ends a lease now. Its keys are hidden from this command on, and as many as one command may remove are removed
/// immediately.
pub(crate) fn revoke(applying: &mut Applying<'_>, id: LeaseId) -> Result<Outcome, Refused> {
    let Some(lease) = applying.live_lease(id)? else { return Ok(Outcome::NoSuchLease(id)) };
    let ended = Lease { deadline: applying.applied.time, ..lease };
    applying.set_lease(id, Some(&lease), Some(ended));
    let revision = applying.use_revision();
    applying.record_changes();
    expire::end_lease(applying, id, revision)?;
    Ok(Outcome::Committed { revision, appends: Vec::new() })
}

/// Returns the deadline of a value that is put or touched at `time` with `ttl`.
pub(crate) fn deadline_after(time: SpaceTime, ttl: Duration) -> SpaceTime {
    // One below the number that represents no deadline.
    time.plus(ttl).min(SpaceTime(u64::MAX - 1))
}
