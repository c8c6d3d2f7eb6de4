//! Databases that are members of a group: levels, time, maintenance, readers of the log, and comparison of states.

use std::{
    future::Future,
    ops::ControlFlow,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use thalweg_engine::{
    Health, Options, PutOptions, WatchKeys, WriteError,
    snapshot::{Compression, SnapshotOptions},
    types::{
        Action, Classified, Durability, Index, Lsn, NodeId, Offset, Revision, SpaceTime, Term,
        command::{CommandError, ExpectedOffset, Framed, StreamConfig, encode_append, encode_put},
    },
};
use thalweg_log::RecordKind;
use thalweg_replica::{Leadership, NodeInfo};

use crate::{
    cluster::{Group, Node, TERM, keeping},
    common::{batch, small},
};

/// Returns the payload of an entry that puts a key.
fn put(node: &Node, key: &[u8], value: &[u8]) -> Vec<u8> {
    let keyspace = node.db.find_keyspace("k").unwrap().id();
    let mut command = Framed::new();
    command.encode(|out| encode_put(out, keyspace, key, value)).unwrap();
    command.bytes().to_vec()
}

/// Founds a group whose entry 1 creates the keyspace `k`.
fn group(nodes: u64, options: &Options) -> Group {
    let group = Group::founded(nodes, options);
    let db = group.leader().db.to_async();
    group.run(async { db.keyspace("k").await }).unwrap();
    group
}

fn puts(group: &Group, numbers: std::ops::Range<u32>, value: &[u8]) {
    let keyspace = group.leader().db.find_keyspace("k").unwrap();
    let db = group.leader().db.to_async();
    for number in numbers {
        group.run(db.put(keyspace.id(), &number.to_be_bytes(), value, Durability::Os)).unwrap();
    }
}

#[test]
fn every_level_but_none_is_raised_to_quorum() {
    let group = group(2, &keeping());
    let db = &group.leader().db;
    for level in Durability::ALL {
        let raised = if level == Durability::None { level } else { Durability::Quorum };
        assert_eq!(db.with_durability(level).durability(), raised);
    }
    let keyspace = db.find_keyspace("k").unwrap().id();
    let ack = group.run(db.to_async().put(keyspace, b"a", b"1", Durability::Os)).unwrap();
    assert_eq!((ack.durability, db.visible_durability()), (Durability::Quorum, Durability::Quorum));
}

#[test]
fn without_a_leader_nothing_is_proposed_and_the_error_says_so() {
    let group = group(2, &keeping());
    let follower = &group.nodes[1];
    follower.parts.member.set_leadership(Leadership::Follower { leader: None, term: Term(2) });
    let error = follower.db.find_keyspace("k").unwrap().put(b"a", b"1").unwrap_err();
    assert_eq!((&error, error.code(), error.action()), (&WriteError::NoLeader, "no_leader", Action::Retry));
    assert!(!error.is_outcome_unknown() && !follower.parts.member.has_queued());
    let unknown = WriteError::OutcomeUnknown { reason: "the connection was lost".to_owned() };
    assert!(unknown.is_outcome_unknown() && unknown.to_string().contains("may or may not have happened"));
}

#[test]
fn reads_hide_by_the_time_of_entries_and_only_the_leader_proposes_one() {
    let group = group(3, &keeping());
    let db = group.leader().db.clone();
    let commit = PutOptions::lasting(Duration::from_secs(10)).commit(&db.find_keyspace("k").unwrap(), b"a", b"1");
    group.run(db.to_async().commit(&commit.unwrap(), Durability::Os)).unwrap();
    group.clock.advance(Duration::from_secs(11));
    let there = |node: &Node| node.db.find_keyspace("k").unwrap().get(b"a").unwrap().is_some();
    assert_eq!(group.nodes.iter().map(there).collect::<Vec<_>>(), [true; 3], "no entry has a later time");
    for follower in &group.nodes[1..] {
        let done = group.run(follower.db.maintain_async()).unwrap();
        assert_eq!((done.expired_keys, follower.parts.member.has_queued()), (0, false));
    }
    let done = group.run(db.maintain_async()).unwrap();
    assert_eq!(done.expired_keys, 1);
    assert_eq!(group.nodes.iter().map(there).collect::<Vec<_>>(), [false; 3]);
    // A node whose wall clock is wrong gives entries the time of the space.
    group.clock.step_wall(SpaceTime(5));
    puts(&group, 0..1, b"x");
    assert!(group.leader().parts.machine.applied().time > SpaceTime(1_700_000_000_000_000));
}

/// Entries that are in a member's log but not committed are shown by no reader of the log; nor are those that a
/// truncation voids.
#[test]
fn entries_are_shown_once_they_are_applied_and_void_ones_never() {
    let group = group(2, &keeping());
    puts(&group, 0..3, b"committed");
    let node = &group.nodes[1];
    let keyspace = node.db.find_keyspace("k").unwrap();
    let all = WatchKeys::Prefix(Vec::new());
    let mut behind = keyspace.watch(&all, Some(Revision(1))).unwrap();
    let mut live = keyspace.watch(&all, None).unwrap();
    let since = node.parts.machine.applied().lsn;
    let time = node.parts.machine.applied().time;
    let next = node.applied().next();
    let uncommitted = node.append(RecordKind::Entry, (TERM, next), time, &put(node, b"void", b"1"));
    node.append(RecordKind::Entry, (TERM, next.next()), time, &put(node, b"void", b"2"));
    let seen = |watch: &mut thalweg_engine::Watch| {
        while node.db.step() {}
        let mut keys = Vec::new();
        while let Some(batch) = watch.try_next().unwrap() {
            keys.extend(batch.events.iter().map(|event| event.key.to_vec()));
        }
        keys
    };
    let committed: Vec<_> = (0..3_u32).map(|number| number.to_be_bytes().to_vec()).collect();
    let increment = |db: &thalweg_engine::Database| {
        let options = SnapshotOptions {
            since: Some(Lsn(since.0 - 2)),
            compression: Compression::None,
            ..SnapshotOptions::default()
        };
        let bytes = db.snapshot(&options).unwrap().into_bytes().unwrap();
        let contains = |word: &[u8]| bytes.windows(word.len()).any(|found| found == word);
        (contains(b"committed"), contains(b"void"), contains(b"valid"))
    };
    assert_eq!((seen(&mut behind), seen(&mut live)), (committed, Vec::new()));
    assert_eq!(keyspace.get(b"void").unwrap(), None);
    assert_eq!(increment(&node.db), (true, false, false));
    // A new leader has another entry at that index.
    node.append(RecordKind::Truncate, (Term::ZERO, next), time, b"");
    let record = node.append(RecordKind::Entry, (Term(2), next), time, &put(node, b"valid", b"3"));
    assert_eq!((seen(&mut behind), seen(&mut live)), (Vec::new(), Vec::new()));
    node.parts.member.apply(node.record(record).index, Some(&node.record(record)), true, &mut Vec::new()).unwrap();
    assert_eq!((seen(&mut behind), seen(&mut live)), (vec![b"valid".to_vec()], vec![b"valid".to_vec()]));
    assert_eq!(increment(&node.db), (true, false, true));
    assert!(uncommitted < record && keyspace.get(b"void").unwrap().is_none());
    let mut anew = keyspace.watch(&all, Some(Revision(1))).unwrap();
    assert_eq!(seen(&mut anew).len(), 4, "those of the committed entries");
}

/// Returns the payload of an entry that appends a record to the stream `s`.
fn append(node: &Node, record: &[u8]) -> Vec<u8> {
    let stream = node.db.find_stream("s").unwrap().id();
    let mut command = Framed::new();
    command
        .encode(|out| {
            encode_append(out, stream, ExpectedOffset::Any, &batch(&[record.to_vec()]));
            Ok::<(), CommandError>(())
        })
        .unwrap();
    command.bytes().to_vec()
}

/// A tail of a stream waits while entries are not applied, also while a truncation voids them, and then reads the
/// records of the entries that took their place.
#[test]
fn a_tail_across_a_truncation_sees_nothing_void() {
    let group = group(2, &keeping());
    let db = group.leader().db.to_async();
    let (stream, _) = group.run(db.create_stream("s", &StreamConfig::default())).unwrap();
    group.run(db.append(stream.id(), None, &batch(&[b"committed".to_vec()]), Durability::Os)).unwrap();
    let node = &group.nodes[1];
    let stream = node.db.find_stream("s").unwrap();
    let woken = |tail: &mut (dyn Future<Output = bool> + Unpin)| {
        std::pin::Pin::new(tail).poll(&mut Context::from_waker(Waker::noop()))
    };
    let mut tail = Box::pin(node.db.to_async().wait_for(stream.id(), Offset(1)));
    let mut next = Offset::ZERO;
    let mut seen = || {
        while node.db.step() {}
        let page = stream.read(next, 100, 1 << 20).unwrap();
        next = page.next;
        let mut records = Vec::new();
        page.for_each(&mut |_, _, record| {
            records.push(record.payload.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        records
    };
    assert_eq!((seen(), woken(&mut tail)), (vec![b"committed".to_vec()], Poll::Pending));
    let (time, first) = (node.parts.machine.applied().time, node.applied().next());
    node.append(RecordKind::Entry, (TERM, first), time, &append(node, b"void"));
    node.append(RecordKind::Entry, (TERM, first.next()), time, &append(node, b"void too"));
    assert_eq!((seen(), woken(&mut tail)), (Vec::new(), Poll::Pending), "no majority has them");
    node.append(RecordKind::Truncate, (Term::ZERO, first), time, b"");
    let record = node.append(RecordKind::Entry, (Term(2), first), time, &append(node, b"valid"));
    assert_eq!((seen(), woken(&mut tail)), (Vec::new(), Poll::Pending), "it is not committed yet");
    node.parts.member.apply(first, Some(&node.record(record)), true, &mut Vec::new()).unwrap();
    assert_eq!((woken(&mut tail), seen()), (Poll::Ready(true), vec![b"valid".to_vec()]));
    // A tail from the beginning reads the same records.
    let page = stream.read(Offset::ZERO, 100, 1 << 20).unwrap();
    assert_eq!((page.next, page.high_watermark), (Offset(2), Offset(2)));
}

/// Runs maintenance on a node until a round has nothing left to free.
fn maintained(group: &Group, node: &Node) -> u64 {
    let mut freed = 0;
    for _ in 0..20 {
        while node.db.step() {}
        node.db.flush().unwrap();
        // The note of a purge waits for consensus, which this test stands in for.
        let round = group.run(node.db.maintain_async());
        let wanted = node.parts.member.purge_wanted();
        if node.parts.machine.purged().unwrap().map_or(Index::ZERO, |purged| purged.index) < wanted {
            node.append(RecordKind::Purged, (TERM, wanted), node.parts.machine.applied().time, b"");
            node.parts.member.apply_local().unwrap();
            continue;
        }
        match round.unwrap().freed_segments {
            0 => break,
            now => freed += now,
        }
    }
    freed
}

#[test]
fn log_is_kept_for_a_live_follower_within_history_bytes() {
    let options = Options { history_bytes: 700_000, ..small(thalweg_engine::BackendKind::Memory) };
    let group = group(1, &options);
    let leader = group.leader();
    puts(&group, 0..1500, &[7; 250]);
    let floor = Index(1000);
    leader.db.set_follower_floor(Some(floor));
    assert!(maintained(&group, leader) > 0, "the follower does not need the first entries");
    let first = leader.entries(Index::ZERO)[0].index;
    assert!(first > Index(1) && first <= floor, "{first}");
    // The follower falls behind for good: the log is kept within `history_bytes` only.
    puts(&group, 0..3000, &[8; 250]);
    assert!(maintained(&group, leader) > 0);
    let first = leader.entries(Index::ZERO)[0].index;
    assert!(first > floor, "{first}");
    let kept = leader.parts.log.segments().iter().map(|segment| u64::from(segment.bytes)).sum::<u64>();
    assert!(kept >= 700_000, "{kept}");
    leader.db.set_follower_floor(None);
    assert!(maintained(&group, leader) > 0, "no follower is left");
}

#[test]
fn log_with_entries_that_are_not_applied_is_not_freed() {
    let group = group(2, &small(thalweg_engine::BackendKind::Memory));
    puts(&group, 0..20, &[7; 250]);
    let node = &group.nodes[1];
    let (time, mut next) = (node.parts.machine.applied().time, node.applied().next());
    let first = next;
    for _ in 0..1000 {
        let payload = put(node, b"later", &[9; 250]);
        node.append(RecordKind::Entry, (TERM, next), time, &payload);
        next = next.next();
    }
    maintained(&group, node);
    assert_eq!(node.entries(first).len(), 1000, "none of them is gone");
    node.apply_all();
    assert_eq!(node.applied().next(), next);
    assert!(maintained(&group, node) > 0);
}

#[test]
fn members_compare_their_states_and_one_that_differs_stops_serving() {
    let group = group(3, &keeping());
    puts(&group, 0..1100, &[7; 20]);
    let marks: Vec<_> = group.nodes.iter().map(|node| node.db.hash_marks()).collect();
    assert_eq!((marks[0].len(), marks[0][0].index), (1, Index(1024)));
    assert!(marks.iter().all(|found| *found == marks[0]));
    // The last node applies something else at an index.
    let odd = &group.nodes[2];
    let (index, time) = (odd.applied().next(), odd.parts.machine.applied().time);
    let payload = put(odd, &3_u32.to_be_bytes(), b"same");
    for (node, payload) in group.nodes.iter().zip([&payload, &payload, &put(odd, &3_u32.to_be_bytes(), b"else")]) {
        let lsn = node.append(RecordKind::Entry, (TERM, index), time, payload);
        node.parts.member.apply(index, Some(&node.record(lsn)), true, &mut Vec::new()).unwrap();
    }
    let leader = &group.leader().db;
    group.run(leader.to_async().request_digest()).unwrap();
    let at = group.leader().applied();
    for node in &group.nodes {
        (0..3).for_each(|_| _ = group.run(node.db.maintain_async()).unwrap());
    }
    let digests: Vec<_> = group.nodes.iter().map(|node| node.db.digest_at(at).expect("computed")).collect();
    assert_eq!(digests[0].state.digest, digests[1].state.digest);
    assert_ne!(digests[0].state.digest, digests[2].state.digest);
    assert_ne!(digests[0].state.applied.running_hash, digests[2].state.applied.running_hash);
    assert_eq!(leader.digest_at(at.next()), None);

    let keyspace = odd.db.find_keyspace("k").unwrap();
    let mut watch = keyspace.watch(&WatchKeys::Prefix(Vec::new()), None).unwrap();
    assert_eq!((odd.db.health(), odd.db.stopped_serving()), (Health::Good, None));
    odd.db.stop_serving("its digest differs at entry 1102");
    odd.db.stop_serving("another reason");
    let reason = "its digest differs at entry 1102".to_owned();
    assert_eq!(odd.db.stopped_serving().as_ref(), Some(&reason));
    assert_eq!(odd.db.health(), Health::StoppedServing { reason: reason.clone() });
    let error = keyspace.put(b"a", b"1").unwrap_err();
    assert_eq!((&error, error.action()), (&WriteError::StoppedServing { reason }, Action::Stop));
    assert_eq!(watch.try_next().unwrap_err().code(), "closed");
    odd.db.stop_serving_for_graver("it was removed");
    assert_eq!(odd.db.stopped_serving().as_deref(), Some("it was removed"));
    assert_eq!(odd.db.health(), Health::StoppedServing { reason: "it was removed".to_owned() });
    let error = keyspace.put(b"a", b"1").unwrap_err();
    assert_eq!(error, WriteError::StoppedServing { reason: "it was removed".to_owned() });
    let other = &group.nodes[1].db;
    other.stop_serving_for_graver("it was removed");
    assert_eq!(other.stopped_serving().as_deref(), Some("it was removed"), "it need not have stopped before");
}

/// The next leader has another clock, and looks for the work itself.
#[test]
fn a_command_of_maintenance_is_not_passed_to_the_next_leader() {
    let group = group(2, &keeping());
    let leader = group.leader();
    let keyspace = leader.db.find_keyspace("k").unwrap();
    let commit = PutOptions::lasting(Duration::from_secs(10)).commit(&keyspace, b"a", b"1");
    group.run(leader.db.to_async().commit(&commit.unwrap(), Durability::Os)).unwrap();
    group.clock.advance(Duration::from_secs(11));
    {
        let mut round = pin!(leader.db.maintain_async());
        let mut poll = || round.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && leader.parts.member.has_queued());
        let next = Some((NodeId(2), NodeInfo::at("second:1")));
        leader.parts.member.set_leadership(Leadership::Follower { leader: next, term: TERM.next() });
        assert!(leader.parts.member.take_batch().is_none(), "nothing can be forwarded");
        let Poll::Ready(done) = poll() else { panic!("it waits for something else") };
        assert_eq!(done.unwrap().expired_keys, 0, "the end of a leadership is no failure");
    }
    assert!(keyspace.get(b"a").unwrap().is_some());
    leader.parts.member.set_leadership(Leadership::Leader { term: TERM.next() });
    assert_eq!(group.run(leader.db.maintain_async()).unwrap().expired_keys, 1);
}

#[test]
fn streams_are_trimmed_by_the_leader() {
    let group = group(2, &keeping());
    let db = group.leader().db.to_async();
    let config = StreamConfig { max_age: Some(Duration::from_secs(5)), ..StreamConfig::default() };
    let (stream, _) = group.run(db.create_stream("s", &config)).unwrap();
    for number in 0..3_u8 {
        group.run(db.append(stream.id(), None, &batch(&[vec![number]]), Durability::Os)).unwrap();
    }
    let read = |node: &Node| {
        let stream = node.db.find_stream("s").unwrap();
        let mut payloads = Vec::new();
        let page = stream.read(stream.info().unwrap().start, 10, 1000).unwrap();
        page.for_each(&mut |_, _, record| {
            payloads.push(record.payload[0]);
            ControlFlow::Continue(())
        })
        .unwrap();
        payloads
    };
    assert_eq!((read(group.leader()), read(&group.nodes[1])), (vec![0, 1, 2], vec![0, 1, 2]));
    group.clock.advance(Duration::from_secs(60));
    let follower = &group.nodes[1];
    assert_eq!(group.run(follower.db.maintain_async()).unwrap().trimmed_streams, 0);
    assert_eq!(group.run(group.leader().db.maintain_async()).unwrap().trimmed_streams, 1);
    assert_eq!((read(group.leader()), read(follower)), (Vec::<u8>::new(), Vec::new()));
}
