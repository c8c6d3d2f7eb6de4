//! Tests of consumer groups, one behaviour each.

use std::time::Duration;

use thalweg_state::{groups::GroupReady, machine::MachineOptions};
use thalweg_types::{
    Attempt, GroupId, KeyspaceId, Offset, SpaceTime, StreamId,
    command::{
        self, CommitBuilder, Outcome, StreamConfig,
        groups::{
            self, Fetched, GroupConfig, GroupOrder, GroupOutcome, Lapsed, OffsetRun, Redelivery, Settlement, key_hash,
        },
    },
    limits::{MAX_GROUP_MEMBERS, MAX_GROUP_PENDING, MAX_GROUPS},
    record::RecordBatch,
};

use crate::support::{Bench, command};

pub const STREAM: StreamId = StreamId(1);
pub const OUT: StreamId = StreamId(2);
pub const KS: KeyspaceId = KeyspaceId(1);
pub const GROUP: GroupId = GroupId(1);
/// Microseconds after which attempts lapse.
const DEADLINE: u64 = 1_000_000;

pub fn config() -> GroupConfig {
    GroupConfig { ack_deadline: Duration::from_micros(DEADLINE), ..GroupConfig::default() }
}

fn bench_with(config: &GroupConfig, records: u64) -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let outcomes = bench.run(
        1,
        &[
            command(|out| command::encode_create_keyspace(out, "users", &Default::default()).unwrap()),
            command(|out| command::encode_create_stream(out, "jobs", &StreamConfig::default()).unwrap()),
            command(|out| command::encode_create_stream(out, "results", &StreamConfig::default()).unwrap()),
            append(STREAM, records),
            command(|out| groups::encode_create_group(out, STREAM, "g", Some(Offset(0)), config).unwrap()),
        ],
    );
    assert_eq!(outcomes[4], Outcome::Group(GroupOutcome::Created { id: GROUP, created: true }));
    bench
}

pub fn bench(records: u64) -> Bench {
    bench_with(&config(), records)
}

pub fn append(stream: StreamId, records: u64) -> Vec<u8> {
    let mut batch = RecordBatch::new();
    (0..records).for_each(|_| batch.push_payload(b"payload").unwrap());
    command(|out| command::encode_append(out, stream, None, &batch))
}

pub fn fetch_command(max: u32, member: &str) -> Vec<u8> {
    command(|out| groups::encode_fetch(out, GROUP, max, Offset(0), &[], member).unwrap())
}

pub fn group_outcome(outcome: &Outcome) -> &GroupOutcome {
    match outcome {
        Outcome::Group(outcome) => outcome,
        other => panic!("not of a group: {other:?}"),
    }
}

pub fn fetched(outcome: &Outcome) -> Fetched {
    match group_outcome(outcome) {
        GroupOutcome::Fetched(fetched) => (**fetched).clone(),
        other => panic!("not a fetch: {other:?}"),
    }
}

pub fn fetch(bench: &mut Bench, time: u64, max: u32) -> Fetched {
    fetched(&bench.run(time, &[fetch_command(max, "m")])[0])
}

/// Returns the deliveries as (first, count, deliveries).
pub fn of(fetched: &Fetched) -> Vec<(u64, u32, u32)> {
    fetched.deliveries.iter().map(|of| (of.run.first.0, of.run.count, of.deliveries)).collect()
}

fn run(first: u64, count: u32) -> OffsetRun {
    OffsetRun { first: Offset(first), count }
}

pub fn some(attempt: Attempt, runs: &[(u64, u32)]) -> Settlement {
    Settlement { attempt, runs: runs.iter().map(|&(first, count)| run(first, count)).collect() }
}

fn settled(outcome: &Outcome) -> (u32, Vec<Lapsed>) {
    match group_outcome(outcome) {
        GroupOutcome::Settled { settled, lapsed } => (*settled, lapsed.clone()),
        other => panic!("not settled: {other:?}"),
    }
}

