//! Stream heads: the row and the entry in memory that hold the state of each stream.
//!
//! Owns: the encoding of a stream's head and the table of heads in memory. Does not own: index entries (`index`),
//! reads (`read`), retention (`retention`), or the records: their bytes are in the log, written once.
//!
//! ```text
//!    reclaimed      trimmed, entries kept            readable             to come
//! |--------------|---------------------------|-----------------------|----------->  offsets
//! 0        first_indexed              start_batch <= start          next
//! ```
//! Invariants: `first_indexed <= start_batch <= start <= next`; index entries tile `first_indexed..next` without
//! gap or overlap; `start_batch` is the first offset of the batch that contains `start`, or `next`; the times of
//! entries never decrease.
//!
//! ```text
//! head := flags u8 | config (48 bytes) | start u64 | next u64 | first_indexed u64 | start_batch u64
//!       | start_bytes u64 | end_bytes u64 | start_time u64 | last_time u64 | producers u32
//!       | cleaned u64 | saved i64 | content u64 | name                            little-endian
//! ```
//! Flag bit 0: deleted, kept as a marker until its index entries are reclaimed. The positions of batches, the
//! progress of reclaiming and the results of compaction belong to this node alone: `first_indexed`, `start_batch`,
//! `start_bytes`, `start_time`, `cleaned` and `saved` are node-local, and so is the marker of a deleted stream
//! without producers. The other fields are functions of the committed entries.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use thalweg_store::{View, WriteBatch};
use thalweg_types::{
    Offset, SpaceTime, StreamId,
    codec::{Malformed, Reader},
    command::{StreamConfig, check_name},
};

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
    keyspaces::catalog::Meta,
    streams::index_entry::IndexEntry,
};

const FLAG_DELETED: u8 = 1;

/// Upper bound of offsets and byte counts in a head, so that adding a batch never overflows.
const MAX_COUNTER: u64 = 1 << 62;

/// Configuration of a stream within its head. Most streams have the default configuration, which costs a null pointer
/// instead of 104 bytes. The difference matters on a node with a million streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedConfig(Option<Arc<StreamConfig>>);

impl SharedConfig {
    pub(crate) fn get(&self) -> StreamConfig {
        self.0.as_deref().copied().unwrap_or_default()
    }

    /// Returns true if the configuration differs from the default.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }
}

impl From<StreamConfig> for SharedConfig {
    fn from(config: StreamConfig) -> Self {
        Self((config != StreamConfig::default()).then(|| Arc::new(config)))
    }
}

/// Life cycle of a stream: live, or deleted but not removed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamState {
    Live,
    /// The stream was deleted. Its head stays until the rows of its producers and its index entries are removed.
    Deleted,
}

/// A stream's head: its name, configuration and offsets. The head comment of this file has the inequalities between
/// the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: Arc<str>,
    pub(crate) life: StreamState,
    pub(crate) config: SharedConfig,
    /// Oldest readable offset of the stream.
    pub(crate) start: Offset,
    /// Next offset that the stream will assign.
    pub(crate) next: Offset,
    /// Lowest offset that an index entry (the log position of a batch) covers.
    pub(crate) first_indexed: Offset,
    /// First offset of the batch that contains the record at `start`.
    pub(crate) start_batch: Offset,
    /// Sum of the bytes of all batches ever appended before the one at `start_batch`.
    pub(crate) start_bytes: u64,
    /// Sum of the bytes of all batches ever appended to the stream.
    pub(crate) end_bytes: u64,
    /// Time of the batch at `start_batch`; meaningless if there is no such batch.
    pub(crate) start_time: SpaceTime,
    /// Time of the last batch appended; 0 if no batch was ever appended.
    pub(crate) last_time: SpaceTime,
    /// Number of producers with a row in the state, including producers that are no longer remembered.
    pub(crate) producers: u32,
    /// Offset below which compaction has left one record per key. If an index entry covers this offset, the entry
    /// begins there. Node-local, because each node compacts on its own.
    pub(crate) cleaned: Offset,
    /// Bytes by which compaction has made the batches with index entries smaller; negative if it has made them larger.
    pub(crate) saved_bytes: i64,
    /// Hash over all batches ever appended. Replicas with equal streams have equal hashes, even if they have moved
    /// or compacted the batches differently.
    pub(crate) content: u64,
}

