//! The catalog of keyspaces, and the next ids.
//!
//! Owns: the meta row and the keyspace rows. Stream names are in the streams' heads (see [`crate::streams`]).
//! Invariant: an id is never assigned twice. A dropped keyspace keeps its row until all its rows are swept.
//!
//! ```text
//! meta         := format u32 | next keyspace u32 | next stream u32 | next collection u64    little-endian
//!                 | next lease u64 | seeds u64 | version u32
//! keyspace row := revision u64 | time u64 | dropped u8 | settings | name    when it was created
//! ```
//! `revision` is that of the last commit before the keyspace was created.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use thalweg_redis::CollectionId;
use thalweg_store::{View, WriteBatch};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime, StreamId,
    codec::{Malformed, Reader},
    command::{FIRST_VERSION, KeyspaceConfig, check_name},
};

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
    machine::staged::Staged,
};

/// Version of the format of all rows of the state machine.
pub(crate) const STATE_FORMAT: u32 = 2;

const META_LEN: usize = 40;

/// The meta row: the next ids, and other counters of the state. Ids begin at 1, so that an id of 0 is always an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) next_keyspace: KeyspaceId,
    pub(crate) next_stream: StreamId,
    pub(crate) next_collection: CollectionId,
    /// Next lease id that the state machine tries when the client leaves the choice to it.
    pub(crate) next_lease: LeaseId,
    /// Number of random numbers that Redis commands have used so far. The next random number is derived from this
    /// count.
    pub(crate) seeds: u64,
    /// Version of the state machine in force: commands that need a higher version are rejected.
    pub(crate) version: u32,
}

impl Default for Meta {
    fn default() -> Self {
        Self {
            next_keyspace: KeyspaceId(1),
            next_stream: StreamId(1),
            next_collection: CollectionId(1),
            next_lease: LeaseId(1),
            seeds: 0,
            version: u32::from(FIRST_VERSION),
        }
    }
}

impl Meta {
    /// Loads the meta row; `None` if no log entry was ever applied.
    pub(crate) fn load(view: &dyn View) -> Result<Option<Self>, MachineError> {
        view.get(&keys::META)?.map(|row| Self::decode(&row)).transpose()
    }

    pub(crate) fn write(&self, batch: &mut WriteBatch) {
        let fields = [STATE_FORMAT, self.next_keyspace.0, self.next_stream.0].map(u32::to_le_bytes);
        let counters = [self.next_collection.0, self.next_lease.0, self.seeds].map(u64::to_le_bytes);
        let version = self.version.to_le_bytes();
        let row: [&[u8]; 7] = [&fields[0], &fields[1], &fields[2], &counters[0], &counters[1], &counters[2], &version];
        batch.put(&[&keys::META], &row);
    }

    fn decode(row: &[u8]) -> Result<Self, MachineError> {
        let corrupt = |message| MachineError::corrupt("meta row", &keys::META, message);
        let mut reader = Reader::at(row, 0);
        let found = reader.u32("format").map_err(|_| corrupt("row of a wrong length"))?;
        if found != STATE_FORMAT {
            return Err(MachineError::Format { found, supported: STATE_FORMAT });
        }
        let meta = Self::decode_fields(&mut reader).map_err(|_| corrupt("row of a wrong length"))?;
        let is_sound = meta.next_keyspace.0 > 0
            && meta.next_stream.0 > 0
            && meta.next_collection.0 > 0
            && meta.version >= u32::from(FIRST_VERSION)
            && row.len() == META_LEN;
        if is_sound { Ok(meta) } else { Err(corrupt("row of a wrong length, or an id or version of 0")) }
    }

    fn decode_fields(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            next_keyspace: KeyspaceId(reader.u32("next keyspace")?),
            next_stream: StreamId(reader.u32("next stream")?),
            next_collection: CollectionId(reader.u64("next collection")?),
            next_lease: LeaseId(reader.u64("next lease")?),
            seeds: reader.u64("seeds")?,
            version: reader.u32("version")?,
        })
    }
}

/// Life cycle of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyspaceLife {
    /// The keyspace can be used.
    Live,
    /// The keyspace was dropped, and the rows of its keys are not all removed yet. Its name is free.
    Dropped,
}

