//! Background threads of a backend: one thread that persists sealed memtables, oldest first, and the store's own
//! threads.
//!
//! A full disk is not a failure: the thread discards what it has written and tries again until there is room. Any other
//! failure of a thread is final: the error is stored for later callers, all threads stop, and reads continue over the
//! existing data. A failed sync is never retried, because the retry could succeed although pages that the first sync
//! could not write are lost.

use std::{sync::Arc, thread::JoinHandle};

use super::{
    shared::{FullDiskTask, Shared, run_caught},
    store::Store,
};
use crate::backend::BackendError;

pub(crate) use super::shared::ThreadMain;

/// Returns the names and main functions of all background threads: the thread that persists sealed memtables, and the
/// store's own ones.
pub(super) fn all<S: Store>(upkeep: &[ThreadMain<S>]) -> Vec<ThreadMain<S>> {
    let flush: ThreadMain<S> = ("thalweg-flush", persist);
    [&flush].into_iter().chain(upkeep).copied().collect()
}

/// Starts the thread that persists sealed memtables, and the store's own background threads.
pub(super) fn start<S: Store>(
    shared: &Arc<Shared<S>>,
    upkeep: &[ThreadMain<S>],
) -> Result<Vec<JoinHandle<()>>, BackendError> {
    let spawn = |(name, work): ThreadMain<S>| {
        let shared = Arc::clone(shared);
        let run = move || shared.ended(run_caught(&shared, work));
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|error| BackendError::io("start thread", error))
    };
    let mut threads = Vec::new();
    for work in all(upkeep) {
        match spawn(work) {
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

fn persist<S: Store>(shared: &Shared<S>) -> Result<(), BackendError> {
    while let Some(oldest) = shared.next_sealed() {
        let persist = || shared.persist(oldest.memtable.changes(), oldest.applied);
        let Some(()) = shared.until_there_is_room(FullDiskTask::Flush, persist)? else { return Ok(()) };
        shared.publish_after(|state, version| {
            version.sealed.pop();
            state.persisted_count += 1;
            state.persisted = Some(oldest.applied);
        })?;
        let Some(()) = shared.until_there_is_room(FullDiskTask::Flush, || shared.maintain())? else { return Ok(()) };
    }
    Ok(())
}
