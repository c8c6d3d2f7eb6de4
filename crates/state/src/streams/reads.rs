//! Reads of the catalog and of streams; those of keys are in `time`. Any thread, any time; the applier is held up for short copies only.

use thalweg_types::{Offset, SpaceTime, StreamId};

use crate::{
    error::{MachineError, StreamReadError},
    keys,
    machine::state_machine::Machine,
    streams::{
        compaction::{self, CompactionCandidate, Stretch},
        heads::{Chore, Head},
        producers::{self, ProducerInfo, ProducerRow},
        read as stream_read,
        read::{Batches, StreamInfo},
        retention,
    },
    sync::read,
};

/// Heads copied at a time, so that a list of many streams never holds up the applier for long.
const PAGE: usize = 256;

impl Machine {
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
        self.streams_after(None, usize::MAX)
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

    /// Streams of which only the newest record of each key is to be kept.
    #[must_use]
    pub fn compaction_candidates(&self) -> Vec<CompactionCandidate> {
        self.collect_watched(Chore::Compaction, None, usize::MAX, CompactionCandidate::of).0
    }

    /// One of them; `None` if it is none, or holds nothing.
    #[must_use]
    pub fn compaction_candidate(&self, stream: StreamId) -> Option<CompactionCandidate> {
        read(&self.published.streams).get(stream).and_then(|head| CompactionCandidate::of(stream, head))
    }

    /// The batches from the one that begins at `from` on, up to `end`, as compaction must find them again:
    /// at most `max_batches` of together at most `max_bytes`, but at least one.
    pub fn stretch(
        &self,
        stream: StreamId,
        from: Offset,
        end: Offset,
        max_batches: usize,
        max_bytes: u64,
    ) -> Result<Stretch, MachineError> {
        compaction::stretch(&*self.backend.view(), stream, from, end, max_batches, max_bytes)
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
        Ok(self.retention_due_after(None, usize::MAX, now)?.0)
    }

    /// As [`retention_due`](Self::retention_due), of at most `max_streams` that have a retention, after one of
    /// them; and the last of them that was looked at, or `None` at the end.
    #[expect(clippy::type_complexity, reason = "a list and where it ends")]
    pub fn retention_due_after(
        &self,
        after: Option<StreamId>,
        max_streams: usize,
        now: SpaceTime,
    ) -> Result<(Vec<(StreamId, Offset)>, Option<StreamId>), MachineError> {
        let (candidates, last) = self.collect_watched(Chore::Retention, after, max_streams, |id, head| {
            retention::may_be_due(head, now).then_some(id)
        });
        if candidates.is_empty() {
            return Ok((Vec::new(), last));
        }
        let view = self.backend.view();
        let due = |id| Ok(retention::due(&*view, id, now)?.map(|before| (id, before)));
        let due: Result<_, MachineError> = candidates.into_iter().filter_map(|id| due(id).transpose()).collect();
        Ok((due?, last))
    }

    /// At most `limit` streams with index entries to reclaim, deleted ones included, after one of them.
    #[must_use]
    pub fn reclaim_due_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamId> {
        self.collect_watched(Chore::Reclaim, after, limit, |id, _| Some(id)).0
    }

    /// All streams with index entries to reclaim.
    #[must_use]
    pub fn reclaim_due(&self) -> Vec<StreamId> {
        self.reclaim_due_after(None, usize::MAX)
    }

    /// At most `limit` deleted streams of whose producers rows are left.
    #[must_use]
    pub fn former_producers_due(&self, limit: usize) -> Vec<StreamId> {
        self.collect_watched(Chore::Producers, None, limit, |id, _| Some(id)).0
    }

    /// At most `limit` streams after one of them, by id. Each one's figures are of one moment, but not all
    /// of the same.
    #[must_use]
    pub fn streams_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamInfo> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let table = read(&self.published.streams);
            let mut last = None;
            for (id, head) in table.after(after).take(PAGE.min(limit - found.len())) {
                found.extend(head.is_live().then(|| StreamInfo::of(id, head)));
                last = Some(id);
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
        found
    }

    /// Of the streams for which a chore may be due; and the last one looked at, or `None` at the end. Heads
    /// are looked at in pages, so that a long list never holds up the applier for long.
    fn collect_watched<T>(
        &self,
        chore: Chore,
        after: Option<StreamId>,
        max_streams: usize,
        mut pick: impl FnMut(StreamId, &Head) -> Option<T>,
    ) -> (Vec<T>, Option<StreamId>) {
        let (mut picked, mut after, mut left) = (Vec::new(), after, max_streams);
        while left > 0 {
            let table = read(&self.published.streams);
            let mut last = None;
            for (id, head) in table.watched_after(chore, after).take(PAGE.min(left)) {
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
