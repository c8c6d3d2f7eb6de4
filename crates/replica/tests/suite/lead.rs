//! The term in which a single node continues, and the directories that it refuses to open.

use std::{collections::BTreeMap, collections::BTreeSet, io::IoSlice, sync::Arc};

use thalweg_disk::SimDisk;
use thalweg_log::{Draft, Log, LogOptions, Purpose, RecordKind};
use thalweg_replica::{Membership, NodeInfo, OpenError, Solo, SoloOptions, Vote, check_sole_voter, replay};
use thalweg_state::{
    machine::{Machine, MachineOptions},
    membership::LogId,
};
use thalweg_store::{
    BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Index, Lsn, ManualClock, NodeId, SpaceId, SpaceTime, Term,
    command::{Framed, KeyspaceConfig, encode_create_keyspace},
};

const NODE: NodeId = NodeId(7);
const OTHER: NodeId = NodeId(8);

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

struct Node {
    log: Log,
    machine: Arc<Machine>,
    solo: Solo,
}

fn open_log(disk: &SimDisk) -> (Log, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
    let options = LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    (Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap().0, clock)
}

fn try_open(disk: &SimDisk) -> Result<Node, OpenError> {
    let (log, clock) = open_log(disk);
    let barrier = Arc::new(Barrier(log.clone()));
    let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
    let machine = Arc::new(Machine::open(Arc::new(backend), MachineOptions::default()).unwrap());
    replay(&log, &machine, SpaceId::ZERO, &mut |_| {})?;
    let options = SoloOptions { space: SpaceId::ZERO, node: NODE, max_queue_bytes: 1 << 20 };
    let solo = Solo::open(log.clone(), machine.clone(), clock, &options)?;
    Ok(Node { log, machine, solo })
}

/// Commits a command and returns its log id.
fn commit(node: &Node) -> LogId {
    let mut command = Framed::new();
    command.encode(|out| encode_create_keyspace(out, "keys", &KeyspaceConfig::default())).unwrap();
    node.solo.propose(&command, Durability::Disk, Purpose::Data).unwrap();
    let applied = node.machine.applied();
    LogId { term: applied.term, index: applied.index }
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term: Term(term), index: Index(index) }
}

/// A directory with one entry, followed by a record from another writer.
fn with_record(kind: RecordKind, id: LogId, payload: &[u8]) -> SimDisk {
    let disk = SimDisk::new(1);
    let node = try_open(&disk).unwrap();
    assert_eq!(commit(&node), self::id(1, 1));
    drop(node);
    let (log, _) = open_log(&disk);
    let payload = [IoSlice::new(payload)];
    let (space, time) = (SpaceId::ZERO, SpaceTime(1));
    let draft = Draft { space, kind, term: id.term, index: id.index, time, payload: &payload };
    log.append(&[draft], Durability::Disk, Purpose::Data).unwrap();
    drop(log);
    disk
}

fn with_vote(term: u64, node: NodeId, committed: bool) -> SimDisk {
    let vote = Vote { term: Term(term), node, committed };
    with_record(RecordKind::Vote, id(term, 0), &vote.encode())
}

fn last_vote(node: &Node) -> Option<Vote> {
    Vote::decode(&node.machine.vote().unwrap().unwrap())
}

#[test]
fn the_leader_of_a_term_goes_on_in_it() {
    let node = try_open(&with_vote(5, NODE, true)).unwrap();
    assert_eq!(commit(&node), id(5, 2));
    assert_eq!(last_vote(&node), Some(Vote { term: Term(5), node: NODE, committed: true }));
}

#[test]
fn an_election_that_was_not_won_begins_again_in_the_next_term() {
    for disk in [with_vote(5, NODE, false), with_vote(5, OTHER, false), with_vote(5, OTHER, true)] {
        let node = try_open(&disk).unwrap();
        assert_eq!(last_vote(&node), Some(Vote { term: Term(6), node: NODE, committed: true }));
        assert_eq!(commit(&node), id(6, 2));
        drop(node);
        let node = try_open(&disk).unwrap();
        assert_eq!(commit(&node), id(6, 3), "the vote was kept");
    }
}

#[test]
fn where_somebody_learns_each_start_is_a_new_term() {
    let members = [(NODE, NodeInfo::default()), (OTHER, NodeInfo::at("there"))];
    let membership = Membership::new(vec![BTreeSet::from([NODE])], BTreeMap::from(members)).unwrap();
    let disk = with_record(RecordKind::Membership, id(1, 2), &membership.encode());
    assert_eq!(commit(&try_open(&disk).unwrap()), id(2, 3));
    assert_eq!(commit(&try_open(&disk).unwrap()), id(3, 4));
}

#[test]
fn a_space_in_which_another_votes_is_refused_and_left_as_it_is() {
    let disk = with_record(RecordKind::Membership, id(1, 2), &Membership::of_one(OTHER).encode());
    for _ in 0..2 {
        let end = open_log(&disk).0.end();
        let refused = try_open(&disk).err();
        assert!(matches!(&refused, Some(OpenError::NotAlone { voters }) if *voters == [OTHER]), "{refused:?}");
        assert_eq!(open_log(&disk).0.end(), end);
    }
}

#[test]
fn the_log_alone_shows_that_another_votes() {
    let check = |disk: &SimDisk| check_sole_voter(&open_log(disk).0, SpaceId::ZERO, NODE);
    check(&SimDisk::new(1)).unwrap();
    check(&with_vote(5, OTHER, true)).unwrap();
    let both = [(NODE, NodeInfo::default()), (OTHER, NodeInfo::default())].into();
    let both = Membership::new(vec![BTreeSet::from([NODE, OTHER])], both).unwrap();
    for (membership, expected) in [(Membership::of_one(OTHER), vec![OTHER]), (both, vec![NODE, OTHER])] {
        let refused = check(&with_record(RecordKind::Membership, id(1, 2), &membership.encode())).err();
        assert!(matches!(&refused, Some(OpenError::NotAlone { voters }) if *voters == expected), "{refused:?}");
    }
}

/// The next term would wrap to 0, and a replay would refuse the entries of that term.
#[test]
fn a_term_after_which_there_is_no_other_is_refused() {
    for term in [1 << 62, u64::MAX] {
        for node in [NODE, OTHER] {
            let refused = try_open(&with_vote(term, node, true)).err();
            assert!(matches!(refused, Some(OpenError::Malformed { .. })), "{refused:?}");
        }
    }
    try_open(&with_vote((1 << 62) - 1, OTHER, true)).unwrap();
}

#[test]
fn records_that_a_sole_voter_never_writes_are_refused() {
    let gap = try_open(&with_record(RecordKind::Blank, id(2, 9), b"")).err();
    assert!(matches!(gap, Some(OpenError::Gap { last: Index(1), found: Index(9) })), "{gap:?}");
    let older = try_open(&with_record(RecordKind::Blank, id(0, 2), b"")).err();
    assert!(matches!(older, Some(OpenError::TermWentBack { last: Term(1), found: Term(0) })), "{older:?}");
    for kind in [RecordKind::Membership, RecordKind::Vote] {
        let malformed = try_open(&with_record(kind, id(1, 2), b"?")).err();
        assert!(matches!(malformed, Some(OpenError::Malformed { lsn: Lsn(3), .. })), "{malformed:?}");
    }
}

#[test]
fn a_blank_entry_counts() {
    let node = try_open(&with_record(RecordKind::Blank, id(1, 2), b"")).unwrap();
    assert_eq!(commit(&node), id(1, 3));
    assert_eq!(node.log.end(), Lsn(5));
}
