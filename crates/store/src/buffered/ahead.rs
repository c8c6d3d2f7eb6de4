//! Memory of the active memtable, provided before its writer needs it.
//!
//! Owns: one thread that makes the kernel provide pages and allocates the next hash table, and the rule how far ahead of
//! the writer. Does not own: the memory and the table, which are the memtable's.
//!
//! The first write to a page waits until the kernel has cleared it, for 2 MiB between 0.3 ms and several milliseconds
//! (a virtual machine may get the page from its host then). In a fresh process that was a third of the time of the
//! first 50,000 puts. Later memtables use the memory of earlier ones.
//!
//! Bound: the thread has at most one request, to which later ones are added, and is at most [`MAX_AHEAD`] bytes ahead.

use std::{
    ops::Range,
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
};

use super::shared::lock;
use crate::{backend::BackendError, memtable::Memtable};

/// Bytes that a memtable has when the thread is asked for the first time. A database with less data keeps its memory.
const FIRST_AT: usize = 256 << 10;
/// Bytes that the writer takes between two requests.
const STEP: usize = 1 << 20;
/// The thread provides twice as much memory as the memtable has, and within these bounds.
const MIN_AHEAD: usize = 2 << 20;
const MAX_AHEAD: usize = 16 << 20;

/// Decides when a memtable's writer asks the thread, and for which bytes of its memory. It begins anew with each
/// memtable.
#[derive(Debug)]
pub(super) struct AheadRule {
    /// Bytes in use at which the writer asks next.
    at: usize,
    /// End of the memory for which the writer has asked.
    end: usize,
}

impl Default for AheadRule {
    fn default() -> Self {
        Self { at: FIRST_AT, end: 0 }
    }
}

impl AheadRule {
    /// Returns the bytes of memory that the thread must provide now that `used` of `capacity` bytes are in use.
    #[inline]
    pub(super) fn due(&mut self, used: usize, capacity: usize) -> Option<Range<usize>> {
        if used < self.at {
            return None;
        }
        self.at = used + STEP;
        let ahead = (2 * used).clamp(MIN_AHEAD, MAX_AHEAD);
        let wanted = self.end.max(used)..(used + ahead).min(capacity);
        self.end = wanted.end;
        Some(wanted)
    }
}

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Ahead {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Requests {
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Next {
    /// Memtable and bytes of its memory that the thread provides next.
    request: Option<(Arc<Memtable>, Range<usize>)>,
    stop: bool,
}

impl Ahead {
    pub(super) fn start() -> Result<Self, BackendError> {
        let requests = Arc::new(Requests::default());
        let taken = Arc::clone(&requests);
        let thread = std::thread::Builder::new().name("thalweg-memory".to_owned());
        let thread = thread.spawn(move || taken.work()).map_err(|error| BackendError::io("start thread", error))?;
        Ok(Self { requests, thread: Some(thread) })
    }

    /// Asks the thread to provide bytes of the memtable's memory, and the hash table that the memtable needs next.
    pub(super) fn request(&self, memtable: &Arc<Memtable>, bytes: Range<usize>) {
        let mut next = lock(&self.requests.next);
        let begin = match &next.request {
            Some((former, waiting)) if Arc::ptr_eq(former, memtable) => waiting.start,
            _ => bytes.start,
        };
        next.request = Some((Arc::clone(memtable), begin..bytes.end));
        drop(next);
        self.requests.changed.notify_one();
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        lock(&self.requests.next).stop = true;
        self.requests.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was reported, and has cost time only.
            let _ = thread.join();
        }
    }
}

impl Requests {
    fn work(&self) {
        while let Some((memtable, bytes)) = self.take() {
            memtable.prepare_index();
            memtable.provide(bytes);
        }
    }

    /// Waits for a request. Returns `None` when the thread must stop.
    fn take(&self) -> Option<(Arc<Memtable>, Range<usize>)> {
        let idle = |next: &mut Next| !next.stop && next.request.is_none();
        let waited = self.changed.wait_while(lock(&self.next), idle);
        let mut next = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if next.stop { None } else { next.request.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stays_ahead_of_the_writer_within_its_bounds() {
        let (capacity, mut rule) = (64 << 20, AheadRule::default());
        assert_eq!(rule.due(FIRST_AT - 1, capacity), None, "little data keeps its memory");
        let mut provided = 0;
        for used in (FIRST_AT..capacity).step_by(200) {
            let Some(bytes) = rule.due(used, capacity) else { continue };
            assert!(bytes.start == provided.max(used) && bytes.end - used <= MAX_AHEAD && bytes.end <= capacity);
            assert!(bytes.end == capacity || bytes.end - used >= MIN_AHEAD, "{used}: {bytes:?}");
            provided = bytes.end;
        }
        assert_eq!(provided, capacity);
    }

    #[test]
    fn provided_memory_and_tables_change_no_contents() {
        use crate::backend::WriteBatch;
        let (memtable, mut writer) = Memtable::create(64 << 20);
        let ahead = Ahead::start().unwrap();
        let mut rule = AheadRule::default();
        let key = |number: u32| number.to_be_bytes();
        for number in 0..40_000 {
            let mut batch = WriteBatch::new();
            batch.put(&[&key(number)], &[&[7; 100]]);
            writer.apply(&batch).unwrap();
            if let Some(bytes) = rule.due(writer.used_bytes(), writer.capacity_bytes()) {
                ahead.request(&memtable, bytes);
            }
        }
        drop(ahead);
        assert_eq!(memtable.len(), 40_000);
        for number in 0..40_000 {
            let found = memtable.get(&key(number), memtable.visible());
            assert!(matches!(found, Some(crate::memtable::Entry::Value(value)) if value == [7; 100]), "{number}");
        }
    }
}
