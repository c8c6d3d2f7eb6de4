//! Random commands about time compared with a model without rows, in which ended keys do not exist.

use std::{collections::BTreeMap, ops::ControlFlow, sync::atomic::Ordering, time::Duration};

use thalweg_state::{
    expiry::{Expiry, StaleCursor},
    keyspaces::{Item, ReadView, ScanRange, StoredRef},
    machine::Machine,
};
use thalweg_store::Direction;
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{self, Deadline, Expect, OperationResult, Operations, Outcome, Transacted, TransactionBuilder},
    limits::MIN_LEASE_TTL,
};

use crate::{
    support::{Bench, MapBackend, apply, command, frame},
    time::{bench, commit},
    workload::{Rng, for_seeds},
};

/// Microseconds between steps, so that leases, which live at least 100 ms, end within a run.
const TICK: u64 = 10_000;
const DEFAULT_TTL: u64 = 100;

type Key = (KeyspaceId, Vec<u8>);
/// Result of a scan: revision and value by key.
type Pairs = BTreeMap<Key, (u64, Vec<u8>)>;

#[derive(Clone, Debug)]
struct Value {
    revision: u64,
    bytes: Vec<u8>,
    deadline: Option<u64>,
    lease: Option<u64>,
}

#[derive(Clone, Debug)]
struct ModelLease {
    id: u64,
    deadline: u64,
    ttl: u64,
}

/// The model. Leases are numbered, so that a lease with a reused id is a different one.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: BTreeMap<Key, Value>,
    leases: Vec<ModelLease>,
    revision: u64,
    time: u64,
}

/// A command, and the model's check of its outcome.
type Step = (Vec<u8>, Box<dyn FnOnce(&mut Model, &Outcome)>);

impl Model {
    fn lives(&self, value: &Value, time: u64) -> bool {
        value.deadline.is_none_or(|deadline| deadline > time)
            && value.lease.is_none_or(|number| self.leases[number as usize].deadline > time)
    }

    fn live(&self, key: &Key) -> Option<&Value> {
        self.keys.get(key).filter(|value| self.lives(value, self.time))
    }

    fn shown(&self, time: u64) -> BTreeMap<Key, (u64, Vec<u8>)> {
        let live = self.keys.iter().filter(|(_, value)| self.lives(value, time));
        live.map(|(key, value)| (key.clone(), (value.revision, value.bytes.clone()))).collect()
    }

    fn lease(&self, id: u64) -> Option<u64> {
        let live = |lease: &ModelLease| lease.id == id && lease.deadline > self.time;
        self.leases.iter().rposition(live).map(|number| number as u64)
    }

    fn committed(&mut self, outcome: &Outcome) {
        self.revision += 1;
        assert_eq!(*outcome, Outcome::Committed { revision: Revision(self.revision), appends: vec![] });
    }

    fn resolve(&self, keyspace: KeyspaceId, deadline: Deadline) -> Option<u64> {
        match deadline {
            Deadline::Default | Deadline::Keep => (keyspace.0 == 2).then_some(self.time + DEFAULT_TTL),
            Deadline::Never => None,
            Deadline::After(ttl) => Some(self.time + ttl.as_micros() as u64),
            Deadline::At(at) => Some(at.0),
        }
    }

    fn put(&mut self, key: Key, bytes: Vec<u8>, deadline: Deadline, lease: Option<u64>) {
        let before = self.live(&key).filter(|_| deadline == Deadline::Keep).cloned();
        let deadline = before.as_ref().map_or_else(|| self.resolve(key.0, deadline), |before| before.deadline);
        let lease = lease.or(before.and_then(|before| before.lease));
        self.keys.insert(key, Value { revision: self.revision, bytes, deadline, lease });
    }
}

fn random_key(rng: &mut Rng) -> Key {
    (KeyspaceId(1 + rng.below(2) as u32), vec![b'a' + rng.below(5) as u8])
}

