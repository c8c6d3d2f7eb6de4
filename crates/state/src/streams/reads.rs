//! Queries about streams. Any thread may call them; they block the applying thread only while they copy a little data.
//!
//! Owns: the methods of `Machine` about streams, and the pages in which heads are examined. Does not own: lookups in
//! the index of a stream (`index`), or the types of the results (`read`).

use thalweg_types::{Offset, SpaceTime, StreamId, info::Producer};

use crate::{
    error::{MachineError, StreamReadError},
    keys,
    machine::state_machine::Machine,
    streams::{
        compaction::{self, BatchRange, CompactionCandidate},
        heads::{Head, MaintenanceKind},
        producers::{self, ProducerRow},
        read as stream_read,
        read::{Batches, LiveStream},
        retention::{self, DueTrim},
    },
    sync::read,
};

/// Number of streams that a query examines under one lock, so that long lists do not block the applying thread.
const PAGE: usize = 256;

impl Machine {
    /// Returns the id of the live stream with this name.
    #[must_use]
    pub fn stream_id(&self, name: &str) -> Option<StreamId> {
        read(&self.published.streams).id(name)
    }

    /// Returns the statistics of a live stream; `None` if there is none with this id.
    #[must_use]
    pub fn stream(&self, id: StreamId) -> Option<LiveStream> {
        read(&self.published.streams).get(id).filter(|head| head.is_live()).map(|head| LiveStream::of(id, head))
    }

    /// Returns the next offset that a live stream will assign.
    #[must_use]
    pub(crate) fn stream_next(&self, id: StreamId) -> Option<Offset> {
        read(&self.published.streams).get(id).filter(|head| head.is_live()).map(|head| head.next)
    }