fn ack(bench: &mut Bench, time: u64, settlements: &[Settlement]) -> (u32, Vec<Lapsed>) {
    settled(&bench.run(time, &[command(|out| groups::encode_ack(out, GROUP, settlements).unwrap())])[0])
}

fn nack(bench: &mut Bench, time: u64, again: Redelivery, settlements: &[Settlement]) -> (u32, Vec<Lapsed>) {
    let nack = command(|out| groups::encode_nack(out, GROUP, again, "broken", settlements).unwrap());
    settled(&bench.run(time, &[nack])[0])
}

fn seek(bench: &mut Bench, time: u64, offset: Option<Offset>) -> Outcome {
    bench.run(time, &[command(|out| groups::encode_seek(out, GROUP, offset))]).remove(0)
}

pub fn info(bench: &Bench) -> thalweg_types::info::Group {
    bench.machine.group(GROUP, bench.machine.applied().time).unwrap().unwrap()
}

pub fn later(delay: u64) -> Redelivery {
    Redelivery::After(Duration::from_micros(delay))
}

#[test]
fn members_share_a_stream_and_each_record_is_delivered_once() {
    let mut bench = bench(10);
    let outcomes = bench.run(10, &[fetch_command(4, "a"), fetch_command(4, "b"), fetch_command(4, "a")]);
    let [a, b, rest] = [0, 1, 2].map(|at| fetched(&outcomes[at]));
    assert_eq!([of(&a), of(&b), of(&rest)], [vec![(0, 4, 1)], vec![(4, 4, 1)], vec![(8, 2, 1)]]);
    assert!(a.attempt < b.attempt && b.attempt < rest.attempt);
    assert_eq!(a.deadline, SpaceTime(10 + DEADLINE));
    let shown = info(&bench);
    assert_eq!((shown.cursor, shown.floor, shown.pending, shown.in_flight), (Offset(10), Offset(0), 10, 10));
    let members: Vec<_> = shown.members.iter().map(|m| (m.name.as_str(), m.in_flight, m.attempts)).collect();
    assert_eq!(members, [("a", 6, 2), ("b", 4, 1)]);
    assert_eq!(of(&fetch(&mut bench, 11, 4)), []);
}

#[test]
fn acks_of_ranges_leave_the_rest_pending() {
    let mut bench = bench(10);
    let attempt = fetch(&mut bench, 10, 10).attempt;
    assert_eq!(ack(&mut bench, 11, &[some(attempt, &[(2, 3), (9, 1)])]), (4, vec![]));
    assert_eq!((info(&bench).pending, info(&bench).floor), (6, Offset(0)));
    let again = ack(&mut bench, 12, &[some(attempt, &[(0, 4)])]);
    assert_eq!(again, (2, vec![Lapsed { attempt, run: Some(run(2, 2)) }]), "two of the records were acked before");
    assert_eq!(info(&bench).floor, Offset(5));
    assert_eq!(ack(&mut bench, 13, &[Settlement::all(attempt)]), (4, vec![]));
    assert_eq!((info(&bench).pending, info(&bench).floor, info(&bench).acked), (0, Offset(10), 10));
    assert_eq!(ack(&mut bench, 14, &[Settlement::all(attempt)]), (0, vec![Lapsed { attempt, run: None }]));
}

#[test]
fn a_fetch_and_an_ack_of_a_batch_write_two_rows_each() {
    let mut bench = bench(1000);
    fetch(&mut bench, 10, 1);
    let before = bench.backend.dump();
    let attempt = fetch(&mut bench, 11, 100).attempt;
    let after = bench.backend.dump();
    let changed =
        |a: &crate::support::Map, b: &crate::support::Map| b.iter().filter(|(k, v)| a.get(*k) != Some(v)).count();
    assert_eq!((changed(&before, &after), after.len() - before.len()), (2, 1), "the head and one parcel");
    ack(&mut bench, 12, &[Settlement::all(attempt)]);
    let last = bench.backend.dump();
    assert_eq!((changed(&after, &last), after.len() - last.len()), (1, 1), "the head, and the parcel is gone");
}

