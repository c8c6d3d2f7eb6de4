//! A walk over the records of one log segment, which finds the bytes that the state still points to.
//!
//! Owns: the check, for each record, that the state still points to the record's bytes. Does not own: the treatment of
//! the bytes found (see [`super`]).
//!
//! A walk does not rely on the live bytes that the state counts. It looks up the row of each value and batch in the
//! segment. The bytes are live if the row points to them.
//!
//! Memory: the live bytes, at most half a segment; the batches of streams in the segment; [`MAX_KNOWN_KEYS`] keys.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use thalweg_log::{LogRecord, RECORD_HEADER_BYTES, RecordKind, SegmentInfo, format::BATCH_HEADER_BYTES};
use thalweg_replica::Valid;
use thalweg_state::{keyspaces::ReadView, streams::BatchRef};
use thalweg_types::{
    BlobRef, Generation, Index, KeyspaceId, LogPosition, Offset, SpaceId, SpaceTime, StreamId, Term,
    command::{Command, Commands, Compacted, Move, MoveTarget, Write},
};

use super::window::{self, Window, failed, lies_at};
use crate::{error::WriteError, inner::Inner};

/// Maximum number of keys for which a walk remembers the log positions of their versions (former values).
const MAX_KNOWN_KEYS: usize = 4096;

/// Bytes of headers that each copy takes in the log in addition to the move record itself. For small records, headers
/// can be as large as payloads. If only payloads counted, a segment of small live records would seem less than half
/// live, and would be copied again and again.
pub(super) const COPY_BYTES: u64 = (BATCH_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;

/// Result of a walk: a search of one log segment for live bytes.
pub(super) struct Walked {
    /// Live bytes of the segment. `None` if copies of them would take more bytes than the caller allows: the walk then
    /// ends early.
    pub(super) live: Option<Vec<LiveBytes>>,
    /// Term and index of the last valid log entry in the segment.
    pub(super) last_entry: Option<(Term, Index)>,
    /// True if the segment has values so long that the state stores only their positions, so rows may have pointed to
    /// them.
    pub(super) has_long_values: bool,
    /// Number of lookups in the state that the walk has made.
    pub(super) lookups: u64,
}

impl Walked {
    pub(super) fn has_live_bytes(&self) -> bool {
        self.live.as_ref().is_none_or(|live| !live.is_empty())
    }
}

/// Live bytes of one value or batch, encoded as the move record with which they are copied to the end of the log.
pub(super) struct LiveBytes {
    pub(super) bytes: u64,
    pub(super) payload: Vec<u8>,
}

/// Reason why a walk (a search of a segment for live bytes) ended without a result.
pub(super) enum WalkError {
    /// A record of the segment could not be read.
    Unreadable,
    /// A lookup of a row in the state failed.
    State(WriteError),
}

impl From<thalweg_log::ReadError> for WalkError {
    fn from(_: thalweg_log::ReadError) -> Self {
        Self::Unreadable
    }
}

impl From<WriteError> for WalkError {
    fn from(error: WriteError) -> Self {
        Self::State(error)
    }
}

/// Returns the term and index of the last valid log entry in a segment; `None` if the segment has no entry.
pub(super) fn last_entry(inner: &Inner, segment: Generation) -> Result<Option<(Term, Index)>, thalweg_log::ReadError> {
    let (valid, mut last) = (Valid::of(&inner.open.log, SpaceId::ZERO), None);
    for record in inner.open.log.segment_records(segment)? {
        let record = record?;
        if valid.is_entry(&record) {
            last = Some((record.term, record.index));
        }
    }
    Ok(last)
}

/// Searches a segment for live bytes, until its end or until copies of these bytes would take more than `most` bytes.
pub(super) fn walk(inner: &Inner, segment: &SegmentInfo, most: u64) -> Result<Walked, WalkError> {
    let mut walk = Walk {
        inner,
        generation: segment.generation,
        snapshot: inner.open.machine.read_view(),
        histories: HashMap::new(),
        versions: HashMap::new(),
        windows: HashMap::new(),
        live: Vec::new(),
        total: 0,
        last_entry: None,
        has_long_values: false,
        lookups: 0,
        inline_floor: inner.open.machine.inline_floor(),
        valid: Valid::of(&inner.open.log, SpaceId::ZERO),
    };
    for record in inner.open.log.segment_records(segment.generation)? {
        walk.record(&record?)?;
        if walk.total > most {
            break;
        }
    }
    let Walk { live, total, last_entry, has_long_values, lookups, .. } = walk;
    Ok(Walked { live: (total <= most).then_some(live), last_entry, has_long_values, lookups })
}

/// State of a walk: a search of one segment, record by record, for live bytes.
struct Walk<'a> {
    inner: &'a Inner,
    generation: Generation,
    /// View in which the walk looks up all values. A value that is superseded during the walk is still found in this
    /// view.
    snapshot: ReadView,
    /// Keyspaces met so far. The flag is true if their keys may have versions (former values).
    histories: HashMap<KeyspaceId, bool>,
    /// Positions in this segment of the versions of keys in keyspaces with history. Cleared when it has too many keys.
    versions: HashMap<(KeyspaceId, Vec<u8>), BTreeMap<u32, BlobRef>>,
    /// Batches in this segment that the walk has looked up so far, by stream.
    windows: HashMap<StreamId, Window>,
    live: Vec<LiveBytes>,
    /// Number of bytes that copies of all values and batches in `live` would take in the log.
    total: u64,
    last_entry: Option<(Term, Index)>,
    has_long_values: bool,
    lookups: u64,
    /// Length in bytes up to which values in log entries are never live, because the state has its own copies of them.
    inline_floor: usize,
    valid: Valid,
}

