//! Directories used alternately by `Solo` and openraft.

use std::collections::BTreeSet;

use openraft::async_runtime::WatchReceiver;
use thalweg_disk::SimDisk;
use thalweg_log::RecordKind;
use thalweg_replica::{NodeInfo, OpenError};
use thalweg_state::membership::LogId;
use thalweg_types::{
    Index, KeyspaceId, Lsn, Offset, Revision, SpaceTime, StreamId, Term,
    command::{
        CommandError, CommitBuilder, Expect, Framed, KeyspaceConfig, Outcome, StreamConfig, encode_append,
        encode_create_keyspace, encode_create_stream, encode_delete, encode_put,
    },
    record::{Record, RecordBatch},
};

use crate::{
    contents::Contents,
    network::Router,
    node::{Parts, RaftNode, SoloNode},
    types::{RaftLogId, led_by, raft_log_id, run},
};

const NODE: u64 = 7;
const LEARNER: u64 = 8;
const KEYSPACE: KeyspaceId = KeyspaceId(1);
const STREAM: StreamId = StreamId(1);
/// A value length that keeps the value in the log.
const LARGE: usize = 10_000;

fn framed(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Framed {
    let mut command = Framed::new();
    command.encode(encode).unwrap();
    command
}

fn put(key: &str, value: &[u8]) -> Framed {
    framed(|out| encode_put(out, KEYSPACE, key.as_bytes(), value))
}

fn append(number: u32) -> Framed {
    let mut batch = RecordBatch::new();
    let payload = format!("record {number}");
    batch.push_payload(payload.as_bytes()).unwrap();
    batch
        .push(&Record {
            key: Some(b"key"),
            headers: vec![("a", b"b")],
            payload: &[number as u8; 300],
            is_tombstone: false,
        })
        .unwrap();
    framed(|out| {
        encode_append(out, STREAM, None, &batch);
        Ok(())
    })
}

/// A round of 5 commands of all kinds.
fn round(number: u32) -> [Framed; 5] {
    let mut conditional = CommitBuilder::new();
    conditional.expect(KEYSPACE, b"never", Expect::Present).unwrap();
    conditional.put(KEYSPACE, b"never", b"refused").unwrap();
    [
        put(&format!("small {number}"), b"value"),
        put(&format!("large {}", number % 3), &vec![number as u8; LARGE]),
        append(number),
        framed(|out| encode_delete(out, KEYSPACE, format!("small {}", number / 2).as_bytes())),
        framed(|out| {
            conditional.encode(out);
            Ok(())
        }),
    ]
}

fn founded(disk: &SimDisk) -> SoloNode {
    let solo = SoloNode::open(disk, NODE);
    let created = solo.commit(&framed(|out| encode_create_keyspace(out, "keys", &KeyspaceConfig::default())));
    assert_eq!(created, Outcome::Keyspace { id: KEYSPACE, created: true });
    let created = solo.commit(&framed(|out| encode_create_stream(out, "stream", &StreamConfig::default())));
    assert_eq!(created, Outcome::Stream { id: STREAM, created: true });
    solo
}

fn fill(solo: &SoloNode, rounds: std::ops::Range<u32>) {
    rounds.flat_map(round).for_each(|command| {
        solo.commit(&command);
    });
}

fn id(term: u64, index: u64) -> RaftLogId {
    raft_log_id(term, index)
}

/// End of the process that first used a directory, before another process opens it.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    Kill,
    PowerLoss(u64),
}

impl Leave {
    fn solo(self, node: SoloNode, disk: &SimDisk) -> SimDisk {
        match self {
            Self::Close => {
                node.close();
                disk.kill_process()
            }
            Self::Kill => disk.kill_process(),
            Self::PowerLoss(seed) => disk.power_loss(seed),
        }
    }
}

/// Compares openraft's reported metrics with the expected ones.
fn assert_leads(node: &RaftNode, term: u64, last: RaftLogId, membership: RaftLogId) {
    let metrics = node.raft.metrics().borrow_watched().clone();
    assert_eq!(metrics.current_leader, Some(NODE));
    assert_eq!(metrics.vote, led_by(NODE, term));
    assert_eq!(metrics.last_log_index, Some(last.index));
    assert_eq!(metrics.last_applied, Some(last));
    assert_eq!(*metrics.membership_config.log_id(), Some(membership));
    assert_eq!(metrics.membership_config.membership().voter_ids().collect::<Vec<_>>(), [NODE]);
}

