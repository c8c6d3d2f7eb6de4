//! Background threads of a backend: one thread that persists sealed memtables, oldest first, and the store's own
//! threads.
//!
//! A full disk is not a failure: the thread discards what it has written and tries again until there is room. Any other
//! failure of a thread is final: the error is stored for later callers, all threads stop, and reads continue over the
//! existing data. A failed sync is never retried, because the retry could succeed although pages that the first sync
//! could not write are lost.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
};

use super::{
    shared::{Shared, Work},
    store::Store,
};
use crate::backend::{Applied, BackendError};

/// Name and main function of a background thread of the store. The function returns when the thread must stop.
pub type ThreadMain<S> = (&'static str, fn(&Shared<S>) -> Result<(), BackendError>);

/// Starts the thread that persists sealed memtables, and the store's own background threads.
pub(super) fn start<S: Store>(
    shared: &Arc<Shared<S>>,
    upkeep: &[ThreadMain<S>],
) -> Result<Vec<JoinHandle<()>>, BackendError> {
    let spawn = |(name, work): ThreadMain<S>| {
        let shared = Arc::clone(shared);
        let run = move || {
            let panicked = || Err(BackendError::Failed("a background thread panicked".to_owned()));
            shared.ended(catch_unwind(AssertUnwindSafe(|| work(&shared))).unwrap_or_else(|_| panicked()));
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| BackendError::io("start thread", error))
    };
    let mut threads = Vec::new();
    let flush: ThreadMain<S> = ("thalweg-flush", persist);
    for work in [&flush].into_iter().chain(upkeep) {
        match spawn(*work) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                shared.stop();
                threads.into_iter().for_each(|thread| drop(thread.join()));
                return Err(error);
            }
        }
    }
    Ok(threads)
}

/// Does all work of the background threads that is due, on the calling thread. If the disk is full, the work remains, and
/// the error is returned. Any other error is final.
pub(super) fn step<S: Store>(shared: &Shared<S>) -> Result<(), BackendError> {
    if let Some(failure) = shared.lock().failure.clone() {
        return Err(failure);
    }
    let done = persist_all(shared).and_then(|()| S::do_upkeep(shared));
    if let Err(failure) = &done
        && !failure.is_disk_full()
    {
        shared.lock().failure.get_or_insert(failure.clone());
    }
    done
}

fn persist_all<S: Store>(shared: &Shared<S>) -> Result<(), BackendError> {
    loop {
        let Some(oldest) = shared.lock().version.sealed.last().cloned() else { return Ok(()) };
        shared.persist(oldest.memtable.changes(), oldest.applied)?;
        publish_persisted(shared, oldest.applied)?;
        shared.maintain()?;
    }
}

/// Replaces the oldest sealed memtable, which was persisted, with a new view of the store.
fn publish_persisted<S: Store>(shared: &Shared<S>, applied: Applied) -> Result<(), BackendError> {
    shared.publish_after(|state, version| {
        version.sealed.pop();
        state.persisted_count += 1;
        state.persisted = Some(applied);
    })
}

fn persist<S: Store>(shared: &Shared<S>) -> Result<(), BackendError> {
    while let Some(oldest) = shared.next_sealed() {
        let persist = || shared.persist(oldest.memtable.changes(), oldest.applied);
        let Some(()) = shared.until_there_is_room(Work::Flush, persist)? else { return Ok(()) };
        publish_persisted(shared, oldest.applied)?;
        let Some(()) = shared.until_there_is_room(Work::Flush, || shared.maintain())? else { return Ok(()) };
    }
    Ok(())
}