impl Head {
    pub(crate) fn new(name: Arc<str>, config: StreamConfig) -> Self {
        Self {
            name,
            life: StreamState::Live,
            config: config.into(),
            start: Offset::ZERO,
            next: Offset::ZERO,
            first_indexed: Offset::ZERO,
            start_batch: Offset::ZERO,
            start_bytes: 0,
            end_bytes: 0,
            start_time: SpaceTime::default(),
            last_time: SpaceTime::default(),
            producers: 0,
            cleaned: Offset::ZERO,
            saved_bytes: 0,
            content: 0,
        }
    }

    /// Adds a batch to the hash of the stream's content.
    pub(crate) fn add_content(&mut self, first: Offset, entry: &IndexEntry) {
        let mut fields = [0; 28];
        fields[..8].copy_from_slice(&first.0.to_le_bytes());
        fields[8..16].copy_from_slice(&entry.time.0.to_le_bytes());
        fields[16..20].copy_from_slice(&entry.count.to_le_bytes());
        fields[20..24].copy_from_slice(&entry.blob.len.to_le_bytes());
        fields[24..].copy_from_slice(&entry.blob.crc.to_le_bytes());
        self.content = xxhash_rust::xxh3::xxh3_64_with_seed(&fields, self.content);
    }

    pub(crate) fn is_live(&self) -> bool {
        self.life == StreamState::Live
    }

    /// Returns the encoded bytes of the batches with readable records. Bytes that compaction has saved in trimmed
    /// batches are also subtracted while those batches still have index entries, so the result can be too low for a
    /// short while.
    pub(crate) fn live_bytes(&self) -> u64 {
        if self.start_batch == self.next {
            return 0;
        }
        let appended = self.end_bytes - self.start_bytes;
        if self.saved_bytes == 0 { appended } else { appended.saturating_add_signed(-self.saved_bytes) }
    }

    pub(crate) fn records(&self) -> u64 {
        self.next.0 - self.start.0
    }

    /// Returns true for the head of a deleted stream without replicated rows: such a head only waits until this node
    /// has removed the stream's index entries.
    pub(crate) fn is_empty_marker(&self) -> bool {
        !self.is_live() && self.producers == 0
    }

    /// Returns true if this node can remove index entries (positions of trimmed batches), or the deleted stream's head.
    pub(crate) fn is_reclaimable(&self) -> bool {
        self.first_indexed < self.start_batch || self.is_empty_marker()
    }

    /// Returns true if the stream is deleted and rows of its producers must still be removed.
    pub(crate) fn has_former_producers(&self) -> bool {
        !self.is_live() && self.producers > 0
    }

    pub(crate) fn write(&self, id: StreamId, batch: &mut WriteBatch, scratch: &mut Vec<u8>) {
        debug_assert!(self.first_indexed <= self.start_batch && self.start_batch <= self.start);
        debug_assert!(self.start <= self.next && self.start_bytes <= self.end_bytes);
        scratch.clear();
        scratch.push(if self.is_live() { 0 } else { FLAG_DELETED });
        self.config.get().encode(scratch);
        for field in [
            self.start.0,
            self.next.0,
            self.first_indexed.0,
            self.start_batch.0,
            self.start_bytes,
            self.end_bytes,
            self.start_time.0,
            self.last_time.0,
        ] {
            scratch.extend_from_slice(&field.to_le_bytes());
        }
        scratch.extend_from_slice(&self.producers.to_le_bytes());
        scratch.extend_from_slice(&self.cleaned.0.to_le_bytes());
        scratch.extend_from_slice(&self.saved_bytes.to_le_bytes());
        scratch.extend_from_slice(&self.content.to_le_bytes());
        batch.put(&[&keys::stream_head(id)], &[scratch, self.name.as_bytes()]);
    }

