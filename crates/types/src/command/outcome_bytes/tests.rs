use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;

use crate::{
    clock::SpaceTime,
    codec::Malformed,
    command::{
        AppendedAt, FailedCondition, OperationError, OperationResult, Outcome, ProducerRefusal, ReadValue, ScanPage,
        ScannedItem, StreamLimit, Transacted,
        groups::{DeliveredRun, Fetched, GroupOutcome, Lapsed, OffsetRun},
    },
    ids::{Attempt, GroupId, KeyspaceId, LeaseId, Offset, Revision, StreamId},
    reply::Reply,
};

const AT: AppendedAt = AppendedAt { stream: StreamId(1), first: Offset(2), count: 3 };
const AT_HEX: &str = "01000000 0200000000000000 03000000";
const ID: &str = "05000000";
const NUMBER: &str = "0600000000000000";

fn transacted(failed: Option<FailedCondition>, results: Vec<OperationResult>) -> Outcome {
    Outcome::Transacted(Box::new(Transacted { failed, revision: Revision(6), wrote: true, results }))
}

fn result(result: OperationResult, hex: &str) -> (Outcome, String) {
    (transacted(None, vec![result]), format!("01 00 {NUMBER} 01 01000000 {hex}"))
}

fn plain() -> Vec<(Outcome, String)> {
    let committed = |appends| Outcome::Committed { revision: Revision(6), appends };
    let refused = |refusal| Outcome::ProducerRefused { stream: StreamId(5), refusal };
    let limit = |limit| Outcome::OverStreamLimit { stream: StreamId(5), limit, max: 6, got: 6 };
    let failed = |error| Outcome::OperationFailed { operation: 5, error };
    vec![
        (committed(vec![]), format!("00 {NUMBER} 00000000")),
        (committed(vec![AT]), format!("00 {NUMBER} 01000000 {AT_HEX}")),
        (failed(OperationError::NotANumber), format!("02 {ID} 00")),
        (failed(OperationError::HoldsCollection), format!("02 {ID} 01")),
        (failed(OperationError::Overflow { value: 6, delta: -1 }), format!("02 {ID} 02 {NUMBER} ffffffffffffffff")),
        (failed(OperationError::ResultTooLarge { limit: 6 }), format!("02 {ID} 03 {NUMBER}")),
        (Outcome::ConditionFailed { condition: 5, actual: None }, format!("03 {ID} 00")),
        (Outcome::ConditionFailed { condition: 5, actual: Some(Revision(6)) }, format!("03 {ID} 01 {NUMBER}")),
        (Outcome::Duplicate { revision: Revision(6), appends: vec![AT] }, format!("04 {NUMBER} 01000000 {AT_HEX}")),
        (limit(StreamLimit::RecordBytes), format!("05 {ID} 00 {NUMBER} {NUMBER}")),
        (limit(StreamLimit::BatchBytes), format!("05 {ID} 01 {NUMBER} {NUMBER}")),
        (refused(ProducerRefusal::DuplicateTooOld { oldest: 6 }), format!("06 {ID} 00 {NUMBER}")),
        (refused(ProducerRefusal::SequenceGap { expected: 6 }), format!("06 {ID} 01 {NUMBER}")),
        (refused(ProducerRefusal::Fenced { epoch: 5 }), format!("06 {ID} 02 {ID}")),
        (refused(ProducerRefusal::Unknown), format!("06 {ID} 03")),
        (refused(ProducerRefusal::Mixed), format!("06 {ID} 04")),
        (Outcome::Producer { epoch: 5 }, format!("07 {ID}")),
        (Outcome::OffsetConflict { stream: StreamId(5), next: Offset(6) }, format!("08 {ID} {NUMBER}")),
        (Outcome::Keyspace { id: KeyspaceId(5), created: true }, format!("09 {ID} 01")),
        (Outcome::Stream { id: StreamId(5), created: false }, format!("0a {ID} 00")),
        (Outcome::Dropped { revision: Revision(6) }, format!("0b {NUMBER}")),
        (Outcome::Done, "0c".to_owned()),
        (Outcome::Reclaimed { entries: 5, more: true }, format!("0d {ID} 01")),
        (
            Outcome::Lease { id: LeaseId(6), ttl: Duration::from_micros(6), deadline: SpaceTime(6) },
            format!("0e {NUMBER} {NUMBER} {NUMBER}"),
        ),
        (Outcome::NoSuchLease(LeaseId(6)), format!("0f {NUMBER}")),
        (Outcome::LeaseExists(LeaseId(6)), format!("10 {NUMBER}")),
        (Outcome::Expired { keys: 5, rows: 5, more: false }, format!("11 {ID} {ID} 00")),
        (Outcome::NoSuchKeyspace(KeyspaceId(5)), format!("12 {ID}")),
        (Outcome::NoSuchStream(StreamId(5)), format!("13 {ID}")),
        (Outcome::TooMany { what: "streams", limit: 6 }, format!("14 {NUMBER}")),
        (Outcome::CannotConfigure { what: "because" }, "15".to_owned()),
        (Outcome::Malformed(Malformed { at: 7, expected: "less" }), "18".to_owned()),
        (Outcome::Version { in_force: 5 }, format!("19 {ID}")),
        (Outcome::VersionNotInForce { needed: 5, in_force: 5 }, format!("1a {ID} {ID}")),
        (Outcome::TooExpensive { limit: 6 }, format!("1b {NUMBER}")),
    ]
}