impl Walk<'_> {
    fn record(&mut self, record: &LogRecord) -> Result<(), WriteError> {
        let at = |offset: usize| LogPosition {
            generation: record.payload_at.generation,
            offset: record.payload_at.offset.saturating_add(u32::try_from(offset).unwrap_or(u32::MAX)),
        };
        // Void records are looked up like all others, and no row points to them. So a mistake about void records cannot
        // free a segment.
        if self.valid.is_entry(record) {
            self.last_entry = Some((record.term, record.index));
        }
        match record.kind {
            RecordKind::Entry => {
                for (command_at, bytes) in Commands::new(&record.payload).flatten() {
                    let Ok(command) = Command::decode(bytes) else { continue };
                    for write in command.writes() {
                        match write {
                            Write::Put { keyspace, key, value, value_at }
                            | Write::PutUntil { keyspace, key, value, value_at, .. }
                                if value.len() > self.inline_floor =>
                            {
                                self.value(keyspace, key, value, at(command_at + value_at))?;
                            }
                            Write::Append { stream, batch, batch_at, .. } => {
                                self.batch(stream, batch, record.time, at(command_at + batch_at))?;
                            }
                            _ => {}
                        }
                    }
                }
            }
            RecordKind::Move => {
                let Ok(moved) = Move::decode(&record.payload) else { return Ok(()) };
                match moved.target {
                    MoveTarget::Value { keyspace, key } => {
                        self.value(keyspace, key, moved.bytes, at(moved.bytes_at))?;
                    }
                    MoveTarget::Batch { stream, first } | MoveTarget::Compacted(Compacted { stream, first, .. }) => {
                        self.moved_batch(stream, first, moved.bytes, at(moved.bytes_at))?;
                    }
                    MoveTarget::Cleaned { .. } | MoveTarget::Reclaimed { .. } | MoveTarget::HistoryFloor { .. } => {}
                }
            }
            RecordKind::Membership
            | RecordKind::Vote
            | RecordKind::Truncate
            | RecordKind::Purged
            | RecordKind::Blank => {}
        }
        Ok(())
    }

    fn value(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8], at: LogPosition) -> Result<(), WriteError> {
        self.has_long_values = true;
        self.lookups += 1;
        let own = self.snapshot.value_blob(keyspace, key).map_err(|error| failed(&error))?;
        let found = match own.filter(|blob| lies_at(blob, at)) {
            Some(own) => Some(own),
            None => self.version(keyspace, key, at)?,
        };
        if let Some(blob) = found {
            self.add_live(&blob, &MoveTarget::Value { keyspace, key }, value);
        }
        Ok(())
    }

    /// Returns the pointer to a key's version (former value) whose bytes are at position `at`; `None` if there is none.
    fn version(&mut self, keyspace: KeyspaceId, key: &[u8], at: LogPosition) -> Result<Option<BlobRef>, WriteError> {
        if !self.has_versions(keyspace)? {
            return Ok(None);
        }
        let of = (keyspace, key.to_vec());
        if let Some(known) = self.versions.get(&of) {
            return Ok(known.get(&at.offset).copied());
        }
        if self.versions.len() >= MAX_KNOWN_KEYS {
            self.versions.clear();
        }
        self.lookups += 1;
        let blobs = self.snapshot.version_blobs(keyspace, key).map_err(|error| failed(&error))?;
        let here = blobs.into_iter().filter(|blob| blob.generation == self.generation);
        let known: BTreeMap<_, _> = here.map(|blob| (blob.offset, blob)).collect();
        let found = known.get(&at.offset).copied();
        self.versions.insert(of, known);
        Ok(found)
    }

    fn has_versions(&mut self, keyspace: KeyspaceId) -> Result<bool, WriteError> {
        if let Some(&known) = self.histories.get(&keyspace) {
            return Ok(known);
        }
        let has = self.snapshot.has_versions(keyspace).map_err(|error| failed(&error))?;
        self.histories.insert(keyspace, has);
        Ok(has)
    }

    /// Adds the batch of an append record to the live bytes, if the batch is live. The record does not contain the
    /// batch's offsets, so the batch is found by its time.
    fn batch(&mut self, stream: StreamId, batch: &[u8], time: SpaceTime, at: LogPosition) -> Result<(), WriteError> {
        let (machine, generation) = (&self.inner.open.machine, self.generation);
        let known = self.window_of(stream)?;
        if !known.covers(time) {
            *known = Window::from_time(machine, stream, generation, time)?;
        }
        let (found, looked) = (known.at(at), known.take_lookups());
        self.lookups += looked;
        self.add_live_batch(stream, found, batch);
        Ok(())
    }

    /// Adds a batch to the live bytes, if the batch is live. The batch is in a move record: it was copied into this
    /// segment from an older one.
    fn moved_batch(
        &mut self,
        stream: StreamId,
        first: Offset,
        batch: &[u8],
        at: LogPosition,
    ) -> Result<(), WriteError> {
        let known = self.window_of(stream)?;
        let found = if known.is_whole() {
            known.at(at)
        } else {
            self.lookups += 1;
            let found = window::batch_with(&self.inner.open.machine, stream, first)?;
            found.filter(|found| lies_at(&found.blob, at))
        };
        self.add_live_batch(stream, found, batch);
        Ok(())
    }

    /// Returns the batches of a stream in this segment that the walk already knows. In the first call for a stream,
    /// these are all of its batches if the stream has few, and none otherwise.
    fn window_of(&mut self, stream: StreamId) -> Result<&'_ mut Window, WriteError> {
        match self.windows.entry(stream) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let few = Window::whole_stream(&self.inner.open.machine, stream, self.generation)?;
                self.lookups += 1;
                Ok(unknown.insert(few.unwrap_or_default()))
            }
        }
    }

    fn add_live_batch(&mut self, stream: StreamId, found: Option<BatchRef>, batch: &[u8]) {
        if let Some(found) = found {
            self.add_live(&found.blob, &MoveTarget::Batch { stream, first: found.first }, batch);
        }
    }

    fn add_live(&mut self, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        let mut payload = Vec::with_capacity(bytes.len() + 64);
        Move::encode(&mut payload, from, target, bytes);
        // A Redis command names a value once for each key that may have it. If both are one key, the value is found
        // twice.
        if self.live.last().is_some_and(|last| last.payload == payload) {
            return;
        }
        self.total += payload.len() as u64 + COPY_BYTES;
        self.live.push(LiveBytes { bytes: u64::from(from.len), payload });
    }
}