fn random_deadline(rng: &mut Rng, time: u64) -> Deadline {
    match rng.below(6) {
        0 => Deadline::Default,
        1 => Deadline::Never,
        2 => Deadline::At(SpaceTime((time + rng.below(6 * TICK)).saturating_sub(2 * TICK))),
        3 => Deadline::Keep,
        _ => Deadline::After(Duration::from_micros(1 + rng.below(8 * TICK))),
    }
}

fn random_value(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(24);
    rng.bytes(len)
}

fn step(rng: &mut Rng, time: u64, machine: &Machine, cursor: &mut StaleCursor) -> Step {
    let (key, bytes) = (random_key(rng), random_value(rng));
    match rng.below(18) {
        16 | 17 => transaction(rng, time),
        0..3 => {
            let put = command(|out| command::encode_put(out, key.0, &key.1, &bytes).unwrap());
            (
                put,
                Box::new(move |model, outcome| {
                    model.committed(outcome);
                    model.put(key, bytes, Deadline::Default, None);
                }),
            )
        }
        3..6 => put_until(rng, time, key, bytes),
        6 => {
            let delete = command(|out| command::encode_delete(out, key.0, &key.1).unwrap());
            (
                delete,
                Box::new(move |model, outcome| {
                    model.committed(outcome);
                    model.keys.remove(&key);
                }),
            )
        }
        7 | 8 => {
            let deadline = random_deadline(rng, time);
            let touch = commit(|commit| _ = commit.touch(key.0, &key.1, deadline).unwrap());
            (
                touch,
                Box::new(move |model, outcome| {
                    model.committed(outcome);
                    if deadline != Deadline::Keep && model.live(&key).is_some() {
                        let deadline = model.resolve(key.0, deadline);
                        model.keys.get_mut(&key).unwrap().deadline = deadline;
                    }
                }),
            )
        }
        9 | 10 => conditional(rng, key, bytes),
        11 => grant(rng),
        12 => {
            let id = 1 + rng.below(3);
            let keep = command(|out| command::encode_keep_lease(out, LeaseId(id)));
            (
                keep,
                Box::new(move |model, outcome| match model.lease(id) {
                    None => assert_eq!(*outcome, Outcome::NoSuchLease(LeaseId(id))),
                    Some(number) => {
                        let lease = &mut model.leases[number as usize];
                        lease.deadline = model.time + lease.ttl;
                        let (ttl, deadline) = (Duration::from_micros(lease.ttl), SpaceTime(lease.deadline));
                        assert_eq!(*outcome, Outcome::Lease { id: LeaseId(id), ttl, deadline });
                    }
                }),
            )
        }
        13 => {
            let id = 1 + rng.below(3);
            let revoke = command(|out| command::encode_revoke_lease(out, LeaseId(id)));
            (
                revoke,
                Box::new(move |model, outcome| match model.lease(id) {
                    None => assert_eq!(*outcome, Outcome::NoSuchLease(LeaseId(id))),
                    Some(number) => {
                        model.committed(outcome);
                        model.leases[number as usize].deadline = model.time;
                    }
                }),
            )
        }
        14 => {
            let expire = command(|out| command::encode_expire(out, rng.below(5) as u32));
            (
                expire,
                Box::new(|model, outcome| {
                    let Outcome::Expired { keys, .. } = outcome else { panic!("{outcome:?}") };
                    model.revision += u64::from(*keys > 0);
                }),
            )
        }
        _ => {
            let stale = machine.stale_rows(cursor, 1 + rng.below(5) as u32).unwrap();
            let forget = command(|out| command::encode_forget_rows(out, stale.iter().map(Vec::as_slice)));
            (forget, Box::new(|_, outcome| assert!(matches!(outcome, Outcome::Expired { keys: 0, .. }))))
        }
    }
}

