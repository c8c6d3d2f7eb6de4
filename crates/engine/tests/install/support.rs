//! A node that others follow, and a node that installs its snapshots.
//!
//! Both have the same node id, so a directory with an installed state, whose membership is that of the other node,
//! opens as a single node.

use std::{fmt::Write as _, io::IoSlice, ops::ControlFlow, sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_disk::{Disk, RealDisk, SimDisk};
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_state::machine::Entry;
use thalweg_types::{
    Durability, LeaseId, Lsn, ManualClock, Offset, SpaceId, SpaceTime,
    command::groups::{GroupConfig, Settlement},
    record::RecordBatch,
};

use crate::{
    BackendKind, Database, FetchRequest, GroupStart, OpenError, Options, PutOptions, ScanRange,
    snapshot::{Install, InstallError, Installed, Snapshot, SnapshotOptions},
};

pub(super) const NODE: u64 = 5;

pub(super) fn built() -> Vec<BackendKind> {
    BackendKind::ALL.into_iter().filter(|kind| kind.is_built()).collect()
}

/// Options with small segments, no background thread, no log kept for history, and no reserve.
pub(super) fn options(backend: BackendKind) -> Options {
    Options {
        backend: Some(backend),
        segment_bytes: 64 * 1024,
        spare_segments: 2,
        reserve_bytes: 0,
        history_bytes: 0,
        history_age: Duration::ZERO,
        inline_value_bytes: 256,
        cache_bytes: 1 << 20,
        memtable_bytes: 64 << 10,
        maintenance_interval: Duration::ZERO,
        scrub_interval: Duration::ZERO,
        ..Options::default()
    }
}

pub(super) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(SpaceTime(1_700_000_000_000_000)))
}

/// A node in a temporary directory.
pub(super) struct Node {
    pub(super) dir: tempfile::TempDir,
    backend: BackendKind,
    db: Option<Database>,
}

impl Node {
    pub(super) fn new(backend: BackendKind) -> Self {
        let mut node = Self { dir: tempfile::tempdir().unwrap(), backend, db: None };
        node.reopen();
        node
    }

    pub(super) fn db(&self) -> &Database {
        self.db.as_ref().unwrap()
    }

    /// Opens the directory again, as after a kill of the process.
    pub(super) fn reopen(&mut self) {
        self.db = None;
        self.db = Some(open_at(self.dir.path(), self.backend).unwrap());
    }

    /// Ends the database, as a kill of the process does.
    pub(super) fn kill(&mut self) {
        self.db = None;
    }

    /// Names of the state directories.
    pub(super) fn state_dirs(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.dir.path().join("state/default")).unwrap();
        let mut names: Vec<_> = found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(super) fn open_at(path: &std::path::Path, backend: BackendKind) -> Result<Database, OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(path).unwrap());
    Database::open_on(disk, clock(), NODE, options(backend))
}

pub(super) fn open_sim(disk: &SimDisk, backend: BackendKind) -> Result<Database, OpenError> {
    Database::open_on(Arc::new(disk.clone()), clock(), NODE, options(backend))
}

pub(super) fn long(byte: u8) -> Vec<u8> {
    vec![byte; 3000]
}

fn batch(payloads: &[&[u8]]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.iter().for_each(|payload| batch.push_payload(payload).unwrap());
    batch
}

/// Writes data of every kind.
pub(super) fn furnish(db: &Database) {
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..60_u8 {
        keyspace.put(&[b'a', number], &[number; 100]).unwrap();
    }
    keyspace.put(b"long", &long(1)).unwrap();
    keyspace.put(b"long", &long(2)).unwrap();
    keyspace.put_for(b"later", &long(3), Duration::from_secs(6000)).unwrap();
    let lease = db.leases().grant_as(LeaseId(9), Duration::from_secs(1000)).unwrap();
    keyspace.put_with(b"leased", b"l", &PutOptions::with_lease(lease.id)).unwrap();
    db.keyspace("dropped").unwrap().put(b"a", b"b").unwrap();
    db.keyspace("dropped").unwrap().drop_all().unwrap();
    db.keyspace("cleared").unwrap().put(b"a", b"b").unwrap();
    let stream = db.stream("s").unwrap();
    for number in 0..30 {
        stream.append(&batch(&[&[number; 5], &[number; 600]])).unwrap();
    }
    stream.trim(Offset(3)).unwrap();
    let group = stream.create_group("workers", GroupStart::Beginning, &GroupConfig::default()).unwrap().0;
    let request = FetchRequest { member: "m".to_owned(), max_records: 4, ..FetchRequest::default() };
    let first = group.fetch(&request).unwrap();
    group.ack(&[Settlement::one(first.attempt, Offset(3))]).unwrap();
    stream.producer("p").unwrap().append(&batch(&[b"once"])).unwrap();
}