    /// Appends to `out` the replicated form of the head: the fields that committed entries determine, which are the
    /// same on all nodes.
    pub(crate) fn encode_replicated(&self, out: &mut Vec<u8>) {
        out.push(if self.is_live() { 0 } else { FLAG_DELETED });
        self.config.get().encode(out);
        for field in [self.start.0, self.next.0, self.end_bytes, self.last_time.0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.producers.to_le_bytes());
        out.extend_from_slice(&self.content.to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let corrupt = |message| MachineError::corrupt("stream head", key, message);
        let head = Self::decode_fields(row).map_err(|malformed| corrupt(malformed.expected))?;
        let ordered = head.first_indexed <= head.start_batch
            && head.start_batch <= head.start
            && head.start <= head.next
            && head.start_bytes <= head.end_bytes;
        let countable = head.next.0 <= MAX_COUNTER && head.end_bytes <= MAX_COUNTER;
        if !ordered || !countable || head.saved_bytes.unsigned_abs() > MAX_COUNTER {
            return Err(corrupt("offsets or bytes out of order"));
        }
        Ok(head)
    }

    fn decode_fields(row: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::at(row, 0);
        let life = match reader.u8("flags")? {
            0 => StreamState::Live,
            FLAG_DELETED => StreamState::Deleted,
            _ => return Err(Malformed { at: 0, expected: "known flags" }),
        };
        let config = StreamConfig::decode(&mut reader)?.into();
        let start = Offset(reader.u64("start")?);
        let next = Offset(reader.u64("next")?);
        let first_indexed = Offset(reader.u64("first indexed")?);
        let start_batch = Offset(reader.u64("start batch")?);
        let start_bytes = reader.u64("start bytes")?;
        let end_bytes = reader.u64("end bytes")?;
        let start_time = SpaceTime(reader.u64("start time")?);
        let last_time = SpaceTime(reader.u64("last time")?);
        let producers = reader.u32("producers")?;
        let cleaned = Offset(reader.u64("cleaned")?);
        let saved_bytes = reader.u64("saved bytes")?.cast_signed();
        let content = reader.u64("content")?;
        let at = reader.position();
        let name = std::str::from_utf8(reader.rest()).ok().filter(|name| check_name(name).is_ok());
        let name = name.ok_or(Malformed { at, expected: "a well-formed name" })?.into();
        Ok(Self {
            name,
            life,
            config,
            start,
            next,
            first_indexed,
            start_batch,
            start_bytes,
            end_bytes,
            start_time,
            last_time,
            producers,
            cleaned,
            saved_bytes,
            content,
        })
    }
}

/// All stream heads in memory, including those of deleted streams, and the names of the live streams.
///
/// A stream costs about 200 bytes here plus its name, or about 300 if it was created since the node was opened,
/// because the map is filled densely at load and about half when it grows. The engine's test
/// `a_million_small_streams_fit_a_node` measures this.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    heads: BTreeMap<StreamId, Head>,
    by_name: HashMap<Arc<str>, StreamId>,
    /// Streams that need maintenance, by the kind of maintenance. Maintenance examines only these, so other streams
    /// cost nothing.
    maintenance: MaintenanceSets,
    configs: RecentConfigs,
}

/// The configurations that streams got most recently. Streams with equal configurations share one allocation.
#[derive(Debug, Default)]
struct RecentConfigs {
    kept: Vec<Arc<StreamConfig>>,
    /// Index in `kept` of the oldest configuration. The next new configuration replaces it.
    oldest: usize,
}

impl RecentConfigs {
    /// Maximum number of recent configurations that are kept. Small, because a new configuration is compared with all.
    const MAX: usize = 8;

    /// Makes a stream, whose configuration is `kept`, share it with other streams that have an equal one.
    fn share_config(&mut self, kept: &mut SharedConfig) {
        let Some(own) = &mut kept.0 else { return };
        if let Some(same) = self.kept.iter().find(|other| **other == *own) {
            *own = same.clone();
        } else if self.kept.len() < Self::MAX {
            self.kept.push(own.clone());
        } else {
            self.kept[self.oldest] = own.clone();
            self.oldest = (self.oldest + 1) % Self::MAX;
        }
    }
}

