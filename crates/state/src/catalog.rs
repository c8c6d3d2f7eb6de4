//! The catalog of keyspaces, and the next ids.
//!
//! Owns the meta row and the keyspace rows. Streams' names are in their heads (see [`crate::streams`]).
//! Invariant: keyspaces are never removed, so ids are dense: `1..next` all exist. A write is checked
//! against that with one comparison.
//!
//! ```text
//! meta         := format u32 | next keyspace u32 | next stream u32          little-endian
//! keyspace row := revision u64 | time u64 | name                            when it was created
//! ```
//! `revision` is that of the last commit before.

use std::{collections::HashMap, sync::Arc};

use thalweg_types::{KeyspaceId, Revision, SpaceTime, StreamId, command::check_name};

use crate::{
    backend::{View, WriteBatch},
    keys::{self, KeyRange},
    machine::MachineError,
};

/// The format of everything that the state machine keeps in the map.
pub const STATE_FORMAT: u32 = 1;

const META_LEN: usize = 12;

/// The next ids. Ids begin at 1, so that an id of 0 is always a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) next_keyspace: KeyspaceId,
    pub(crate) next_stream: StreamId,
}

impl Default for Meta {
    fn default() -> Self {
        Self { next_keyspace: KeyspaceId(1), next_stream: StreamId(1) }
    }
}

impl Meta {
    /// `None` if nothing was ever applied.
    pub(crate) fn load(view: &dyn View) -> Result<Option<Self>, MachineError> {
        view.get(&keys::META)?.map(|row| Self::decode(&row)).transpose()
    }

    pub(crate) fn write(&self, batch: &mut WriteBatch) {
        let fields = [STATE_FORMAT, self.next_keyspace.0, self.next_stream.0].map(u32::to_le_bytes);
        batch.put(&[&keys::META], &[&fields[0], &fields[1], &fields[2]]);
    }

    fn decode(row: &[u8]) -> Result<Self, MachineError> {
        let corrupt = |message| MachineError::corrupt("meta row", &keys::META, message);
        let field =
            |at: usize| row.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
        let found = field(0).ok_or_else(|| corrupt("row of a wrong length"))?;
        if found != STATE_FORMAT {
            return Err(MachineError::Format { found, supported: STATE_FORMAT });
        }
        match (field(4), field(8), row.len()) {
            (Some(keyspace), Some(stream), META_LEN) if keyspace > 0 && stream > 0 => {
                Ok(Self { next_keyspace: KeyspaceId(keyspace), next_stream: StreamId(stream) })
            }
            _ => Err(corrupt("row of a wrong length, or an id of 0")),
        }
    }
}

/// The keyspaces by name and id.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceTable {
    by_name: HashMap<Arc<str>, KeyspaceId>,
    /// Of id 1, 2, ...
    names: Vec<Arc<str>>,
}

impl KeyspaceTable {
    pub(crate) fn load(view: &dyn View, meta: &Meta) -> Result<Self, MachineError> {
        let mut table = Self::default();
        crate::machine::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_KEYSPACE]), |key, row| {
            let corrupt = |message| MachineError::corrupt("keyspace row", key, message);
            let name = row.get(16..).and_then(|name| std::str::from_utf8(name).ok());
            let name = name.filter(|name| check_name(name).is_ok()).ok_or_else(|| corrupt("not a name"))?;
            let id = keys::id_of(key).map(KeyspaceId).ok_or_else(|| corrupt("key of a wrong length"))?;
            if id != table.next_id() || id >= meta.next_keyspace || table.by_name.contains_key(name) {
                return Err(corrupt("ids have a gap, or a name occurs twice"));
            }
            table.insert(name.into(), id);
            Ok(())
        })?;
        if table.next_id() != meta.next_keyspace {
            return Err(MachineError::corrupt("keyspace row", &keys::keyspace_row(table.next_id()), "missing"));
        }
        Ok(table)
    }

    pub(crate) fn id(&self, name: &str) -> Option<KeyspaceId> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn name(&self, id: KeyspaceId) -> Option<Arc<str>> {
        self.names.get(id.0.checked_sub(1)? as usize).cloned()
    }

    pub(crate) fn list(&self) -> Vec<(KeyspaceId, Arc<str>)> {
        (1..).map(KeyspaceId).zip(self.names.iter().cloned()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn insert(&mut self, name: Arc<str>, id: KeyspaceId) {
        debug_assert_eq!(id, self.next_id(), "ids are dense");
        self.names.push(name.clone());
        self.by_name.insert(name, id);
    }

    fn next_id(&self) -> KeyspaceId {
        KeyspaceId(self.names.len() as u32 + 1)
    }
}

/// Writes the row of a new keyspace.
pub(crate) fn write_keyspace(batch: &mut WriteBatch, id: KeyspaceId, name: &str, revision: Revision, time: SpaceTime) {
    let value: [&[u8]; 3] = [&revision.0.to_le_bytes(), &time.0.to_le_bytes(), name.as_bytes()];
    batch.put(&[&keys::keyspace_row(id)], &value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Change;

    #[test]
    fn layouts_are_pinned() {
        let mut batch = WriteBatch::new();
        Meta { next_keyspace: KeyspaceId(0x0203), next_stream: StreamId(4) }.write(&mut batch);
        write_keyspace(&mut batch, KeyspaceId(5), "name", Revision(6), SpaceTime(7));
        let changes: Vec<_> = batch.changes().collect();
        assert_eq!(changes[0], Change::Put(b"\x01", b"\x01\0\0\0\x03\x02\0\0\x04\0\0\0"));
        let row = b"\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0name";
        assert_eq!(changes[1], Change::Put(b"\x02\0\0\0\x05", row));
    }

    #[test]
    fn other_formats_and_short_rows_are_refused() {
        let decoded = Meta::decode(b"\x01\0\0\0\x03\x02\0\0\x04\0\0\0").unwrap();
        assert_eq!(decoded, Meta { next_keyspace: KeyspaceId(0x0203), next_stream: StreamId(4) });
        assert!(matches!(Meta::decode(b"\x02\0\0\0"), Err(MachineError::Format { found: 2, supported: 1 })));
        for bad in [b"".as_slice(), b"\x01\0\0\0\x01\0\0\0", b"\x01\0\0\0\0\0\0\0\0\0\0\0"] {
            assert!(matches!(Meta::decode(bad), Err(MachineError::Corrupt { .. })), "{bad:?}");
        }
    }
}
