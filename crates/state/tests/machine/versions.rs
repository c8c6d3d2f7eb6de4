//! Keyspaces with history compared with a model that keeps every revision.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, ControlFlow},
    time::Duration,
};

use thalweg_state::{
    history::{HistoryError, VersionLifetime},
    keyspaces::{ScanRange, StoredRef, StoredValue},
    machine::{Entry, LocalOutcome, Machine, MachineError, MachineOptions},
};
use thalweg_store::{Applied, Backend, Direction};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime, Term,
    command::{
        self, CommitBuilder, Deadline, KeyspaceConfig, KeyspaceHistory, MoveTarget, Outcome, TransactionBuilder,
    },
    limits::DELETED_HISTORY_AGE,
};

use crate::{
    support::{Bench, Kind, Log, Map, MapBackend, apply, command, frame},
    workload::{Rng, for_seeds},
};

pub(crate) const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 24 };
const LEASE_TTL: u64 = 1000 * GONE_AGE;
pub(crate) const AGE: u64 = 3000;
/// Age after which versions of deleted keys are forgotten in a history without maximum age.
const GONE_AGE: u64 = DELETED_HISTORY_AGE.as_micros() as u64;

const HISTORIES: [KeyspaceHistory; 3] = [
    KeyspaceHistory { revisions: Some(3), age: None },
    KeyspaceHistory { revisions: None, age: Some(Duration::from_micros(AGE)) },
    KeyspaceHistory { revisions: Some(4), age: Some(Duration::from_micros(AGE)) },
];

/// A key's value as written; `live` is true if the machine may show it now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    revision: u64,
    bytes: Vec<u8>,
    deadline: Option<u64>,
    lease: bool,
    /// True if the command had deleted the previous value.
    is_new: bool,
}

type Keys = BTreeMap<Vec<u8>, Value>;

/// The model, which keeps every revision.
#[derive(Default)]
struct Model {
    now: BTreeMap<u32, Keys>,
    /// The keyspaces after each revision, with its time.
    past: Vec<(BTreeMap<u32, Keys>, u64)>,
    /// The keyspaces in which each revision removed keys.
    gone: Vec<BTreeSet<u32>>,
    revision: u64,
    time: u64,
    lease: bool,
    lease_ends: u64,
    /// True if the workload deletes prefixes.
    clears: bool,
}

pub(crate) fn config(history: KeyspaceHistory) -> KeyspaceConfig {
    KeyspaceConfig { history, ..KeyspaceConfig::default() }
}

fn bench() -> (Bench, Model) {
    let mut bench = Bench::new(OPTIONS);
    let mut model = Model { time: 1, ..Model::default() };
    let create = |(number, history): (usize, &KeyspaceHistory)| {
        command(|out| command::encode_create_keyspace(out, &format!("ks{number}"), &config(*history)).unwrap())
    };
    bench.run(1, &HISTORIES.iter().enumerate().map(create).collect::<Vec<_>>());
    for keyspace in 1..=HISTORIES.len() as u32 {
        model.now.insert(keyspace, Keys::new());
    }
    model.past.push((model.now.clone(), 1));
    model.gone.push(BTreeSet::new());
    (bench, model)
}

impl Model {
    fn key(rng: &mut Rng) -> Vec<u8> {
        let len = [0, 1, 2, 3, 7, 8, 9][rng.below(7) as usize];
        (0..len).map(|_| [b'a', b'b', 0, 0xff][rng.below(4).min(1 + rng.below(3)) as usize]).collect()
    }

    fn value(rng: &mut Rng) -> Vec<u8> {
        let len = [0, 5, 40][rng.below(3) as usize];
        rng.bytes(len)
    }

    fn is_live(&self, value: &Value) -> bool {
        value.deadline.is_none_or(|deadline| deadline > self.time)
            && (!value.lease || (self.lease && self.lease_ends > self.time))
    }

    fn used(&mut self) {
        self.revision += 1;
        let (before, _) = self.past.last().unwrap();
        let goes = |(keyspace, keys): (&u32, &Keys)| {
            keys.iter().any(|(key, old)| is_gone(old, self.now[keyspace].get(key), self.time)).then_some(*keyspace)
        };
        self.gone.push(before.iter().filter_map(goes).collect());
        self.past.push((self.now.clone(), self.time));
    }

