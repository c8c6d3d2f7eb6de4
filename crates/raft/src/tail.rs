//! Cache of the newest entries of the replicated log. Followers that keep up get their entries from it, without reads
//! of the log.
//!
//! Owns: the bound of the cache's memory. Does not own: older entries, which are read from the log.
//!
//! Invariant: the cached entries have consecutive indexes and end with the log's last entry, or there are none.

use std::collections::VecDeque;

use thalweg_log::LogRecord;
use thalweg_types::Index;

#[derive(Debug)]
pub(crate) struct Tail {
    records: VecDeque<LogRecord>,
    bytes: usize,
    max_bytes: usize,
}

/// Returns the bytes by which a cached entry counts towards the cache's limit. They only approximate its memory: the
/// payloads of one message can share memory.
fn charge(record: &LogRecord) -> usize {
    size_of::<LogRecord>() + record.payload.len()
}

impl Tail {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { records: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub(crate) fn push(&mut self, record: LogRecord) {
        debug_assert!(self.records.back().is_none_or(|last| last.index.next() == record.index));
        self.bytes += charge(&record);
        self.records.push_back(record);
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.records.pop_front() else { return };
            self.bytes -= charge(&oldest);
        }
    }

    pub(crate) fn truncate(&mut self, from: Index) {
        while let Some(record) = self.records.pop_back_if(|record| record.index >= from) {
            self.bytes -= charge(&record);
        }
    }

    pub(crate) fn purge(&mut self, index: Index) {
        while let Some(record) = self.records.pop_front_if(|record| record.index <= index) {
            self.bytes -= charge(&record);
        }
    }

    /// Returns the cached entries from `from` on; `None` if the entry at `from` is not cached.
    pub(crate) fn from(&self, from: Index) -> Option<impl Iterator<Item = &LogRecord>> {
        let first = self.records.front()?.index;
        let at = usize::try_from(from.0.checked_sub(first.0)?).ok()?;
        (at < self.records.len()).then(|| self.records.range(at..))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}
