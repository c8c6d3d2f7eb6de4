//! The background threads of the LSM tree's tables.
//!
//! Owns: two threads. The first thread compacts tables. The second thread reads newly written blocks into the cache
//! while no other thread has work, if the flush or compaction that wrote them could not do so. Both are separate from
//! the thread that flushes memtables, so that a long compaction does not delay flushes, and so that the second thread
//! can run at the lowest priority.

use rustix::{process::setpriority_process, thread::gettid};

use super::store::{Extent, LsmStore};
use crate::{
    backend::BackendError,
    buffered::{FullDiskTask, Shared, State},
};

/// The lowest scheduling priority of a thread, as a `nice` value.
const LOWEST_PRIORITY: i32 = 19;

/// Main function of the compaction thread: runs pending compactions until the thread must stop.
pub(super) fn compact(shared: &Shared<LsmStore>) -> Result<(), BackendError> {
    let store = &shared.store;
    while let Some(extent) = shared.wait_for_upkeep(|state| store.next_compaction(&mut state.upkeep)) {
        let attempt = || match store.compact(extent) {
            // If a full compaction finds no room, compactions of a few small tables may free some.
            Err(full) if full.is_disk_full() && shared.lock().upkeep.take_space_request() => {
                if store.compact(Extent::Reclaim)? { Ok(true) } else { Err(full) }
            }
            done => done,
        };
        let Some(changed) = shared.until_there_is_room(FullDiskTask::Upkeep, attempt)? else { return Ok(()) };
        if changed {
            shared.publish_after(|_, _| {})?;
        }
        if let Extent::All { asked } = extent {
            shared.change_upkeep(|upkeep| upkeep.answer(asked));
        }
    }
    Ok(())
}

/// Main function of the reading thread: reads newly written blocks into the cache while the cache has room and no other
/// work is pending.
pub(super) fn warm(shared: &Shared<LsmStore>) -> Result<(), BackendError> {
    // The thread should get only processor time that no other thread needs. If the priority cannot be lowered, it
    // competes with the others.
    let _ = setpriority_process(Some(gettid()), LOWEST_PRIORITY);
    let is_calm = |state: &State<LsmStore>| state.is_idle() && state.upkeep.is_compacted();
    let is_due = |state: &mut State<LsmStore>| is_calm(state) && std::mem::take(&mut state.upkeep.may_warm);
    while shared.wait_for_upkeep(|state| is_due(state).then_some(())).is_some() {
        if !shared.store.read_ahead(&|| is_calm(&shared.lock()))? {
            shared.lock().upkeep.may_warm = true;
        }
    }
    Ok(())
}