/// Kind of maintenance that a stream may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaintenanceKind {
    Retention,
    Compaction,
    Reclaim,
    Producers,
}

/// Streams that may need maintenance, by kind of maintenance.
#[derive(Debug, Default)]
struct MaintenanceSets {
    retention: BTreeSet<StreamId>,
    compaction: BTreeSet<StreamId>,
    reclaim: BTreeSet<StreamId>,
    producers: BTreeSet<StreamId>,
}

impl MaintenanceSets {
    fn of(&mut self, chore: MaintenanceKind) -> &mut BTreeSet<StreamId> {
        match chore {
            MaintenanceKind::Retention => &mut self.retention,
            MaintenanceKind::Compaction => &mut self.compaction,
            MaintenanceKind::Reclaim => &mut self.reclaim,
            MaintenanceKind::Producers => &mut self.producers,
        }
    }

    fn note(&mut self, id: StreamId, head: Option<&Head>) {
        let live = head.filter(|head| head.is_live() && head.config.is_set()).map(|head| head.config.get());
        let wanted = [
            (MaintenanceKind::Retention, live.is_some_and(|config| config.has_retention())),
            (MaintenanceKind::Compaction, live.is_some_and(|config| config.compaction.is_some())),
            (MaintenanceKind::Reclaim, head.is_some_and(Head::is_reclaimable)),
            (MaintenanceKind::Producers, head.is_some_and(Head::has_former_producers)),
        ];
        for (chore, is_wanted) in wanted {
            let set = self.of(chore);
            if is_wanted {
                set.insert(id);
            } else if !set.is_empty() {
                set.remove(&id);
            }
        }
    }
}

