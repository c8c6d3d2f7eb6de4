//! A log with entries that a truncation has undone: reads, watches, backups and maintenance use only valid entries.

use std::{io::IoSlice, ops::RangeInclusive, sync::Arc, time::Duration};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, Options, WatchChange, WatchKeys,
    snapshot::{Part, RestoreTo, SnapshotOptions, restore_on, survey},
};
use thalweg_log::{Draft, Log, LogOptions, Purpose, RecordKind};
use thalweg_replica::Vote;
use thalweg_types::{
    Classified, Clock, Durability, Index, KeyspaceId, Lsn, NodeId, Revision, SpaceId, SpaceTime, Term,
    command::{Framed, encode_put},
};

use crate::common::{Model, PATIENCE, check, clock, small};

fn keeping() -> Options {
    let hour = Duration::from_secs(3600);
    Options { history_bytes: 1 << 30, history_age: hour, ..small(BackendKind::Memory) }
}

fn open(disk: &SimDisk, options: Options) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), 5, options).unwrap()
}

/// Writes records as a member of a group would, into a directory that is not open.
pub struct Writer {
    log: Log,
    time: SpaceTime,
    pub keyspace: KeyspaceId,
    node: NodeId,
}

impl Writer {
    pub fn append(&self, kind: RecordKind, term: u64, index: u64, payload: &[u8]) -> Lsn {
        let (space, payload) = (SpaceId::ZERO, [IoSlice::new(payload)]);
        let draft = Draft { space, kind, term: Term(term), index: Index(index), time: self.time, payload: &payload };
        self.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first
    }

    /// Appends entries that put a value under the key of each index.
    pub fn puts(&self, term: u64, indexes: RangeInclusive<u64>) {
        for index in indexes {
            let mut command = Framed::new();
            command.encode(|out| encode_put(out, self.keyspace, &key(index), &value_of(term, index))).unwrap();
            self.append(RecordKind::Entry, term, index, command.bytes());
        }
    }

    fn vote(&self, term: u64) {
        let vote = Vote { term: Term(term), node: self.node, committed: true };
        self.append(RecordKind::Vote, term, 0, &vote.encode());
    }

    /// Appends the records of a new leader that undoes the entries from an index on.
    fn truncate(&self, term: u64, index: u64) {
        self.vote(term);
        self.append(RecordKind::Truncate, 0, index, b"");
    }
}

fn key(index: u64) -> Vec<u8> {
    format!("key {index:06}").into_bytes()
}

/// Creates a directory with a keyspace, which is entry 1.
pub fn founded(disk: &SimDisk, options: &Options) -> Database {
    let db = open(disk, options.clone());
    db.keyspace("k").unwrap();
    assert_eq!(db.stats().applied_index, Index(1));
    db
}

/// Closes a directory, and returns a writer for its log.
pub fn writer(disk: &SimDisk, db: Database) -> Writer {
    let (node, time) = (db.report().node, db.stats().space_time);
    let keyspace = db.find_keyspace("k").unwrap().id();
    db.close().unwrap();
    drop(db);
    let options = LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock(), 5).unwrap();
    Writer { log, time, keyspace, node }
}

/// Returns the term of each valid entry from 2 to 40.
fn term_of(index: u64) -> u64 {
    match index {
        2..=9 => 1,
        10..=29 => 4,
        _ => 5,
    }
}

fn value_of(term: u64, index: u64) -> Vec<u8> {
    format!("term {term}").repeat(if index.is_multiple_of(4) { 100 } else { 1 }).into_bytes()
}

/// Appends entries 2 to 40, some of which are undone once or twice.
fn write_with_void_entries(writer: &Writer) -> Model {
    writer.puts(1, 2..=14);
    writer.truncate(2, 10);
    writer.puts(2, 10..=20);
    writer.truncate(3, 12);
    writer.truncate(4, 10);
    writer.puts(4, 10..=35);
    writer.truncate(5, 30);
    writer.puts(5, 30..=40);
    let mut model = Model::default();
    for index in 2..=40 {
        model.keys.insert(("k".to_owned(), key(index)), value_of(term_of(index), index));
    }
    model
}

fn take(db: &Database, since: Option<Lsn>) -> Vec<u8> {
    let options = SnapshotOptions { since, chunk_bytes: 300, ..SnapshotOptions::default() };
    db.snapshot(&options).unwrap().into_bytes().unwrap()
}

