//! Random operations against a plain model, with closes, crashes and maintenance in between.

use std::ops::{Bound, ControlFlow};

use thalweg_engine::{
    BackendKind, Database, ScanRange, WriteError,
    types::{
        Offset, Revision,
        command::{CommitBuilder, Expect},
    },
};

use crate::common::{LEVELS, Model, Rng, batch, check, random_bound, seed, small};

const KEYSPACES: [&str; 3] = ["a", "b", "c"];
const STREAMS: [&str; 3] = ["s", "t", "u"];

struct Run {
    rng: Rng,
    model: Model,
    revisions: std::collections::BTreeMap<(String, Vec<u8>), Revision>,
}

impl Run {
    fn key(&mut self) -> Vec<u8> {
        match self.rng.below(20) {
            0 => Vec::new(),
            1 => vec![0xff; 3],
            2 => vec![0; 2],
            _ => format!("k{:03}", self.rng.below(200)).into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(10) {
            0 => 0,
            1 | 2 => 200 + self.rng.below(2000) as usize,
            _ => self.rng.below(120) as usize,
        };
        self.rng.bytes(len)
    }

    fn payloads(&mut self) -> Vec<Vec<u8>> {
        (0..=self.rng.below(5)).map(|_| self.value()).collect()
    }

    fn step(&mut self, db: &Database) {
        let level = LEVELS[self.rng.below(4) as usize];
        let db = db.with_durability(level);
        let keyspace_name = KEYSPACES[self.rng.below(3) as usize];
        let stream_name = STREAMS[self.rng.below(3) as usize];
        match self.rng.below(12) {
            0..=3 => {
                let (key, value) = (self.key(), self.value());
                let ack = db.keyspace(keyspace_name).unwrap().put(&key, &value).unwrap();
                assert!(ack.durability >= level);
                self.put(keyspace_name, key, value, ack.revision.unwrap());
            }
            4 => {
                let key = self.key();
                db.keyspace(keyspace_name).unwrap().delete(&key).unwrap();
                self.model.keys.remove(&(keyspace_name.to_owned(), key.clone()));
                self.revisions.remove(&(keyspace_name.to_owned(), key));
            }
            5 => self.conditional(&db, keyspace_name),
            6 | 7 => {
                let payloads = self.payloads();
                let ack = db.stream(stream_name).unwrap().append(&batch(&payloads)).unwrap();
                let stream = self.model.streams.entry(stream_name.to_owned()).or_default();
                assert_eq!(ack.appends[0].first, Offset(stream.records.len() as u64));
                stream.records.extend(payloads);
            }
            8 => self.commit(&db),
            9 => {
                let stream = db.stream(stream_name).unwrap();
                let model = self.model.streams.entry(stream_name.to_owned()).or_default();
                let before = model.start + self.rng.below(model.records.len() as u64 - model.start + 1);
                stream.trim(Offset(before)).unwrap();
                model.start = before;
            }
            10 => self.scan(&db, keyspace_name),
            _ => {
                db.maintain().unwrap();
            }
        }
    }

    fn put(&mut self, keyspace: &str, key: Vec<u8>, value: Vec<u8>, revision: Revision) {
        self.revisions.insert((keyspace.to_owned(), key.clone()), revision);
        self.model.keys.insert((keyspace.to_owned(), key), value);
    }

    fn conditional(&mut self, db: &Database, name: &str) {
        let (key, value) = (self.key(), self.value());
        let known = self.revisions.get(&(name.to_owned(), key.clone())).copied();
        let (expect, holds) = match self.rng.below(3) {
            0 => (Expect::Absent, known.is_none()),
            1 => (Expect::Present, known.is_some()),
            _ => {
                let revision = known.unwrap_or(Revision(self.rng.below(50)));
                (Expect::Revision(revision), known == Some(revision))
            }
        };
        match db.keyspace(name).unwrap().put_if(&key, &value, expect) {
            Ok(ack) => {
                assert!(holds, "{expect:?} of {known:?}");
                self.put(name, key, value, ack.revision.unwrap());
            }
            Err(WriteError::ConditionFailed { actual, .. }) => {
                assert!(!holds, "{expect:?} of {known:?}");
                assert_eq!(actual, known);
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Makes a commit over keyspaces and streams, sometimes with a conflicting offset.
    fn commit(&mut self, db: &Database) {
        let mut commit = CommitBuilder::new();
        let mut after = self.model.clone();
        let mut puts = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let name = KEYSPACES[self.rng.below(3) as usize];
            let (key, value) = (self.key(), self.value());
            commit.put(db.keyspace(name).unwrap().id(), &key, &value).unwrap();
            after.keys.insert((name.to_owned(), key.clone()), value);
            puts.push((name.to_owned(), key));
        }
        let name = STREAMS[self.rng.below(3) as usize];
        let payloads = self.payloads();
        let stream = after.streams.entry(name.to_owned()).or_default();
        let conflict = self.rng.below(4) == 0;
        let expected = Offset(stream.records.len() as u64 + u64::from(conflict));
        commit.append(db.stream(name).unwrap().id(), Some(expected), &batch(&payloads)).unwrap();
        stream.records.extend(payloads);
        match db.commit(&commit) {
            Ok(ack) => {
                assert!(!conflict);
                self.model = after;
                for key in puts {
                    self.revisions.insert(key, ack.revision.unwrap());
                }
            }
            Err(WriteError::OffsetConflict { .. }) => {
                assert!(conflict);
                self.model.streams.entry(name.to_owned()).or_default();
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn scan(&mut self, db: &Database, name: &str) {
        let (start, end) = (self.key(), self.key());
        let range = ScanRange {
            prefix: if self.rng.below(2) == 0 { b"k1".to_vec() } else { Vec::new() },
            start: random_bound(&mut self.rng, start),
            end: random_bound(&mut self.rng, end),
            limit: (self.rng.below(2) == 0).then(|| self.rng.below(20)),
            ..ScanRange::default()
        };
        let within = |key: &[u8]| {
            key.starts_with(&range.prefix)
                && match &range.start {
                    Bound::Unbounded => true,
                    Bound::Included(start) => key >= start.as_slice(),
                    Bound::Excluded(start) => key > start.as_slice(),
                }
                && match &range.end {
                    Bound::Unbounded => true,
                    Bound::Included(end) => key <= end.as_slice(),
                    Bound::Excluded(end) => key < end.as_slice(),
                }
        };
        let limit = range.limit.unwrap_or(u64::MAX) as usize;
        let expected: Vec<_> = self
            .model
            .keys
            .iter()
            .filter(|((keyspace, key), _)| keyspace == name && within(key))
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .take(limit)
            .collect();
        let mut found = Vec::new();
        let visit = &mut |item: thalweg_engine::ScanItem<'_>| {
            found.push((item.key.to_vec(), item.value.to_vec()));
            ControlFlow::Continue(())
        };
        db.keyspace(name).unwrap().scan(&range, visit).unwrap();
        assert_eq!(found, expected, "{range:?}");
    }
}

fn random_operations(backend: BackendKind, seed: u64, rounds: u64, steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run { rng: Rng(seed), model: Model::default(), revisions: Default::default() };
    for round in 0..rounds {
        let db = Database::open(dir.path(), small(backend)).unwrap();
        check(&db, &run.model);
        for _ in 0..steps {
            run.step(&db);
        }
        check(&db, &run.model);
        if round % 2 == 0 {
            db.close().unwrap();
            assert_eq!(db.keyspace("a").unwrap().put(b"", b"").unwrap_err(), WriteError::Closed);
        }
    }
}

#[test]
fn memory_backend_follows_the_model_over_reopens() {
    random_operations(BackendKind::Memory, seed(1), 8, 600);
}

#[test]
fn lsm_backend_follows_the_model_over_reopens() {
    random_operations(BackendKind::Lsm, seed(2), 8, 600);
}

#[test]
#[cfg(feature = "redb")]
fn redb_backend_follows_the_model_over_reopens() {
    random_operations(BackendKind::Redb, seed(3), 6, 500);
}

#[test]
#[cfg(feature = "sqlite")]
fn sqlite_backend_follows_the_model_over_reopens() {
    random_operations(BackendKind::Sqlite, seed(4), 6, 500);
}
