//! Compaction by key, for streams that keep only the newest record of each key.
//!
//! Owns: the passes over the streams, and the choice of the records that remain. Does not own: the time of a pass
//! (`maintenance`), or the replacement of a stream's batches in the state (`thalweg_state::streams`).
//!
//! Compaction of one stream (a pass) consists of bounded steps, several in each maintenance round. It first reads the
//! *dirty* stretch, the records appended since the last pass, and notes the newest offset of each key. Then it goes
//! through the stream from its start to the end of that stretch and replaces batches by their remaining records. Each
//! replacement is a move: a log record of this node alone, without effect if the state has changed since the batch was
//! read (see `thalweg_state::segments`). A pass can therefore be abandoned at any point, and its completed steps stay
//! valid.
//!
//! ```text
//!   start          cleaned                    end            next
//!   |  one per key  |  dirty: read, then all   |  left alone  |      end: where the log's active segment begins
//!   |<------------- rewritten ---------------->|
//! ```
//! Invariants: `cleaned` rises only when a pass has rewritten everything below it. A pass drops a tombstone only after
//! it has gone through everything below the tombstone, so records that the tombstone deleted never reappear. If the
//! remaining records of a batch do not fit into a record of this node's log, the batch stays unchanged: the pass
//! continues after this batch, drops no tombstones from there on, and does not raise `cleaned`. Memory: the keys of one
//! dirty stretch, up to the option `compaction_key_bytes` plus the keys of one batch. At this limit the stretch ends
//! early.
//!
//! A stream is due when its dirty stretch is at least as large as its clean part. So each remaining byte is rewritten
//! O(log n) times instead of once for every segment.

use std::collections::HashMap;

use thalweg_log::AppendError;
use thalweg_replica::ProposeError;
use thalweg_state::{
    machine::LocalOutcome,
    streams::{BatchRange, BatchRef, CompactionCandidate},
};
use thalweg_types::{
    BlobRef, Generation, Offset, SpaceTime, StreamId,
    command::{Compacted, Compaction, Move, MoveTarget},
    limits::{COMPACTION_BATCHES, COMPACTION_BYTES, COMPACTION_ROUND_BYTES},
    record::{Record, Records},
    sparse::SparseBuilder,
};

use crate::{
    error::{ReadError, WriteError},
    inner::Inner,
    maintenance_counts::Maintenance,
    stream_page::{parts, read_batch},
};

/// Bytes of memory that each key in the table of newest offsets costs in addition to the key itself.
const KEY_OVERHEAD_BYTES: usize = 64;
/// Bytes charged to the read budget of the maintenance round when a stream's compaction ends. So a round ends even if
/// the compaction of each stream is abandoned immediately.
const STEP_COST: u64 = 64 * 1024;
/// Maximum number of streams that are remembered as not worth compacting until the log's active segment changes.
const MAX_LOOKED_AT: usize = 10_000;

/// State of compaction that is kept between maintenance rounds.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    pass: Option<Pass>,
    /// Streams that were not worth compacting, each with the active segment of the log at that time. A stream is
    /// checked again only once the log has another active segment.
    looked_at: HashMap<StreamId, Generation>,
}

#[derive(Debug)]
struct Pass {
    stream: StreamId,
    compaction: Compaction,
    /// Newest offset of each key among the records appended since the last compaction, up to `end`.
    newest: HashMap<Box<[u8]>, Offset>,
    key_bytes: usize,
    end: Offset,
    step: Step,
    /// True if a batch was left unchanged, because its remaining records are too large for one record of the log.
    skipped: bool,
    /// Active segment of the log when compaction of the stream began.
    active: Generation,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// First step: collect the newest offset of each key. The next record to read has this offset.
    Scanning(Offset),
    /// Second step: rewrite batches without superseded records. The next batch to rewrite begins at this offset.
    Rewriting(Offset),
}

/// Result of one step of compacting a stream: more steps follow, or it is done.
enum StepResult {
    Continue,
    Done,
}

impl Compactor {
    /// Compacts streams in one maintenance round: continues with the stream in progress and begins others, until the
    /// bytes that a round may read are used up.
    pub(crate) fn round(&mut self, inner: &Inner, done: &mut Maintenance) -> Result<(), WriteError> {
        let mut budget = COMPACTION_ROUND_BYTES;
        while budget > 0 {
            if self.pass.is_none() {
                self.pass = self.next_due(inner)?;
            }
            let Some(mut pass) = self.pass.take() else { return Ok(()) };
            // An error abandons the pass. The next pass begins where the last complete pass ended.
            match pass.step(inner, &mut budget, done)? {
                StepResult::Continue => self.pass = Some(pass),
                StepResult::Done => {
                    budget = budget.saturating_sub(STEP_COST);
                    if pass.skipped {
                        // Another pass would stop at the same batch.
                        self.looked_at.insert(pass.stream, pass.active);
                    }
                }
            }
        }
        Ok(())
    }