    /// Returns the number of live streams.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        read(&self.published.streams).live_len()
    }

    /// Returns the statistics of all live streams in the order of ids. The statistics of one stream are from one point
    /// in time, but those of different streams may be from different times.
    #[must_use]
    pub fn streams(&self) -> Vec<LiveStream> {
        self.streams_after(None, usize::MAX)
    }

    /// Returns the idempotent producers that a stream remembers, in the order of ids.
    pub fn producers(&self, stream: StreamId) -> Result<Vec<Producer>, MachineError> {
        producers::list(&*self.backend.view(), stream, self.applied().time)
    }

    /// Returns the state of one producer; `None` if the stream does not know the producer, or has forgotten it after a
    /// long silence.
    pub fn producer(&self, stream: StreamId, id: &str) -> Result<Option<Producer>, MachineError> {
        let key = keys::producer_head(stream, id);
        let row = self.backend.get(&key)?.map(|row| ProducerRow::decode(&key, &row)).transpose()?;
        let now = self.applied().time;
        Ok(row.filter(|row| row.is_known(now)).map(|row| row.describe(id)))
    }

    /// Returns the streams that are configured for compaction and have records.
    #[must_use]
    pub fn compaction_candidates(&self) -> Vec<CompactionCandidate> {
        self.collect_watched(MaintenanceKind::Compaction, None, usize::MAX, CompactionCandidate::of).0
    }

    /// Returns one stream as a candidate for compaction; `None` if it is not configured for that, or has no records.
    #[must_use]
    pub fn compaction_candidate(&self, stream: StreamId) -> Option<CompactionCandidate> {
        read(&self.published.streams).get(stream).and_then(|head| CompactionCandidate::of(stream, head))
    }

    /// Returns the batches from the one that begins at `from` up to `end`, with a checksum that later shows if they are
    /// unchanged: at most `max_batches` with at most `max_bytes` in total, but at least one.
    pub fn batch_range(
        &self,
        stream: StreamId,
        from: Offset,
        end: Offset,
        max_batches: usize,
        max_bytes: u64,
    ) -> Result<BatchRange, MachineError> {
        compaction::batch_range(&*self.backend.view(), stream, from, end, max_batches, max_bytes)
    }

    /// Returns the log positions of a stream's batches from the one that contains the offset `from`: at most
    /// `max_batches` with at most `max_bytes` in total, but at least one; none at the end of the stream.
    pub fn batches_from(
        &self,
        stream: StreamId,
        from: Offset,
        max_batches: usize,
        max_bytes: u64,
    ) -> Result<Batches, StreamReadError> {
        stream_read::batches_from(&*self.backend.view(), stream, from, max_batches, max_bytes)
    }

    /// Returns the first readable offset whose record was appended at or after `time`; the stream's next offset if no
    /// record was.
    pub fn offset_at_or_after(&self, stream: StreamId, time: SpaceTime) -> Result<Offset, StreamReadError> {
        stream_read::offset_at_or_after(&*self.backend.view(), stream, time)
    }

    /// Returns the streams that must be trimmed under their configuration at time `now`, with their new start offsets.
    pub fn retention_due(&self, now: SpaceTime) -> Result<Vec<(StreamId, Offset)>, MachineError> {
        let (due, _) = self.retention_due_after(None, usize::MAX, now)?;
        Ok(due.into_iter().map(|trim| (trim.stream, trim.before)).collect())
    }

    /// Returns one page of [`retention_due`](Self::retention_due): examines at most `max_streams` streams with a
    /// retention, starting after the stream `after`. Also returns the last stream examined; `None` at the end.
    pub fn retention_due_after(
        &self,
        after: Option<StreamId>,
        max_streams: usize,
        now: SpaceTime,
    ) -> Result<(Vec<DueTrim>, Option<StreamId>), MachineError> {
        let (candidates, last) = self.collect_watched(MaintenanceKind::Retention, after, max_streams, |id, head| {
            retention::may_be_due(head, now).then_some(id)
        });
        if candidates.is_empty() {
            return Ok((Vec::new(), last));
        }
        let view = self.backend.view();
        let due = |id| retention::due(&*view, id, now).transpose();
        let due: Result<_, MachineError> = candidates.into_iter().filter_map(due).collect();
        Ok((due?, last))
    }

    /// Returns at most `limit` streams, including deleted ones, whose index entries this node can remove because their
    /// batches are trimmed. Starts after the stream `after`.
    #[must_use]
    pub fn reclaim_due_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamId> {
        self.collect_watched(MaintenanceKind::Reclaim, after, limit, |id, _| Some(id)).0
    }

    /// Returns all streams with index entries (log positions) of trimmed batches, which this node can remove.
    #[must_use]
    pub fn reclaim_due(&self) -> Vec<StreamId> {
        self.reclaim_due_after(None, usize::MAX)
    }

    /// Returns at most `limit` deleted streams with rows of producers that are still to be removed.
    #[must_use]
    pub fn former_producers_due(&self, limit: usize) -> Vec<StreamId> {
        self.collect_watched(MaintenanceKind::Producers, None, limit, |id, _| Some(id)).0
    }

    /// Returns the statistics of at most `limit` live streams in the order of ids, starting after the stream `after`.
    /// The statistics of one stream are from one point in time, which may differ between streams.
    #[must_use]
    pub fn streams_after(&self, after: Option<StreamId>, limit: usize) -> Vec<LiveStream> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let table = read(&self.published.streams);
            let mut last = None;
            for (id, head) in table.after(after).take(PAGE.min(limit - found.len())) {
                found.extend(head.is_live().then(|| LiveStream::of(id, head)));
                last = Some(id);
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
        found
    }

    /// Calls `pick` for the streams that may need a kind of maintenance, and returns its results. Also returns the last
    /// stream examined, or `None` after the last one. Locks the heads for one page at a time.
    fn collect_watched<T>(
        &self,
        chore: MaintenanceKind,
        after: Option<StreamId>,
        max_streams: usize,
        mut pick: impl FnMut(StreamId, &Head) -> Option<T>,
    ) -> (Vec<T>, Option<StreamId>) {
        let (mut picked, mut after, mut left) = (Vec::new(), after, max_streams);
        while left > 0 {
            let table = read(&self.published.streams);
            let mut last = None;
            for (id, head) in table.due_for_maintenance(chore, after).take(PAGE.min(left)) {
                picked.extend(pick(id, head));
                left -= 1;
                last = Some(id);
            }
            if last.is_none() {
                return (picked, None);
            }
            after = last;
        }
        (picked, after)
    }
}