    fn keyspace(&self, rng: &mut Rng) -> u32 {
        1 + rng.below(self.now.len() as u64) as u32
    }

    /// Returns a commit of writes to different keys.
    fn commit(&mut self, rng: &mut Rng) -> Vec<u8> {
        let mut builder = CommitBuilder::new();
        let revision = self.revision + 1;
        let mut seen = Vec::new();
        for _ in 0..=rng.below(3) {
            let (keyspace, key) = (self.keyspace(rng), Self::key(rng));
            if seen.contains(&(keyspace, key.clone())) {
                continue;
            }
            seen.push((keyspace, key.clone()));
            let id = KeyspaceId(keyspace);
            let keys = self.now.get_mut(&keyspace).unwrap();
            let mut value = Value { revision, bytes: Self::value(rng), deadline: None, lease: false, is_new: false };
            match rng.below(8) {
                0..4 => _ = builder.put(id, &key, &value.bytes).unwrap(),
                4 => {
                    let ttl = 1 + rng.below(500);
                    value.deadline = Some(self.time + ttl);
                    let deadline = Deadline::After(Duration::from_micros(ttl));
                    builder.put_until(id, &key, &value.bytes, deadline, None).unwrap();
                }
                5 if self.lease && self.lease_ends > self.time => {
                    value.lease = true;
                    let deadline = Deadline::Never;
                    builder.put_until(id, &key, &value.bytes, deadline, Some(LeaseId(1))).unwrap();
                }
                _ => {
                    builder.delete(id, &key).unwrap();
                    keys.remove(&key);
                    continue;
                }
            }
            keys.insert(key, value);
        }
        self.used();
        command(|out| builder.encode(out))
    }

    fn transaction(&mut self, rng: &mut Rng) -> Vec<u8> {
        let mut builder = TransactionBuilder::new();
        let keyspace = self.keyspace(rng);
        let (id, revision) = (KeyspaceId(keyspace), self.revision + 1);
        let ops = builder.then();
        let live =
            |model: &Self, key: &[u8]| model.now[&keyspace].get(key).filter(|value| model.is_live(value)).cloned();
        match rng.below(3) {
            1 if !self.clears => _ = ops.get(id, b"").unwrap(),
            0 => {
                let key = [b"n", Self::key(rng).as_slice()].concat();
                ops.add(id, &key, 7).unwrap();
                let before = live(self, &key);
                let number = before.as_ref().map_or(0, |value| String::from_utf8_lossy(&value.bytes).parse().unwrap());
                let bytes = (number + 7_i64).to_string().into_bytes();
                self.now.get_mut(&keyspace).unwrap().insert(
                    key,
                    Value {
                        revision,
                        bytes,
                        deadline: before.and_then(|value| value.deadline),
                        lease: false,
                        is_new: false,
                    },
                );
            }
            1 => {
                let mut prefix = Self::key(rng);
                prefix.truncate(rng.below(3) as usize);
                ops.delete_prefix(id, &prefix).unwrap();
                let keys = self.now.get_mut(&keyspace).unwrap();
                keys.retain(|key, _| !key.starts_with(&prefix));
                if rng.below(2) == 0 {
                    let (key, bytes) = ([prefix.as_slice(), b"b"].concat(), Self::value(rng));
                    ops.put(id, &key, &bytes).unwrap();
                    keys.insert(key, Value { revision, bytes, deadline: None, lease: false, is_new: true });
                }
            }
            _ => {
                let (key, bytes) = (Self::key(rng), Self::value(rng));
                ops.put(id, &key, &bytes).unwrap().get(id, &key).unwrap();
                let value = Value { revision, bytes, deadline: None, lease: false, is_new: false };
                self.now.get_mut(&keyspace).unwrap().insert(key, value);
            }
        }
        let wrote = self.now != self.past.last().unwrap().0;
        if wrote || self.clears {
            self.used();
        }
        command(|out| builder.encode(out).unwrap())
    }

