//! The background thread that persists sealed memtables, oldest first.
//!
//! A failure is final: it is stored for later callers, the thread stops, and reads continue over the existing data.
//! Retrying a failed sync could mistake lost pages for written ones.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use super::{
    Shared,
    store::Store,
    version::{Sealed, Version},
};
use crate::{
    backend::{Applied, BackendError, Change},
    memtable::{BatchNumber, Entry},
};

/// Starts the background thread.
pub(super) fn start<S: Store>(shared: &Arc<Shared<S>>) -> Result<JoinHandle<()>, BackendError> {
    let shared = Arc::clone(shared);
    let run = move || {
        let panicked = || Err(BackendError::Failed("the background thread panicked".to_owned()));
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&shared))).unwrap_or_else(|_| panicked());
        if let Err(failure) = outcome {
            shared.lock().failure.get_or_insert(failure);
        }
        shared.progress.notify_all();
    };
    std::thread::Builder::new()
        .name("thalweg-persist".to_owned())
        .spawn(run)
        .map_err(|error| BackendError::Io { operation: "start thread", message: error.to_string() })
}

fn work<S: Store>(shared: &Shared<S>) -> Result<(), BackendError> {
    while let Some(oldest) = next_sealed(shared) {
        let changes = oldest.memtable.iter(BatchNumber::MAX).map(|(key, entry)| match entry {
            Entry::Value(value) => Change::Put(key, value),
            Entry::Deleted => Change::Delete(key),
        });
        shared.persist(&mut { changes }, oldest.applied)?;
        shared.republish(|state, version| {
            version.sealed.pop();
            state.persisted_count += 1;
            state.persisted = Some(oldest.applied);
        })?;
        shared.tidy()?;
    }
    Ok(())
}

/// Waits for the oldest sealed memtable; returns `None` when the thread must stop.
fn next_sealed<S: Store>(shared: &Shared<S>) -> Option<Sealed> {
    let mut state = shared.lock();
    loop {
        if state.stop || state.failure.is_some() {
            return None;
        }
        if let Some(oldest) = state.version.sealed.last() {
            return Some(oldest.clone());
        }
        state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

impl<S: Store> Shared<S> {
    /// Makes the log durable up to `applied`, then persists the changes in one durable transaction.
    pub(super) fn persist(
        &self,
        changes: &mut dyn Iterator<Item = Change<'_>>,
        applied: Applied,
    ) -> Result<(), BackendError> {
        self.barrier.sync_through(applied.lsn)?;
        let bytes = self.store.persist(changes, applied)?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Publishes a version with the store's current view, after `change` has been applied to it.
    pub(super) fn republish(&self, change: impl FnOnce(&mut super::State, &mut Version)) -> Result<(), BackendError> {
        let stored = self.store.view()?;
        let mut state = self.lock();
        let mut version = Version { stored, ..Version::clone(&state.version) };
        change(&mut state, &mut version);
        let retired = self.publish(&mut state, version);
        self.progress.notify_all();
        drop(state);
        // Dropping it can free memory or return connections, so it happens after the lock is released.
        drop(retired);
        Ok(())
    }

    /// Runs the store's maintenance, after its view before the last one is out of use.
    pub(super) fn tidy(&self) -> Result<(), BackendError> {
        if self.store.tidy()? { self.republish(|_, _| {}) } else { Ok(()) }
    }
}