#[test]
fn what_is_not_acked_in_time_is_delivered_again_and_the_old_attempt_is_void() {
    let mut bench = bench(3);
    let first = fetch(&mut bench, 10, 3);
    ack(&mut bench, 11, &[some(first.attempt, &[(1, 1)])]);
    assert_eq!(of(&fetch(&mut bench, 9 + DEADLINE, 3)), [], "not yet");
    let due = bench.machine.group_ready(GROUP, SpaceTime(9 + DEADLINE)).unwrap();
    assert_eq!(due, GroupReady::At(Some(SpaceTime(10 + DEADLINE))));
    assert_eq!(bench.machine.group_ready(GROUP, SpaceTime(10 + DEADLINE)).unwrap(), GroupReady::Now);
    let lapsed = vec![Lapsed { attempt: first.attempt, run: None }];
    assert_eq!(ack(&mut bench, 10 + DEADLINE, &[Settlement::all(first.attempt)]), (0, lapsed), "it had lapsed before");
    let second = fetch(&mut bench, 10 + DEADLINE, 3);
    assert_eq!(of(&second), [(0, 1, 2), (2, 1, 2)]);
    assert_eq!(ack(&mut bench, 11 + DEADLINE, &[Settlement::all(second.attempt)]).0, 2);
    assert_eq!(info(&bench).floor, Offset(3));
}

#[test]
fn a_small_fetch_takes_a_part_of_what_lapsed() {
    let mut bench = bench(5);
    fetch(&mut bench, 10, 5);
    let part = fetch(&mut bench, 10 + DEADLINE, 2);
    let rest = fetch(&mut bench, 10 + DEADLINE, 9);
    assert_eq!([of(&part), of(&rest)], [vec![(0, 2, 2)], vec![(2, 3, 2)]]);
}

#[test]
fn extending_moves_the_deadline() {
    let mut bench = bench(2);
    let attempt = fetch(&mut bench, 10, 2).attempt;
    let extend = |by| command(|out| groups::encode_extend(out, GROUP, Duration::from_micros(by), &[attempt]).unwrap());
    let outcome = bench.run(DEADLINE, &[extend(500)]).remove(0);
    let deadline = SpaceTime(DEADLINE + 500);
    assert_eq!(outcome, Outcome::Group(GroupOutcome::Extended { deadline, lapsed: vec![] }));
    assert_eq!(of(&fetch(&mut bench, 10 + DEADLINE, 2)), []);
    assert_eq!(of(&fetch(&mut bench, DEADLINE + 500, 2)), [(0, 2, 2)]);
    let outcome = bench.run(DEADLINE + 501, &[extend(500)]).remove(0);
    let deadline = SpaceTime(DEADLINE + 1001);
    assert_eq!(outcome, Outcome::Group(GroupOutcome::Extended { deadline, lapsed: vec![attempt] }));
}

#[test]
fn a_nack_gives_back_after_its_delay() {
    let mut bench = bench(4);
    let attempt = fetch(&mut bench, 10, 4).attempt;
    assert_eq!(nack(&mut bench, 11, later(100), &[some(attempt, &[(1, 2)])]), (2, vec![]));
    assert_eq!(nack(&mut bench, 11, later(0), &[some(attempt, &[(3, 1)])]), (1, vec![]));
    assert_eq!(of(&fetch(&mut bench, 12, 4)), [(3, 1, 2)], "without a delay, redelivery is immediate");
    assert_eq!(of(&fetch(&mut bench, 110, 4)), []);
    assert_eq!(of(&fetch(&mut bench, 111, 4)), [(1, 2, 2)]);
    assert_eq!(ack(&mut bench, 112, &[Settlement::all(attempt)]), (1, vec![]), "the attempt keeps what was not nacked");
}

