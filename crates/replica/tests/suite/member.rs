//! `Member`'s public interface, with the test in place of consensus: order of applying, batches, leadership, deadlines.

use std::{
    future::Future,
    io::IoSlice,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use thalweg_disk::SimDisk;
use thalweg_log::{Draft, Log, LogOptions, LogRecord, Purpose, RecordKind};
use thalweg_replica::{
    Committed, EntryTimes, Leadership, Member, MemberOptions, Membership, NodeInfo, Origin, Proposal, ProposalDriver,
    ProposeError, ReplicationStage, Valid, Vote, Wake, replay,
};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Index, KeyspaceId, Lsn, ManualClock, NodeId, SpaceId, SpaceTime, StreamId, Term,
    command::{CommandError, Framed, KeyspaceConfig, MoveTarget, encode_create_keyspace, encode_put},
};

const NODE: NodeId = NodeId(7);
const SPACE: SpaceId = SpaceId::ZERO;
const KEYSPACE: KeyspaceId = KeyspaceId(1);
const LEADS: Leadership = Leadership::Leader { term: Term(1) };

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

struct Node {
    log: Log,
    machine: Arc<Machine>,
    member: Member,
    clock: Arc<ManualClock>,
}

fn machine_on(disk: &SimDisk, log: &Log) -> Arc<Machine> {
    let barrier = Arc::new(Barrier(log.clone()));
    let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
    Arc::new(Machine::open(Arc::new(backend), MachineOptions::default()).unwrap())
}

fn open(disk: &SimDisk) -> Node {
    let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
    let options = LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap();
    let machine = machine_on(disk, &log);
    let options = MemberOptions { max_move_wait: Duration::ZERO, ..MemberOptions::new(SPACE, NODE, 1 << 20) };
    let member = Member::open(log.clone(), machine.clone(), clock.clone(), &options).unwrap();
    Node { log, machine, member, clock }
}

fn framed(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Framed {
    let mut command = Framed::new();
    command.encode(encode).unwrap();
    command
}

fn put(key: &str, value: &[u8]) -> Framed {
    framed(|out| encode_put(out, KEYSPACE, key.as_bytes(), value))
}

/// A move that changes nothing.
fn idle_move() -> Vec<u8> {
    MoveTarget::Reclaimed { stream: StreamId(1_000), max: 1 }.encode_alone()
}

impl Node {
    fn append(&self, kind: RecordKind, term: u64, index: u64, payload: &[u8]) {
        let payload = &[IoSlice::new(payload)];
        let time = SpaceTime(1_000_000 + self.log.end().0);
        let draft = Draft { space: SPACE, kind, term: Term(term), index: Index(index), time, payload };
        self.log.append(&[draft], Durability::Os, Purpose::Data).unwrap();
    }

    /// Returns the record of a valid entry.
    fn record(&self, index: u64) -> LogRecord {
        let valid = Valid::of(&self.log, SPACE);
        let mut records = self.log.records_from(Lsn::ZERO).unwrap().map(Result::unwrap);
        records.find(|record| valid.is_entry(record) && record.index == Index(index)).unwrap()
    }

    fn apply(&self, index: u64) -> usize {
        let mut outcomes = Vec::new();
        self.member.apply(Index(index), None, true, &mut outcomes).unwrap();
        outcomes.len()
    }

    /// Founds the space, with a keyspace as entry 1.
    fn found(&self) {
        self.append(RecordKind::Membership, 0, 0, &Membership::of_one(NODE).encode());
        self.append(RecordKind::Vote, 1, 0, &Vote { term: Term(1), node: NODE, committed: true }.encode());
        let create = framed(|out| encode_create_keyspace(out, "keys", &KeyspaceConfig::default()));
        self.append(RecordKind::Entry, 1, 1, create.bytes());
        assert_eq!(self.apply(1), 1);
    }

    fn propose(&self, command: Framed) -> Result<Proposal, ProposeError> {
        self.member.propose_async_for(None, command, Durability::Disk, Purpose::Data, Wake::Now)
    }
}

fn poll(proposal: &mut Proposal) -> Poll<Result<Committed, ProposeError>> {
    pin!(proposal).poll(&mut Context::from_waker(Waker::noop()))
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let first = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (second ^ (second >> 31)) % end
    }
}

