//! Permission of clients to delete many keys at once (by prefix, all keys of a keyspace, or the keyspace), within a
//! limit for each client address.
//!
//! A delete of many keys hides them, and waits until the background sweep has removed their rows. The database bounds
//! the number of waiting deletes ([`MAX_PENDING_CLEARS`]), so without a limit for each address one client could prevent
//! the deletes of all others.
//!
//! Owns: the reservation of a command with such deletes until its outcome is known ([`DeleteShare`]). Does not own: the
//! reservations of deletes that wait (`created`), or the bound of the database, which also holds without this module.
//!
//! Each delete is counted before it is proposed. This includes deletes of few keys, which never wait, because only the
//! state machine knows the number of keys. After its outcome is known, a delete counts only while it waits. If the
//! client of a command has disconnected, the outcome is not known. Its deletes then count for 30 seconds, and after
//! that as long as any delete waits in their keyspaces. So a client gains nothing by disconnecting.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_engine::{Database, WriteError};
use thalweg_types::{
    KeyspaceId, Revision,
    limits::{MAX_PENDING_CLEARS, clear_units},
};

use crate::{
    admission::{Account, Reservation, Resource},
    app::App,
    created::{DeleteOutcome, WaitingDelete, locked},
    error::ApiError,
};

/// Time for which a delete with unknown outcome counts for its client. After this time, the command either was applied
/// or never will be.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Maximum number of units that the deletes of one command reserve. A unit measures the memory of a delete whose rows
/// wait to be removed. A transaction may name more prefixes than this: deletes of few keys are done immediately and
/// need no units in the end.
const MAX_UNITS: u64 = MAX_PENDING_CLEARS as u64 / 2;

/// Units of the deletes in a command, reserved for the address of the command's client until the outcome is known. A
/// unit measures the memory that a waiting delete needs.
#[derive(Debug)]
#[must_use = "it must learn the outcome of the command"]
pub struct DeleteShare {
    app: Arc<App>,
    /// Units reserved for the command's deletes in each keyspace. A unit measures the memory that a waiting delete
    /// needs. Empty once the outcome of the command is known.
    units: BTreeMap<KeyspaceId, u64>,
    held: Reservation,
}

impl App {
    /// Reserves units (they measure the memory of deletes whose rows wait to be removed) for a command that deletes
    /// keys by prefix. Charges them to the client's address. Each prefix is given by its keyspace and its length in
    /// bytes. A delete of all keys, or of a keyspace, counts as the empty prefix. Returns `None` if there are no
    /// deletes, and an error if the address may hold no more units.
    pub fn may_delete(
        self: &Arc<Self>,
        account: &Arc<Account>,
        prefixes: impl IntoIterator<Item = (KeyspaceId, usize)>,
    ) -> Result<Option<DeleteShare>, ApiError> {
        let mut units: BTreeMap<KeyspaceId, u64> = BTreeMap::new();
        for (keyspace, bytes) in prefixes {
            *units.entry(keyspace).or_default() += clear_units(bytes) as u64;
        }
        if units.is_empty() {
            return Ok(None);
        }
        let wanted = units.values().sum::<u64>().min(MAX_UNITS);
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Deletes));
        let waits = |delete: &WaitingDelete| waits_until(db, delete);
        let mut deletes = locked(&self.created.deletes);
        let held = deletes.take(bound, account, wanted, db.waiting_delete_units(), waits).ok_or_else(|| {
            ApiError::overloaded(
                "the clients of this address have their share of deletes of many keys that are still being removed: \
                 retry later",
            )
        })?;
        Ok(Some(DeleteShare { app: Arc::clone(self), units, held }))
    }
}

impl DeleteShare {
    /// Runs a command with deletes, and then ends the reservation in `share` with the command's result
    /// ([`settle`](Self::settle)). `revision` returns the revision at which the command was applied; `None` if it has
    /// deleted nothing.
    pub async fn until<T>(
        share: Option<Self>,
        command: impl Future<Output = Result<T, WriteError>>,
        revision: impl FnOnce(&T) -> Option<Revision>,
    ) -> Result<T, WriteError> {
        let result = command.await;
        if let Some(share) = share {
            share.settle(result.as_ref().map(revision));
        }
        result
    }

    /// Ends the reservation of a command's deletes when the result of the command is known. Units of deletes that still
    /// wait to be swept are kept, and the others are released. `result` is the error of the command, or the revision at
    /// which it was applied; `None` if it has deleted nothing.
    pub fn settle(self, result: Result<Option<Revision>, &WriteError>) {
        match result {
            Ok(Some(revision)) => self.keep(|_, _| Some(revision)),
            Err(error) if error.is_outcome_unknown() => drop(self),
            Ok(None) | Err(_) => self.keep(|_, _| None),
        }
    }

    /// Ends the reservation as [`settle`](Self::settle) does, for a command that has deleted all keys of a keyspace.
    /// The revision is looked up, because such a command does not return it.
    pub fn settle_emptied(self) {
        self.keep(|db, keyspace| db.emptied_at(keyspace));
    }

    fn keep(mut self, revision: impl Fn(&Database, KeyspaceId) -> Option<Revision>) {
        for (keyspace, units) in std::mem::take(&mut self.units) {
            let held = self.held.split_off(units);
            let db = self.app.db.blocking();
            if let Some(revision) = revision(db, keyspace).filter(|at| db.is_delete_waiting(keyspace, *at)) {
                self.note(keyspace, DeleteOutcome::At(revision), held);
            }
        }
    }

    fn note(&self, keyspace: KeyspaceId, outcome: DeleteOutcome, held: Reservation) {
        let delete = WaitingDelete { keyspace, outcome, number: self.app.new_number() };
        locked(&self.app.created.deletes).insert(delete, held, Instant::now());
    }
}

/// Keeps the reservation of a command with deletes whose outcome is unknown, because the future that waited for the
/// outcome was dropped.
impl Drop for DeleteShare {
    fn drop(&mut self) {
        for (keyspace, units) in std::mem::take(&mut self.units) {
            let held = self.held.split_off(units);
            self.note(keyspace, DeleteOutcome::UnknownUntil(Instant::now() + UNKNOWN_FOR), held);
        }
    }
}

/// Returns the time until which the rows of a delete certainly wait to be removed, so that it need not be checked
/// before; `None` if it no longer waits.
fn waits_until(db: &Database, delete: &WaitingDelete) -> Option<Instant> {
    let now = Instant::now();
    match delete.outcome {
        DeleteOutcome::At(revision) => db.is_delete_waiting(delete.keyspace, revision).then_some(now),
        DeleteOutcome::UnknownUntil(end) if now < end => Some(end),
        DeleteOutcome::UnknownUntil(_) => db.has_waiting_deletes(delete.keyspace).then_some(now),
    }
}
