//! `Solo`'s public interface: order, levels, replay, limits, and the records of a space with one voter.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use thalweg_disk::SimDisk;
use thalweg_log::{Log, LogOptions, Purpose, RecordKind};
use thalweg_replica::{
    Membership, Observer, Proposal, ProposeError, Solo, SoloOptions, Vote, Wake, WriteStage, replay,
};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Index, KeyspaceId, Lsn, ManualClock, NodeId, Revision, SpaceId, SpaceTime, Term,
    command::{CommandError, Framed, KeyspaceConfig, Outcome, encode_create_keyspace, encode_put, encode_sweep},
};

const NODE: NodeId = NodeId(7);
const KEYSPACE: KeyspaceId = KeyspaceId(1);

struct Node {
    log: Log,
    machine: Arc<Machine>,
    solo: Solo,
    clock: Arc<ManualClock>,
    replayed: u64,
}

struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

fn open_with(disk: &SimDisk, max_queue_bytes: usize) -> Node {
    let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
    let options =
        LogOptions { segment_bytes: 256 * 1024, spare_segments: 2, reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap();
    let barrier = Arc::new(Barrier(log.clone()));
    let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
    let machine = Arc::new(Machine::open(Arc::new(backend), MachineOptions::default()).unwrap());
    let replayed = replay(&log, &machine, SpaceId::ZERO, &mut |_| {}).unwrap().records;
    let options = SoloOptions { space: SpaceId::ZERO, node: NODE, max_queue_bytes };
    let solo = Solo::open(log.clone(), machine.clone(), clock.clone(), &options).unwrap();
    Node { log, machine, solo, clock, replayed }
}

fn open(disk: &SimDisk) -> Node {
    open_with(disk, 1 << 20)
}

fn framed(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Framed {
    let mut command = Framed::new();
    command.encode(encode).unwrap();
    command
}

fn create_keyspace() -> Framed {
    framed(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default()))
}

fn put(key: &[u8], value: &[u8]) -> Framed {
    framed(|out| encode_put(out, KEYSPACE, key, value))
}

fn propose(node: &Node, command: &Framed, level: Durability) -> Outcome {
    node.solo.propose(command, level, Purpose::Data).unwrap().outcome.expect("known at this level")
}

/// A node with a keyspace that has the id which `put` uses.
fn with_keyspace(disk: &SimDisk) -> Node {
    let node = open(disk);
    assert_eq!(propose(&node, &create_keyspace(), Durability::Disk), Outcome::Keyspace { id: KEYSPACE, created: true });
    node
}

#[test]
fn a_new_directory_begins_as_a_space_with_one_voter() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let records: Vec<_> = node.log.records_from(Lsn::ZERO).unwrap().map(Result::unwrap).collect();
    let found: Vec<_> = records.iter().map(|record| (record.kind, record.term, record.index)).collect();
    assert_eq!(
        found,
        [
            (RecordKind::Membership, Term(0), Index(0)),
            (RecordKind::Vote, Term(1), Index(0)),
            (RecordKind::Entry, Term(1), Index(1)),
        ]
    );
    assert_eq!(Membership::decode(&records[0].payload), Some(Membership::of_one(NODE)));
    assert_eq!(Vote::decode(&records[1].payload), Some(Vote { term: Term(1), node: NODE, committed: true }));
}

#[test]
fn what_was_committed_is_replayed() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    for number in 0..50_u32 {
        propose(&node, &put(&number.to_be_bytes(), b"value"), Durability::Disk);
    }
    let applied = node.machine.applied();
    drop(node);
    let node = open(&disk.power_loss(5));
    assert_eq!(node.machine.applied(), applied);
    assert_eq!(node.replayed, 53);
    assert!(node.machine.get(KEYSPACE, &49_u32.to_be_bytes()).unwrap().is_some());
    let Outcome::Committed { revision, .. } = propose(&node, &put(b"next", b""), Durability::Os) else { panic!() };
    assert_eq!(revision, Revision(applied.revision.0 + 1));
    assert_eq!(node.machine.applied().index, applied.index.next());
}

#[test]
fn concurrent_proposers_each_get_their_own_outcome() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let revisions = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 0..8_u32 {
            let (node, revisions) = (&node, &revisions);
            scope.spawn(move || {
                for number in 0..200_u32 {
                    let key = [writer.to_be_bytes(), number.to_be_bytes()].concat();
                    let level = if number % 3 == 0 { Durability::Disk } else { Durability::Os };
                    let Outcome::Committed { revision, .. } = propose(node, &put(&key, &key), level) else { panic!() };
                    let stored = node.machine.get(KEYSPACE, &key).unwrap().expect("an acknowledged write is visible");
                    assert_eq!(stored.revision, revision);
                    revisions.lock().unwrap().push(revision.0);
                }
            });
        }
    });
    let mut revisions = revisions.into_inner().unwrap();
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=1600).collect::<Vec<_>>(), "every command has its own revision");
    let stats = node.solo.stats();
    assert_eq!(stats.commands, 1601);
    assert!(stats.entries <= stats.commands);
    assert_eq!((stats.queue_bytes, stats.queue_commands), (0, 0));
}