#[test]
fn a_member_applies_what_a_replay_of_the_same_log_applies() {
    for seed in 0..200 {
        println!("seed {seed}");
        let (disk, mut random) = (SimDisk::new(seed), Random(seed));
        let node = open(&disk);
        node.found();
        let (mut term, mut last, mut committed) = (1, 1, 1);
        for _ in 0..80 {
            match random.below(10) {
                0..4 => {
                    last += 1;
                    let value = vec![last as u8; random.below(3) as usize * 3_000];
                    node.append(RecordKind::Entry, term, last, put(&format!("{}", random.below(9)), &value).bytes());
                }
                4 => {
                    term += 1;
                    let vote = Vote { term: Term(term), node: NODE, committed: true };
                    node.append(RecordKind::Vote, term, 0, &vote.encode());
                    last += 1;
                    node.append(RecordKind::Blank, term, last, &[]);
                }
                5 if last > committed => {
                    let from = committed + 1 + random.below(last - committed);
                    node.append(RecordKind::Truncate, 0, from, &[]);
                    (last, term) = (from - 1, term + 1);
                }
                6 => node.append(RecordKind::Move, 0, 0, &idle_move()),
                7 => {
                    let (end, moved) = (node.log.end(), node.member.relocate(&idle_move()));
                    match moved {
                        Ok(_) => assert_eq!(last, committed, "only uncommitted entries hold up a move"),
                        Err(ProposeError::Behind) => assert!(last > committed && node.log.end() == end),
                        Err(other) => panic!("{other}"),
                    }
                }
                _ if last > committed => {
                    committed += 1 + random.below(last - committed);
                    let record = node.record(committed);
                    let cached = (random.below(2) == 0).then_some(&record);
                    let mut outcomes = Vec::new();
                    node.member.apply(Index(committed), cached, true, &mut outcomes).unwrap();
                    assert_eq!(outcomes.len(), usize::from(record.kind == RecordKind::Entry));
                    assert_eq!(node.machine.applied().index, Index(committed));
                }
                _ => {}
            }
            assert!(node.machine.applied().index <= Index(committed), "nothing uncommitted is shown");
        }
        node.apply(last);
        node.member.apply_local().unwrap();
        let other = machine_on(&SimDisk::new(seed), &node.log);
        replay(&node.log, &other, SPACE, &mut |_| {}).unwrap();
        assert_eq!(node.machine.applied(), other.applied());
    }
}

#[test]
fn an_entry_that_was_applied_changes_nothing_again() {
    let node = open(&SimDisk::new(1));
    node.found();
    let applied = node.machine.applied();
    assert_eq!((node.apply(1), node.apply(0)), (0, 0));
    assert_eq!(node.machine.applied(), applied);
    let missing = node.member.apply(Index(5), None, true, &mut Vec::new());
    assert!(missing.is_err() && node.member.failure().is_some(), "{missing:?}");
    assert!(matches!(node.propose(put("k", b"v")), Err(ProposeError::State(_))));
}

#[test]
fn a_batch_contains_what_waits_together_and_answers_it_with_the_outcomes() {
    let node = open(&SimDisk::new(2));
    node.found();
    node.member.set_leadership(LEADS);
    let mut proposals: Vec<_> = (0..3).map(|number| node.propose(put(&format!("{number}"), b"v")).unwrap()).collect();
    let batch = node.member.take_batch().unwrap();
    assert!(node.member.take_batch().is_none() && !node.member.has_queued());
    node.append(RecordKind::Entry, 1, 2, batch.payload());
    let mut outcomes = Vec::new();
    let applied = node.member.apply(Index(2), None, true, &mut outcomes).unwrap();
    assert!(applied.steps > 0 && proposals.iter_mut().all(|proposal| poll(proposal).is_pending()));
    batch.complete(outcomes.clone(), Some(applied.steps));
    for (proposal, outcome) in proposals.iter_mut().zip(outcomes) {
        let Poll::Ready(Ok(committed)) = poll(proposal) else { panic!("not committed") };
        assert_eq!(committed, Committed { durability: Durability::Quorum, outcome: Some(outcome) });
    }
    assert_eq!(node.member.stats().commands, 4);
}

#[test]
fn the_stages_of_a_replicated_write_add_up_to_its_time() {
    let node = open(&SimDisk::new(8));
    node.found();
    node.member.set_leadership(LEADS);
    let micros = Duration::from_micros;
    let mut first = node.propose(put("a", b"v")).unwrap();
    node.clock.advance(micros(10));
    let mut second = node.propose(put("b", b"v")).unwrap();
    node.clock.advance(micros(20));
    let batch = node.member.take_batch().unwrap();
    let taken = node.member.monotonic();
    node.append(RecordKind::Entry, 1, 2, batch.payload());
    let mut outcomes = Vec::new();
    let applied = node.member.apply(Index(2), None, true, &mut outcomes).unwrap();
    let at = |after| taken + micros(after);
    let times = EntryTimes { write_begun: at(1), written: at(4), apply_begun: at(104), applied: at(111) };
    node.clock.advance(micros(116));
    node.member.complete(batch, outcomes, applied.steps, Some(times));
    assert!(poll(&mut first).is_ready() && poll(&mut second).is_ready());
    let counted = |stage: ReplicationStage| {
        let histogram = node.member.stats().replication_stages[stage as usize];
        (histogram.count(), histogram.sum / 1000)
    };
    let found = ReplicationStage::ALL.map(counted);
    assert_eq!(found[..6], [(2, 30 + 20), (2, 2), (2, 2 * 3), (2, 2 * 100), (2, 2 * 7), (2, 2 * 5)]);
    assert!(found[6..].iter().all(|counted| *counted == (0, 0)), "{found:?}");
    let sum: u64 = found[..6].iter().map(|(_, micros)| micros).sum();
    assert_eq!(sum, (30 + 116) + (20 + 116), "the times of both commands, from the queue to the answer");
}

