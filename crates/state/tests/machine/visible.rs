//! Tests of reads that see the changes of a record while it is still being applied.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use thalweg_state::{
    keyspaces::StoredValue,
    machine::{Machine, MachineOptions},
};
use thalweg_store::{Applied, Backend, BackendError, BackendStats, View, WriteBatch};
use thalweg_types::{
    KeyspaceId, Lsn, SpaceTime,
    command::{self, CommitBuilder, KeyspaceConfig},
};

use crate::support::{Log, MapBackend, apply, command, frame};

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const KEY: &[u8] = b"key";

/// Result of a reader: the value of the key, and the bounds that it read afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    value: Option<Bytes>,
    visible: Lsn,
    applied: Lsn,
}

fn look(machine: &Machine) -> Sight {
    let value = machine.get(KEYSPACE, KEY).unwrap().map(|stored| match stored.value {
        StoredValue::Inline(bytes) => bytes,
        other => panic!("a short value is stored inline: {other:?}"),
    });
    Sight { value, visible: machine.visible(), applied: machine.applied().lsn }
}

/// A backend that reads through the machine before and after each batch becomes visible, while the machine still
/// applies it.
#[derive(Debug, Default)]
struct Watched {
    inner: MapBackend,
    machine: OnceLock<Weak<Machine>>,
    sights: Mutex<Vec<Sight>>,
}

impl Watched {
    fn note(&self) {
        if let Some(machine) = self.machine.get().and_then(Weak::upgrade) {
            self.sights.lock().unwrap().push(look(&machine));
        }
    }
}

impl Backend for Watched {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        self.note();
        self.inner.apply(batch, applied)?;
        self.note();
        Ok(())
    }

    fn applied(&self) -> Option<Applied> {
        self.inner.applied()
    }

    fn persisted(&self) -> Option<Applied> {
        self.inner.persisted()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.inner.get(key)
    }

    fn view(&self) -> Arc<dyn View> {
        self.inner.view()
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        self.inner.flush()
    }

    fn maintain(&self) -> Result<(), BackendError> {
        self.inner.maintain()
    }

    fn stats(&self) -> BackendStats {
        self.inner.stats()
    }

    fn name(&self) -> &'static str {
        "watched"
    }
}

fn put(value: &[u8]) -> Vec<u8> {
    let mut commit = CommitBuilder::new();
    commit.put(KEYSPACE, KEY, value).unwrap();
    command(|out| commit.encode(out))
}

#[test]
fn a_read_that_sees_a_record_finds_it_below_the_visible_bound() {
    let backend = Arc::new(Watched::default());
    let mut log = Log::new(4096);
    let machine = Arc::new(log.machine(backend.clone(), MachineOptions::default()));
    let create = command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap());
    apply(&machine, &log.entry(&frame(&[create]), SpaceTime(1)));
    backend.machine.set(Arc::downgrade(&machine)).unwrap();
    for (number, value) in [b"first", b"later"].into_iter().enumerate() {
        let before = look(&machine);
        assert_eq!(before.visible, before.applied, "no record is being applied");
        let record = log.entry(&frame(&[put(value)]), SpaceTime(2 + number as u64));
        apply(&machine, &record);
        let [hidden, shown] = std::mem::take(&mut *backend.sights.lock().unwrap()).try_into().unwrap();
        assert_eq!(hidden.value, before.value);
        assert_eq!(shown.value.as_deref(), Some(value.as_slice()), "the backend has shown the value");
        assert!(shown.applied < record.next_lsn, "and the machine has yet to count the record as applied");
        assert_eq!(shown.visible, record.next_lsn, "a label that is computed now covers the record");
        assert_eq!(look(&machine).visible, machine.applied().lsn);
    }
}