    fn next_due(&mut self, inner: &Inner) -> Result<Option<Pass>, WriteError> {
        let candidates = inner.open.machine.compaction_candidates();
        if candidates.is_empty() {
            self.looked_at.clear();
            return Ok(None);
        }
        let segments = inner.open.log.segments();
        let Some(active) = segments.iter().find(|segment| segment.active).map(|segment| segment.generation) else {
            return Ok(None);
        };
        if self.looked_at.len() > MAX_LOOKED_AT {
            self.looked_at.clear();
        }
        for candidate in candidates {
            if self.looked_at.get(&candidate.stream) == Some(&active) {
                continue;
            }
            match due_end(inner, &candidate, active)? {
                Some(end) => return Ok(Some(Pass::new(&candidate, end, active))),
                None => _ = self.looked_at.insert(candidate.stream, active),
            }
        }
        Ok(None)
    }
}

/// Returns the offset up to which a stream should be compacted: the beginning of the active segment, or the end of the
/// stream. `None` if fewer bytes were appended since the last compaction than that compaction has kept.
fn due_end(inner: &Inner, candidate: &CompactionCandidate, active: Generation) -> Result<Option<Offset>, WriteError> {
    let CompactionCandidate { stream, cleaned, next, .. } = *candidate;
    let (mut at, mut end, mut dirty, mut tail) = (cleaned, None, 0, 0);
    while at < next {
        let stretch = batches_at(inner, stream, at, next, u64::MAX)?;
        let Some(last) = stretch.batches.last() else { break };
        for batch in &stretch.batches {
            if end.is_none() && batch.blob.generation == active {
                end = Some(batch.first);
            }
            let sum = if end.is_none() { &mut dirty } else { &mut tail };
            *sum += u64::from(batch.blob.len);
        }
        at = last.end();
    }
    let all = inner.open.machine.stream(stream).map_or(0, |info| info.bytes);
    let clean = all.saturating_sub(dirty + tail);
    Ok((dirty > 0 && dirty >= clean).then_some(end.unwrap_or(next)))
}

fn batches_at(
    inner: &Inner,
    stream: StreamId,
    at: Offset,
    end: Offset,
    max_bytes: u64,
) -> Result<BatchRange, WriteError> {
    let found = inner.open.machine.batch_range(stream, at, end, COMPACTION_BATCHES, max_bytes);
    found.map_err(|error| failed(&error))
}

/// Function that gets each record of a batch: its offset, time and bytes with the length field, and the decoded record;
/// `None` if this version cannot decode it.
type Visit<'v> = dyn FnMut(Offset, SpaceTime, &[u8], Option<Record<'_>>) + 'v;

/// Calls `visit` for each record of a stream's batch.
fn for_each_record(inner: &Inner, batch: &BatchRef, visit: &mut Visit<'_>) -> Result<(), WriteError> {
    let bytes = read_batch(&inner.open.log, batch).map_err(|error| failed(&error))?;
    for part in parts(batch, &bytes).map_err(|error| failed(&error))? {
        let mut records = Records::new(&part.bytes);
        let mut offset = part.first;
        while let Some(framed) = records.next_framed() {
            let corrupt = |error| failed(&ReadError::Corrupt(format!("at offset {offset}: {error}")));
            let framed = framed.map_err(corrupt)?;
            // A record framed by a newer writer is kept, because this version cannot read its key.
            visit(offset, part.time, framed, Records::new(framed).next().and_then(Result::ok));
            offset = offset.next();
        }
    }
    Ok(())
}

impl Pass {
    fn new(candidate: &CompactionCandidate, end: Offset, active: Generation) -> Self {
        Self {
            stream: candidate.stream,
            compaction: candidate.compaction,
            newest: HashMap::new(),
            key_bytes: 0,
            end,
            step: Step::Scanning(candidate.cleaned),
            skipped: false,
            active,
        }
    }

    fn step(&mut self, inner: &Inner, budget: &mut u64, done: &mut Maintenance) -> Result<StepResult, WriteError> {
        // The stream may have been trimmed, deleted or configured differently in the meantime.
        let Some(now) = inner.open.machine.compaction_candidate(self.stream) else { return Ok(StepResult::Done) };
        let at = match self.step {
            Step::Scanning(at) | Step::Rewriting(at) => at.max(now.start_batch),
        };
        if at >= self.end {
            return self.next_phase(inner, &now);
        }
        // Reads no more than what surely fits into a segment, even if each remaining record becomes a run of its own.
        let most = COMPACTION_BYTES.min(u64::from(inner.options.segment_bytes) / 4);
        let stretch = batches_at(inner, self.stream, at, self.end, most)?;
        let Some(last) = stretch.batches.last() else { return Ok(StepResult::Done) };
        let bytes: u64 = stretch.batches.iter().map(|batch| u64::from(batch.blob.len)).sum();
        // Index entries have a cost even if no records remain behind them.
        *budget = budget.saturating_sub(bytes + 64 * stretch.batches.len() as u64);
        match self.step {
            Step::Scanning(_) => {
                self.record_keys(inner, &stretch)?;
                self.step = Step::Scanning(last.end());
            }
            Step::Rewriting(_) => {
                if self.rewrite(inner, &stretch, &now, done)? == LocalOutcome::Void {
                    return Ok(StepResult::Done);
                }
                self.step = Step::Rewriting(last.end());
            }
        }
        Ok(StepResult::Continue)
    }

