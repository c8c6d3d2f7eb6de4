//! The generator's threads: each with a runtime of its own, so that no task of one moves to another.

use std::{future::Future, num::NonZeroU64};

use rustix::thread::set_current_timer_slack;
use tokio::{runtime::Builder, task::LocalSet};

/// Runs `work` on so many threads, each given its number, and gathers what they bring.
pub fn run<T: Send, F: Future<Output = T>>(workers: usize, work: impl Fn(usize) -> F + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..workers).map(|number| scope.spawn(move || alone(work(number)))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(brought) => brought,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs a future on a runtime of this thread.
pub fn alone<F: Future>(work: F) -> F::Output {
    // Without it the kernel may wake the thread 50 µs late. Where that is refused, lag shows it.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let runtime = Builder::new_current_thread().enable_all().build().expect("epoll and an eventfd can be had");
    LocalSet::new().block_on(&runtime, work)
}
