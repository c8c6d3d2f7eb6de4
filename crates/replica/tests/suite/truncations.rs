//! Logs in which entries were taken back: which ones count, and that a node alone opens them and goes on.

use std::{collections::BTreeMap, io::IoSlice, sync::Arc};

use thalweg_disk::SimDisk;
use thalweg_log::{Draft, Log, LogOptions, Purpose, RecordKind};
use thalweg_replica::{Membership, OpenError, Replayed, Solo, SoloOptions, Valid, Vote, replay};
use thalweg_state::{
    machine::{Machine, MachineOptions},
    membership::LogId,
};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Index, Lsn, ManualClock, NodeId, SpaceId, SpaceTime, Term,
    command::{Framed, KeyspaceConfig, encode_create_keyspace},
};

const NODE: NodeId = NodeId(7);
const SPACE: SpaceId = SpaceId::ZERO;

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(SpaceTime(1_000_000)))
}

fn open_log(disk: &SimDisk) -> Log {
    // Segments of a few records, so that truncations and what they void lie in different ones.
    let options = LogOptions { segment_bytes: 16 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    Log::open(Arc::new(disk.clone()), "log", options, clock(), 3).unwrap().0
}

struct State {
    backend: Arc<MemoryBackend>,
    machine: Arc<Machine>,
}

fn open_state(disk: &SimDisk, log: &Log) -> State {
    let barrier = Arc::new(Barrier(log.clone()));
    let backend = Arc::new(MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap());
    let machine = Arc::new(Machine::open(backend.clone(), MachineOptions::default()).unwrap());
    State { backend, machine }
}

struct Node {
    log: Log,
    state: State,
    solo: Solo,
    replayed: Replayed,
}

fn open(disk: &SimDisk) -> Result<Node, OpenError> {
    let log = open_log(disk);
    let state = open_state(disk, &log);
    let replayed = replay(&log, &state.machine, SPACE, &mut |_| {})?;
    let options = SoloOptions { space: SPACE, node: NODE, max_queue_bytes: 1 << 20 };
    let solo = Solo::open(log.clone(), state.machine.clone(), clock(), &options)?;
    Ok(Node { log, state, solo, replayed })
}

fn creating(name: &str) -> Framed {
    let mut command = Framed::new();
    command.encode(|out| encode_create_keyspace(out, name, &KeyspaceConfig::default())).unwrap();
    command
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term: Term(term), index: Index(index) }
}

fn append(log: &Log, kind: RecordKind, id: LogId, payload: &[u8]) -> Lsn {
    let payload = [IoSlice::new(payload)];
    let draft = Draft { space: SPACE, kind, term: id.term, index: id.index, time: SpaceTime(1), payload: &payload };
    log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first
}

/// An entry that creates a keyspace of this name.
fn entry(log: &Log, id: LogId, name: &str) -> Lsn {
    append(log, RecordKind::Entry, id, creating(name).bytes())
}

fn truncate(log: &Log, index: u64) -> Lsn {
    append(log, RecordKind::Truncate, self::id(0, index), b"")
}

/// Founds a space as this node's, led by it in term 1.
fn found(log: &Log) {
    append(log, RecordKind::Membership, id(0, 0), &Membership::of_one(NODE).encode());
    vote(log, 1);
}

fn vote(log: &Log, term: u64) {
    let vote = Vote { term: Term(term), node: NODE, committed: true };
    append(log, RecordKind::Vote, id(term, 0), &vote.encode());
}

fn names(machine: &Machine) -> Vec<String> {
    machine.keyspaces().into_iter().map(|(_, row)| row.name.to_string()).collect()
}

/// Commits something and returns its log id.
fn commit(node: &Node, name: &str) -> LogId {
    node.solo.propose(&creating(name), Durability::Disk, Purpose::Data).unwrap();
    let applied = node.state.machine.applied();
    LogId { term: applied.term, index: applied.index }
}

