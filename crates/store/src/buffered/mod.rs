//! Memtables in front of a store with slow writes. The LSM, redb and SQLite backends are built on this module.
//!
//! Owns: [`Buffered`], which applies batches, seals full memtables, stalls writes when the store falls behind, and
//! creates views; a thread that persists sealed memtables (`running`); and a thread that prepares memory for the writer
//! (`ahead`). Does not own: the store behind the trait [`Store`], or the log. Changes that are not persisted are lost
//! with the process, and are replayed from the log.
//!
//! The reason for the memtables: one transaction for each batch costs 13 µs in redb (not synced) and 14 µs in SQLite,
//! but a change in a memtable costs 1 µs. Persisting changes in bulk costs 1.7 µs for each change in redb and 0.8 µs in
//! SQLite, and happens while writers wait for the log's next fsync anyway. Also, nothing may be persisted before the
//! log is durable; the memtables hold changes back until then.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> store      (each in one durable transaction)
//!                          seal            persist
//! ```
//! Invariants: memtables are sealed only between batches, with the `Applied` of their last batch, and persisted in
//! order. So the store contains exactly the batches applied up to `persisted`.
//! `persisted <= oldest sealed <= .. <= applied`. In [`SyncMode::PerBatch`] the memtable stays empty and
//! `persisted == applied`. Readers pin a `Version` and hold locks only briefly.

mod ahead;
#[cfg(any(feature = "redb", feature = "sqlite"))]
mod checked;
#[cfg(any(feature = "redb", feature = "sqlite"))]
mod contents;
mod cursor;
mod options;
mod owned_source;
#[cfg(any(feature = "redb", feature = "sqlite"))]
mod paged;
mod pauses;
mod running;
mod shared;
mod store;
mod version;
mod worker;

use std::{any::Any, ops::ControlFlow, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;

use crate::backend::{
    Applied, Backend, BackendError, BackendHealth, BackendStats, LogBarrier, Replaced, VerifiedRows, View, WriteBatch,
};
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub(crate) use checked::{CHECKSUM_BYTES, checked, checksum};
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub(crate) use contents::Contents;
pub use options::{Background, BufferOptions};
pub(crate) use owned_source::OwnedSource;
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub(crate) use paged::{Page, PagedView};
#[cfg(test)]
pub(crate) use pauses::OwedPause;
use running::Running;
pub(crate) use shared::{FullDiskTask, Shared, State};
pub(crate) use store::{Demand, Store, StoreView};
use version::Version;
pub(crate) use worker::ThreadMain;

/// A backend that consists of memtables in front of a store; see the [module](self).
pub struct Buffered<S: Store> {
    /// The newest version (memtables and a view of the store), for reads of single keys.
    newest: Arc<ArcSwap<Version<S::View>>>,
    /// The memtables' writer, the store and the background threads that are in use. [`Backend::replace_with`] replaces
    /// them with those of another backend.
    running: ArcSwap<Running<S>>,
}

impl<S: Store> std::fmt::Debug for Buffered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(S::NAME).field("options", &self.running.load().shared.options).finish_non_exhaustive()
    }
}

impl<S: Store> Buffered<S> {
    /// Creates a backend of memtables in front of a store. Starts the thread that persists sealed memtables, and the
    /// store's own background threads, which are listed in `upkeep`. In stepped mode, no threads start, and callers do
    /// their work.
    pub fn over(
        store: S,
        options: BufferOptions,
        barrier: Arc<dyn LogBarrier>,
        upkeep: &[ThreadMain<S>],
    ) -> Result<Self, BackendError> {
        let running = Arc::new(Running::start(store, options, barrier, upkeep)?);
        let newest = {
            let mut state = running.shared.lock();
            let newest = Arc::new(ArcSwap::new(Arc::clone(&state.version)));
            state.front = Some(Arc::clone(&newest));
            newest
        };
        Ok(Self { newest, running: ArcSwap::new(running) })
    }