fn put_until(rng: &mut Rng, time: u64, key: Key, bytes: Vec<u8>) -> Step {
    let deadline = random_deadline(rng, time);
    let id = (rng.below(2) == 0).then(|| 1 + rng.below(3));
    let put = command(|out| {
        command::encode_put_until(out, key.0, &key.1, &bytes, deadline, id.map(LeaseId)).unwrap();
    });
    (
        put,
        Box::new(move |model, outcome| {
            let lease = id.map(|id| model.lease(id));
            if lease == Some(None) {
                assert_eq!(*outcome, Outcome::NoSuchLease(LeaseId(id.unwrap())));
                return;
            }
            model.committed(outcome);
            model.put(key, bytes, deadline, lease.flatten());
        }),
    )
}

/// An operation of a transaction on one key.
#[derive(Clone, Debug)]
enum Operation {
    Put(Key, Vec<u8>),
    PutUntil(Key, Vec<u8>, Deadline, Option<u64>),
    Touch(Key, Deadline),
    Delete(Key),
}

impl Operation {
    fn random(rng: &mut Rng, time: u64) -> Self {
        let key = random_key(rng);
        match rng.below(4) {
            0 => Self::Put(key, random_value(rng)),
            1 => {
                let (bytes, deadline) = (random_value(rng), random_deadline(rng, time));
                Self::PutUntil(key, bytes, deadline, (rng.below(3) == 0).then(|| 1 + rng.below(3)))
            }
            2 => Self::Touch(key, random_deadline(rng, time)),
            _ => Self::Delete(key),
        }
    }

    fn add(&self, list: &mut Operations) {
        match self {
            Self::Put(key, bytes) => list.put(key.0, &key.1, bytes),
            Self::PutUntil(key, bytes, deadline, id) => {
                list.put_until(key.0, &key.1, bytes, *deadline, id.map(LeaseId))
            }
            Self::Touch(key, deadline) => list.touch(key.0, &key.1, *deadline),
            Self::Delete(key) => list.delete(key.0, &key.1),
        }
        .unwrap();
    }

    /// Applies the operation to the model. Returns its result, and true if it writes.
    fn apply(self, model: &mut Model) -> (OperationResult, bool) {
        match self {
            Self::Put(key, bytes) => {
                model.put(key, bytes, Deadline::Default, None);
                (OperationResult::Put, true)
            }
            Self::PutUntil(key, bytes, deadline, id) => {
                let lease = id.and_then(|id| model.lease(id));
                model.put(key, bytes, deadline, lease);
                (OperationResult::Put, true)
            }
            Self::Touch(key, deadline) => {
                let existed = model.live(&key).is_some();
                let writes = existed && deadline != Deadline::Keep;
                if writes {
                    let deadline = model.resolve(key.0, deadline);
                    model.keys.get_mut(&key).unwrap().deadline = deadline;
                }
                (OperationResult::Touched { existed }, writes)
            }
            Self::Delete(key) => {
                let existed = model.live(&key).is_some();
                model.keys.remove(&key);
                (OperationResult::Deleted { existed }, true)
            }
        }
    }
}

fn transaction(rng: &mut Rng, time: u64) -> Step {
    let operations: Vec<_> = (0..1 + rng.below(4)).map(|_| Operation::random(rng, time)).collect();
    let mut builder = TransactionBuilder::new();
    operations.iter().for_each(|operation| operation.add(builder.then()));
    let bytes = command(|out| builder.encode(out).unwrap());
    (
        bytes,
        Box::new(move |model, outcome| {
            let missing = operations.iter().find_map(|operation| match operation {
                Operation::PutUntil(.., Some(id)) if model.lease(*id).is_none() => Some(LeaseId(*id)),
                _ => None,
            });
            if let Some(id) = missing {
                assert_eq!(*outcome, Outcome::NoSuchLease(id));
                return;
            }
            model.revision += 1;
            let done: Vec<_> = operations.into_iter().map(|operation| operation.apply(model)).collect();
            let wrote = done.iter().any(|(_, writes)| *writes);
            model.revision -= u64::from(!wrote);
            let results = done.into_iter().map(|(result, _)| result).collect();
            let transacted = Transacted { failed: None, revision: Revision(model.revision), wrote, results };
            assert_eq!(*outcome, Outcome::Transacted(Box::new(transacted)));
        }),
    )
}