#[test]
fn what_is_given_back_unseen_does_not_count() {
    let once = GroupConfig { max_deliveries: Some(1), dead_letters: Some("dead".into()), ..config() };
    let mut bench = bench_with(&once, 2);
    let attempt = fetch(&mut bench, 10, 2).attempt;
    assert_eq!(nack(&mut bench, 11, Redelivery::Uncounted, &[some(attempt, &[(1, 1)])]), (1, vec![]));
    assert_eq!(of(&fetch(&mut bench, 11, 2)), [(1, 1, 1)]);
    assert_eq!(info(&bench).dying, 0);
}

#[test]
fn poison_becomes_a_dead_letter_and_never_blocks() {
    let dead = GroupConfig { max_deliveries: Some(2), dead_letters: Some("dead".into()), ..config() };
    let mut bench = bench_with(&dead, 3);
    let first = fetch(&mut bench, 10, 2);
    ack(&mut bench, 11, &[some(first.attempt, &[(1, 1)])]);
    let second = fetch(&mut bench, 10 + DEADLINE, 1);
    assert_eq!(of(&second), [(0, 1, 2)]);
    nack(&mut bench, 11 + DEADLINE, later(0), &[Settlement::all(second.attempt)]);
    let third = fetch(&mut bench, 12 + DEADLINE, 2);
    assert_eq!((of(&third), third.dead), (vec![(2, 1, 1)], true), "other records are still delivered");
    assert_eq!((info(&bench).pending, info(&bench).dying, info(&bench).dead), (1, 1, 0));
    bench.reopen();
    assert_eq!(bench.machine.groups_with_dead().unwrap(), [GROUP]);
    let letter = bench.machine.dead_letters(GROUP, None).unwrap().unwrap();
    let records: Vec<_> = letter.records.iter().map(|of| (of.run, of.deliveries)).collect();
    assert_eq!((letter.reason.as_str(), records), ("broken", vec![(run(0, 1), 2)]));
    let bury = || {
        let mut commit = CommitBuilder::new();
        let mut batch = RecordBatch::new();
        batch.push_payload(b"letter").unwrap();
        commit.append(OUT, None, &batch).unwrap().ack(GROUP, &[Settlement::all(letter.attempt)]).unwrap();
        command(|out| commit.encode(out))
    };
    let outcomes = bench.run(13 + DEADLINE, &[bury(), bury()]);
    assert!(matches!(outcomes[0], Outcome::Committed { .. }));
    let refused = GroupOutcome::AttemptLapsed { group: GROUP, attempt: letter.attempt };
    assert_eq!(outcomes[1], Outcome::Group(refused), "only once");
    assert_eq!((info(&bench).dying, info(&bench).dead), (0, 1));
    assert_eq!(bench.machine.stream(OUT).unwrap().next, Offset(1));
}

#[test]
fn what_lapses_too_often_is_dead_for_that_reason_and_without_a_stream_is_dropped() {
    let dead = GroupConfig { max_deliveries: Some(1), dead_letters: Some("dead".into()), ..config() };
    let mut bench = bench_with(&dead, 3);
    fetch(&mut bench, 10, 2);
    let next = fetch(&mut bench, 10 + DEADLINE, 2);
    assert_eq!(of(&next), [(2, 1, 1)]);
    assert_eq!(bench.machine.dead_letters(GROUP, None).unwrap().unwrap().reason, "not acked before its deadline");
    let dropping = GroupConfig { dead_letters: None, ..dead };
    bench.run(10 + DEADLINE, &[command(|out| groups::encode_configure_group(out, GROUP, &dropping).unwrap())]);
    nack(&mut bench, 11 + DEADLINE, Redelivery::Never, &[Settlement::all(next.attempt)]);
    assert_eq!((info(&bench).pending, info(&bench).dying, info(&bench).dropped), (0, 2, 1));
    let letters = bench.machine.dead_letters(GROUP, None).unwrap().unwrap();
    assert_eq!(ack(&mut bench, 12 + DEADLINE, &[Settlement::all(letters.attempt)]), (2, vec![]));
    assert_eq!((info(&bench).dying, info(&bench).dead, info(&bench).dropped), (0, 0, 3), "none was moved");
}