    /// Returns a commit of so many keys with a prefix that they are not deleted immediately.
    fn bulk(&mut self, rng: &mut Rng) -> Vec<u8> {
        let keyspace = self.keyspace(rng);
        let mut builder = CommitBuilder::new();
        let prefix = [b"a".as_slice(), b"ab", b"b"][rng.below(3) as usize];
        for number in 0..80 {
            let (key, bytes) = ([prefix, &[number]].concat(), vec![number; [3, 30][rng.below(2) as usize]]);
            builder.put(KeyspaceId(keyspace), &key, &bytes).unwrap();
            let value = Value { revision: self.revision + 1, bytes, deadline: None, lease: false, is_new: false };
            self.now.get_mut(&keyspace).unwrap().insert(key, value);
        }
        self.used();
        command(|out| builder.encode(out))
    }

    /// Returns the commands of one entry.
    fn entry(&mut self, rng: &mut Rng) -> Vec<Vec<u8>> {
        // Occasionally a long time passes.
        self.time += if rng.below(60) == 0 { GONE_AGE } else { rng.below(60) };
        (0..rng.below(5)).map(|_| self.command(rng)).collect()
    }

    /// Returns a command, possibly one that affects ended keys.
    fn command(&mut self, rng: &mut Rng) -> Vec<u8> {
        let is_ended = |model: &Self, value: &Value| !model.is_live(value);
        match rng.below(60) {
            0 if !self.lease => {
                (self.lease, self.lease_ends) = (true, self.time + LEASE_TTL);
                let ttl = Duration::from_micros(LEASE_TTL);
                command(|out| command::encode_grant_lease(out, Some(LeaseId(1)), ttl).unwrap())
            }
            1 if self.lease && rng.below(3) == 0 => {
                self.lease = false;
                self.now.values_mut().for_each(|keys| keys.retain(|_, value| !value.lease));
                self.used();
                command(|out| command::encode_revoke_lease(out, LeaseId(1)))
            }
            2 | 3 => {
                let ended = self.now.values().flat_map(BTreeMap::values).any(|value| is_ended(self, value));
                if ended {
                    let mut now = std::mem::take(&mut self.now);
                    now.values_mut().for_each(|keys| keys.retain(|_, value| self.is_live(value)));
                    self.now = now;
                    self.used();
                }
                command(|out| command::encode_expire(out, 5000))
            }
            4 => {
                let (keyspace, key) = (self.keyspace(rng), Self::key(rng));
                let (live, ttl) = (self.time, rng.below(900) + 1);
                let ends = live + ttl;
                let there = self.now[&keyspace].get(&key).is_some_and(|value| self.is_live(value));
                let value = self.now.get_mut(&keyspace).unwrap().get_mut(&key).filter(|_| there);
                value.into_iter().for_each(|value| value.deadline = Some(ends));
                let mut builder = CommitBuilder::new();
                builder.expect(KeyspaceId(keyspace), b"", command::Expect::Any).unwrap();
                builder.touch(KeyspaceId(keyspace), &key, Deadline::After(Duration::from_micros(ttl))).unwrap();
                self.used();
                command(|out| builder.encode(out))
            }
            _ => self.write_or_prune(rng),
        }
    }

    fn write_or_prune(&mut self, rng: &mut Rng) -> Vec<u8> {
        match rng.below(24) {
            0 | 1 => command(|out| command::encode_sweep(out, 1 + rng.below(50) as u32)),
            2..5 => command(|out| {
                command::encode_prune_versions(out, KeyspaceId(rng.below(5) as u32), 1 + rng.below(60) as u32);
            }),
            5 => self.bulk(rng),
            6..11 => self.transaction(rng),
            _ => self.commit(rng),
        }
    }