    /// Calls `read` with the state of the store that is in use, under its lock.
    fn with_state<T>(&self, read: impl FnOnce(&State<S>) -> T) -> T {
        loop {
            let running = self.running.load();
            let state = running.shared.lock();
            // Without this check, a caller could see the former state after another caller has seen the new one.
            if state.front.is_some() {
                return read(&state);
            }
        }
    }
}

impl<S: Store> Backend for Buffered<S> {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        self.running.load().apply(batch, applied)
    }

    fn applied(&self) -> Option<Applied> {
        self.with_state(|state| state.applied)
    }

    fn persisted(&self) -> Option<Applied> {
        self.with_state(|state| state.persisted)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        let version = self.newest.load();
        version.get(key, version.active.visible())
    }

    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        let version = self.newest.load();
        version.look(key, version.active.visible(), show)
    }

    fn warm(&self, keys: &[&[u8]]) {
        self.newest.load().active.warm(keys);
    }

    fn make_room(&self, bytes: usize) -> Result<(), BackendError> {
        self.running.load_full().make_room(bytes)
    }

    fn may_wait(&self) -> bool {
        self.running.load().shared.pauses.may_wait()
    }

    fn leave_pauses(&self) {
        self.running.load().shared.pauses.leave_to_caller();
    }

    fn take_pause(&self) -> Duration {
        self.running.load().shared.pauses.take()
    }

    fn view(&self) -> Arc<dyn View> {
        self.with_state(|state| Arc::new(state.view()) as _)
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        self.running.load_full().flush()
    }

    fn compact(&self) -> Result<(), BackendError> {
        self.flush()?;
        self.running.load_full().shared.compact()
    }

    fn maintain(&self) -> Result<(), BackendError> {
        self.running.load_full().maintain()
    }

    fn flush_above(&self, bytes: usize) -> Result<bool, BackendError> {
        self.running.load_full().flush_above(bytes)
    }

    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        // A view of the store alone, so that no memtable hides its pairs.
        self.running.load_full().shared.store.view()?.verify(step)
    }

    fn health(&self) -> BackendHealth {
        self.running.load_full().shared.health()
    }

    fn bytes_to_persist(&self) -> u64 {
        self.running.load_full().bytes_to_persist()
    }

    fn reusable_bytes(&self) -> u64 {
        self.running.load_full().shared.store.reusable_bytes()
    }

    fn step(&self) -> bool {
        self.running.load_full().shared.work_off()
    }

    fn reclaim_space(&self) {
        self.running.load_full().shared.change_upkeep(S::request_space);
    }

    fn stats(&self) -> BackendStats {
        self.running.load_full().stats()
    }

    fn replace_with(&self, other: &dyn Backend) -> Result<Replaced, BackendError> {
        let other: &dyn Any = other;
        let other = other.downcast_ref::<Self>().ok_or(BackendError::OtherKind { kind: S::NAME })?;
        let (old, new) = (self.running.load_full(), other.running.load_full());
        if Arc::ptr_eq(&old, &new) {
            return Err(BackendError::OtherKind { kind: S::NAME });
        }
        if old.shared.pauses.are_left_to_caller() {
            new.shared.pauses.leave_to_caller();
        }
        let former = {
            // While both states are locked, no reader can take a view or a position of either one. So a reader that has
            // seen the new state in one way never sees the former state in another.
            let mut old = old.shared.lock();
            let mut taken = new.shared.lock();
            old.front = None;
            taken.front = Some(Arc::clone(&self.newest));
            self.running.store(Arc::clone(&new));
            self.newest.swap(Arc::clone(&taken.version))
        };
        drop(former);
        Ok(Replaced::new(RetiredStore(old)))
    }

    fn name(&self) -> &'static str {
        S::NAME
    }
}

/// A store that is no longer in use. Dropping this value stops the store's threads.
struct RetiredStore<S: Store>(Arc<Running<S>>);

impl<S: Store> Drop for RetiredStore<S> {
    fn drop(&mut self) {
        self.0.end();
    }
}