#[test]
fn a_log_in_which_entries_were_taken_back_is_opened_with_those_that_count() {
    let disk = SimDisk::new(1);
    let log = open_log(&disk);
    found(&log);
    for (index, name) in [(1, "a"), (2, "b"), (3, "void3"), (4, "void4")] {
        entry(&log, id(1, index), name);
    }
    vote(&log, 2);
    truncate(&log, 3);
    entry(&log, id(2, 3), "c");
    entry(&log, id(2, 4), "void4-again");
    append(&log, RecordKind::Blank, id(2, 5), b"");
    // A membership that is void decides nothing.
    append(&log, RecordKind::Membership, id(2, 6), &Membership::of_one(NodeId(8)).encode());
    truncate(&log, 4);
    vote(&log, 3);
    entry(&log, id(3, 4), "d");
    drop(log);
    let node = open(&disk).unwrap();
    assert_eq!(names(&node.state.machine), ["a", "b", "c", "d"]);
    assert_eq!(node.replayed.records, 2 + 4 + 2 + 2, "membership, first vote, entries that count, votes, truncations");
    assert_eq!(commit(&node, "e"), id(4, 5), "the last entry that counts was 4");
    drop(node);
    let node = open(&disk.kill_process()).unwrap();
    assert_eq!(names(&node.state.machine), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_kill_between_a_truncation_and_new_entries_leaves_a_log_that_goes_on() {
    let disk = SimDisk::new(1);
    let log = open_log(&disk);
    found(&log);
    for (index, name) in [(1, "a"), (2, "void2"), (3, "void3")] {
        entry(&log, id(1, index), name);
    }
    truncate(&log, 2);
    drop(log);
    let disk = disk.kill_process();
    let node = open(&disk).unwrap();
    assert_eq!(names(&node.state.machine), ["a"]);
    assert_eq!(node.state.machine.applied().lsn, node.log.end());
    // Others may hold an entry 2 of term 1.
    assert_eq!(commit(&node, "b"), id(2, 2));
    drop(node);
    // The truncation is still there, and the entry behind it counts.
    let node = open(&disk.power_loss(1)).unwrap();
    assert_eq!(names(&node.state.machine), ["a", "b"]);
    assert_eq!(commit(&node, "c"), id(3, 3));
}

/// A log with votes, the node's own records, in the middle of what is void.
fn with_two_truncations() -> SimDisk {
    let disk = SimDisk::new(1);
    let log = open_log(&disk);
    found(&log);
    entry(&log, id(1, 1), "a");
    entry(&log, id(1, 2), "b");
    entry(&log, id(1, 3), "void3");
    vote(&log, 2);
    truncate(&log, 3);
    entry(&log, id(2, 3), "c");
    entry(&log, id(2, 4), "void4");
    vote(&log, 3);
    truncate(&log, 4);
    entry(&log, id(3, 4), "d");
    disk
}

#[test]
fn a_replay_that_is_killed_goes_on_from_wherever_the_state_was_persisted() {
    let mut between = 0;
    for stop in 1..=10 {
        let disk = with_two_truncations().kill_process();
        let log = open_log(&disk);
        let State { backend, machine } = open_state(&disk, &log);
        let mut persist = |replayed: &Replayed| {
            if replayed.records == stop {
                backend.flush().unwrap();
            }
        };
        let replayed = replay(&log, &machine, SPACE, &mut persist).unwrap();
        assert_eq!(replayed.records, 10);
        let persisted = backend.persisted().unwrap();
        // Past a void entry, and before the truncation behind it.
        between += u32::from([Lsn(6), Lsn(10)].contains(&persisted.lsn));
        drop((log, machine, backend));
        let disk = disk.kill_process();
        let node = open(&disk).unwrap();
        assert_eq!(node.replayed.records, 10 - stop);
        assert_eq!(names(&node.state.machine), ["a", "b", "c", "d"], "persisted at {}", persisted.lsn);
        assert_eq!(commit(&node, "e"), id(4, 5));
    }
    assert_eq!(between, 2);
}

#[test]
fn a_truncation_of_what_is_applied_is_refused_and_changes_nothing() {
    for (index, at_start) in [(0, false), (1, false), (2, false), (2, true)] {
        let disk = SimDisk::new(1);
        let node = open(&disk).unwrap();
        assert_eq!((commit(&node, "a"), commit(&node, "b")), (id(1, 1), id(1, 2)));
        node.state.backend.flush().unwrap();
        drop(node);
        let log = open_log(&disk);
        if !at_start {
            entry(&log, id(1, 3), "c");
        }
        let lsn = truncate(&log, index);
        drop(log);
        for _ in 0..2 {
            let end = open_log(&disk).end();
            let refused = open(&disk).err();
            assert!(
                matches!(refused, Some(OpenError::Truncated { lsn: at, index: from, applied: Index(2) })
                    if at == lsn && from == Index(index)),
                "{refused:?}"
            );
            assert_eq!(open_log(&disk).end(), end);
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Random appends and truncations over several segments, against a map that does what they say.
#[test]
fn what_counts_is_what_a_map_holds_that_was_truncated() {
    for mut seed in 0..30_u64 {
        println!("seed {seed}");
        let disk = SimDisk::new(seed);
        let log = open_log(&disk);
        found(&log);
        // By index: the LSN of the entry that counts, and its keyspace.
        let mut model = BTreeMap::from([(Index(0), (Lsn(0), None))]);
        let (mut all, mut term) = (vec![Lsn(0)], 1);
        for number in 0..150 {
            let last = model.last_key_value().unwrap().0.0;
            match next(&mut seed) % 12 {
                0 => {
                    let from = 1 + next(&mut seed) % (last + 2);
                    truncate(&log, from);
                    model.split_off(&Index(from));
                    term += 1;
                    vote(&log, term);
                }
                1 => {
                    let lsn = append(&log, RecordKind::Blank, id(term, last + 1), b"");
                    model.insert(Index(last + 1), (lsn, None));
                    all.push(lsn);
                }
                _ => {
                    let name = format!("k{number}-{}", "x".repeat((next(&mut seed) % 100) as usize));
                    let lsn = entry(&log, id(term, last + 1), &name);
                    model.insert(Index(last + 1), (lsn, Some(name)));
                    all.push(lsn);
                }
            }
        }
        let check = |log: &Log| {
            let valid = Valid::of(log, SPACE);
            let other = Valid::of(log, SpaceId(9));
            assert!(valid.has_truncations() && !other.has_truncations());
            let records = log.records_from(Lsn(0)).unwrap().map(Result::unwrap);
            let (mut counting, mut entries) = (Vec::new(), Vec::new());
            for record in records {
                assert!(!other.is_void(&record) && !other.is_entry(&record));
                assert!(!valid.is_void(&record) || record.kind.has_index());
                if record.kind.has_index() {
                    entries.push(record.lsn);
                }
                if valid.is_entry(&record) {
                    counting.push((record.index, record.lsn));
                }
            }
            assert_eq!(entries, all);
            let expected: Vec<_> = model.iter().map(|(index, (lsn, _))| (*index, *lsn)).collect();
            assert_eq!(counting, expected);
        };
        check(&log);
        let segments = log.segments().len();
        assert!(segments > 1, "{segments} segments");
        drop(log);
        let disk = if seed % 2 == 0 { disk.kill_process() } else { disk.power_loss(seed) };
        check(&open_log(&disk));
        let node = open(&disk).unwrap();
        let expected: Vec<_> = model.values().filter_map(|(_, name)| name.clone()).collect();
        assert_eq!(names(&node.state.machine), expected);
        assert_eq!(commit(&node, "last").index, model.last_key_value().unwrap().0.next());
    }
}