    /// Returns true if the bounds guarantee that the key's state at a revision is readable.
    fn is_promised(&self, keyspace: u32, key: &[u8], revision: u64) -> bool {
        let history = HISTORIES[keyspace as usize - 1];
        let next = self.past.get(revision as usize + 1).map(|(_, time)| *time);
        let by_age = history.age.is_none_or(|_| next.is_none_or(|next| next + AGE > self.time));
        // Values that the key has had since then and does not have any more.
        let mut gone = Vec::new();
        for (keyspaces, _) in &self.past[revision as usize..] {
            let value = keyspaces[&keyspace].get(key).map(|value| value.revision);
            if gone.last() != Some(&value) {
                gone.push(value);
            }
        }
        gone.pop();
        let superseded = gone.into_iter().flatten().count() as u32;
        let is_there = self.past[revision as usize].0[&keyspace].contains_key(key);
        let is_kept = history.age.is_some()
            || if is_there { !self.was_gone(keyspace, key, revision) } else { !self.any_was_gone(keyspace, revision) };
        // The present value counts as one of those that are kept.
        let present = u32::from(self.past.last().is_some_and(|(now, _)| now[&keyspace].contains_key(key)));
        by_age && is_kept && history.revisions.is_none_or(|revisions| superseded + present <= revisions)
    }

    /// Returns true if a key was deleted or had ended after a revision, long ago.
    fn was_gone(&self, keyspace: u32, key: &[u8], revision: u64) -> bool {
        self.past[revision as usize..].windows(2).any(|pair| {
            let [old, new] = [&pair[0].0[&keyspace], &pair[1].0[&keyspace]].map(|keys| keys.get(key));
            old.is_some_and(|old| is_gone(old, new, pair[1].1)) && pair[1].1 + GONE_AGE <= self.time
        })
    }

    /// Returns true if [`was_gone`](Self::was_gone) holds for any key.
    fn any_was_gone(&self, keyspace: u32, revision: u64) -> bool {
        let later = self.gone.iter().zip(&self.past).skip(revision as usize + 1);
        later.into_iter().any(|(gone, (_, time))| gone.contains(&keyspace) && time + GONE_AGE <= self.time)
    }
}

/// Returns true if a value was removed, not just overwritten.
fn is_gone(old: &Value, new: Option<&Value>, time: u64) -> bool {
    let ended = old.lease || old.deadline.is_some_and(|deadline| deadline <= time);
    new.is_none_or(|new| new.revision != old.revision && (ended || new.is_new))
}

fn resolve(bench: &Bench, value: StoredRef<'_>) -> Vec<u8> {
    match value {
        StoredRef::Inline(bytes) => bytes.to_vec(),
        StoredRef::Blob(blob) => bench.log.read(&blob).to_vec(),
        StoredRef::Collection(_) => panic!("no Redis client was here"),
    }
}

pub(crate) fn resolve_owned(bench: &Bench, value: &StoredValue) -> Vec<u8> {
    resolve(bench, value.as_ref())
}

/// Compares one key at one revision.
fn check_get(bench: &Bench, model: &Model, keyspace: u32, key: &[u8], revision: u64) {
    let snapshot = bench.machine.read_view();
    let past = snapshot.past(KeyspaceId(keyspace), Revision(revision), SpaceTime(0));
    let context = || format!("{key:?} of {keyspace} at {revision} of {}", model.revision);
    match past.and_then(|past| past.get(key)) {
        Ok(found) => {
            let found = found.map(|found| (found.revision.0, resolve_owned(bench, &found.value)));
            let expected = model.past[revision as usize].0[&keyspace].get(key);
            assert_eq!(found, expected.map(|value| (value.revision, value.bytes.clone())), "{}", context());
        }
        Err(HistoryError::Compacted { requested, oldest }) => {
            assert!(requested.0 == revision && oldest.0 > revision, "{}", context());
            assert!(!model.is_promised(keyspace, key, revision), "promised: {}", context());
        }
        Err(error) => panic!("{error}: {}", context()),
    }
}