#[test]
fn a_commit_consumes_transforms_and_produces_once() {
    let mut bench = bench(4);
    let attempt = fetch(&mut bench, 10, 4).attempt;
    let step = |settlements: &[Settlement], value: &[u8]| {
        let mut commit = CommitBuilder::new();
        let mut batch = RecordBatch::new();
        batch.push_payload(value).unwrap();
        commit.put(KS, b"sum", value).unwrap().append(OUT, None, &batch).unwrap();
        commit.ack(GROUP, settlements).unwrap();
        assert!(commit.is_conditional());
        command(|out| commit.encode(out))
    };
    let first = bench.run(11, &[step(&[some(attempt, &[(0, 2)])], b"one")]).remove(0);
    assert!(matches!(first, Outcome::Committed { .. }));
    let lapsed = Outcome::Group(GroupOutcome::AttemptLapsed { group: GROUP, attempt });
    let outcomes = bench.run(
        12,
        &[
            step(&[some(attempt, &[(1, 2)])], b"partly settled before"),
            step(&[some(attempt, &[(2, 1)]), some(attempt, &[(2, 2)])], b"the same twice"),
            step(&[some(Attempt(attempt.0 + 1), &[(2, 1)])], b"never assigned"),
        ],
    );
    assert_eq!(outcomes[..2], [lapsed.clone(), lapsed.clone()]);
    assert!(matches!(outcomes[2], Outcome::Group(GroupOutcome::AttemptLapsed { .. })));
    assert_eq!(bench.run(10 + DEADLINE, &[step(&[Settlement::all(attempt)], b"late")]), [lapsed]);
    assert_eq!((info(&bench).pending, info(&bench).acked), (2, 2));
    assert_eq!(bench.machine.stream(OUT).unwrap().next, Offset(1), "rejected commits appended nothing");
    let value = bench.machine.get(KS, b"sum").unwrap().unwrap();
    assert_eq!(value.value, thalweg_state::keyspaces::StoredValue::Inline("one".into()));
    let unknown = CommitBuilder::new().ack(GroupId(9), &[Settlement::all(attempt)]).unwrap().clone();
    let outcome = bench.run(11 + DEADLINE, &[command(|out| unknown.encode(out))]).remove(0);
    assert_eq!(outcome, Outcome::Group(GroupOutcome::NoSuchGroup(GroupId(9))));
}

#[test]
fn a_nack_in_a_commit_gives_back_with_it() {
    let mut bench = bench(2);
    let attempt = fetch(&mut bench, 10, 2).attempt;
    let mut commit = CommitBuilder::new();
    commit.nack(GROUP, later(0), "later", &[some(attempt, &[(0, 1)])]).unwrap();
    commit.ack(GROUP, &[some(attempt, &[(1, 1)])]).unwrap();
    assert!(matches!(bench.run(11, &[command(|out| commit.encode(out))])[0], Outcome::Committed { .. }));
    assert_eq!(of(&fetch(&mut bench, 12, 2)), [(0, 1, 2)]);
}

#[test]
fn trimmed_records_leave_what_is_pending() {
    let dead = GroupConfig { max_deliveries: Some(1), dead_letters: Some("dead".into()), ..config() };
    let mut bench = bench_with(&dead, 10);
    let attempt = fetch(&mut bench, 10, 3).attempt;
    nack(&mut bench, 11, Redelivery::Never, &[some(attempt, &[(0, 1)])]);
    fetch(&mut bench, 12, 3);
    let trim = |before| command(|out| command::encode_trim_stream(out, STREAM, Offset(before)));
    bench.run(13, &[trim(2)]);
    assert_eq!((info(&bench).pending, info(&bench).dying, info(&bench).floor), (4, 0, Offset(2)));
    bench.run(14, &[trim(8)]);
    let shown = info(&bench);
    assert_eq!((shown.pending, shown.floor, shown.cursor), (0, Offset(8), Offset(8)));
    let gone = ack(&mut bench, 15, &[some(attempt, &[(2, 1)])]);
    assert_eq!(gone, (0, vec![Lapsed { attempt, run: Some(run(2, 1)) }]));
    assert_eq!(of(&fetch(&mut bench, 16, 9)), [(8, 2, 1)]);
    bench.reopen();
    assert_eq!(info(&bench).pending, 2);
}