    /// Switches from collecting the keys' newest offsets to rewriting batches, or ends the compaction of the stream.
    fn next_phase(&mut self, inner: &Inner, now: &CompactionCandidate) -> Result<StepResult, WriteError> {
        match self.step {
            Step::Scanning(_) => {
                self.step = Step::Rewriting(now.start_batch);
                Ok(StepResult::Continue)
            }
            Step::Rewriting(_) if self.skipped => Ok(StepResult::Done),
            Step::Rewriting(_) => {
                let nothing = BlobRef { generation: Generation(0), offset: 0, len: 0, crc: crc_of(&[]) };
                let target = MoveTarget::Cleaned { stream: self.stream, before: self.end };
                relocate(inner, &nothing, &target, &[])?;
                Ok(StepResult::Done)
            }
        }
    }

    fn record_keys(&mut self, inner: &Inner, stretch: &BatchRange) -> Result<(), WriteError> {
        for batch in &stretch.batches {
            for_each_record(inner, batch, &mut |offset, _, _, record| {
                let Some(key) = record.and_then(|record| record.key) else { return };
                match self.newest.get_mut(key) {
                    Some(newest) => *newest = offset,
                    None => {
                        self.key_bytes += key.len() + KEY_OVERHEAD_BYTES;
                        self.newest.insert(key.into(), offset);
                    }
                }
            })?;
            if self.key_bytes >= inner.options.compaction_key_bytes {
                self.end = batch.end();
                break;
            }
        }
        Ok(())
    }

    fn rewrite(
        &mut self,
        inner: &Inner,
        stretch: &BatchRange,
        now: &CompactionCandidate,
        done: &mut Maintenance,
    ) -> Result<LocalOutcome, WriteError> {
        let (Some(oldest), Some(latest)) = (stretch.batches.first(), stretch.batches.last()) else {
            return Ok(LocalOutcome::Void);
        };
        let expired = inner.open.machine.applied().time.minus(self.compaction.tombstone_grace);
        let (mut left, mut dropped) = (SparseBuilder::new(), 0_u64);
        for batch in &stretch.batches {
            for_each_record(inner, batch, &mut |offset, time, framed, record| {
                if offset < now.start || self.is_dead(offset, time, record.as_ref(), expired) {
                    dropped += 1;
                } else {
                    // A stretch covers at most 2^32 offsets.
                    left.push((offset.0 - oldest.first.0) as u32, time, framed);
                }
            })?;
        }
        if dropped == 0 {
            return Ok(LocalOutcome::Applied);
        }
        let kept = left.kept();
        let bytes = left.finish();
        let target = MoveTarget::Compacted(Compacted {
            stream: self.stream,
            first: oldest.first,
            end: latest.end(),
            sources: u32::try_from(stretch.batches.len()).unwrap_or(u32::MAX),
            rows_crc: stretch.rows_crc,
            kept,
        });
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let copy = BlobRef { generation: Generation(0), offset: 0, len, crc: crc_of(&bytes) };
        match relocate(inner, &copy, &target, &bytes) {
            Ok(LocalOutcome::Applied) => done.compacted_records += dropped,
            Err(ProposeError::Append(AppendError::TooLarge { .. })) => self.skipped = true,
            other => return Ok(other?),
        }
        Ok(LocalOutcome::Applied)
    }

    fn is_dead(&self, offset: Offset, time: SpaceTime, record: Option<&Record<'_>>, expired: SpaceTime) -> bool {
        let Some(record) = record else { return false };
        let Some(key) = record.key else { return false };
        let is_expired = record.is_tombstone && time < expired && !self.skipped;
        is_expired || self.newest.get(key).is_some_and(|newest| *newest > offset)
    }
}

fn relocate(
    inner: &Inner,
    from: &BlobRef,
    target: &MoveTarget<'_>,
    bytes: &[u8],
) -> Result<LocalOutcome, ProposeError> {
    let mut payload = Vec::with_capacity(bytes.len() + 64);
    Move::encode(&mut payload, from, target, bytes);
    inner.open.replica.relocate(&payload)
}

fn crc_of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn failed(error: &dyn std::error::Error) -> WriteError {
    WriteError::StateFailed { reason: format!("compaction: {error}") }
}