fn check_scan(bench: &Bench, model: &Model, rng: &mut Rng, keyspace: u32, revision: u64) {
    let snapshot = bench.machine.read_view();
    let Ok(past) = snapshot.past(KeyspaceId(keyspace), Revision(revision), SpaceTime(0)) else { return };
    let [start, end, mut prefix] = [(); 3].map(|()| Model::key(rng));
    prefix.truncate(rng.below(3) as usize);
    let mut bound = |key| [Bound::Unbounded, Bound::Included(key), Bound::Excluded(key)][rng.below(3) as usize];
    let range = ScanRange {
        prefix: &prefix,
        start: bound(&start[..]),
        end: bound(&end[..]),
        direction: [Direction::Forward, Direction::Reverse][rng.below(2) as usize],
        limit: [1, 3, usize::MAX][rng.below(3) as usize],
        ..ScanRange::default()
    };
    let mut found = Vec::new();
    let result = past.scan(&range, &mut |item| {
        found.push((item.key.to_vec(), item.revision.0, resolve(bench, item.value.unwrap())));
        ControlFlow::Continue(())
    });
    let within = |key: &[u8]| {
        key.starts_with(&prefix)
            && match range.start {
                Bound::Unbounded => true,
                Bound::Included(start) => key >= start,
                Bound::Excluded(start) => key > start,
            }
            && match range.end {
                Bound::Unbounded => true,
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
            }
    };
    let keys = model.past[revision as usize].0[&keyspace].iter().filter(|(key, _)| within(key));
    let mut expected: Vec<_> = keys.map(|(key, value)| (key.clone(), value.revision, value.bytes.clone())).collect();
    if range.direction == Direction::Reverse {
        expected.reverse();
    }
    expected.truncate(range.limit);
    match result {
        Ok(()) => {
            let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
            let known =
                differs.map(|(_, (key, ..))| bench.machine.read_view().versions(KeyspaceId(keyspace), key, None, 9));
            let at = range.direction;
            assert!(found == expected, "{keyspace} at {revision} of {} {at:?}: {differs:?} {known:?}", model.revision);
        }
        Err(HistoryError::Compacted { .. }) => {
            assert!(expected.starts_with(&found));
            let everything = model.past.iter().flat_map(|(keyspaces, _)| keyspaces[&keyspace].keys());
            let unknown = |key: &&Vec<u8>| within(key) && !model.is_promised(keyspace, key, revision);
            let is_unknown = everything.into_iter().any(|key| unknown(&key));
            let may_be = HISTORIES[keyspace as usize - 1].age.is_none() && model.any_was_gone(keyspace, revision);
            assert!(is_unknown || may_be, "{range:?} of {keyspace} at {revision}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// Checks that a list of versions agrees with the model, as far back as the list reaches.
fn check_versions(bench: &Bench, model: &Model, keyspace: u32, key: &[u8]) {
    let snapshot = bench.machine.read_view();
    let listed = snapshot.versions(KeyspaceId(keyspace), key, None, 1000).unwrap();
    let mut expected: Vec<(u64, Vec<u8>, Option<u64>)> = Vec::new();
    let mut current: Option<Value> = None;
    for (revision, (keyspaces, _)) in model.past.iter().enumerate() {
        let value = keyspaces[&keyspace].get(key);
        if value.map(|value| value.revision) != current.as_ref().map(|value| value.revision) {
            if let (Some(_), Some(last)) = (&current, expected.last_mut()) {
                last.2 = Some(revision as u64);
            }
            expected.extend(value.map(|value| (value.revision, value.bytes.clone(), None)));
            current = value.cloned();
        }
    }
    expected.reverse();
    expected.retain(|(_, _, until)| until.is_none_or(|until| until > listed.oldest.0));
    let found = listed.versions.iter().map(|version| {
        let until = match version.lifetime {
            VersionLifetime::Until { revision, .. } => Some(revision.0),
            VersionLifetime::Current | VersionLifetime::Ended => None,
        };
        (version.stored.revision.0, resolve_owned(bench, &version.stored.value), until)
    });
    assert_eq!(found.collect::<Vec<_>>(), expected, "versions of {key:?} of {keyspace}");
    let halves = snapshot.versions(KeyspaceId(keyspace), key, None, 2).unwrap();
    assert_eq!((halves.more, &halves.versions[..]), (expected.len() > 2, &listed.versions[..expected.len().min(2)]));
    if let Some(last) = halves.versions.last() {
        let rest = snapshot.versions(KeyspaceId(keyspace), key, Some(last.stored.revision), 1000).unwrap();
        assert_eq!(rest.versions, listed.versions[halves.versions.len()..]);
    }
}

/// Checks that keys hidden now are hidden at the newest revision, for a reader that passes the time.
fn check_newest(bench: &Bench, model: &Model, keyspace: u32) {
    let snapshot = bench.machine.read_view();
    let past = snapshot.past(KeyspaceId(keyspace), Revision(model.revision), snapshot.time()).unwrap();
    let (mut now, mut then) = (Vec::new(), Vec::new());
    let range = ScanRange::default();
    snapshot
        .scan(KeyspaceId(keyspace), &range, |item| {
            now.push((item.key.to_vec(), item.revision));
            ControlFlow::Continue(())
        })
        .unwrap();
    past.scan(&range, &mut |item| {
        then.push((item.key.to_vec(), item.revision));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(now, then);
}

/// Moves the bytes of a value or version.
fn move_one(bench: &mut Bench, model: &Model, rng: &mut Rng) {
    let keyspace = KeyspaceId(model.keyspace(rng));
    let key = Model::key(rng);
    let snapshot = bench.machine.read_view();
    let blobs = snapshot.version_blobs(keyspace, &key).unwrap();
    drop(snapshot);
    let Some(blob) = blobs.get(rng.below(3) as usize) else { return };
    assert!(bench.machine.is_value_live(keyspace, &key, blob).unwrap());
    let bytes = bench.log.read(blob);
    for expected in [LocalOutcome::Applied, LocalOutcome::Void] {
        let record = bench.log.moved(blob, &MoveTarget::Value { keyspace, key: &key }, &bytes);
        assert_eq!(apply(&bench.machine, &record).1, Some(expected));
    }
    assert!(!bench.machine.is_value_live(keyspace, &key, blob).unwrap());
}

/// Checks that exactly the bytes that rows point to are counted, because this workload has no blind writes.
/// Replacing a row that a deleted prefix has hidden for long does not read its bytes, which then stay counted.
fn check_liveness(bench: &Bench, model: &Model) {
    let map = bench.backend.dump();
    let pointer = |form: u8, row: &[u8]| match form {
        1 => Some(row[9..].to_vec()),
        3 => Some(row[25..].to_vec()),
        _ => None,
    };
    let pointers = map.iter().filter_map(|(key, row)| match key[..] {
        [0x10, ..] => pointer(row[0], row),
        [0x12, 1, ..] if row.len() > 16 => pointer(row[25], &row[25..]),
        _ => None,
    });
    let referenced: u64 = pointers.map(|blob| u64::from(u32::from_le_bytes(blob[12..16].try_into().unwrap()))).sum();
    let counted: u64 = bench.machine.liveness().iter().map(|(_, row)| row.value_bytes).sum();
    assert!(counted == referenced || (model.clears && counted > referenced), "{counted} of {referenced}");
}

fn check(bench: &Bench, model: &Model, rng: &mut Rng) {
    for _ in 0..60 {
        let (keyspace, key) = (model.keyspace(rng), Model::key(rng));
        let newest = model.revision;
        let back = [5, 40, newest][rng.below(3) as usize].min(newest);
        check_get(bench, model, keyspace, &key, newest - rng.below(back + 1));
        let revision = newest - rng.below(back + 1);
        check_scan(bench, model, rng, keyspace, revision);
        check_versions(bench, model, keyspace, &key);
    }
    (1..=HISTORIES.len() as u32).for_each(|keyspace| check_newest(bench, model, keyspace));
    check_liveness(bench, model);
}

/// Prunes until no work is due; then no keyspace exceeds its bounds.
fn prune_all(bench: &mut Bench, model: &mut Model) {
    let mut last = None;
    while let Some(keyspace) = bench.machine.prune_due(last, SpaceTime(model.time)).unwrap() {
        last = Some(keyspace);
        bench.run(model.time, &[command(|out| command::encode_prune_versions(out, keyspace, 100))]);
    }
    let map = bench.backend.dump();
    for (number, history) in HISTORIES.iter().enumerate() {
        let mut counts: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for (key, row) in
            map.iter().filter(|(key, row)| key.starts_with(&[0x12, 1, 0, 0, 0, number as u8 + 1]) && row.len() > 16)
        {
            *counts.entry(key[..key.len() - 8].to_vec()).or_default() += 1;
            let time = u64::from_le_bytes(row[8..16].try_into().unwrap());
            assert!(history.age.is_none() || time + AGE > model.time, "{history:?} keeps versions that are too old");
            let is_gone = row[24] != 0;
            assert!(!is_gone || time + GONE_AGE > model.time, "{history:?} keeps what was gone too long ago");
        }
        let most = counts.values().max().copied().unwrap_or_default();
        assert!(history.revisions.is_none_or(|revisions| most <= revisions), "{history:?} keeps {most}");
    }
}

fn replay(bench: &Bench) -> Map {
    let again = std::sync::Arc::new(MapBackend::default());
    let machine = bench.log.machine(again.clone(), OPTIONS);
    bench.log.records.iter().for_each(|record| _ = apply(&machine, record));
    again.dump()
}

#[test]
fn every_revision_reads_as_the_model_says() {
    for_seeds(8, |seed| {
        let mut rng = Rng(seed);
        let (mut bench, mut model) = bench();
        model.clears = seed % 2 == 0;
        for _ in 0..220 {
            let commands = model.entry(&mut rng);
            let record = bench.log.entry(&frame(&commands), SpaceTime(model.time));
            for outcome in apply(&bench.machine, &record).0 {
                let fine = !matches!(
                    outcome,
                    Outcome::Malformed(_) | Outcome::ConditionFailed { .. } | Outcome::TooMany { .. }
                );
                assert!(fine, "{outcome:?}");
            }
            assert_eq!(bench.machine.applied().revision, Revision(model.revision));
            match rng.below(30) {
                0 => bench.reopen(),
                1..5 => move_one(&mut bench, &model, &mut rng),
                5 | 6 => check(&bench, &model, &mut rng),
                7 => prune_all(&mut bench, &mut model),
                _ => {}
            }
        }
        check(&bench, &model, &mut rng);
        assert_eq!(replay(&bench), bench.backend.dump(), "a replayed log gives the same map");
        assert!(model.revision > 200);
    });
}

/// Runs every kind of read and write on a damaged map.
fn use_damaged(map: Map, applied: Option<Applied>, log: &Log) -> Result<(), MachineError> {
    let machine = Machine::open(MapBackend::of(map, applied), OPTIONS)?;
    let mut log = log.clone();
    let snapshot = machine.read_view();
    let revision = snapshot.applied().revision;
    let mut worst = Ok(());
    let mut note = |result: Result<(), HistoryError>| match result {
        Err(HistoryError::Machine(error)) if worst.is_ok() => worst = Err(error),
        _ => {}
    };
    for keyspace in (1..=HISTORIES.len() as u32).map(KeyspaceId) {
        for revision in [revision, Revision(revision.0.saturating_sub(9))] {
            for direction in [Direction::Forward, Direction::Reverse] {
                let range = ScanRange { direction, ..ScanRange::default() };
                let past = snapshot.past(keyspace, revision, SpaceTime(0));
                note(past.and_then(|past| past.scan(&range, &mut |_| ControlFlow::Continue(()))));
            }
            for key in [b"a".as_slice(), b"b", b"ab", b""] {
                note(snapshot.past(keyspace, revision, SpaceTime(0)).and_then(|past| past.get(key).map(|_| ())));
                note(snapshot.versions(keyspace, key, None, 9).map(|_| ()));
                note(snapshot.version_blobs(keyspace, key).map(|_| ()).map_err(HistoryError::Machine));
            }
        }
    }
    machine.prune_due(None, SpaceTime(u64::MAX))?;
    for prune in [
        vec![command(|out| command::encode_put(out, KeyspaceId(1), b"a", b"1").unwrap())],
        vec![command(|out| command::encode_prune_versions(out, KeyspaceId(2), 1000))],
        vec![command(|out| command::encode_configure_keyspace(out, KeyspaceId(3), &config(HISTORIES[0])).unwrap())],
        vec![command(|out| command::encode_prune_versions(out, KeyspaceId(2), 1000))],
        vec![command(|out| command::encode_drop_keyspace(out, KeyspaceId(2)))],
        vec![command(|out| command::encode_prune_versions(out, KeyspaceId(2), 1000))],
    ] {
        let record = log.entry(&frame(&prune), SpaceTime(1 << 40));
        let Kind::Entry { index, time } = record.kind else { unreachable!("an entry") };
        let (payload, at, next_lsn) = (&record.payload[..], record.at, record.next_lsn);
        machine.apply(&Entry { term: Term(1), index, time, payload, at, next_lsn }, &mut Vec::new())?;
    }
    worst
}

#[test]
fn damaged_versions_are_typed_errors_or_other_data() {
    for_seeds(2, |seed| {
        let mut rng = Rng(seed);
        let (mut bench, mut model) = bench();
        for _ in 0..40 {
            let commands = model.entry(&mut rng);
            bench.run(model.time, &commands);
        }
        let (map, applied) = (bench.backend.dump(), bench.backend.applied());
        use_damaged(map.clone(), applied, &bench.log).unwrap();
        let mut errors = 0;
        let rows: Vec<_> = map.iter().filter(|(key, _)| key[0] == 0x12).step_by(3).collect();
        for (key, row) in &rows {
            let mut damage = |change: &mut dyn FnMut(&mut Map)| {
                let mut damaged = map.clone();
                change(&mut damaged);
                errors += usize::from(use_damaged(damaged, applied, &bench.log).is_err());
            };
            damage(&mut |map| _ = map.remove(*key));
            for at in [0, 7, 8, 16, 24, 25, 30] {
                if let Some(byte) = row.get(at) {
                    let flipped = byte ^ (1 << rng.below(8));
                    damage(&mut |map| map.get_mut(*key).unwrap()[at] = flipped);
                    damage(&mut |map| map.get_mut(*key).unwrap().truncate(at));
                }
            }
            for cut in [6, 9, key.len() - 1] {
                damage(&mut |map| {
                    let row = map.remove(*key).unwrap();
                    map.insert(key[..cut.min(key.len() - 1)].to_vec(), row);
                });
            }
        }
        assert!(errors > rows.len(), "most damage is detected: {errors} of {} rows", rows.len());
    });
}

#[test]
fn a_history_that_is_switched_off_leaves_nothing_behind() {
    for_seeds(6, |seed| {
        let mut rng = Rng(seed);
        let (mut bench, mut model) = bench();
        for _ in 0..60 {
            let commands = model.entry(&mut rng);
            bench.run(model.time, &commands);
        }
        let configure =
            |id: u32, to| command(|out| command::encode_configure_keyspace(out, KeyspaceId(id), &config(to)).unwrap());
        // Writes and prunes in the same entries must not escape the removal.
        let put = command(|out| command::encode_put(out, KeyspaceId(1), b"a", &[7; 50]).unwrap());
        let prune = || command(|out| command::encode_prune_versions(out, KeyspaceId(2), 40));
        let off = KeyspaceHistory::default();
        bench.run(model.time, &[put.clone(), configure(1, HISTORIES[1]), put.clone(), prune()]);
        bench.run(model.time, &[prune(), put.clone(), prune(), configure(1, HISTORIES[2]), put.clone(), prune()]);
        bench.run(model.time, &[put.clone(), configure(1, off), configure(2, off), prune(), put, prune()]);
        bench.run(model.time, &[command(|out| command::encode_drop_keyspace(out, KeyspaceId(3))), prune()]);
        while bench.machine.prune_due(None, SpaceTime(model.time)).unwrap().is_some() {
            bench.run(model.time, &[prune()]);
        }
        let left: Vec<_> = bench.backend.dump().into_keys().filter(|key| key[0] == 0x12).collect();
        assert_eq!(left, Vec::<Vec<u8>>::new());
        assert_eq!(replay(&bench), bench.backend.dump());
    });
}