/// A keyspace's catalog row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceRow {
    /// Name of the keyspace.
    pub name: Arc<str>,
    /// Settings of the keyspace.
    pub config: KeyspaceConfig,
    /// Stage in the life cycle of the keyspace.
    pub life: KeyspaceLife,
    /// Revision of the last commit before the keyspace was created.
    pub revision: Revision,
    /// Time of the log entry that created the keyspace.
    pub created: SpaceTime,
}

impl KeyspaceRow {
    pub(crate) fn is_live(&self) -> bool {
        self.life == KeyspaceLife::Live
    }

    pub(crate) fn write(&self, id: KeyspaceId, staged: &mut Staged) {
        let mut middle = vec![u8::from(self.life == KeyspaceLife::Dropped)];
        self.config.encode(&mut middle);
        let value: [&[u8]; 4] =
            [&self.revision.0.to_le_bytes(), &self.created.0.to_le_bytes(), &middle, self.name.as_bytes()];
        staged.put(&[&keys::keyspace_row(id)], &value);
    }

    fn decode(row: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader::at(row, 0);
        let mut number = || reader.u64("revision or time").map_err(|_| "shorter than revision and time");
        let (revision, created) = (Revision(number()?), SpaceTime(number()?));
        let life = match reader.u8("life") {
            Ok(0) => KeyspaceLife::Live,
            Ok(1) => KeyspaceLife::Dropped,
            _ => return Err("neither live nor dropped"),
        };
        let config = KeyspaceConfig::decode(&mut reader).map_err(|_| "configuration does not decode")?;
        let name = std::str::from_utf8(reader.rest()).ok().filter(|name| check_name(name).is_ok());
        Ok(Self { name: name.ok_or("not a name")?.into(), config, life, revision, created })
    }
}

/// The table of all keyspaces, by name and by id.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceTable {
    /// Live keyspaces by name.
    by_name: HashMap<Arc<str>, KeyspaceId>,
    /// Live and dropped keyspaces by id.
    rows: BTreeMap<KeyspaceId, KeyspaceRow>,
}

impl KeyspaceTable {
    pub(crate) fn load(view: &dyn View, meta: &Meta) -> Result<Self, MachineError> {
        let mut table = Self::default();
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_KEYSPACE]), |key, row| {
            let corrupt = |message| MachineError::corrupt("keyspace row", key, message);
            let row = KeyspaceRow::decode(row).map_err(corrupt)?;
            let id = keys::id_of(key).map(KeyspaceId).ok_or_else(|| corrupt("key of a wrong length"))?;
            if id.0 == 0 || id >= meta.next_keyspace {
                return Err(corrupt("an id that was never assigned"));
            }
            if row.is_live() && table.by_name.contains_key(&row.name) {
                return Err(corrupt("a name occurs twice"));
            }
            table.set(id, Some(row));
            Ok(())
        })?;
        Ok(table)
    }

    pub(crate) fn id(&self, name: &str) -> Option<KeyspaceId> {
        self.by_name.get(name).copied()
    }

    /// Returns the row of a live or dropped keyspace.
    pub(crate) fn row(&self, id: KeyspaceId) -> Option<&KeyspaceRow> {
        self.rows.get(&id)
    }

    /// Returns the live keyspaces in the order of ids.
    pub(crate) fn list(&self) -> Vec<(KeyspaceId, KeyspaceRow)> {
        self.rows.iter().filter(|(_, row)| row.is_live()).map(|(&id, row)| (id, row.clone())).collect()
    }

    /// Returns at most `limit` live keyspaces with ids above `after`, in the order of ids.
    pub(crate) fn list_after(&self, after: KeyspaceId, limit: usize) -> Vec<(KeyspaceId, KeyspaceRow)> {
        let rows = self.rows.range((Bound::Excluded(after), Bound::Unbounded));
        rows.filter(|(_, row)| row.is_live()).take(limit).map(|(&id, row)| (id, row.clone())).collect()
    }

    /// Returns the number of keyspaces, including dropped ones whose rows are not all removed yet.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn live_len(&self) -> usize {
        self.by_name.len()
    }

    /// Replaces a keyspace's catalog row; `None` removes the row.
    pub(crate) fn set(&mut self, id: KeyspaceId, row: Option<KeyspaceRow>) {
        if let Some(before) = self.rows.remove(&id)
            && self.by_name.get(&before.name) == Some(&id)
        {
            self.by_name.remove(&before.name);
        }
        if let Some(row) = row {
            if row.is_live() {
                self.by_name.insert(row.name.clone(), id);
            }
            self.rows.insert(id, row);
        }
    }

    /// Returns the kind of each keyspace. The applying thread keeps this table, because every write looks up the kind
    /// first.
    pub(crate) fn kinds(&self) -> KeyspaceKinds {
        let mut kinds = KeyspaceKinds::default();
        self.rows.iter().for_each(|(&id, row)| kinds.set(id, Some(row)));
        kinds
    }
}

