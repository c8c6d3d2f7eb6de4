//! Producers whose append has an unknown outcome while the group loses its leader.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use thalweg_engine::{
    Ack, AsyncProducer, Producer, Stream, WriteError,
    types::{
        Classified as _, Durability, Offset,
        command::{CommitBuilder, ExpectedOffset, StreamConfig},
        record::RecordBatch,
    },
};
use thalweg_replica::{Leadership, ProposeError};

use crate::{
    cluster::{Group, TERM, keeping},
    common::{batch, pause, read_all},
};

const STREAM: &str = "s";

fn group() -> (Group, Stream) {
    let group = Group::founded(2, &keeping());
    let db = group.leader().db.to_async();
    let (stream, _) = group.run(db.create_stream(STREAM, &StreamConfig::default())).unwrap();
    (group, stream)
}

fn record(name: &str) -> RecordBatch {
    batch(&[name.as_bytes().to_vec()])
}

fn records(group: &Group) -> Vec<String> {
    let (_, payloads) = read_all(&group.leader().db, STREAM).unwrap();
    payloads.into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect()
}

fn without_leader(group: &Group) {
    group.leader().parts.member.set_leadership(Leadership::Follower { leader: None, term: TERM });
}

/// Takes the queued command, and commits it or not. Its proposer does not learn which of both happened.
fn leave_open(group: &Group, is_committed: bool) {
    let member = &group.leader().parts.member;
    let command = member.take_batch().expect("a command");
    if is_committed {
        let record = group.write(command.payload());
        member.apply(record.index, Some(&record), true, &mut Vec::new()).unwrap();
        for node in &group.nodes[1..] {
            let received = node.receive(&record);
            node.parts.member.apply(received.index, Some(&received), true, &mut Vec::new()).unwrap();
        }
    }
    command.fail(&ProposeError::OutcomeUnknown { reason: "the leader was lost".to_owned() });
}

fn is_unknown(outcome: Result<Ack, WriteError>) -> bool {
    outcome.is_err_and(|error| error.is_outcome_unknown())
}

fn append_with_unknown_outcome(group: &Group, producer: &mut AsyncProducer, name: &str, is_committed: bool) {
    let batch = record(name);
    let mut append = pin!(producer.append(&batch, ExpectedOffset::Any));
    let mut poll = || append.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    leave_open(group, is_committed);
    let Poll::Ready(outcome) = poll() else { panic!("the command has ended") };
    assert!(is_unknown(outcome));
}

#[test]
fn an_append_of_unknown_outcome_is_sent_again_until_the_state_machine_answers() {
    for is_committed in [true, false] {
        let (group, stream) = group();
        let db = group.leader().db.to_async();
        let mut producer = group.run(db.producer(stream.id(), "p", Durability::Os)).unwrap();
        append_with_unknown_outcome(&group, &mut producer, "first", is_committed);
        without_leader(&group);
        for _ in 0..2 {
            let refused = group.run(producer.append(&record("second"), ExpectedOffset::Any));
            assert_eq!(refused.unwrap_err(), WriteError::NoLeader);
        }
        group.lead();
        let ack = group.run(producer.append(&record("second"), ExpectedOffset::Any)).unwrap();
        assert_eq!((ack.appends[0].first, records(&group)), (Offset(1), vec!["first".to_owned(), "second".to_owned()]));
        // The number of an append that was refused the first time is free for another one.
        without_leader(&group);
        let refused = group.run(producer.append(&record("third"), ExpectedOffset::Any));
        assert_eq!(refused.unwrap_err(), WriteError::NoLeader);
        group.lead();
        group.run(producer.append(&record("fourth"), ExpectedOffset::Any)).unwrap();
        assert_eq!(records(&group), ["first", "second", "fourth"]);
    }
}

#[test]
fn an_append_that_the_state_machine_refuses_is_forgotten() {
    let (group, stream) = group();
    let db = group.leader().db.to_async();
    let mut producer = group.run(db.producer(stream.id(), "p", Durability::Os)).unwrap();
    append_with_unknown_outcome(&group, &mut producer, "first", false);
    // Another instance of the producer.
    group.run(db.producer(stream.id(), "p", Durability::Os)).unwrap();
    assert_eq!(group.run(producer.settle()).unwrap_err().code(), "producer_fenced");
    assert_eq!(group.run(producer.settle()).unwrap(), None);
}

/// Runs a blocking append in a thread of its own, while `serve` takes its command.
fn append(producer: &mut Producer, name: &str, serve: impl FnOnce()) -> Result<Ack, WriteError> {
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| producer.append(&record(name)));
        serve();
        appending.join().unwrap()
    })
}

#[test]
fn a_blocking_producer_sends_an_append_of_unknown_outcome_again_as_well() {
    let (group, stream) = group();
    let until_queued = || {
        while !group.leader().parts.member.has_queued() {
            pause();
        }
    };
    let db = group.leader().db.to_async();
    let epoch = group.run(db.producer(stream.id(), "p", Durability::Os)).unwrap().epoch();
    let mut producer = stream.producer_at("p", epoch, 0);
    let outcome = append(&mut producer, "first", || {
        until_queued();
        leave_open(&group, true);
    });
    assert!(is_unknown(outcome));
    without_leader(&group);
    assert_eq!(producer.append(&record("second")).unwrap_err(), WriteError::NoLeader);
    let mut commit = CommitBuilder::new();
    let added = producer.append_to(&mut commit, &record("second"), ExpectedOffset::Any);
    assert!(added.is_err_and(|error| error.is_outcome_unknown()), "the number belongs to the first append");
    group.lead();
    let outcome = append(&mut producer, "second", || {
        // The first append, and then the second. One commit can take both.
        while records(&group).len() < 2 {
            if group.leader().parts.member.has_queued() {
                group.commit();
            } else {
                pause();
            }
        }
    });
    assert_eq!(outcome.unwrap().appends[0].first, Offset(1));
    assert_eq!(records(&group), ["first", "second"]);
}