#[test]
fn seeking_forgets_what_is_pending_and_delivers_from_there() {
    let mut bench = bench(6);
    let attempt = fetch(&mut bench, 10, 4).attempt;
    let sought = |offset| Outcome::Group(GroupOutcome::Sought { cursor: Offset(offset) });
    assert_eq!(seek(&mut bench, 11, Some(Offset(1))), sought(1));
    assert_eq!(ack(&mut bench, 12, &[Settlement::all(attempt)]).0, 0, "the seek has voided the old attempt");
    assert_eq!(of(&fetch(&mut bench, 13, 2)), [(1, 2, 1)]);
    assert_eq!(seek(&mut bench, 14, Some(Offset(99))), sought(6), "the cursor stops at the end");
    assert_eq!((seek(&mut bench, 15, None), info(&bench).pending), (sought(6), 0));
    bench.run(16, &[append(STREAM, 1)]);
    assert_eq!(of(&fetch(&mut bench, 17, 2)), [(6, 1, 1)]);
    bench.reopen();
    assert_eq!(info(&bench).pending, 1);
}

#[test]
fn groups_are_created_once_listed_and_deleted_with_their_rows() {
    let mut bench = bench(3);
    let create =
        |name: &str, start| command(|out| groups::encode_create_group(out, STREAM, name, start, &config()).unwrap());
    let created = |id, created| Outcome::Group(GroupOutcome::Created { id: GroupId(id), created });
    let outcomes = bench.run(2, &[create("g", None), create("a", None), create("b", Some(Offset(1)))]);
    assert_eq!(outcomes, [created(1, false), created(2, true), created(3, true)]);
    assert_eq!(bench.machine.groups(Some(STREAM)).unwrap(), [GroupId(2), GroupId(3), GROUP], "by name");
    assert_eq!(bench.machine.groups(Some(OUT)).unwrap(), []);
    let cursor = |id| bench.machine.group(GroupId(id), SpaceTime(2)).unwrap().unwrap().cursor;
    assert_eq!((cursor(2), cursor(3)), (Offset(3), Offset(1)));
    let attempt = fetch(&mut bench, 3, 1).attempt;
    let delete = |id| command(|out| groups::encode_delete_group(out, GroupId(id)));
    let outcomes = bench.run(4, &[delete(1), create("g", Some(Offset(0))), delete(9), delete(2), delete(3)]);
    let done = Outcome::Group(GroupOutcome::Done);
    let unknown = Outcome::Group(GroupOutcome::NoSuchGroup(GroupId(9)));
    assert_eq!(outcomes, [done.clone(), created(4, true), unknown, done.clone(), done]);
    let again = command(|out| groups::encode_fetch(out, GroupId(4), 1, Offset(0), &[], "m").unwrap());
    assert_ne!(fetched(&bench.run(4, &[again])[0]).attempt, attempt, "old attempt numbers are not reused");
    bench.reopen();
    assert_eq!(bench.machine.groups(None).unwrap(), [GroupId(4)]);
    bench.run(5, &[command(|out| command::encode_delete_stream(out, STREAM))]);
    assert_eq!(bench.machine.groups(None).unwrap(), []);
    let left = bench.backend.dump().into_keys().filter(|key| matches!(key[0], 0x0e | 0x0f | 0x14) && key.len() > 1);
    assert_eq!(left.count(), 0, "no row of the group is left");
}