async fn opens_as_its_own(leave: Leave, checkpoint: bool) {
    eprintln!("{leave:?}, checkpoint {checkpoint}");
    let disk = SimDisk::new(1);
    let solo = founded(&disk);
    fill(&solo, 0..20);
    if checkpoint {
        solo.parts.backend().flush().unwrap();
        fill(&solo, 20..25);
    }
    let written = solo.parts.contents();
    let last = solo.parts.machine.applied().index.0;
    let disk = leave.solo(solo, &disk);

    let node = RaftNode::open_as_leader(&disk, NODE, &Router::default()).await;
    assert_leads(&node, 1, id(1, last), id(0, 0));
    assert_eq!(node.parts.contents(), written);

    let next = written.streams[0].0.next;
    let (at, outcome) = node.commit(&append(100)).await;
    assert_eq!(at, id(1, last + 1), "the term continues");
    let Outcome::Committed { revision, appends } = outcome else { panic!("{outcome:?}") };
    assert_eq!((revision, appends[0].first), (written.revision.next(), next));
    let (_, outcome) = node.commit(&put("after", b"raft")).await;
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    let contents = node.parts.contents();
    let disk = node.close(&disk).await;

    let solo = SoloNode::open(&disk, NODE);
    assert_eq!(solo.parts.contents(), contents);
    solo.commit(&put("after that", b"solo"));
    let applied = solo.parts.machine.applied();
    assert_eq!((applied.term, applied.index), (Term(1), Index(last + 3)));
}

#[test]
fn a_directory_that_solo_closed_opens_as_a_member() {
    run(async {
        opens_as_its_own(Leave::Close, false).await;
        opens_as_its_own(Leave::Close, true).await;
    });
}

#[test]
fn a_directory_that_solo_left_in_a_crash_opens_as_a_member() {
    run(async {
        opens_as_its_own(Leave::Kill, false).await;
        opens_as_its_own(Leave::Kill, true).await;
        for seed in 0..4 {
            opens_as_its_own(Leave::PowerLoss(seed), seed % 2 == 0).await;
        }
    });
}

/// Asserts that the learner has the same content as the leader.
async fn assert_same(leader: &RaftNode, learner: &RaftNode) -> Contents {
    let last = leader.raft.metrics().borrow_watched().last_log_index.unwrap();
    leader.wait_applied(last).await;
    learner.wait_applied(last).await;
    let contents = leader.parts.contents();
    assert_eq!(learner.parts.contents(), contents);
    contents
}

#[test]
fn a_learner_gets_everything_and_solo_takes_over_again() {
    run(async {
        let (disk, learner_disk) = (SimDisk::new(1), SimDisk::new(2));
        let solo = founded(&disk);
        fill(&solo, 0..10);
        solo.close();

        let router = Router::default();
        let node = RaftNode::open_as_leader(&disk, NODE, &router).await;
        let learner = RaftNode::open(&learner_disk, LEARNER, &router).await;
        node.raft.add_learner(LEARNER, NodeInfo::at("here"), true).await.unwrap();
        for command in (10..20).flat_map(round) {
            node.commit(&command).await;
        }
        let at_handover = assert_same(&node, &learner).await;
        let last = node.parts.machine.applied().index;
        let (disk, learner_disk) = (node.close(&disk).await, learner.close(&learner_disk).await);

        // The node is alone again. A learner may have received entries that were lost here, so a new term
        // begins.
        let solo = SoloNode::open(&disk, NODE);
        assert_eq!(solo.parts.contents(), at_handover);
        fill(&solo, 20..25);
        let applied = solo.parts.machine.applied();
        assert_eq!((applied.term, applied.index), (Term(2), Index(last.0 + 25)));
        let alone = solo.parts.contents();
        solo.close();

        let router = Router::default();
        let node = RaftNode::open_as_leader(&disk, NODE, &router).await;
        let metrics = node.raft.metrics().borrow_watched().clone();
        assert_eq!(metrics.vote, led_by(NODE, 2));
        assert_eq!(metrics.membership_config.membership().learner_ids().collect::<Vec<_>>(), [LEARNER]);
        assert_eq!(node.parts.contents(), alone);
        let learner = RaftNode::open(&learner_disk, LEARNER, &router).await;
        assert_eq!(assert_same(&node, &learner).await, alone);
    });
}

#[test]
fn a_learner_that_crashes_catches_up() {
    run(async {
        let (disk, learner_disk) = (SimDisk::new(1), SimDisk::new(2));
        let solo = founded(&disk);
        fill(&solo, 0..5);
        solo.close();

        let router = Router::default();
        let node = RaftNode::open_as_leader(&disk, NODE, &router).await;
        let learner = RaftNode::open(&learner_disk, LEARNER, &router).await;
        node.raft.add_learner(LEARNER, NodeInfo::at("here"), true).await.unwrap();
        assert_same(&node, &learner).await;
        learner.raft.shutdown().await.unwrap();
        learner.parts.backend().flush().unwrap();
        let learner_disk = learner_disk.power_loss(5);
        for command in (5..10).flat_map(round) {
            node.commit(&command).await;
        }
        let learner = RaftNode::open(&learner_disk, LEARNER, &router).await;
        assert_same(&node, &learner).await;
    });
}