#[test]
fn watches_from_the_beginning_see_what_counts_once() {
    let disk = SimDisk::new(1);
    let model = write_with_void_entries(&writer(&disk, founded(&disk, &keeping())));
    let db = open(&disk.kill_process(), keeping());
    check(&db, &model);
    let keyspace = db.find_keyspace("k").unwrap();
    let last = db.stats().applied_revision;
    for from in 1..=last.0 {
        let mut watch = keyspace.watch(&WatchKeys::Prefix(Vec::new()), Some(Revision(from))).unwrap();
        let mut seen = Vec::new();
        while watch.position() <= last {
            for event in watch.next_batch(PATIENCE).unwrap().events {
                let WatchChange::Put(value) = event.change else { panic!("only puts: {event:?}") };
                seen.push((("k".to_owned(), event.key.to_vec()), value.to_vec()));
            }
        }
        let expected: Vec<_> = model.keys.clone().into_iter().skip(from as usize - 1).collect();
        assert_eq!(seen, expected, "from {from}");
    }
}

#[test]
fn an_increment_holds_what_counts_wherever_it_begins() {
    let disk = SimDisk::new(1);
    let db = founded(&disk, &keeping());
    let full = take(&db, None);
    let since = survey(&full[..]).unwrap().info.applied.lsn;
    let model = write_with_void_entries(&writer(&disk, db));
    let db = open(&disk, keeping());
    check(&db, &model);
    let parts = [Part::bytes("full", full), Part::bytes("increment", take(&db, Some(since)))];
    let (restored, clock): (_, Arc<dyn Clock>) = (SimDisk::new(2), clock());
    let target: Arc<dyn Disk> = Arc::new(restored.clone());
    restore_on(&target, &clock, 9, &parts, RestoreTo::End, &small(BackendKind::Memory), &mut |_| {}).unwrap();
    check(&open(&restored, small(BackendKind::Memory)), &model);
    // The entry that an increment continues is the last valid one before it.
    let mut last = 1;
    for since in since.0..=db.stats().applied_lsn.0 {
        let before = survey(&take(&db, Some(Lsn(since)))[..]).unwrap().info.before;
        let index = before.index.0;
        assert!(index == last || index == last + 1, "{since}: {before:?}, after {last}");
        assert!(index == 1 || before.term == Term(term_of(index)), "{since}: {before:?}");
        last = index;
    }
    assert_eq!(last, 40);
}

/// Entries applied at a later time than their records state could not be found by time.
#[test]
fn an_increment_whose_times_go_back_is_refused() {
    let disk = SimDisk::new(1);
    let db = founded(&disk, &keeping());
    let full = take(&db, None);
    let since = survey(&full[..]).unwrap().info.applied.lsn;
    let mut writer = writer(&disk, db);
    writer.puts(1, 2..=5);
    writer.time = writer.time.minus(Duration::from_secs(1));
    writer.puts(1, 6..=8);
    drop(writer);
    let increment = take(&open(&disk, keeping()), Some(since));
    let parts = [Part::bytes("full", full), Part::bytes("increment", increment)];
    let (target, clock): (Arc<dyn Disk>, Arc<dyn Clock>) = (Arc::new(SimDisk::new(2)), clock());
    let options = small(BackendKind::Memory);
    let error = restore_on(&target, &clock, 9, &parts, RestoreTo::End, &options, &mut |_| {}).unwrap_err();
    assert_eq!(error.code(), "does_not_follow", "{error}");
    assert!(error.to_string().contains("entry 6"), "{error}");
}

#[test]
fn what_is_noted_as_purged_is_an_entry_that_counts() {
    let disk = SimDisk::new(1);
    let members = writer(&disk, founded(&disk, &small(BackendKind::Memory)));
    members.puts(1, 2..=5);
    let mut index = 5;
    // The later part of the first segment is void.
    while members.log.segments().len() == 1 {
        index += 1;
        members.puts(1, index..=index);
    }
    members.truncate(2, 6);
    members.puts(2, 6..=7);
    drop(members);
    let db = open(&disk, small(BackendKind::Memory));
    let freed: u64 = (0..3)
        .map(|_| {
            db.flush().unwrap();
            db.maintain().unwrap().freed_segments
        })
        .sum();
    assert_eq!(freed, 1);
    assert_eq!(db.find_keyspace("k").unwrap().get(&key(7)).unwrap().unwrap().value, value_of(2, 7));
    assert!(db.find_keyspace("k").unwrap().get(&key(8)).unwrap().is_none());
    let log = writer(&disk, db).log;
    let purged: Vec<_> = log
        .records_from(log.start())
        .unwrap()
        .map(Result::unwrap)
        .filter(|record| record.kind == RecordKind::Purged)
        .collect();
    assert_eq!(purged.iter().map(|record| (record.term, record.index)).collect::<Vec<_>>(), [(Term(1), Index(5))]);
}
