//! A background thread that prepares the active memtable for its writer.
//!
//! Owns: the thread, and the rule for when the writer sends it a request. The thread makes the kernel provide pages,
//! allocates the next hash table, and links new keys into the key order. Does not own: pages, tables and order; these
//! belong to the memtable.
//!
//! The first write to a page waits until the kernel has cleared the page: 0.5 ms for 2 MiB, and several milliseconds on
//! a virtual machine that gets the page from its host. In a fresh process, these waits were a third of the time of the
//! first 50,000 puts. Later memtables reuse the memory of earlier ones. Linking 8,192 random keys takes a writer 2 ms.
//!
//! Without the thread, the writer does this work itself. Bound: the thread has at most one pending request; later
//! requests are merged into it. The thread provides at most [`MAX_AHEAD_IF_SLOW`] bytes that are not in use.

use std::{
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::shared::lock;
use crate::memtable::Memtable;

/// Number of used bytes at which a memtable's writer first asks the background thread to prepare memory. A small
/// database stays below this number and takes no extra memory.
const FIRST_AT: usize = 256 << 10;
/// Minimum number of bytes that a memtable's writer uses between two requests to the thread that prepares memory. A
/// request that wakes the thread costs the writer 20 µs.
const STEP: usize = 512 << 10;
/// Minimum number of bytes that the background thread prepares beyond the used bytes of a memtable. Between this
/// minimum and a maximum, the thread prepares twice as many bytes as the memtable uses.
const MIN_AHEAD: usize = 2 << 20;
/// Maximum number of bytes that the background thread prepares beyond the used bytes of a memtable, if the kernel
/// provides memory fast.
const MAX_AHEAD: usize = 4 << 20;
/// Maximum number of bytes that the background thread prepares beyond the used bytes of a memtable, if the kernel
/// provides memory slowly.
const MAX_AHEAD_IF_SLOW: usize = 16 << 20;
/// Limit for a slow kernel: the kernel counts as slow if it takes longer than this to provide [`MIN_AHEAD`] bytes of
/// memory. Clearing so much memory takes 0.2 to 0.5 ms. A virtual machine that gets the memory from its host takes 3 ms
/// or more.
const SLOW: Duration = Duration::from_millis(1);

/// The rule by which the writer of a memtable asks the thread to prepare more memory. The rule determines when the
/// writer sends a request, and which bytes of the memtable the thread prepares. Each new memtable starts with a new
/// rule.
#[derive(Debug)]
pub(super) struct AheadRule {
    /// Number of used bytes of the memtable at which its writer next asks the background thread to prepare memory.
    at: usize,
    /// End of the memtable's byte range that the background thread was already asked to prepare.
    end: usize,
}

impl Default for AheadRule {
    fn default() -> Self {
        Self { at: FIRST_AT, end: 0 }
    }
}

impl AheadRule {
    /// Returns true if a memtable's writer may send a request to the thread that prepares memory, now that `used` bytes
    /// of the memtable are in use. After true, the next true follows at least [`STEP`] used bytes later.
    #[inline]
    fn is_at_step(&mut self, used: usize) -> bool {
        let is_due = used >= self.at;
        if is_due {
            self.at = used + STEP;
        }
        is_due
    }

    /// Returns the bytes of a memtable's memory that the background thread must prepare now that `used` of `capacity`
    /// bytes are in use. The thread should be ahead by twice the used bytes, at least by [`MIN_AHEAD`] and at most by
    /// `max_ahead` bytes. The range is empty while the thread was asked for at least half of them.
    fn due(&mut self, used: usize, capacity: usize, max_ahead: usize) -> Range<usize> {
        let ahead = (2 * used).clamp(MIN_AHEAD, max_ahead);
        if self.end >= (used + ahead / 2).min(capacity) {
            return self.end..self.end;
        }
        let wanted = self.end.max(used)..(used + ahead).min(capacity);
        self.end = wanted.end;
        wanted
    }
}

/// Handle of the thread that prepares memory for the writer of the active memtable. Dropping the handle stops the
/// thread.
#[derive(Debug)]
pub(super) struct AheadThread {
    requests: Arc<Requests>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Requests {
    next: Mutex<Next>,
    changed: Condvar,
    /// True if the kernel was slow to provide memory when the thread last requested memory from the kernel.
    is_slow: AtomicBool,
}

#[derive(Debug, Default)]
struct Next {
    /// Memtable that the thread works on next, and the bytes of its memory to provide. If the memtable is dropped
    /// first, the thread skips the request.
    request: Option<(Weak<Memtable>, Range<usize>)>,
    stop: bool,
}

impl AheadThread {
    /// Starts the thread that prepares memory for the writer. Returns `None` if the operating system cannot start a
    /// thread.
    pub(super) fn start() -> Option<Self> {
        let requests = Arc::new(Requests::default());
        let taken = Arc::clone(&requests);
        let thread = std::thread::Builder::new().name("thalweg-ahead".to_owned());
        let thread = thread.spawn(move || taken.work()).ok()?;
        Some(Self { requests, thread: Some(thread) })
    }

    /// Asks the background thread for memory ahead of a memtable's writer, or to link queued keys, if either is due now
    /// that `used` bytes of the memtable are in use. The writer calls this after each batch. Does not wait.
    #[inline]
    pub(super) fn prepare(&self, rule: &mut AheadRule, memtable: &Arc<Memtable>, used: usize, capacity: usize) {
        if rule.is_at_step(used) {
            let is_slow = self.requests.is_slow.load(Ordering::Relaxed);
            let bytes = rule.due(used, capacity, if is_slow { MAX_AHEAD_IF_SLOW } else { MAX_AHEAD });
            if !bytes.is_empty() || memtable.has_queued_keys() {
                self.request(memtable, bytes);
            }
        }
    }

    fn request(&self, memtable: &Arc<Memtable>, bytes: Range<usize>) {
        let mut next = lock(&self.requests.next);
        let begin = match &next.request {
            Some((former, waiting)) if former.as_ptr() == Arc::as_ptr(memtable) => waiting.start,
            _ => bytes.start,
        };
        next.request = Some((Arc::downgrade(memtable), begin..bytes.end));
        drop(next);
        self.requests.changed.notify_one();
    }
}

impl Drop for AheadThread {
    fn drop(&mut self) {
        lock(&self.requests.next).stop = true;
        self.requests.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread. A panic only means that the writer does the work
            // itself.
            let _ = thread.join();
        }
    }
}

impl Requests {
    fn work(&self) {
        while let Some((memtable, bytes)) = self.take() {
            let Some(memtable) = memtable.upgrade() else { continue };
            memtable.prepare_index();
            if !bytes.is_empty() {
                let (begin, parts) = (Instant::now(), bytes.len().div_ceil(MIN_AHEAD) as u32);
                memtable.provide(bytes);
                self.is_slow.store(begin.elapsed() > SLOW * parts, Ordering::Relaxed);
            }
            memtable.settle();
        }
    }

    /// Waits until the writer of the memtable has sent a request to this thread, and takes the request. Returns `None`
    /// when the thread must stop.
    fn take(&self) -> Option<(Weak<Memtable>, Range<usize>)> {
        let is_idle = |next: &mut Next| !next.stop && next.request.is_none();
        let waited = self.changed.wait_while(lock(&self.next), is_idle);
        let mut next = waited.unwrap_or_else(PoisonError::into_inner);
        if next.stop { None } else { next.request.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::WriteBatch, memtable::Entry};

    #[test]
    fn the_thread_stays_ahead_of_the_writer_within_its_bounds() {
        for max_ahead in [MAX_AHEAD, MAX_AHEAD_IF_SLOW] {
            let (capacity, mut rule) = (64 << 20, AheadRule::default());
            assert!(!rule.is_at_step(FIRST_AT - 1), "little data keeps its memory");
            let (mut provided, mut requests) = (0, 0);
            for used in (FIRST_AT..capacity).step_by(200) {
                if !rule.is_at_step(used) {
                    continue;
                }
                let bytes = rule.due(used, capacity, max_ahead);
                if bytes.is_empty() {
                    assert!(provided >= (used + MIN_AHEAD / 2).min(capacity), "{used}: {provided}");
                    continue;
                }
                assert!(bytes.start == provided.max(used) && bytes.end - used <= max_ahead && bytes.end <= capacity);
                assert!(bytes.end == capacity || bytes.end - used >= MIN_AHEAD, "{used}: {bytes:?}");
                (provided, requests) = (bytes.end, requests + 1);
            }
            assert_eq!(provided, capacity);
            assert!(requests <= 2 * capacity / max_ahead + 4, "{requests} requests");
        }
    }

    /// Returns the number of page faults of the calling thread that were served without a read from the disk.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit_once(')').expect("the name is in parentheses").1;
        after_name.split_whitespace().nth(7).expect("the tenth field").parse().unwrap()
    }

    /// Returns true if the kernel can provide the pages of a range of memory before they are written, as it can since
    /// Linux 5.14.
    fn kernel_provides() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(5), Some(14))
    }

    #[test]
    fn a_writer_waits_for_no_page_that_was_provided() {
        const VALUES: usize = 24;
        if !kernel_provides() {
            return;
        }
        let value = vec![7; 1 << 20];
        let (memtable, mut writer) = Memtable::create(32 << 20);
        let ahead = AheadThread::start().unwrap();
        ahead.request(&memtable, 0..1);
        ahead.request(&memtable, 1 << 20..32 << 20);
        let mut batches = Vec::new();
        for number in 0..VALUES {
            let mut batch = WriteBatch::new();
            batch.put(&[&number.to_be_bytes()], &[&value]);
            batches.push(batch);
        }
        // The thread finishes its current request when it is stopped, and skips a waiting one. So wait until the
        // request is taken.
        while lock(&ahead.requests.next).request.is_some() {
            std::thread::yield_now();
        }
        drop(ahead);
        let before = faults();
        batches.iter().for_each(|batch| writer.apply(batch).unwrap());
        let seen = faults() - before;
        assert!(seen < VALUES as u64 / 4, "{seen} faults");
        for number in 0..VALUES {
            let found = memtable.get(&number.to_be_bytes(), memtable.visible());
            assert!(matches!(found, Some(Entry::Value(found)) if found == value), "{number}");
        }
    }

    #[test]
    fn random_keys_are_found_and_in_order_while_the_thread_links_them() {
        let (memtable, mut writer) = Memtable::create(32 << 20);
        let ahead = AheadThread::start().unwrap();
        let key = |number: u32| number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        for number in 0..40_000 {
            let mut batch = WriteBatch::new();
            batch.put(&[&key(number)], &[&[7; 20]]);
            writer.apply(&batch).unwrap();
            if number % 500 == 0 {
                ahead.request(&memtable, 0..0);
            }
            if number % 5_000 == 4_999 {
                let keys: Vec<_> = memtable.iter(memtable.visible()).map(|(key, _)| key.to_vec()).collect();
                assert!(keys.len() == number as usize + 1 && keys.is_sorted(), "{number}");
            }
        }
        let all = (0..40_000).all(|number| memtable.get(&key(number), memtable.visible()).is_some());
        assert!(all && memtable.len() == 40_000);
    }
}
