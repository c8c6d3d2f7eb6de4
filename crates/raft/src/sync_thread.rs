//! The thread that syncs the log for all spaces (Raft groups) of a node.
//!
//! Owns: the thread. Does not own: the callbacks that it completes (see `sync_queue`).
//!
//! While an fsync runs, the callbacks of further appends gather for the next one. The thread sleeps while no callback
//! waits.

use std::{
    fmt, io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use openraft::async_runtime::AsyncRuntime;

use crate::sync_queue::{SyncDriver, SyncQueue};

/// Pause between two fsyncs of a follower that is far behind. With a longer pause, each fsync would write more data,
/// and fsyncs of other programs would wait longer for it.
const REST: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    is_due: bool,
    is_stopped: bool,
}

impl Bell {
    fn ring(&self, change: impl FnOnce(&mut BellState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.rung.notify_one();
    }

    /// Sleeps until a callback waits for an fsync. Returns false if the thread must stop.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent = |state: &mut BellState| !state.is_due && !state.is_stopped;
        let mut state = self.rung.wait_while(state, is_silent).unwrap_or_else(PoisonError::into_inner);
        state.is_due = false;
        !state.is_stopped
    }
}

/// A thread that performs the fsyncs of a [`SyncQueue`]. When the value is dropped, the thread performs a last fsync
/// and closes the queue.
pub struct SyncThread {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for SyncThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncThread").finish_non_exhaustive()
    }
}

impl SyncThread {
    /// Starts the thread that performs the fsyncs of `queue`. It completes the callbacks, so openraft's callbacks must
    /// be able to move to another thread.
    pub fn start<Rt: AsyncRuntime>(queue: Arc<SyncQueue<Rt>>) -> io::Result<Self>
    where
        SyncQueue<Rt>: Send + Sync,
    {
        let bell = Arc::new(Bell::default());
        let heard = Arc::clone(&bell);
        let thread = thread::Builder::new().name("raft-sync".to_owned()).spawn(move || {
            while heard.wait() {
                queue.step();
                if queue.takes_rest() {
                    thread::sleep(REST);
                }
            }
            queue.step();
            queue.close();
        })?;
        Ok(Self { bell, thread: Some(thread) })
    }
}

impl SyncDriver for SyncThread {
    fn notify(&self) {
        self.bell.ring(|state| state.is_due = true);
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.bell.ring(|state| state.is_stopped = true);
        if let Some(thread) = self.thread.take() {
            // A drop must not panic. A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}