#[test]
fn a_node_without_a_leader_refuses_and_what_waits_fails_when_the_leader_is_lost() {
    let node = open(&SimDisk::new(3));
    node.found();
    assert!(matches!(node.propose(put("k", b"v")), Err(ProposeError::NoLeader)));
    let follows = Leadership::Follower { leader: Some((NodeId(2), NodeInfo::at("b:1"))), term: Term(3) };
    node.member.set_leadership(follows.clone());
    let mut waits = node.propose(put("k", b"v")).unwrap();
    assert!(!node.member.leads() && poll(&mut waits).is_pending());
    let refusal = follows.refusal();
    assert!(matches!(&refusal, ProposeError::NotLeader { leader: Some((NodeId(2), at)) } if at == "b:1"), "{refusal}");
    node.member.set_leadership(Leadership::Follower { leader: None, term: Term(3) });
    assert!(matches!(poll(&mut waits), Poll::Ready(Err(ProposeError::NoLeader))));
    node.member.set_leadership(LEADS);
    let mut dropped = node.propose(put("k", b"v")).unwrap();
    drop(node.member.take_batch().unwrap());
    assert!(matches!(poll(&mut dropped), Poll::Ready(Err(ProposeError::OutcomeUnknown { .. }))));
    let mut waits = node.propose(put("k", b"v")).unwrap();
    node.member.close();
    assert!(matches!(poll(&mut waits), Poll::Ready(Err(ProposeError::Closed))));
    assert!(matches!(node.propose(put("k", b"v")), Err(ProposeError::Closed)));
}

#[test]
fn a_proposal_that_nobody_takes_ends_at_its_deadline() {
    let node = open(&SimDisk::new(4));
    node.found();
    node.member.set_leadership(LEADS);
    let mut early = node.propose(put("k", b"v")).unwrap();
    node.clock.advance(MemberOptions::DEFAULT_MAX_WAIT - Duration::from_millis(1));
    let mut late = node.propose(put("k", b"v")).unwrap();
    node.member.expire_queued();
    assert!(poll(&mut early).is_pending());
    node.clock.advance(Duration::from_millis(1));
    node.member.expire_queued();
    assert!(matches!(poll(&mut early), Poll::Ready(Err(ProposeError::Overloaded { .. }))));
    assert!(poll(&mut late).is_pending());
    let batch = node.member.take_batch().unwrap();
    assert_eq!(node.member.time_left(&batch), MemberOptions::DEFAULT_MAX_WAIT - Duration::from_millis(1));
    batch.fail(&ProposeError::NoLeader);
    assert!(matches!(poll(&mut late), Poll::Ready(Err(ProposeError::NoLeader))));
}

/// The entry contains the commands of both proposers, but each gives up at its own time.
#[test]
fn a_proposer_in_a_batch_ends_at_its_own_deadline() {
    let node = open(&SimDisk::new(6));
    node.found();
    node.member.set_leadership(LEADS);
    let propose = |millis: Option<u64>| {
        let origin = Origin { max_wait: millis.map(Duration::from_millis), ..Origin::default() };
        let (level, purpose) = (Durability::Disk, Purpose::Data);
        node.member.propose_async_from(origin, put("k", b"v"), level, purpose, Wake::Now).unwrap()
    };
    let (mut never, mut short, mut long, mut usual) =
        (propose(Some(0)), propose(Some(200)), propose(Some(600_000)), propose(None));
    let mut batch = node.member.take_batch().unwrap();
    assert!(matches!(poll(&mut never), Poll::Ready(Err(ProposeError::NoLeader))), "it was not proposed");
    assert_eq!(node.member.time_left(&batch), MemberOptions::DEFAULT_MAX_WAIT, "the member's own bound holds");
    assert_eq!(node.member.time_to_expiry(&batch), Some(Duration::from_millis(200)));
    node.clock.advance(Duration::from_millis(200));
    node.member.expire(&mut batch, &ProposeError::OutcomeUnknown { reason: String::new() });
    assert!(matches!(poll(&mut short), Poll::Ready(Err(ProposeError::OutcomeUnknown { .. }))));
    assert!(poll(&mut long).is_pending() && poll(&mut usual).is_pending());
    let left = MemberOptions::DEFAULT_MAX_WAIT - Duration::from_millis(200);
    assert_eq!(node.member.time_to_expiry(&batch), Some(left));
    node.clock.advance(left);
    node.member.expire(&mut batch, &ProposeError::NoLeader);
    assert_eq!(node.member.time_to_expiry(&batch), None);
    assert!(matches!(poll(&mut long), Poll::Ready(Err(ProposeError::NoLeader))));
    assert!(matches!(poll(&mut usual), Poll::Ready(Err(ProposeError::NoLeader))));
}

