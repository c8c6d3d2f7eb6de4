//! Work that a serving thread hands to another thread: freeing many entries, ending many subscriptions.
//!
//! Owns: the choice of the thread. Does not own: the work, for which no client waits.
//!
//! Invariant: the work is always done. If the system cannot start a thread, the calling thread does it.

use std::{sync::mpsc, thread};

use thalweg_broker::ClearedEntries;

/// Maximum number of entries removed from a cache that the calling thread frees itself. A new thread frees more than
/// this.
const FEW_ENTRIES: u64 = 2_000;

/// Does the work on a new thread, or on the calling one if the system cannot start a thread. Callers pass work of
/// milliseconds or more, because a thread takes about 30 µs to start.
pub fn run(work: impl FnOnce() + Send + 'static) {
    let (give, take) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
    let begun = thread::Builder::new().name("thalweg-aside".to_owned()).spawn(move || take.recv().map(|work| work()));
    match begun {
        // The new thread receives the work, does it, and ends.
        Ok(_) => drop(give.send(Box::new(work))),
        Err(_) => work(),
    }
}

/// Frees the entries that were removed from a cache. A new thread frees large numbers of them.
pub fn free(entries: ClearedEntries) {
    if entries.len() > FEW_ENTRIES {
        run(move || drop(entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_done_on_another_thread() {
        let (tell, told) = mpsc::channel();
        run(move || tell.send(thread::current().id()).unwrap());
        assert_ne!(told.recv().unwrap(), thread::current().id());
    }
}