fn conditional(rng: &mut Rng, key: Key, bytes: Vec<u8>) -> Step {
    let expect = [Expect::Absent, Expect::Present][rng.below(2) as usize];
    let wanted = expect == Expect::Present;
    let put = commit(|commit| _ = commit.expect(key.0, &key.1, expect).unwrap().put(key.0, &key.1, &bytes).unwrap());
    (
        put,
        Box::new(move |model, outcome| {
            let actual = model.live(&key).map(|value| Revision(value.revision));
            if actual.is_some() == wanted {
                model.committed(outcome);
                model.put(key, bytes, Deadline::Default, None);
            } else {
                assert_eq!(*outcome, Outcome::ConditionFailed { condition: 0, actual });
            }
        }),
    )
}

fn grant(rng: &mut Rng) -> Step {
    let id = 1 + rng.below(3);
    let ttl = MIN_LEASE_TTL + Duration::from_micros(rng.below(2 * TICK));
    let grant = command(|out| command::encode_grant_lease(out, Some(LeaseId(id)), ttl).unwrap());
    (
        grant,
        Box::new(move |model, outcome| {
            let ttl = ttl.as_micros() as u64;
            match outcome {
                // An ended lease blocks its id until its keys are removed.
                Outcome::LeaseExists(found) => {
                    assert!(found.0 == id && model.leases.iter().any(|lease| lease.id == id));
                }
                Outcome::Lease { .. } => {
                    assert_eq!(model.lease(id), None);
                    model.leases.push(ModelLease { id, ttl, deadline: model.time + ttl });
                }
                other => panic!("{other:?}"),
            }
        }),
    )
}

fn shown(bench: &Bench, view: &ReadView, direction: Direction) -> BTreeMap<Key, (u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for keyspace in [KeyspaceId(1), KeyspaceId(2)] {
        let visit = &mut |item: Item<'_>| {
            let bytes = match item.value.unwrap() {
                StoredRef::Inline(bytes) => bytes.to_vec(),
                StoredRef::Blob(blob) => bench.log.read(&blob).to_vec(),
                StoredRef::Collection(_) => panic!("the workload has no Redis commands"),
            };
            assert!(found.insert((keyspace, item.key.to_vec()), (item.revision.0, bytes)).is_none());
            ControlFlow::Continue(())
        };
        view.scan(keyspace, &ScanRange { direction, ..ScanRange::default() }, visit).unwrap();
    }
    found
}

/// Checks that every value with an expiry has its rows, and every lease its own.
fn check_rows(bench: &Bench) {
    let map = bench.backend.dump();
    for (key, row) in &map {
        match (key[0], row.first()) {
            (0x10, Some(2 | 3)) => {
                let (deadline, lease): ([u8; 8], [u8; 8]) =
                    (row[9..17].try_into().unwrap(), row[17..25].try_into().unwrap());
                let (deadline, lease) = (u64::from_le_bytes(deadline), u64::from_le_bytes(lease));
                let by = |tag: u8, number: u64| [&[tag], &number.to_be_bytes()[..], &key[1..]].concat();
                assert!(deadline == u64::MAX || map.contains_key(&by(8, deadline)), "{key:?}");
                assert!(lease == 0 || map.contains_key(&by(10, lease)), "{key:?}");
                assert!(lease == 0 || map.contains_key(&[&[9], &lease.to_be_bytes()[..]].concat()), "{key:?}");
                assert!(deadline != u64::MAX || lease != 0, "a value that does not end is plain");
            }
            (9, _) => {
                let deadline = u64::from_le_bytes(row[8..16].try_into().unwrap());
                let by_time = [&[8], &deadline.to_be_bytes()[..], &[0; 4], &key[1..]].concat();
                assert!(map.contains_key(&by_time), "{key:?}");
                let attached = map.keys().filter(|other| other[0] == 10 && other[1..9] == key[1..]).count();
                assert_eq!(u32::from_le_bytes(row[16..].try_into().unwrap()) as usize, attached, "{key:?}");
            }
            (10, _) => assert!(map.contains_key(&[&[9], &key[1..9]].concat()), "attached to a lease: {key:?}"),
            _ => {}
        }
    }
}

