//! Reads of what is applied. Any thread, any time; the applier is held up for short copies only.

use std::sync::{Arc, atomic::Ordering};

use thalweg_types::{KeyspaceId, Offset, SpaceTime, StreamId};

use crate::{
    catalog::KeyspaceRow,
    counts::Counts,
    keys,
    keyspaces::{Snapshot, Stored, decode_owned},
    machine::{Machine, MachineError, StreamReadError, read},
    streams::{
        Batches, Head, ProducerInfo, StreamInfo,
        producers::{self, ProducerRow},
        read as stream_read, retention,
    },
};

/// Heads copied at a time, so that a list of many streams never holds up the applier for long.
const PAGE: usize = 256;

impl Machine {
    /// The newest consistent view.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // A clear may be settled between looking at the table and taking the view, or the other way round:
        // only a table that was there all the while goes with the view.
        let mut clears = read(&self.published.clears).clone();
        loop {
            let view = self.backend.view();
            let after = read(&self.published.clears).clone();
            if Arc::ptr_eq(&clears, &after) {
                return Snapshot::new(view, clears);
            }
            clears = after;
        }
    }

    /// The newest value of a key.
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        // Asked before the backend is: what a clear that comes later hides was still there when we began.
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.snapshot().get(keyspace, key);
        }
        keys::with_data_key(keyspace, key, |full| decode_owned(full, self.backend.get(full)?))
    }

    /// The keyspace of that name.
    #[must_use]
    pub fn keyspace_id(&self, name: &str) -> Option<KeyspaceId> {
        read(&self.published.keyspaces).id(name)
    }

    /// The name of a keyspace.
    #[must_use]
    pub fn keyspace_name(&self, id: KeyspaceId) -> Option<Arc<str>> {
        self.keyspace(id).map(|row| row.name)
    }

    /// A keyspace's row, unless it has been dropped.
    #[must_use]
    pub fn keyspace(&self, id: KeyspaceId) -> Option<KeyspaceRow> {
        read(&self.published.keyspaces).row(id).filter(|row| row.is_live()).cloned()
    }

    /// All keyspaces by id.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<(KeyspaceId, KeyspaceRow)> {
        read(&self.published.keyspaces).list()
    }

    /// What a keyspace holds, if it counts exactly.
    #[must_use]
    pub fn keyspace_counts(&self, id: KeyspaceId) -> Option<Counts> {
        self.keyspace(id).filter(|row| row.config.exact_counts)?;
        Some(read(&self.published.counts).get(&id).copied().unwrap_or_default())
    }

    /// Whether rows of deleted prefixes of a keyspace wait to be swept.
    #[must_use]
    pub fn has_clears_of(&self, keyspace: KeyspaceId) -> bool {
        read(&self.published.clears).of(keyspace).is_some()
    }

    /// Whether a sweep would find something to do.
    #[must_use]
    pub fn sweep_due(&self) -> bool {
        self.published.has_clears.load(Ordering::Acquire)
    }

    /// The stream of that name.
    #[must_use]
    pub fn stream_id(&self, name: &str) -> Option<StreamId> {
        read(&self.published.streams).id(name)
    }

    /// A stream's figures.
    #[must_use]
    pub fn stream(&self, id: StreamId) -> Option<StreamInfo> {
        read(&self.published.streams).get(id).filter(|head| head.is_live()).map(|head| StreamInfo::of(id, head))
    }

    /// A stream's next offset.
    #[must_use]
    pub(crate) fn stream_next(&self, id: StreamId) -> Option<Offset> {
        read(&self.published.streams).get(id).filter(|head| head.is_live()).map(|head| head.next)
    }

    /// How many streams there are.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        read(&self.published.streams).live_len()
    }

    /// All streams by id. Each one's figures are of one moment, but not all of the same.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.collect_heads(|id, head| head.is_live().then(|| StreamInfo::of(id, head)))
    }

    /// The producers that a stream remembers, by id.
    pub fn producers(&self, stream: StreamId) -> Result<Vec<ProducerInfo>, MachineError> {
        producers::list(&*self.backend.view(), stream, self.applied().time)
    }

    /// What a stream knows of one producer; `None` if it never heard of it, or too long ago.
    pub fn producer(&self, stream: StreamId, id: &str) -> Result<Option<ProducerInfo>, MachineError> {
        let key = keys::producer_head(stream, id);
        let row = self.backend.get(&key)?.map(|row| ProducerRow::decode(&key, &row)).transpose()?;
        let now = self.applied().time;
        Ok(row.filter(|row| row.is_known(now)).map(|row| ProducerInfo::of(id, &row)))
    }

    /// Where the batches from the one that holds `from` on lie: at most `max_batches` of together at
    /// most `max_bytes`, but at least one if there is any. None at the end of the stream.
    pub fn batches_from(
        &self,
        stream: StreamId,
        from: Offset,
        max_batches: usize,
        max_bytes: u64,
    ) -> Result<Batches, StreamReadError> {
        stream_read::batches_from(&*self.backend.view(), stream, from, max_batches, max_bytes)
    }

    /// The first readable offset whose record is not older than `time`; the next offset if all are.
    pub fn offset_at_or_after(&self, stream: StreamId, time: SpaceTime) -> Result<Offset, StreamReadError> {
        stream_read::offset_at_or_after(&*self.backend.view(), stream, time)
    }

    /// Which streams must be trimmed to where under their configuration at `now`.
    pub fn retention_due(&self, now: SpaceTime) -> Result<Vec<(StreamId, Offset)>, MachineError> {
        let candidates = self.collect_heads(|id, head| retention::may_be_due(head, now).then_some(id));
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let view = self.backend.view();
        let due = |id| Ok(retention::due(&*view, id, now)?.map(|before| (id, before)));
        candidates.into_iter().filter_map(|id| due(id).transpose()).collect()
    }

    /// Streams with index entries to reclaim, deleted ones included.
    #[must_use]
    pub fn reclaim_due(&self) -> Vec<StreamId> {
        self.collect_heads(|id, head| head.is_reclaimable().then_some(id))
    }

    fn collect_heads<T>(&self, mut pick: impl FnMut(StreamId, &Head) -> Option<T>) -> Vec<T> {
        let mut picked = Vec::new();
        let mut after = None;
        loop {
            let table = read(&self.published.streams);
            let mut last = None;
            for (id, head) in table.after(after).take(PAGE) {
                picked.extend(pick(id, head));
                last = Some(id);
            }
            if last.is_none() {
                return picked;
            }
            after = last;
        }
    }
}