fn of_transactions() -> Vec<(Outcome, String)> {
    let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"vw"));
    let item = |value| ScannedItem { key: key.clone(), revision: Revision(6), value };
    let page = ScanPage { items: vec![item(None), item(Some(value.clone()))], after: Some(key.clone()) };
    let scanned = format!("08 02000000 01000000 6b {NUMBER} 00 01000000 6b {NUMBER} 01 02000000 7677 01 01000000 6b");
    let failed = Some(FailedCondition { condition: 5, actual: Some(Revision(6)) });
    vec![
        (transacted(failed, vec![]), format!("01 01 {ID} 01 {NUMBER} {NUMBER} 01 00000000")),
        result(OperationResult::Put, "00"),
        result(OperationResult::Deleted { existed: true }, "01 01"),
        result(OperationResult::Appended(AT), &format!("02 {AT_HEX}")),
        result(OperationResult::Added { value: 6 }, &format!("03 {NUMBER}")),
        result(OperationResult::Touched { existed: false }, "04 00"),
        result(OperationResult::PrefixDeleted { keys: None }, "05 00"),
        result(OperationResult::PrefixDeleted { keys: Some(6) }, &format!("05 01 {NUMBER}")),
        result(OperationResult::Settled { records: 5 }, &format!("06 {ID}")),
        result(OperationResult::Got(None), "07 00"),
        result(
            OperationResult::Got(Some(ReadValue { revision: Revision(6), value })),
            &format!("07 01 {NUMBER} 02000000 7677"),
        ),
        result(OperationResult::Scanned(page), &scanned),
    ]
}

fn of_groups() -> Vec<(Outcome, String)> {
    let run = OffsetRun { first: Offset(6), count: 5 };
    let lapsed = vec![Lapsed { attempt: Attempt(6), run: None }, Lapsed { attempt: Attempt(6), run: Some(run) }];
    let fetched = Fetched {
        attempt: Attempt(6),
        deadline: SpaceTime(6),
        deliveries: vec![DeliveredRun { run, deliveries: 5 }],
        cursor: Offset(6),
        dead: true,
    };
    let lapsed_attempt = GroupOutcome::AttemptLapsed { group: GroupId(5), attempt: Attempt(6) };
    [
        (GroupOutcome::Created { id: GroupId(5), created: true }, format!("00 {ID} 01")),
        (GroupOutcome::Done, "01".to_owned()),
        (
            GroupOutcome::Fetched(Box::new(fetched)),
            format!("02 {NUMBER} {NUMBER} 01000000 {NUMBER} {ID} {ID} {NUMBER} 01"),
        ),
        (
            GroupOutcome::Settled { settled: 5, lapsed },
            format!("03 {ID} 02000000 {NUMBER} 00 {NUMBER} 01 {NUMBER} {ID}"),
        ),
        (
            GroupOutcome::Extended { deadline: SpaceTime(6), lapsed: vec![Attempt(6)] },
            format!("04 {NUMBER} 01000000 {NUMBER}"),
        ),
        (GroupOutcome::Sought { cursor: Offset(6) }, format!("05 {NUMBER}")),
        (GroupOutcome::NoSuchGroup(GroupId(5)), format!("06 {ID}")),
        (lapsed_attempt, format!("07 {ID} {NUMBER}")),
        (GroupOutcome::BadConfig { what: "because" }, "08".to_owned()),
    ]
    .map(|(outcome, hex)| (Outcome::Group(outcome), format!("16 {hex}")))
    .to_vec()
}

fn of_redis() -> Vec<(Outcome, String)> {
    let pairs = || vec![(Reply::Ok, Reply::Null)];
    let replies = [
        (Reply::Ok, "00"),
        (Reply::Simple("QUEUED"), "01 06000000 515545554544"),
        (Reply::error("ERR no such key"), "02 03000000 455252"),
        (Reply::Integer(-1), "03 ffffffffffffffff"),
        (Reply::bulk(b"vw"), "04 02000000 7677"),
        (Reply::Null, "05"),
        (Reply::NullArray, "06"),
        (Reply::Array(vec![Reply::Ok]), "07 01000000 00"),
        (Reply::Map(pairs()), "08 01000000 00 05"),
        (Reply::Pairs(pairs()), "09 01000000 00 05"),
        (Reply::FlatPairs(pairs()), "0a 01000000 00 05"),
        (Reply::Set(vec![Reply::Ok]), "0b 01000000 00"),
        (Reply::Push(vec![]), "0c 00000000"),
    ];
    let of_reply = |(reply, hex): (Reply, &str)| (Outcome::Redis(Some(vec![reply])), format!("17 01 01000000 {hex}"));
    let mut all: Vec<_> = replies.into_iter().map(of_reply).collect();
    all.push((Outcome::Redis(None), "17 00".to_owned()));
    all
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn the_bytes_of_every_outcome_are_pinned() {
    let mut seen = BTreeSet::new();
    for (outcome, hex) in [plain(), of_transactions(), of_groups(), of_redis()].concat() {
        let mut bytes = Vec::new();
        outcome.encode_stable(&mut bytes);
        assert_eq!(bytes, bytes_of(&hex), "{outcome:?}");
        seen.insert(bytes[0]);
    }
    assert_eq!(seen, (0..=27).collect(), "every variant has an example");
}

#[test]
fn the_wording_of_a_refusal_does_not_count() {
    let bytes = |outcome: Outcome| {
        let mut bytes = Vec::new();
        outcome.encode_stable(&mut bytes);
        bytes
    };
    let error = |text: &'static str| bytes(Outcome::Redis(Some(vec![Reply::error(text)])));
    assert_eq!(error("WRONGTYPE one wording"), error("WRONGTYPE another"));
    assert_ne!(error("WRONGTYPE one wording"), error("ERR one wording"));
    let malformed = |at, expected| bytes(Outcome::Malformed(Malformed { at, expected }));
    assert_eq!(malformed(1, "a"), malformed(2, "b"));
}