/// The proposer has read the leader's state or clock in a term, and another leader would not propose the command.
#[test]
fn a_command_for_a_term_is_in_no_batch_of_another_term() {
    let node = open(&SimDisk::new(7));
    node.found();
    let leads = |term| node.member.set_leadership(Leadership::Leader { term: Term(term) });
    let follows = Leadership::Follower { leader: Some((NodeId(2), NodeInfo::at("b:1"))), term: Term(9) };
    let propose = |term: Option<u64>| {
        let origin = Origin { term: term.map(Term), ..Origin::default() };
        node.member.propose_async_from(origin, put("k", b"v"), Durability::Disk, Purpose::Data, Wake::Now)
    };
    let refused = |proposal: &mut Proposal| matches!(poll(proposal), Poll::Ready(Err(ProposeError::NoLeader)));
    let moved = |proposal: &mut Proposal| {
        matches!(poll(proposal), Poll::Ready(Err(ProposeError::NotLeader { leader: Some((NodeId(2), _)) })))
    };
    leads(3);
    assert!(matches!(propose(Some(2)), Err(ProposeError::NoLeader)));
    // In the queue.
    let (mut bound, mut free) = (propose(Some(3)).unwrap(), propose(None).unwrap());
    leads(4);
    let batch = node.member.take_batch().unwrap();
    assert_eq!((batch.term(), batch.payload().len()), (Some(Term(4)), put("k", b"v").bytes().len()));
    assert!(refused(&mut bound) && poll(&mut free).is_pending());
    batch.fail(&ProposeError::Closed);
    let mut bound = propose(Some(4)).unwrap();
    node.member.set_leadership(follows.clone());
    assert!(node.member.take_batch().is_none() && moved(&mut bound));
    assert!(matches!(propose(Some(4)), Err(ProposeError::NotLeader { .. })));
    // In a batch that consensus has refused unwritten.
    leads(5);
    let (mut bound, mut free) = (propose(Some(5)).unwrap(), propose(None).unwrap());
    let batch = node.member.take_batch().unwrap();
    let batch = batch.for_any_leader(&follows.refusal()).unwrap();
    assert!(batch.term().is_none() && moved(&mut bound) && poll(&mut free).is_pending());
    // This node leads again: the commands are checked again.
    leads(6);
    let batch = node.member.readmit(batch).unwrap();
    assert_eq!(batch.term(), Some(Term(6)));
    node.member.refuse_data(Some("no room".to_owned()));
    assert!(node.member.readmit(batch).is_none());
    assert!(matches!(poll(&mut free), Poll::Ready(Err(ProposeError::NoRoom { .. }))));
}

#[derive(Debug, Default)]
struct Notified(AtomicU64);

impl ProposalDriver for Notified {
    fn notify(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn consensus_is_notified_of_work() {
    let node = open(&SimDisk::new(5));
    node.found();
    node.member.set_leadership(LEADS);
    let driver = Arc::new(Notified::default());
    node.member.set_driver(driver.clone());
    let count = || driver.0.swap(0, SeqCst);
    count();
    drop(node.propose(put("k", b"v")).unwrap());
    assert_eq!(count(), 1);
    let later = node.member.propose_async_for(None, put("k", b"v"), Durability::Os, Purpose::Data, Wake::Later);
    assert_eq!(count(), 0);
    node.member.commit_queued();
    assert_eq!(count(), 1);
    assert!(matches!(node.member.note_purged(Term(1), Index(1)), Err(ProposeError::Behind)));
    assert_eq!((count(), node.member.purge_wanted()), (1, Index(1)));
    node.append(RecordKind::Purged, 1, 1, &[]);
    node.member.note_purged(Term(1), Index(1)).unwrap();
    drop(later.unwrap());
}
