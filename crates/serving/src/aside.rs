//! Work that a thread which serves clients leaves to another one: freeing many entries, ending many subscriptions.
//!
//! Owns: the choice of the thread. Does not own: the work, which nobody waits for.
//!
//! Invariant: the work is done, also if the system provides no thread.

use std::{sync::mpsc, thread};

use thalweg_broker::ClearedEntries;

/// Number of entries up to which they are freed by the calling thread.
const FEW_ENTRIES: u64 = 2_000;

/// Does the work on a thread of its own; on this one if the system provides none. Callers pass work of milliseconds or
/// more, because a thread takes about 30 µs to start.
pub fn run(work: impl FnOnce() + Send + 'static) {
    let (give, take) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
    let begun = thread::Builder::new().name("thalweg-aside".to_owned()).spawn(move || take.recv().map(|work| work()));
    match begun {
        // The thread waits for the work, and ends after it.
        Ok(_) => drop(give.send(Box::new(work))),
        Err(_) => work(),
    }
}

/// Frees the entries that were removed from a cache.
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