#[test]
fn entries_carry_space_time_that_ignores_a_stepped_wall_clock() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    node.clock.advance(Duration::from_secs(1));
    propose(&node, &put(b"a", b""), Durability::Os);
    let before = node.machine.applied().time;
    assert_eq!(before, SpaceTime(2_000_000));
    node.clock.step_wall(SpaceTime(5));
    node.clock.advance(Duration::from_secs(1));
    propose(&node, &put(b"b", b""), Durability::Os);
    assert_eq!(node.machine.applied().time, SpaceTime(3_000_000));
    assert_eq!(node.solo.now(), SpaceTime(3_000_000));
}

#[test]
fn none_answers_before_the_outcome_and_a_close_commits_it() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    for number in 0..100_u32 {
        let committed = node.solo.propose(&put(&number.to_be_bytes(), b""), Durability::None, Purpose::Data).unwrap();
        assert_eq!((committed.durability, committed.outcome), (Durability::None, None));
    }
    node.solo.close();
    assert!(node.machine.get(KEYSPACE, &99_u32.to_be_bytes()).unwrap().is_some());
    let refused = node.solo.propose(&put(b"late", b""), Durability::Os, Purpose::Data).unwrap_err();
    assert!(matches!(refused, ProposeError::Closed), "{refused}");
}

#[test]
fn the_values_of_a_queued_command_are_looked_up() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let mut is_looked_up = false;
    let value_reads = || {
        is_looked_up = true;
        Some(7)
    };
    let (command, level) = (put(b"k", b"v"), Durability::None);
    let proposed = node.solo.propose_then(&command, level, Purpose::Data, value_reads, |durability, _| durability);
    assert_eq!((proposed.unwrap(), is_looked_up), (Durability::None, true));
    node.solo.close();
}

#[test]
fn a_full_queue_refuses_async_proposals_and_commits_those_it_took() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    drop(node.solo.clone());
    // An empty queue accepts a proposal of any size, so this queue holds one command at a time.
    let node = open_with(&disk.kill_process(), 1);
    let mut taken = Vec::new();
    let mut refused = 0;
    for number in 0..2000_u32 {
        match node.solo.propose_async(put(&number.to_be_bytes(), &[0; 100]), Durability::Disk, Purpose::Data) {
            Ok(proposal) => taken.push((number, proposal)),
            Err(ProposeError::Overloaded { queued_bytes }) => {
                assert!(queued_bytes > 0);
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    println!("{} taken, {refused} refused", taken.len());
    node.solo.close();
    for (number, proposal) in taken {
        let mut proposal = std::pin::pin!(proposal);
        let Poll::Ready(committed) = proposal.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("a close must answer every proposal");
        };
        committed.unwrap();
        assert!(node.machine.get(KEYSPACE, &number.to_be_bytes()).unwrap().is_some());
    }
}

#[test]
fn what_was_queued_together_is_one_entry_and_done_when_its_proposer_has_committed_it() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let mut context = Context::from_waker(Waker::noop());
    let propose = |number: u8| {
        let command = put(&[number], b"value");
        node.solo.propose_async_for(None, command, Durability::Disk, Purpose::Data, Wake::Later).unwrap()
    };
    let mut proposals: Vec<Proposal> = (0..3).map(propose).collect();
    for proposal in &mut proposals {
        assert!(std::pin::pin!(proposal).poll(&mut context).is_pending(), "no thread was woken to commit it");
    }
    let before = node.machine.applied().index;
    node.solo.commit_queued_here();
    for proposal in &mut proposals {
        let Poll::Ready(committed) = std::pin::pin!(proposal).poll(&mut context) else { panic!("it is done") };
        assert_eq!(committed.unwrap().durability, Durability::Disk);
    }
    assert_eq!(node.machine.applied().index, before.next());
    node.solo.commit_queued_here();
    assert_eq!(node.machine.applied().index, before.next(), "nothing waits");
    assert!(open(&disk.power_loss(1)).machine.get(KEYSPACE, &[2]).unwrap().is_some());
}

/// Queues commands and commits them on this thread. Returns their answers.
fn commit_together(node: &Node, commands: Vec<Framed>) -> Vec<Result<Outcome, ProposeError>> {
    let propose =
        |command| node.solo.propose_async_for(None, command, Durability::Disk, Purpose::Data, Wake::Later).unwrap();
    let mut proposals: Vec<Proposal> = commands.into_iter().map(propose).collect();
    node.solo.commit_queued_here();
    let answer = |proposal: &mut Proposal| match std::pin::pin!(proposal).poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(answer) => answer.map(|committed| {
            assert_eq!(committed.durability, Durability::Disk);
            committed.outcome.expect("known at this level")
        }),
        Poll::Pending => panic!("a commit answers every proposal"),
    };
    proposals.iter_mut().map(answer).collect()
}