#[test]
fn what_has_ended_is_not_there_whatever_the_rows_say() {
    for_seeds(60, |seed| {
        let mut rng = Rng(seed);
        let (mut bench, now) = bench();
        let mut model = Model { time: 1000, ..Model::default() };
        let mut cursor = StaleCursor::default();
        let mut held: Option<(ReadView, Pairs)> = None;
        for _ in 0..300 {
            model.time += [0, 1, rng.below(TICK), rng.below(4 * TICK)][rng.below(4) as usize];
            let count = 1 + rng.below(4);
            let steps: Vec<_> = (0..count).map(|_| step(&mut rng, model.time, &bench.machine, &mut cursor)).collect();
            let (commands, told): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
            let record = bench.log.entry(&frame(&commands), SpaceTime(model.time));
            let (outcomes, _) = apply(&bench.machine, &record);
            for (told, outcome) in told.into_iter().zip(&outcomes) {
                told(&mut model, outcome);
            }
            assert_eq!(bench.machine.applied().revision, Revision(model.revision));
            let time = model.time + rng.below(2) * rng.below(6 * TICK);
            now.0.store(time, Ordering::Relaxed);
            let (view, expected) = (bench.machine.read_view(), model.shown(time));
            for direction in [Direction::Forward, Direction::Reverse] {
                assert_eq!(shown(&bench, &view, direction), expected);
            }
            let key = random_key(&mut rng);
            let got = bench.machine.get(key.0, &key.1).unwrap().map(|stored| stored.revision.0);
            assert_eq!(got, expected.get(&key).map(|(revision, _)| *revision));
            check_rows(&bench);
            match rng.below(20) {
                0 => held = Some((view, expected)),
                1 => {
                    if let Some((view, expected)) = held.take() {
                        assert_eq!(shown(&bench, &view, Direction::Forward), expected, "a view held over time");
                    }
                }
                2 => {
                    bench.reopen();
                    bench.machine.set_read_clock(now.clone());
                }
                _ => {}
            }
        }
        assert!(model.revision > 200 && !model.leases.is_empty(), "the workload does something");
        replays_to_the_same(&bench);
        ends_with_nothing_left(&mut bench, model.time);
    });
}

fn replays_to_the_same(bench: &Bench) {
    let backend = MapBackend::of(BTreeMap::new(), None);
    let machine = Machine::open(backend.clone(), bench.options).unwrap();
    for record in &bench.log.records {
        apply(&machine, record);
    }
    assert_eq!(backend.dump(), bench.backend.dump());
}

/// After everything has ended, expiry and the search for stale rows leave no row about time.
fn ends_with_nothing_left(bench: &mut Bench, time: u64) {
    let end = time + 1000 * TICK;
    let mut cursor = StaleCursor::default();
    for _ in 0..100 {
        bench.run(end, &[command(|out| command::encode_expire(out, 7))]);
        let stale = bench.machine.stale_rows(&mut cursor, 7).unwrap();
        bench.run(end, &[command(|out| command::encode_forget_rows(out, stale.iter().map(Vec::as_slice)))]);
    }
    let map = bench.backend.dump();
    assert!(map.keys().all(|key| !(8..=10).contains(&key[0])));
    assert!(map.iter().filter(|(key, _)| key[0] == 0x10).all(|(_, row)| row[0] < 2));
    assert_eq!(bench.machine.read_view().end_of(&Expiry::NEVER).unwrap(), None);
}