/// Kind of a keyspace (missing, plain or configured), which every write to it checks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyspaceKind {
    /// The keyspace does not exist or was dropped, so writes to it are rejected.
    #[default]
    Missing,
    /// The keyspace has no settings that affect writes, so writes need not read the row that they replace.
    Plain,
    /// The keyspace has settings that affect writes, which a write must look up.
    Configured,
}

/// Kind of each keyspace, by id. The table uses one byte for each id ever assigned, so a put needs only one array
/// access to look up the kind.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceKinds(Vec<KeyspaceKind>);

impl KeyspaceKinds {
    #[inline]
    pub(crate) fn of(&self, id: KeyspaceId) -> KeyspaceKind {
        self.0.get(id.0 as usize).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, id: KeyspaceId, row: Option<&KeyspaceRow>) {
        let at = id.0 as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, KeyspaceKind::Missing);
        }
        self.0[at] = match row {
            Some(row) if row.is_live() && row.config.is_plain() => KeyspaceKind::Plain,
            Some(row) if row.is_live() => KeyspaceKind::Configured,
            _ => KeyspaceKind::Missing,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_store::Change;

    const META: Meta = Meta {
        next_keyspace: KeyspaceId(0x0203),
        next_stream: StreamId(4),
        next_collection: CollectionId(0x0506),
        next_lease: LeaseId(7),
        seeds: 8,
        version: 9,
    };
    const META_ROW: &[u8] = b"\x02\0\0\0\x03\x02\0\0\x04\0\0\0\x06\x05\0\0\0\0\0\0\
        \x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0";

    #[test]
    fn layouts_are_pinned() {
        let mut batch = WriteBatch::new();
        META.write(&mut batch);
        let row = KeyspaceRow {
            name: "name".into(),
            config: KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() },
            life: KeyspaceLife::Dropped,
            revision: Revision(6),
            created: SpaceTime(7),
        };
        let mut staged = Staged::default();
        row.write(KeyspaceId(5), &mut staged);
        let changes: Vec<_> = batch.changes().chain(staged.batch().changes()).collect();
        assert_eq!(changes[0], Change::Put(b"\x01", META_ROW));
        let bytes = b"\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01\x01\x01\x01\x01name";
        assert_eq!(changes[1], Change::Put(b"\x02\0\0\0\x05", bytes));
        assert_eq!(KeyspaceRow::decode(bytes), Ok(row));
        for cut in 0..bytes.len() - 3 {
            assert!(KeyspaceRow::decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }
    }

    #[test]
    fn other_formats_and_short_rows_are_refused() {
        assert_eq!(Meta::decode(META_ROW).unwrap(), META);
        assert!(matches!(Meta::decode(b"\x01\0\0\0"), Err(MachineError::Format { found: 1, supported: 2 })));
        let no_collection = [&META_ROW[..12], &[0; 8], &META_ROW[20..]].concat();
        let no_version = [&META_ROW[..36], &[0; 4]].concat();
        for bad in [b"".as_slice(), &META_ROW[..39], &META_ROW[..12], b"\x02\0\0\0", &no_collection, &no_version] {
            assert!(matches!(Meta::decode(bad), Err(MachineError::Corrupt { .. })), "{bad:?}");
        }
    }
}