#[test]
fn a_space_without_commands_changes_hands_too() {
    run(async {
        let disk = SimDisk::new(1);
        SoloNode::open(&disk, NODE).close();

        let node = RaftNode::open_as_leader(&disk, NODE, &Router::default()).await;
        // A leader without an entry of its term begins with a blank one.
        node.wait_applied(1).await;
        assert_leads(&node, 1, id(1, 1), id(0, 0));
        let disk = node.close(&disk).await;

        let solo = SoloNode::open(&disk, NODE);
        solo.commit(&framed(|out| encode_create_keyspace(out, "keys", &KeyspaceConfig::default())));
        let records: Vec<_> = solo.parts.log.records_from(Lsn::ZERO).unwrap().map(Result::unwrap).collect();
        let entries: Vec<_> = records
            .iter()
            .filter(|record| record.kind != RecordKind::Vote)
            .map(|record| (record.kind, record.term.0, record.index.0))
            .collect();
        assert_eq!(entries, [(RecordKind::Membership, 0, 0), (RecordKind::Blank, 1, 1), (RecordKind::Entry, 1, 2)]);
        solo.close();
    });
}

/// Frees all segments that contain only persisted records. Returns the last entry in them.
fn free_segments(solo: &SoloNode) -> LogId {
    let Parts { log, machine, .. } = &solo.parts;
    machine.backend().flush().unwrap();
    log.release(machine.backend().persisted().unwrap().lsn);
    let live: BTreeSet<_> =
        machine.liveness().into_iter().filter(|(_, live)| live.bytes() > 0).map(|(generation, _)| generation).collect();
    let dead: Vec<_> = log.freeable(SpaceTime(u64::MAX)).into_iter().map(|segment| segment.generation).collect();
    assert!(!dead.is_empty() && dead.iter().all(|generation| !live.contains(generation)), "only small values");
    let entries = dead.iter().flat_map(|generation| log.segment_records(*generation).unwrap()).map(Result::unwrap);
    let last = entries.filter(|record| record.kind == RecordKind::Entry).last().unwrap();
    let last = LogId { term: last.term, index: last.index };
    solo.solo.note_purged(last.term, last.index).unwrap();
    log.sync().unwrap();
    dead.into_iter().for_each(|generation| log.free(generation).unwrap());
    last
}

#[test]
fn membership_and_vote_outlive_the_segments_that_said_them() {
    run(async {
        let disk = SimDisk::new(1);
        let solo = founded(&disk);
        for number in 0..400 {
            solo.commit(&put(&format!("key {}", number % 50), &[number as u8; 2000]));
        }
        let purged = free_segments(&solo);
        assert!(purged.index > Index(100) && solo.parts.log.start() > Lsn(100));
        solo.commit(&put("last", b"one"));
        let written = solo.parts.contents();
        let last = solo.parts.machine.applied().index.0;
        let disk = disk.power_loss(3);

        let node = RaftNode::open_as_leader(&disk, NODE, &Router::default()).await;
        assert_leads(&node, 1, id(1, last), id(0, 0));
        assert_eq!(node.raft.metrics().borrow_watched().purged, Some(raft_log_id(purged.term.0, purged.index.0)));
        assert_eq!(node.parts.contents(), written);
        node.commit(&put("more", b"still")).await;
        let contents = node.parts.contents();
        let disk = node.close(&disk).await;

        let solo = SoloNode::open(&disk, NODE);
        assert_eq!(solo.parts.contents(), contents);
        solo.commit(&put("and", b"on"));
        assert_eq!(solo.parts.machine.applied().index, Index(last + 2));
        solo.close();
    });
}

#[test]
fn solo_refuses_a_directory_in_which_others_vote() {
    run(async {
        let (disk, other_disk) = (SimDisk::new(1), SimDisk::new(2));
        let solo = founded(&disk);
        fill(&solo, 0..2);
        solo.close();

        let router = Router::default();
        let node = RaftNode::open_as_leader(&disk, NODE, &router).await;
        let other = RaftNode::open(&other_disk, LEARNER, &router).await;
        node.raft.add_learner(LEARNER, NodeInfo::at("here"), true).await.unwrap();
        node.raft.change_membership([NODE, LEARNER], false).await.unwrap();
        node.commit(&put("both", b"agree")).await;
        assert_same(&node, &other).await;
        let (disk, other_disk) = (node.close(&disk).await, other.close(&other_disk).await);

        for disk in [&disk, &other_disk] {
            let refused = SoloNode::try_open(disk, NODE).err();
            assert!(matches!(&refused, Some(OpenError::NotAlone { voters }) if voters.len() == 2), "{refused:?}");
        }
    });
}

#[test]
fn reads_see_what_was_written() {
    // The other scenarios compare contents with each other; this one checks the contents themselves.
    let disk = SimDisk::new(1);
    let solo = founded(&disk);
    fill(&solo, 0..4);
    let contents = solo.parts.contents();
    let keys = &contents.keyspaces["keys"];
    let names: Vec<_> = keys.keys().map(|key| std::str::from_utf8(key).unwrap()).collect();
    assert_eq!(names, ["large 0", "large 1", "large 2", "small 2", "small 3"]);
    assert_eq!(keys[b"large 0".as_slice()].1, vec![3; LARGE]);
    let (info, records) = &contents.streams[0];
    assert_eq!((info.start, info.next), (Offset(0), Offset(8)));
    assert_eq!(records[6].payload, b"record 3");
    assert_eq!(records[7].key.as_deref(), Some(b"key".as_slice()));
    assert_eq!(contents.revision, Revision(16));
}
