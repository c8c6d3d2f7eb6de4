//! What goes on in the background.
//!
//! Owns: the thread that flushes sealed memtables, oldest first, the one that compacts, and the one that,
//! when neither has work, reads into the cache what they wrote and could not read ahead themselves. They are
//! several, so that a long compaction doesn't keep memtables waiting, and so that reading ahead may run at the
//! lowest priority.
//! Does not own: when memtables are sealed, or how writes wait.
//!
//! A failure is final: it is kept for whoever asks, all threads stop, and reads go on over what there
//! is. Retrying a failed sync could take lost pages for written ones.

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

/// What a thread does until it is told to stop.
type Work = fn(&Shared) -> Result<(), BackendError>;

/// As `nice` counts.
const LOWEST_PRIORITY: i32 = 19;

/// Starts the threads.
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
        // The list is taken before the log is synced, so all that is written below is in the log.
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

/// Reads what was just written into the cache, while there is room, before reads are sent there instead of to what it
/// replaces: nobody waits for a block that a moment ago was in memory. Not while writes wait for room.
fn warm_before_use(shared: &Shared) -> Result<(), BackendError> {
    let room = || {
        let state = shared.lock();
        !state.stop && state.version.sealed.len() < shared.options.max_sealed
    };
    shared.store.warm(&room).map(drop)
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

/// What is to be compacted.
enum Wanted {
    MostUrgent,
    /// For everyone who had asked when there had been so many.
    All {
        asked: u64,
    },
}

/// Reads what was written into the cache while there is room for it and nothing else is to be done.
fn warm(shared: &Shared) -> Result<(), BackendError> {
    // Only what nobody else wants of the processors. Without the right to say so it takes its share.
    let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
    while wait_for_calm(shared) {
        if !shared.store.warm(&|| Shared::is_calm(&shared.lock()))? {
            shared.lock().may_warm = true;
        }
    }
    Ok(())
}

/// Makes what a compaction has left the newest version, if it did something.
fn show(shared: &Shared, written_bytes: Option<u64>) -> Result<(), BackendError> {
    let Some(written_bytes) = written_bytes else { return Ok(()) };
    shared.counters.compactions.fetch_add(1, Ordering::Relaxed);
    shared.counters.compacted_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    warm_before_use(shared)?;
    let mut state = shared.lock();
    let mut version = Version::clone(&state.version);
    version.tables = shared.store.newest();
    // One compaction may make the next one due.
    state.may_compact = shared.compacts_by_itself();
    state.may_warm = true;
    let retired = shared.publish(&mut state, version);
    shared.progress.notify_all();
    shared.work.notify_all();
    drop(state);
    drop(retired);
    Ok(())
}

/// Waits until there may be something to compact; `None` when it is time to stop.
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

/// Waits until there may be something to read and nothing else to do; false when it is time to stop.
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
