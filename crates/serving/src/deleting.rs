//! Permission of clients to delete many keys at once, within their shares: by prefix, all keys of a keyspace, and
//! keyspaces.
//!
//! A delete of many keys hides them, and waits until the background sweep has removed their rows. The database bounds
//! what waits ([`MAX_PENDING_CLEARS`]), so without shares one client could keep all others from deleting.
//!
//! Owns: the reservation of a command with such deletes until its outcome is known ([`DeleteShare`]). Does not own: the
//! reservations of deletes that wait (`created`), or the bound of the database, which also holds without this.
//!
//! Each delete is counted before it is proposed, also one of few keys, which never waits: only the log knows how many
//! keys there will be. It counts until its outcome is known, and after that only if it waits. The outcome of a command
//! whose client has disconnected is not known. Its deletes count for 30 seconds, and then as long as any delete
//! waits in their keyspaces. So a client gains nothing by disconnecting.

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

/// Time for which deletes count whose outcome is not known: until the command was applied, or never will be.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Most units that one command reserves. A transaction may name more prefixes than have room at a time, because most of
/// them may have few keys.
const MAX_UNITS: u64 = MAX_PENDING_CLEARS as u64 / 2;

/// Units of the deletes in a command, which are reserved for the address of its client until the outcome is known.
#[derive(Debug)]
#[must_use = "it must learn the outcome of the command"]
pub struct DeleteShare {
    app: Arc<App>,
    /// Units for each keyspace with deletes; empty once the outcome is known.
    units: BTreeMap<KeyspaceId, u64>,
    held: Reservation,
}

impl App {
    /// Reserves what a command needs that deletes prefixes, given by their keyspaces and lengths in bytes, and charges
    /// it to the client's address. A delete of all keys or of a keyspace is one of the empty prefix. Returns
    /// `None` if there are no deletes, and an error if the address already holds its share.
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
    /// Waits for a command, and lets `share` learn its result. `revision` returns the revision that the command has
    /// used, if it has deleted anything.
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

    /// Keeps what is reserved for deletes that wait, and releases the rest. `result` is the revision that the command
    /// has used, if it has deleted anything, or its error.
    pub fn settle(self, result: Result<Option<Revision>, &WriteError>) {
        match result {
            Ok(Some(revision)) => self.keep(|_, _| Some(revision)),
            Err(error) if error.is_outcome_unknown() => drop(self),
            Ok(None) | Err(_) => self.keep(|_, _| None),
        }
    }

    /// Does the same as [`settle`](Self::settle) after a command that has deleted all keys, and whose revision is not
    /// known.
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

/// Handles a command whose outcome nobody has waited for.
impl Drop for DeleteShare {
    fn drop(&mut self) {
        for (keyspace, units) in std::mem::take(&mut self.units) {
            let held = self.held.split_off(units);
            self.note(keyspace, DeleteOutcome::UnknownUntil(Instant::now() + UNKNOWN_FOR), held);
        }
    }
}

/// Returns the time until which a delete waits for certain; `None` if it does not wait.
fn waits_until(db: &Database, delete: &WaitingDelete) -> Option<Instant> {
    let now = Instant::now();
    match delete.outcome {
        DeleteOutcome::At(revision) => db.is_delete_waiting(delete.keyspace, revision).then_some(now),
        DeleteOutcome::UnknownUntil(end) if now < end => Some(end),
        DeleteOutcome::UnknownUntil(_) => db.has_waiting_deletes(delete.keyspace).then_some(now),
    }
}
