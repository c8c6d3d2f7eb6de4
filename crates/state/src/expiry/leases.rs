//! Leases: granting, keeping alive, revoking, and which keys are attached to them.
//!
//! Owns leases as the commands of an entry see them. Does not own the removal of what has ended (see `expire`).
//!
//! Invariants:
//! * A lease's row is removed only when no value in the map is attached to it, so a lease of the same id that is granted
//!   later never finds keys of the former one.
//! * An id that the state machine chooses depends on the commands before alone, not on their entries.

use std::time::Duration;

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
    /// A lease as earlier commands left it, ended or not.
    pub(crate) fn lease(&self, id: LeaseId) -> Result<Option<Lease>, MachineError> {
        Lease::from_row(id, self.get(&lease_row(id)))
    }

    /// An id that no lease has: the next one of the space's counter, which passes over ids chosen by clients.
    fn free_lease_id(&mut self) -> Result<LeaseId, MachineError> {
        loop {
            let id = self.applier.meta.next_lease;
            self.applier.meta.next_lease = LeaseId(id.0.wrapping_add(1).max(1));
            if self.lease(id)?.is_none() {
                return Ok(id);
            }
        }
    }

    /// A lease that has not ended at the entry's time.
    pub(crate) fn live_lease(&self, id: LeaseId) -> Result<Option<Lease>, MachineError> {
        Ok(self.lease(id)?.filter(|lease| lease.is_live(self.applied.time)))
    }

    /// Replaces a lease, and its row by time if its deadline is another one than `before`'s.
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

    /// Removes a lease to which nothing is attached.
    pub(crate) fn remove_lease(&mut self, id: LeaseId, lease: &Lease) {
        self.set_lease(id, Some(lease), None);
        self.applier.lease_count -= 1;
    }

    /// Attaches a key to a lease that was checked to live.
    pub(crate) fn attach(&mut self, id: LeaseId, keyspace: KeyspaceId, key: &[u8]) -> Result<(), MachineError> {
        self.set_attached(id, keyspace, key, true)
    }

    /// Removes a key's attachment, if there is one.
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
        let mut is_there = false;
        self.look(&[&prefix, key].concat(), &mut |_| is_there = true)?;
        if is_there == wanted {
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

/// Refuses a put that is to hang on a lease that does not live, or that has its fill of keys. A commit may
/// take a lease past its fill by its own writes: they are counted as they are done.
pub(crate) fn check_attachable(applying: &Applying<'_>, id: LeaseId) -> Result<(), Refused> {
    match applying.live_lease(id)? {
        None => Err(Refused::Outcome(Outcome::NoSuchLease(id))),
        Some(lease) if lease.keys >= MAX_LEASE_KEYS => {
            Err(Refused::Outcome(Outcome::TooMany { what: "keys of the lease", limit: MAX_LEASE_KEYS as usize }))
        }
        Some(_) => Ok(()),
    }
}

/// Grants a lease.
pub(crate) fn grant(applying: &mut Applying<'_>, id: LeaseId, ttl: Duration) -> Result<Outcome, Refused> {
    if applying.applier.lease_count >= MAX_LEASES {
        return Ok(Outcome::TooMany { what: "leases", limit: MAX_LEASES });
    }
    let id = if id == LeaseId::ZERO { applying.free_lease_id()? } else { id };
    let former = applying.lease(id)?;
    // One that has ended makes room at once, unless it has keys that are still to be removed.
    if former.is_some_and(|lease| lease.keys > 0 || lease.is_live(applying.applied.time)) {
        return Ok(Outcome::LeaseExists(id));
    }
    let deadline = applying.applied.time.plus(ttl);
    applying.set_lease(id, former.as_ref(), Some(Lease { ttl, deadline, keys: 0 }));
    applying.applier.lease_count += usize::from(former.is_none());
    Ok(Outcome::Lease { id, ttl, deadline })
}

/// Lets a lease live for another TTL from the entry's time on.
pub(crate) fn keep(applying: &mut Applying<'_>, id: LeaseId) -> Result<Outcome, Refused> {
    let Some(lease) = applying.live_lease(id)? else { return Ok(Outcome::NoSuchLease(id)) };
    let deadline = applying.applied.time.plus(lease.ttl).max(lease.deadline);
    applying.set_lease(id, Some(&lease), Some(Lease { deadline, ..lease }));
    Ok(Outcome::Lease { id, ttl: lease.ttl, deadline })
}

/// Ends a lease now: its keys are hidden with this command, and as many as one command may are removed.
pub(crate) fn revoke(applying: &mut Applying<'_>, id: LeaseId) -> Result<Outcome, Refused> {
    let Some(lease) = applying.live_lease(id)? else { return Ok(Outcome::NoSuchLease(id)) };
    let ended = Lease { deadline: applying.applied.time, ..lease };
    applying.set_lease(id, Some(&lease), Some(ended));
    let revision = applying.use_revision();
    applying.tell_changes();
    expire::end_lease(applying, id, revision)?;
    Ok(Outcome::Committed { revision, appends: Vec::new() })
}

/// When what is put or touched at `time` for `ttl` ends.
pub(crate) fn deadline_after(time: SpaceTime, ttl: Duration) -> SpaceTime {
    // One below what stands for none.
    time.plus(ttl).min(SpaceTime(u64::MAX - 1))
}