#[test]
fn configurations_that_can_not_work_are_refused() {
    let mut bench = bench(1);
    let itself = GroupConfig { dead_letters: Some("jobs".into()), ..config() };
    let ordered = GroupConfig { order: GroupOrder::PerKey, ..config() };
    let outcomes = bench.run(
        2,
        &[
            command(|out| groups::encode_create_group(out, STREAM, "x", None, &itself).unwrap()),
            command(|out| groups::encode_configure_group(out, GROUP, &itself).unwrap()),
            command(|out| groups::encode_configure_group(out, GROUP, &ordered).unwrap()),
            command(|out| groups::encode_create_group(out, StreamId(9), "x", None, &config()).unwrap()),
        ],
    );
    assert!(outcomes[..3].iter().all(|of| matches!(group_outcome(of), GroupOutcome::BadConfig { .. })), "{outcomes:?}");
    assert_eq!(outcomes[3], Outcome::NoSuchStream(StreamId(9)));
}

#[test]
fn at_the_bound_of_pending_only_redeliveries_go_out() {
    let mut bench = bench_with(&GroupConfig { max_pending: 3, ..config() }, 10);
    let first = fetch(&mut bench, 10, 9);
    assert_eq!(of(&first), [(0, 3, 1)]);
    assert_eq!(of(&fetch(&mut bench, 11, 9)), []);
    assert!(matches!(bench.machine.group_ready(GROUP, SpaceTime(11)).unwrap(), GroupReady::At(Some(_))));
    ack(&mut bench, 12, &[some(first.attempt, &[(1, 1)])]);
    assert_eq!(bench.machine.take_woken_groups().into_iter().collect::<Vec<_>>(), [STREAM]);
    assert_eq!(of(&fetch(&mut bench, 13, 9)), [(3, 1, 1)]);
    assert_eq!(of(&fetch(&mut bench, 10 + DEADLINE, 9)), [(0, 1, 2), (2, 1, 2)]);
    let too_many = GroupConfig { max_pending: MAX_GROUP_PENDING + 1, ..config() };
    assert!(too_many.check().is_err());
}

#[test]
fn at_the_bound_of_members_new_ones_are_refused() {
    let mut bench = bench(1);
    let names: Vec<_> = (0..MAX_GROUP_MEMBERS).map(|number| fetch_command(1, &number.to_string())).collect();
    assert!(bench.run(10, &names).iter().all(|of| matches!(group_outcome(of), GroupOutcome::Fetched(_))));
    let outcome = bench.run(11, &[fetch_command(1, "one more")]).remove(0);
    assert_eq!(outcome, Outcome::TooMany { what: "members of the consumer group", limit: MAX_GROUP_MEMBERS });
}

fn ordered(keys: &[&str]) -> (Bench, impl Fn(&mut Bench, u64, u32, u64) -> Fetched + use<>) {
    let bench = bench_with(&GroupConfig { order: GroupOrder::PerKey, ..config() }, keys.len() as u64);
    let hashes: Vec<u64> = keys.iter().map(|key| if key.is_empty() { 0 } else { key_hash(key.as_bytes()) }).collect();
    let fetch = move |bench: &mut Bench, time, max, window: u64| {
        let keys = &hashes[window as usize..];
        let fetch = command(|out| groups::encode_fetch(out, GROUP, max, Offset(window), keys, "m").unwrap());
        fetched(&bench.run(time, &[fetch])[0])
    };
    (bench, fetch)
}

