//! The background threads of the LSM backend.
//!
//! Owns: three threads. One flushes sealed memtables, oldest first. One compacts. One reads newly written blocks
//! into the cache while the other two have no work, if they could not do so themselves. They are separate, so that
//! a long compaction does not delay flushes, and so that reading ahead can run at the lowest priority.
//! Does not own: sealing memtables, or the waiting of writes.
//!
//! A failure is final: it is stored for later callers, all threads stop, and reads continue over the existing data.
//! Retrying a failed sync could mistake lost pages for written ones.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use rustix::{process::setpriority_process, thread::gettid};

use super::{
    Shared, State,
    version::{Sealed, Version},
};
use crate::backend::BackendError;

/// Main function of a thread; it returns when the thread must stop.
type Work = fn(&Shared) -> Result<(), BackendError>;

/// The lowest scheduling priority, as a `nice` value.
const LOWEST_PRIORITY: i32 = 19;

/// Starts the threads for flushes, compactions and reading ahead.
pub(super) fn start(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, BackendError> {
    let spawn = |name: &str, work: Work| {
        let shared = Arc::clone(shared);
        let run = move || {
            let panicked = || Err(BackendError::Failed("a background thread panicked".to_owned()));
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&shared))).unwrap_or_else(|_| panicked());
            if let Err(failure) = outcome {
                shared.lock().failure.get_or_insert(failure);
            }
            shared.progress.notify_all();
            shared.work.notify_all();
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| BackendError::Io { operation: "start thread", message: error.to_string() })
    };
    let mut threads = Vec::new();
    let works: [(_, Work); 3] = [("thalweg-flush", flush), ("thalweg-compact", compact), ("thalweg-warm", warm)];
    for (name, work) in works {
        match spawn(name, work) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                shared.lock().stop = true;
                shared.work.notify_all();
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
        }
    }
    Ok(threads)
}

fn flush(shared: &Shared) -> Result<(), BackendError> {
    while let Some(oldest) = next_sealed(shared) {
        // The memtable was taken before the log is synced, so the log contains all changes written below.
        shared.barrier.sync_through(oldest.applied.lsn)?;
        let written_bytes = shared.store.flush(&oldest.memtable, oldest.applied)?;
        shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
        shared.counters.flushed_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        warm_before_use(shared)?;
        let mut state = shared.lock();
        let mut version = Version::clone(&state.version);
        version.sealed.pop();
        version.tables = shared.store.newest();
        state.flushed_count += 1;
        state.persisted = Some(oldest.applied);
        state.may_compact = shared.compacts_by_itself();
        state.may_warm = true;
        let retired = shared.publish(&mut state, version);
        shared.progress.notify_all();
        shared.work.notify_all();
        drop(state);
        drop(retired);
    }
    Ok(())
}

/// Reads newly written blocks into the cache, while it has room, before the new tables are published. So no read
/// waits for a block that was in memory a moment ago. Stops while writes wait for room.
fn warm_before_use(shared: &Shared) -> Result<(), BackendError> {
    let room = || {
        let state = shared.lock();
        !state.stop && state.version.sealed.len() < shared.options.max_sealed
    };
    shared.store.warm(&room).map(drop)
}

/// Waits for the oldest sealed memtable; returns `None` when the thread must stop.
fn next_sealed(shared: &Shared) -> Option<Sealed> {
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

fn compact(shared: &Shared) -> Result<(), BackendError> {
    while let Some(wanted) = wait_for_compaction(shared) {
        match wanted {
            Wanted::MostUrgent => show(shared, shared.store.compact()?)?,
            Wanted::All { asked } => {
                show(shared, shared.store.compact_all()?)?;
                let mut state = shared.lock();
                state.answered = asked;
                shared.tell_backlog(&state);
                drop(state);
                shared.progress.notify_all();
                shared.work.notify_all();
            }
        }
    }
    Ok(())
}

/// Kind of a compaction.
enum Wanted {
    MostUrgent,
    /// A full compaction, on behalf of all requests up to this number.
    All {
        asked: u64,
    },
}

/// Reads newly written blocks into the cache while it has room and no other work is pending.
fn warm(shared: &Shared) -> Result<(), BackendError> {
    // The thread should get only unused processor time. If the priority cannot be set, it competes like others.
    let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
    while wait_for_calm(shared) {
        if !shared.store.warm(&|| Shared::is_calm(&shared.lock()))? {
            shared.lock().may_warm = true;
        }
    }
    Ok(())
}

/// Publishes the tables that a compaction left, if it changed any.
fn show(shared: &Shared, written_bytes: Option<u64>) -> Result<(), BackendError> {
    let Some(written_bytes) = written_bytes else { return Ok(()) };
    shared.counters.compactions.fetch_add(1, Ordering::Relaxed);
    shared.counters.compacted_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    warm_before_use(shared)?;
    let mut state = shared.lock();
    let mut version = Version::clone(&state.version);
    version.tables = shared.store.newest();
    // One compaction can make the next one due.
    state.may_compact = shared.compacts_by_itself();
    state.may_warm = true;
    let retired = shared.publish(&mut state, version);
    shared.progress.notify_all();
    shared.work.notify_all();
    drop(state);
    drop(retired);
    Ok(())
}

/// Waits until a compaction may be due; returns `None` when the thread must stop.
fn wait_for_compaction(shared: &Shared) -> Option<Wanted> {
    let mut wanted = Wanted::MostUrgent;
    let is_due = |state: &mut State| {
        let is_asked = state.answered < state.asked;
        if is_asked {
            wanted = Wanted::All { asked: state.asked };
        }
        state.is_compacting = is_asked || std::mem::take(&mut state.may_compact);
        state.is_compacting
    };
    wait_until(shared, is_due).then_some(wanted)
}

/// Waits until blocks may be read ahead and no other work is pending. Returns false when the thread must stop.
fn wait_for_calm(shared: &Shared) -> bool {
    wait_until(shared, |state| Shared::is_calm(state) && std::mem::take(&mut state.may_warm))
}

fn wait_until(shared: &Shared, mut is_due: impl FnMut(&mut State) -> bool) -> bool {
    let mut state = shared.lock();
    loop {
        if state.stop || state.failure.is_some() {
            return false;
        }
        if is_due(&mut state) {
            return true;
        }
        state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}
