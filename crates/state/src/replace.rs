//! Continuing with another state: the state of another backend, and all tables in memory that were loaded from it, take
//! the place of those of a running machine.
//!
//! Owns: [`Replacement`], which keeps the applying thread out while the new state is made durable and current, and the
//! order in which its parts become visible. Does not own: the new state, which a machine over another backend loads
//! ([`Machine::open`]), or the files of both.
//!
//! Readers treat the replacement like one large log record, because its parts become visible in the order of
//! `Applying::finish`: first the bound of visible records and the deleted prefixes, then the rows with one step of the
//! backend, then the tables, and last the applied position. Views taken before show the former state while they exist.
//!
//! Kept from the running machine: the clock of reads, the reader of log bytes, the options, the inline floor, and the
//! number of steps. The inline floor never rises while a machine is open, so the lower one holds for both states.
//!
//! Invariants: the applied LSN and index do not decrease. A replacement is complete or has no effect: everything that
//! can fail happens before [`Replacement::finish`].

use std::{
    mem,
    sync::{Arc, MutexGuard, PoisonError, RwLock, atomic::Ordering},
};

use thalweg_store::{Applied, Replaced};

use crate::{
    error::MachineError,
    groups::table::GroupTable,
    machine::{
        applier::Applier,
        state_machine::{Machine, Published},
    },
    sync::{lock, read, write},
};

/// A replacement of a machine's state in progress. While it exists, no log record is applied; reads continue.
#[derive(Debug)]
pub struct Replacement<'m> {
    machine: &'m Machine,
    applier: MutexGuard<'m, Applier>,
}

impl Machine {
    /// Begins to replace the state of this machine. Waits for the log record that is being applied. Also works on a
    /// machine that has [stopped](MachineError::Stopped); with the new state it applies records again.
    pub fn begin_replacement(&self) -> Replacement<'_> {
        self.applier.clear_poison();
        Replacement { machine: self, applier: lock(&self.applier) }
    }

    /// Returns the number of times that the state of this machine was replaced by another one. A reader of the log that
    /// depends on the state compares it with the number at which it began: after a replacement, the log may lack the
    /// entries between the former state and the new one.
    #[must_use]
    pub fn replacements(&self) -> u64 {
        self.replacements.load(Ordering::Acquire)
    }
}

impl Replacement<'_> {
    /// Returns the position up to which this machine has applied the log. It does not change while the replacement is
    /// in progress.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.applier.applied
    }

    /// Returns true if the state of `other` can replace that of this machine, because it is not older.
    #[must_use]
    pub fn accepts(&self, other: &Machine) -> bool {
        let (ours, others) = (self.applied(), other.applied());
        others.index >= ours.index && others.lsn >= ours.lsn
    }

    /// Makes the state of `other` the state of this machine. Dropping the result waits for the threads of the former
    /// state.
    ///
    /// # Errors
    /// The backends are of different kinds. Nothing has changed.
    ///
    /// # Panics
    /// If the machine does not [accept](Self::accepts) the state.
    pub fn finish(self, other: Machine) -> Result<Replaced, MachineError> {
        assert!(self.accepts(&other), "a state is replaced by a newer one");
        let Self { machine, mut applier } = self;
        // All fields are named, so that a new one is not forgotten here.
        let Machine {
            backend,
            blobs: _,
            options: _,
            applier: other_applier,
            published: others,
            time_of_reads,
            forgotten: _,
            has_forgotten: _,
            groups: other_groups,
            groups_woken: _,
            settlement_waiters: _,
            growth: _,
            known_version: _,
            inline_floor: _,
            digest_view: _,
            replacements: _,
            file_reads: _,
        } = other;
        let Published {
            keyspaces,
            streams,
            liveness,
            applied,
            visible,
            judged,
            clears,
            has_clears: _,
            counts,
            has_trash,
            has_histories,
            version,
            leases,
        } = others;
        let published = &machine.published;
        // This is first, so that no caller takes a view of the former state for one of the new state.
        machine.drop_digest_view();
        machine.replacements.fetch_add(1, Ordering::AcqRel);
        published.visible.fetch_max(visible.into_inner(), Ordering::AcqRel);
        if time_of_reads.has_deadlines.into_inner() {
            machine.note_deadline();
        }
        let clears = into(clears);
        let before = read(&published.clears).clone();
        published.show_clears(Arc::new(before.with_newer(&clears)));
        let has_trash = has_trash.into_inner();
        if has_trash {
            published.has_trash.store(true, Ordering::Release);
        }
        // Readers of groups see the former table and rows, or the new ones.
        let mut groups = lock(&machine.groups);
        let replaced = match machine.backend.replace_with(&*backend) {
            Ok(replaced) => replaced,
            Err(error) => {
                published.show_clears(before);
                return Err(error.into());
            }
        };
        let mut taken = other_groups.into_inner().unwrap_or_else(PoisonError::into_inner);
        taken.woken = mem::take(&mut groups.woken);
        let streams_of = |table: &GroupTable| table.iter().map(|(_, group)| group.head.stream).collect::<Vec<_>>();
        let woken = [streams_of(&groups), streams_of(&taken)].concat();
        taken.woken.extend(woken);
        published.show_clears(clears);
        *write(&published.counts) = into(counts);
        *write(&published.keyspaces) = into(keyspaces);
        *write(&published.streams) = into(streams);
        *write(&published.liveness) = into(liveness);
        published.judged.store(judged.into_inner(), Ordering::Release);
        published.has_trash.store(has_trash, Ordering::Release);
        published.has_histories.store(has_histories.into_inner(), Ordering::Relaxed);
        published.version.store(version.into_inner(), Ordering::Release);
        published.leases.store(leases.into_inner(), Ordering::Relaxed);
        *write(&published.applied) = into(applied);
        *groups = taken;
        machine.groups_woken.store(true, Ordering::Release);
        machine.growth.note_all();
        drop(groups);
        let steps = applier.steps;
        let taken = other_applier.into_inner().unwrap_or_else(PoisonError::into_inner);
        let former = mem::replace(&mut *applier, taken);
        applier.steps += steps;
        drop((applier, former));
        Ok(replaced)
    }
}

fn into<T>(lock: RwLock<T>) -> T {
    lock.into_inner().unwrap_or_else(PoisonError::into_inner)
}