impl StreamTable {
    pub(crate) fn load(view: &dyn View, meta: &Meta) -> Result<Self, MachineError> {
        let (mut table, mut heads) = (Self::default(), Vec::new());
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_STREAM]), |key, row| {
            let corrupt = |message| MachineError::corrupt("stream head", key, message);
            let id = keys::id_of(key).map(StreamId).ok_or_else(|| corrupt("key of a wrong length"))?;
            let mut head = Head::decode(key, row)?;
            if id.0 == 0 || id >= meta.next_stream || (head.is_live() && table.by_name.contains_key(&head.name)) {
                return Err(corrupt("id was never assigned, or a name occurs twice"));
            }
            table.note(id, &mut head);
            heads.push((id, head));
            Ok(())
        })?;
        // Building the map from sorted pairs fills it densely.
        table.heads = heads.into_iter().collect();
        Ok(table)
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&Head> {
        self.heads.get(&id)
    }

    pub(crate) fn id(&self, name: &str) -> Option<StreamId> {
        self.by_name.get(name).copied()
    }

    /// Returns the number of stream heads: of live streams, and of deleted streams that are not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns the number of streams that count towards the maximum number of streams: live ones, and deleted ones
    /// whose producers are not removed yet. Other heads of deleted streams do not count, because each node removes
    /// them at its own time, and the check must have the same result on all nodes.
    pub(crate) fn counted(&self) -> usize {
        self.heads.values().filter(|head| !head.is_empty_marker()).count()
    }

    pub(crate) fn live_len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn after(&self, id: Option<StreamId>) -> impl Iterator<Item = (StreamId, &Head)> {
        let lower = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.heads.range((lower, Bound::Unbounded)).map(|(&id, head)| (id, head))
    }

    /// Iterates over the streams after `id` that may need the given kind of maintenance.
    pub(crate) fn due_for_maintenance(
        &self,
        chore: MaintenanceKind,
        id: Option<StreamId>,
    ) -> impl Iterator<Item = (StreamId, &Head)> {
        let set = match chore {
            MaintenanceKind::Retention => &self.maintenance.retention,
            MaintenanceKind::Compaction => &self.maintenance.compaction,
            MaintenanceKind::Reclaim => &self.maintenance.reclaim,
            MaintenanceKind::Producers => &self.maintenance.producers,
        };
        let lower = id.map_or(Bound::Unbounded, Bound::Excluded);
        set.range((lower, Bound::Unbounded)).filter_map(|id| Some((*id, self.heads.get(id)?)))
    }

    /// Stores the stream heads (settings, offsets) that a log record has changed, after its batch is applied to the
    /// backend; `None` removes a head.
    pub(crate) fn publish(&mut self, changes: &mut BTreeMap<StreamId, Option<Head>>) {
        // Ids ascend, so a name that moved from a deleted stream to a new one finally refers to the new one.
        for (id, head) in std::mem::take(changes) {
            match head {
                Some(head) => self.set(id, head),
                None => self.remove(id),
            }
        }
    }

    fn set(&mut self, id: StreamId, mut head: Head) {
        self.note(id, &mut head);
        self.heads.insert(id, head);
    }

    /// Updates the tables that follow from a stream's head: names, shared configurations, and streams that need
    /// maintenance.
    fn note(&mut self, id: StreamId, head: &mut Head) {
        self.configs.share_config(&mut head.config);
        match head.life {
            StreamState::Live => {
                if self.by_name.get(&head.name) != Some(&id) {
                    self.by_name.insert(head.name.clone(), id);
                }
            }
            StreamState::Deleted => self.release_name(id, &head.name),
        }
        self.maintenance.note(id, Some(head));
    }

    fn remove(&mut self, id: StreamId) {
        self.maintenance.note(id, None);
        if let Some(head) = self.heads.remove(&id) {
            self.release_name(id, &head.name);
        }
    }

    fn release_name(&mut self, id: StreamId, name: &str) {
        if self.by_name.get(name) == Some(&id) {
            self.by_name.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use thalweg_store::Change;

    fn head() -> Head {
        Head {
            config: StreamConfig {
                max_age: Some(Duration::from_micros(1)),
                max_bytes: Some(2),
                ..StreamConfig::default()
            }
            .into(),
            start: Offset(5),
            next: Offset(6),
            first_indexed: Offset(3),
            start_batch: Offset(4),
            start_bytes: 7,
            end_bytes: 8,
            start_time: SpaceTime(9),
            last_time: SpaceTime(10),
            producers: 11,
            cleaned: Offset(12),
            saved_bytes: -1,
            content: 13,
            ..Head::new("name".into(), StreamConfig::default())
        }
    }

    #[test]
    fn head_layout_is_pinned() {
        let mut batch = WriteBatch::new();
        head().write(StreamId(2), &mut batch, &mut Vec::new());
        let mut row = vec![0];
        for field in [1, 2, u64::MAX, u64::MAX, u64::MAX, u64::MAX, 5, 6, 3, 4, 7, 8, 9, 10] {
            row.extend_from_slice(&field.to_le_bytes());
        }
        row.extend_from_slice(b"\x0b\0\0\0\x0c\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x0d\0\0\0\0\0\0\0name");
        assert_eq!(batch.changes().next(), Some(Change::Put(b"\x03\0\0\0\x02", &row)));
        assert_eq!(Head::decode(b"k", &row).unwrap(), head());
    }

    #[test]
    fn any_cut_or_flip_is_an_error_or_another_head_in_order() {
        let mut batch = WriteBatch::new();
        head().write(StreamId(2), &mut batch, &mut Vec::new());
        let Some(Change::Put(_, row)) = batch.changes().next() else { panic!("no put") };
        for cut in 0..row.len() {
            if let Ok(cut) = Head::decode(b"k", &row[..cut]) {
                assert!("name".starts_with(&*cut.name) && cut.name.len() < 4);
            }
        }
        for bit in 0..row.len() * 8 {
            let mut flipped = row.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Head::decode(b"k", &flipped) {
                assert_ne!(other, head());
                assert!(other.start <= other.next && other.next.0 <= MAX_COUNTER);
            }
        }
    }
}
