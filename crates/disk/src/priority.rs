//! Low priorities for background threads that read or write files, so that other threads run first.
//!
//! Owns: the two system calls. Does not own: the threads.
//!
//! `nice` is not sufficient for a thread that never sleeps: Linux lets such a thread run until the next tick before
//! another thread gets the processor. On two cores with compression at `nice` 19, the log's fsync sometimes waited up
//! to 4 ms for this tick, because the kernel runs parts of an fsync in several threads. A thread with idle priority
//! yields immediately.

use rustix::{process::setpriority_process, thread::gettid};

/// Nice value of threads with low priority, which get about a tenth of the processor time of another thread.
const LOW_PRIORITY: i32 = 10;

/// Scheduling priority of a background thread, below that of normal threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The thread gets only processor time that other threads leave unused, plus about a third of a percent.
    Idle,
    /// The thread gets about a tenth of the processor time of a normal thread.
    Low,
}

impl Priority {
    /// Sets the priority of the calling thread. Keeps the present priority if the process lacks the permission.
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

    /// Returns a field of `/proc/thread-self/stat` as a number. Fields are counted from 1, as in the manual page.
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
