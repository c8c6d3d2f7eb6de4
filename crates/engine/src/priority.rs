//! How much a thread of the background may take from those that somebody waits for.
//!
//! Being `nice` is not enough for a thread that never sleeps: it gives way, but Linux lets it run on until the next
//! tick first. On two cores with compression at `nice` 19, a log's fsync (whose parts the kernel hands from thread to
//! thread) waited up to 4 ms for that now and then; an idle thread gives way at once.

use rustix::{process::setpriority_process, thread::gettid};

/// As `nice` counts: about a tenth of what another thread gets.
const LOW_PRIORITY: i32 = 10;

/// Of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Only what nobody else wants of the processors, and a third of a percent of what others do.
    Idle,
    /// Less than others.
    Low,
}

impl Priority {
    /// Gives it to the calling thread. Without the right to, that takes its share as before.
    pub(crate) fn take(self) {
        match self {
            Self::Idle => {
                let parameters = libc::sched_param { sched_priority: 0 };
                // SAFETY: 0 is the calling thread, and the pointer is to what the call reads and lives as long as it.
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

    /// Field of `/proc/thread-self/stat`, counted from 1 as its manual does.
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
