//! Priority of background threads that read or write files, below the threads that callers wait for.
//!
//! Owns: the two system calls. Does not own: the threads.
//!
//! `nice` is not sufficient for a thread that never sleeps: such a thread gives way, but Linux first lets it run until
//! the next tick. On two cores with compression at `nice` 19, a log's fsync (whose parts the kernel hands from thread
//! to thread) sometimes waited up to 4 ms for this tick. A thread with idle priority gives way immediately.

use rustix::{process::setpriority_process, thread::gettid};

/// Nice value of threads with low priority, which get about a tenth of the processor time of another thread.
const LOW_PRIORITY: i32 = 10;

/// Priority of a background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The thread gets only processor time that other threads leave, plus about a third of a percent.
    Idle,
    /// The thread gets a smaller share of the processor time than others, about a tenth.
    Low,
}

impl Priority {
    /// Sets the priority of the calling thread. Without the permission for this the thread keeps its present priority.
    pub fn take(self) {
        match self {
            Self::Idle => {
                let parameters = libc::sched_param { sched_priority: 0 };
                // SAFETY: 0 is the calling thread, and the pointer refers to a local that outlives the call.
                let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
            }
            Self::Low => _ = setpriority_process(Some(gettid()), LOW_PRIORITY),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    /// Returns a field of `/proc/thread-self/stat`, counted from 1 as in the manual page.
    fn stat(field: usize) -> i64 {
        let line = fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = line.rsplit_once(')').unwrap().1;
        after_name.split_whitespace().nth(field - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn it_is_that_of_the_calling_thread_alone() {
        const NICE: usize = 19;
        const POLICY: usize = 41;
        let before = (stat(NICE), stat(POLICY));
        let taken = |priority: Priority| {
            let look = move || {
                priority.take();
                (stat(NICE), stat(POLICY))
            };
            thread::spawn(look).join().unwrap()
        };
        assert_eq!(taken(Priority::Idle).1, i64::from(libc::SCHED_IDLE));
        assert_eq!(taken(Priority::Low), (i64::from(LOW_PRIORITY).max(before.0), before.1));
        assert_eq!((stat(NICE), stat(POLICY)), before);
    }
}