#[test]
fn in_order_per_key_one_record_of_a_key_is_in_flight() {
    let (mut bench, fetch) = ordered(&["a", "a", "b", "", "", "b", "a"]);
    let first = fetch(&mut bench, 10, 9, 0);
    assert_eq!(of(&first), [(0, 1, 1), (2, 3, 1)]);
    assert_eq!((info(&bench).parked, info(&bench).cursor), (3, Offset(7)));
    assert_eq!(of(&fetch(&mut bench, 11, 9, 7)), []);
    bench.reopen();
    ack(&mut bench, 12, &[some(first.attempt, &[(2, 1)])]);
    assert_eq!(of(&fetch(&mut bench, 13, 9, 7)), [(5, 1, 1)], "the next record of key b");
    nack(&mut bench, 14, later(100), &[some(first.attempt, &[(0, 1)])]);
    assert_eq!(of(&fetch(&mut bench, 15, 9, 7)), [], "key a waits for its first record");
    let back = fetch(&mut bench, 114, 9, 7);
    assert_eq!(of(&back), [(0, 1, 2)]);
    ack(&mut bench, 115, &[Settlement::all(back.attempt)]);
    bench.reopen();
    let next = fetch(&mut bench, 116, 9, 7);
    assert_eq!(of(&next), [(1, 1, 1)]);
    ack(&mut bench, 117, &[Settlement::all(next.attempt)]);
    assert_eq!(of(&fetch(&mut bench, 118, 9, 7)), [(6, 1, 1)]);
}

#[test]
fn a_window_that_the_cursor_has_left_delivers_nothing_new() {
    let (mut bench, fetch) = ordered(&["a", "b", "c", "d"]);
    assert_eq!(of(&fetch(&mut bench, 10, 2, 0)), [(0, 2, 1)]);
    assert_eq!(of(&fetch(&mut bench, 11, 1, 0)), [(2, 1, 1)], "only undelivered records count");
    let stale = fetched(&bench.run(12, &[fetch_command(1, "m")])[0]);
    assert_eq!((of(&stale), stale.cursor), (vec![], Offset(3)));
    let ahead = command(|out| groups::encode_fetch(out, GROUP, 1, Offset(4), &[7], "m").unwrap());
    assert_eq!(of(&fetched(&bench.run(13, &[ahead])[0])), []);
}

#[test]
fn a_dead_record_frees_its_key_and_so_does_a_trimmed_one() {
    let (mut bench, fetch) = ordered(&["a", "a", "a", "a"]);
    let first = fetch(&mut bench, 10, 9, 0);
    nack(&mut bench, 11, Redelivery::Never, &[Settlement::all(first.attempt)]);
    assert_eq!(of(&fetch(&mut bench, 12, 9, 0)), [(1, 1, 1)]);
    bench.run(13, &[command(|out| command::encode_trim_stream(out, STREAM, Offset(3)))]);
    assert_eq!(of(&fetch(&mut bench, 14, 9, 0)), [(3, 1, 1)]);
    assert_eq!(info(&bench).parked, 0);
}

#[test]
fn at_the_bound_of_groups_new_ones_are_refused_until_one_goes() {
    let mut bench = bench(1);
    let create = |number: usize| {
        let name = format!("g{number}");
        command(|out| groups::encode_create_group(out, STREAM, &name, None, &config()).unwrap())
    };
    let names: Vec<usize> = (1..MAX_GROUPS).collect();
    for names in names.chunks(1000) {
        let created = bench.run(2, &names.iter().map(|&number| create(number)).collect::<Vec<_>>());
        assert!(
            created.iter().all(|outcome| matches!(group_outcome(outcome), GroupOutcome::Created { created: true, .. }))
        );
    }
    let full = Outcome::TooMany { what: "consumer groups", limit: MAX_GROUPS };
    let outcomes =
        bench.run(3, &[create(MAX_GROUPS), create(1), command(|out| groups::encode_delete_group(out, GROUP))]);
    assert_eq!(outcomes[0], full);
    assert!(matches!(group_outcome(&outcomes[1]), GroupOutcome::Created { created: false, .. }), "the group exists");
    let outcomes = bench.run(4, &[create(MAX_GROUPS), create(MAX_GROUPS + 1)]);
    assert!(matches!(group_outcome(&outcomes[0]), GroupOutcome::Created { created: true, .. }));
    assert_eq!(outcomes[1], full);
    bench.reopen();
    assert_eq!(bench.machine.groups(None).unwrap().len(), MAX_GROUPS);
}
