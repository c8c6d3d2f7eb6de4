//! What goes on in the background.
//!
//! Owns: the thread that flushes sealed memtables, oldest first, and the one that compacts and, when
//! neither has work, reads what was written into the cache. They are two, so that a long compaction
//! doesn't keep memtables waiting.
//! Does not own: when memtables are sealed, or how writes wait.
//!
//! A failure is final: it is kept for whoever asks, both threads stop, and reads go on over what there
//! is. Retrying a failed sync could take lost pages for written ones.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use super::{
    Shared,
    version::{Sealed, Version},
};
use crate::backend::BackendError;

/// Starts both threads.
pub(super) fn start(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, BackendError> {
    let spawn = |name: &str, work: fn(&Shared) -> Result<(), BackendError>| {
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
    let flusher = spawn("thalweg-flush", flush)?;
    match spawn("thalweg-compact", compact) {
        Ok(compactor) => Ok(vec![flusher, compactor]),
        Err(error) => {
            shared.lock().stop = true;
            shared.work.notify_all();
            let _ = flusher.join();
            Err(error)
        }
    }
}

fn flush(shared: &Shared) -> Result<(), BackendError> {
    while let Some(oldest) = next_sealed(shared) {
        // The list is taken before the log is synced, so all that is written below is in the log.
        shared.barrier.sync_through(oldest.applied.lsn)?;
        let written_bytes = shared.store.flush(&oldest.memtable, oldest.applied)?;
        shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
        shared.counters.flushed_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        let mut state = shared.lock();
        let mut version = Version::clone(&state.version);
        version.sealed.pop();
        version.tables = shared.store.newest();
        state.flushed_count += 1;
        state.persisted = Some(oldest.applied);
        state.may_compact = true;
        state.may_warm = true;
        let retired = shared.publish(&mut state, version);
        shared.progress.notify_all();
        shared.work.notify_all();
        drop(state);
        drop(retired);
    }
    Ok(())
}

/// Waits for the oldest sealed memtable; `None` when it is time to stop.
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

enum Task {
    Compact,
    Warm,
}

/// Compacts, and when nothing else is to be done, reads what was written into the cache.
fn compact(shared: &Shared) -> Result<(), BackendError> {
    while let Some(task) = next_task(shared) {
        match task {
            Task::Compact => compact_once(shared)?,
            Task::Warm => {
                if shared.store.warm(&|| Shared::is_calm(&shared.lock()))? {
                    continue;
                }
                shared.lock().may_warm = true;
            }
        }
    }
    Ok(())
}

fn compact_once(shared: &Shared) -> Result<(), BackendError> {
    let Some(written_bytes) = shared.store.compact()? else { return Ok(()) };
    shared.counters.compactions.fetch_add(1, Ordering::Relaxed);
    shared.counters.compacted_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    let mut state = shared.lock();
    let mut version = Version::clone(&state.version);
    version.tables = shared.store.newest();
    // One compaction may make the next one due.
    state.may_compact = true;
    state.may_warm = true;
    let retired = shared.publish(&mut state, version);
    shared.progress.notify_all();
    drop(state);
    drop(retired);
    Ok(())
}

/// Waits for something to do; `None` when it is time to stop.
fn next_task(shared: &Shared) -> Option<Task> {
    let mut state = shared.lock();
    loop {
        if state.stop || state.failure.is_some() {
            return None;
        }
        if std::mem::take(&mut state.may_compact) {
            return Some(Task::Compact);
        }
        if state.may_warm && Shared::is_calm(&state) {
            state.may_warm = false;
            return Some(Task::Warm);
        }
        state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}