/// Changes existing keys and adds new keys and records.
pub(super) fn go_on(db: &Database, number: u8) {
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"long", &long(number)).unwrap();
    keyspace.put(&[b'n', number], &[number; 30]).unwrap();
    keyspace.delete(&[b'a', number]).unwrap();
    let stream = db.stream("s").unwrap();
    stream.append(&batch(&[&[number; 700]])).unwrap();
    let group = stream.find_group("workers").unwrap().unwrap();
    let request = FetchRequest { member: "m".to_owned(), max_records: 3, ..FetchRequest::default() };
    let delivered = group.fetch(&request).unwrap();
    group.ack(&[Settlement::all(delivered.attempt)]).unwrap();
}

/// Describes everything that users can see as text.
pub(super) fn visible_state(db: &Database) -> String {
    let mut out = String::new();
    for info in db.keyspaces() {
        let keyspace = db.find_keyspace(&info.name).unwrap();
        writeln!(out, "{} {:?}", info.name, info.config).unwrap();
        for pair in keyspace.iter(ScanRange::default()) {
            let (key, entry) = pair.unwrap();
            assert_eq!(keyspace.get(&key).unwrap().as_ref(), Some(&entry), "get and scan agree");
            writeln!(out, "  {key:?} = {entry:?}, {:?}", keyspace.lifetime(&key).unwrap()).unwrap();
        }
    }
    for info in db.streams() {
        let stream = db.find_stream(&info.name).unwrap();
        let mut from = stream.info().unwrap().start;
        writeln!(out, "{} {from} {}", info.name, info.next).unwrap();
        while from < info.next {
            let page = stream.read(from, 7, 1 << 20).unwrap();
            let each = &mut |offset, time, record: &thalweg_types::record::Record<'_>| {
                writeln!(out, "  {offset} {time:?} {:?}", record.payload).unwrap();
                ControlFlow::Continue(())
            };
            page.for_each(each).unwrap();
            from = page.next;
        }
        writeln!(out, "{:?} {:?}", stream.producers().unwrap(), stream.groups().unwrap()).unwrap();
    }
    writeln!(out, "{:?}", db.leases().list(None, 100).unwrap()).unwrap();
    out
}

/// Digest of the replicated rows, with the index and the running hash of the state.
pub(super) fn digest(db: &Database) -> String {
    let state = &db.state_view().digest(&mut |_| {}).unwrap().state;
    format!("{:?} {} {:?} {:x}", state.digest, state.applied.index, state.applied.revision, state.applied.running_hash)
}

pub(super) fn snapshot(db: &Database) -> Snapshot {
    db.snapshot(&SnapshotOptions { chunk_bytes: 3000, ..SnapshotOptions::default() }).unwrap()
}

/// Returns all chunks of a snapshot.
pub(super) fn chunks(db: &Database) -> Vec<Bytes> {
    let mut snapshot = snapshot(db);
    let mut chunks = Vec::new();
    while let Some(chunk) = snapshot.next_chunk().unwrap() {
        chunks.push(chunk);
    }
    assert!(chunks.len() > 5, "{} chunks", chunks.len());
    chunks
}

/// Begins an install on a node alone, as [`Database::install`] does on a member.
pub(super) fn begin(db: &Database) -> Result<Install, InstallError> {
    Install::begin(&db.inner)
}

pub(super) fn install(db: &Database, chunks: &[Bytes]) -> Result<Installed, InstallError> {
    let mut install = begin(db)?;
    for chunk in chunks {
        install.push(chunk.clone())?;
    }
    install.finish()
}

/// Copies the entries of `from` from an LSN on to the log of `to`, and applies them there.
pub(super) fn follow(from: &Database, lsn: Lsn, to: &Database) {
    let (from, to) = (&from.inner.open, &to.inner.open);
    let mut outcomes = Vec::new();
    for record in from.log.records_from(lsn).unwrap() {
        let record = record.unwrap();
        if record.kind != RecordKind::Entry || record.index <= to.machine.applied().index {
            continue;
        }
        assert_eq!(record.index, to.machine.applied().index.next());
        let payload = [IoSlice::new(&record.payload)];
        let draft = Draft {
            space: SpaceId::ZERO,
            kind: record.kind,
            term: record.term,
            index: record.index,
            time: record.time,
            payload: &payload,
        };
        let appended = to.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap();
        let entry = Entry {
            term: record.term,
            index: record.index,
            time: record.time,
            payload: &record.payload,
            at: appended.payload_at,
            next_lsn: appended.next,
        };
        to.machine.apply(&entry, &mut outcomes).unwrap();
    }
    to.watches.notify();
}

/// Checks that all stored data is intact.
pub(super) fn verify(db: &Database) {
    let stats = db.scrub();
    assert_eq!((stats.damages, stats.damage), (0, None));
}
