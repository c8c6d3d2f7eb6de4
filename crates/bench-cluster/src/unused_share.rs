//! The processor time that a slow node leaves unused, and its use by the benchmark.
//!
//! On one machine, a slow follower leaves processor time to the leader and to the clients. Nodes on separate machines
//! do not get processor time from each other. Therefore a thread of the benchmark uses the time that the slow node
//! leaves. Node and thread together use as much as the node does when it is not slow.
//!
//! Owns: the thread, which ends with the work. The thread counts its own processor time, so the time for which it waits
//! for a processor does not count as used.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use crate::usage::{MeasuredProcess, Usage, thread_cpu};

/// Time between two readings of the node's processor time. The kernel counts that in steps of 10 ms.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time for which the thread spins without checking the node's processor time.
const MAX_SPIN: Duration = Duration::from_millis(40);

/// Processor time that a slow node used, and that the benchmark's thread used in its place. Both are in seconds of
/// processor time per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessorShares {
    pub node: f64,
    pub thread: f64,
}

fn cpu(process: u32) -> Duration {
    Usage::read(MeasuredProcess::Process(process)).cpu
}

/// Calls `work`. `share` is the processor time that the process may use, in seconds per second. Meanwhile a thread uses
/// the part of `share` that the process leaves unused. Returns the result of `work`, and the processor time of the
/// process and of the thread.
pub(crate) fn using_rest<T>(process: u32, share: f64, work: impl FnOnce() -> T) -> (T, ProcessorShares) {
    let (over, ended) = channel::<()>();
    let (begun, before) = (Instant::now(), cpu(process));
    std::thread::scope(|scope| {
        let spinning = scope.spawn(move || {
            let own = thread_cpu();
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let target = begun.elapsed().mul_f64(share);
                let used = cpu(process).saturating_sub(before) + (thread_cpu() - own);
                spin(target.saturating_sub(used).min(MAX_SPIN));
            }
            thread_cpu() - own
        });
        let result = work();
        let (took, node) = (begun.elapsed().as_secs_f64(), cpu(process).saturating_sub(before).as_secs_f64());
        drop(over);
        let thread = spinning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).as_secs_f64();
        (result, ProcessorShares { node: node / took, thread: thread / took })
    })
}

/// Spins until this thread has used this much processor time.
fn spin(time: Duration) {
    let until = thread_cpu() + time;
    while thread_cpu() < until {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_thread_uses_the_share_of_a_process_that_sleeps() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let work = || std::thread::sleep(Duration::from_millis(600));
        // On a busy machine the thread gets less than its share, and reading the process's time costs more. While the
        // machine stands still the thread gets no time at all. Therefore the test makes several attempts.
        let mut tried = Vec::new();
        let is_used = (0..20).any(|_| {
            let [shares, none] = [0.5, 0.0].map(|share| using_rest(child.id(), share, work).1);
            tried.push((shares, none));
            let is_share = shares.node < 0.05 && (0.1..0.6).contains(&shares.thread);
            is_share && none.thread < shares.thread / 2.0
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_used, "{tried:?}");
    }
}
