//! The largest memory that the server takes during a run, found by many samples.
//!
//! Owns: the thread that takes the samples and ends with the run. The samples miss memory that the server takes and
//! returns between two of them. The kernel's own peak of the resident memory includes such memory.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use crate::{
    control_group::{ControlGroup, GroupMemory},
    usage::{MeasuredProcess, anonymous_bytes},
};

/// Time between two samples of the server's memory.
const LOOK: Duration = Duration::from_millis(50);

/// Largest values among the memory samples of a run, and the increase of the control group's counts (such as major
/// faults) during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Peaks {
    /// Largest memory of the server's process that belongs to no file, in bytes; `None` if the kernel does not report
    /// it.
    pub anonymous: Option<u64>,
    /// Largest memory of the server's control group, and the increase of the group's counts; `None` without a control
    /// group.
    pub group: Option<GroupMemory>,
}

impl Peaks {
    fn look(&mut self, process: u32, group: Option<&ControlGroup>) {
        self.anonymous = self.anonymous.max(anonymous_bytes(MeasuredProcess::Process(process)));
        if let Some(now) = group.and_then(ControlGroup::memory) {
            self.group = Some(highest(self.group.unwrap_or_default(), now));
        }
    }
}

/// Combines two samples of a control group: each field of the result is the larger one of the two samples.
fn highest(a: GroupMemory, b: GroupMemory) -> GroupMemory {
    GroupMemory {
        anonymous_bytes: a.anonymous_bytes.max(b.anonymous_bytes),
        cache_bytes: a.cache_bytes.max(b.cache_bytes),
        dirty_bytes: a.dirty_bytes.max(b.dirty_bytes),
        major_faults: a.major_faults.max(b.major_faults),
        times_at_limit: a.times_at_limit.max(b.times_at_limit),
        killed: a.killed.max(b.killed),
    }
}

/// Calls `work` while a thread samples the memory of a process and of its control group. Returns the result of `work`,
/// and the largest samples.
pub(crate) fn watched<T>(process: u32, group: Option<&ControlGroup>, work: impl FnOnce() -> T) -> (T, Peaks) {
    let (over, ended) = channel::<()>();
    let before = group.and_then(ControlGroup::memory).unwrap_or_default();
    std::thread::scope(|scope| {
        let looking = scope.spawn(move || {
            let mut peaks = Peaks::default();
            loop {
                peaks.look(process, group);
                if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            // The counts may have risen since the last sample.
            peaks.look(process, group);
            if let Some(group) = &mut peaks.group {
                group.major_faults -= before.major_faults.min(group.major_faults);
                group.times_at_limit -= before.times_at_limit.min(group.times_at_limit);
            }
            peaks
        });
        // If `work` panics, `over` is dropped too. Dropping it ends the thread.
        let over = over;
        let result = work();
        drop(over);
        (result, looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_run_is_seen_without_a_group() {
        let watch = |looks: u32| {
            let (sum, peaks) = watched(std::process::id(), None, || {
                let taken = vec![1_u8; 64 << 20];
                std::thread::sleep(LOOK * looks);
                taken.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            });
            assert_eq!((sum, peaks.group), (64 << 20, None));
            peaks.anonymous
        };
        // On a busy machine the sampling thread may miss a short run, so the test repeats it with longer ones.
        let is_seen = [3, 20, 100, 400].into_iter().any(|looks| watch(looks).is_some_and(|bytes| bytes >= 64 << 20));
        assert!(is_seen, "64 MiB are not seen");
    }

    #[test]
    fn each_field_has_its_largest_value() {
        let a = GroupMemory { anonymous_bytes: 5, cache_bytes: 1, times_at_limit: 3, ..GroupMemory::default() };
        let b = GroupMemory { anonymous_bytes: 2, cache_bytes: 9, killed: 1, ..GroupMemory::default() };
        let all = GroupMemory { anonymous_bytes: 5, cache_bytes: 9, times_at_limit: 3, killed: 1, ..a };
        assert_eq!((highest(a, b), highest(b, a)), (all, all));
    }
}