/// A command that may take all steps of an entry.
fn sweep() -> Framed {
    framed(|out| {
        encode_sweep(out, 9);
        Ok(())
    })
}

#[test]
fn expensive_commands_are_entries_of_their_own_that_share_an_fsync() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let before = node.machine.applied();
    let commands = vec![put(b"a", b"1"), put(b"b", b"2"), sweep(), sweep(), put(b"c", b"3")];
    let answers = commit_together(&node, commands);
    let revision = |number| Outcome::Committed { revision: Revision(before.revision.0 + number), appends: Vec::new() };
    let swept = || Outcome::Reclaimed { entries: 0, more: false };
    let found: Vec<Outcome> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [revision(1), revision(2), swept(), swept(), revision(3)]);
    assert_eq!(node.machine.applied().index, Index(before.index.0 + 4), "the first two puts share an entry");
    assert!(node.log.stats().batches_per_sync_max >= 4, "{:?}", node.log.stats());
    // All of it is on disk, and is replayed in the same entries.
    let applied = node.machine.applied();
    let again = open(&disk.power_loss(1));
    assert_eq!(Index(again.machine.applied().index.0), applied.index);
    assert_eq!(again.machine.applied().running_hash, applied.running_hash);
    assert!(again.machine.get(KEYSPACE, b"c").unwrap().is_some());
}

#[test]
fn an_entry_that_the_log_rejects_does_not_affect_those_that_were_queued_with_it() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let too_large = put(b"large", &vec![0; 300 * 1024]);
    let commands = vec![put(b"a", b"1"), sweep(), too_large, put(b"b", b"2"), sweep()];
    let answers = commit_together(&node, commands);
    let is_done: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(is_done, [true, true, false, true, true], "{answers:?}");
    assert!(matches!(answers[2], Err(ProposeError::Append(_))));
    let there =
        |machine: &Machine| [b"a".as_slice(), b"large", b"b"].map(|key| machine.get(KEYSPACE, key).unwrap().is_some());
    assert_eq!(there(&node.machine), [true, false, true]);
    assert_eq!(there(&open(&disk.power_loss(1)).machine), [true, false, true]);
    assert!(matches!(propose(&node, &put(b"next", b""), Durability::Os), Outcome::Committed { .. }));
}

#[derive(Debug, Default)]
struct Seen(Mutex<Vec<Outcome>>);

impl Observer for Seen {
    fn applied(&self, outcomes: &[Outcome]) {
        self.0.lock().unwrap().extend_from_slice(outcomes);
    }
}

#[test]
fn an_observer_sees_every_outcome_in_order() {
    let disk = SimDisk::new(1);
    let node = with_keyspace(&disk);
    let seen = Arc::new(Seen::default());
    node.solo.observe(seen.clone());
    for number in 0..5_u8 {
        propose(&node, &put(&[number], b""), Durability::Os);
    }
    let expected: Vec<_> =
        (1..=5).map(|revision| Outcome::Committed { revision: Revision(revision), appends: Vec::new() }).collect();
    assert_eq!(*seen.0.lock().unwrap(), expected);
}

#[test]
fn the_stages_of_writes_that_wait_for_an_fsync_are_counted() {
    let disk = SimDisk::new(0);
    let node = with_keyspace(&disk);
    let counts = || node.solo.stats().write_stages.map(|times| times.count());
    let before = counts();
    propose(&node, &put(b"k", b"v"), Durability::Os);
    propose(&node, &put(b"k", b"v"), Durability::Interval);
    assert_eq!(counts(), before, "these do not wait");
    propose(&node, &put(b"k", b"v"), Durability::Disk);
    assert_eq!(counts(), before.map(|count| count + 1), "a command that is not queued passes through all stages");
    // Time passes only while the commands are queued.
    node.clock.advance(Duration::from_secs(1));
    let mut proposals: Vec<Proposal> = (0..3)
        .map(|_| {
            node.solo.propose_async_for(None, put(b"k", b"v"), Durability::Disk, Purpose::Data, Wake::Later).unwrap()
        })
        .collect();
    node.clock.advance(Duration::from_millis(5));
    node.solo.commit_queued_here();
    let mut context = Context::from_waker(Waker::noop());
    let is_done = |proposal: &mut Proposal| std::pin::pin!(proposal).poll(&mut context).is_ready();
    assert!(proposals.iter_mut().all(is_done));
    assert_eq!(counts(), before.map(|count| count + 4), "each command of a batch counts");
    let stages = node.solo.stats().write_stages;
    assert_eq!(stages[WriteStage::Queue as usize].sum, 15_000_000, "nanoseconds");
    let others = stages.iter().enumerate().filter(|(at, _)| *at != WriteStage::Queue as usize);
    assert!(others.map(|(_, times)| times.sum).all(|sum| sum == 0));
}
