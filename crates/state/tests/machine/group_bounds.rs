//! Bounds of consumer groups: dead letters and their reasons, the records of an attempt, and the price of commands.

use thalweg_state::{groups::GroupReady, machine::MachineOptions};
use thalweg_store::Backend as _;
use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime,
    command::{
        self, CommitBuilder, Outcome, StreamConfig,
        groups::{
            self, Fetched, GroupConfig, GroupOrder, Redelivery, Settlement, encode_ack, encode_fetch, encode_nack,
        },
        max_steps,
    },
    limits::{MAX_COMMAND_STEPS, MAX_GROUP_PENDING, MAX_GROUP_REASON_BYTES, MAX_NACK_REASON_BYTES},
    parcel::{Holder, NEVER, Parcel, Run},
};

use crate::{
    groups::{GROUP, STREAM, append, fetch, fetched, info, later, of, some},
    support::{Bench, MapBackend, command},
};

fn config(order: GroupOrder) -> GroupConfig {
    GroupConfig {
        order,
        dead_letters: Some("dead".to_owned()),
        max_pending: MAX_GROUP_PENDING,
        ..GroupConfig::default()
    }
}

fn create_group(bench: &mut Bench, name: &str, start: u64, config: &GroupConfig) {
    let create = command(|out| groups::encode_create_group(out, STREAM, name, Some(Offset(start)), config).unwrap());
    bench.run(1, &[create]);
}

/// A stream of thousands of records, and a group that begins at the offset `start`.
fn bench_with(thousands: u64, start: u64, config: &GroupConfig) -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    bench.run(1, &[command(|out| command::encode_create_stream(out, "jobs", &StreamConfig::default()).unwrap())]);
    (0..thousands).for_each(|_| _ = bench.run(1, &[append(STREAM, 1_000)]));
    create_group(&mut bench, "g", start, config);
    bench
}

/// Runs a command, and checks that it takes no more steps than its proposer has counted.
fn run(bench: &mut Bench, time: u64, command: Vec<u8>) -> Outcome {
    let (before, bound) = (bench.machine.steps().unwrap(), max_steps(&command, false));
    let outcome = bench.run(time, &[command]).remove(0);
    let steps = bench.machine.steps().unwrap() - before;
    assert!(steps <= bound, "{steps} steps, counted {bound}");
    outcome
}

/// Fetches 1,000 records; the records from the offset `window` on have these keys.
fn fetch_keyed(bench: &mut Bench, group: GroupId, window: u64, keys: &[u64]) -> Fetched {
    let fetch = command(|out| encode_fetch(out, group, 1_000, Offset(window), keys, "m").unwrap());
    fetched(&run(bench, 10, fetch))
}

fn nack(bench: &mut Bench, again: Redelivery, reason: &str, settlements: &[Settlement]) {
    run(bench, 11, command(|out| encode_nack(out, GROUP, again, reason, settlements).unwrap()));
}

fn ack(bench: &mut Bench, settlements: &[Settlement]) {
    run(bench, 12, command(|out| encode_ack(out, GROUP, settlements).unwrap()));
}

/// Number of runs in the row of each attempt, in the order of attempts.
fn sizes(bench: &Bench) -> Vec<usize> {
    let rows = bench.backend.dump().into_iter().filter(|(key, _)| key[0] == 0x14);
    rows.map(|(_, row)| Parcel::decode(&row).unwrap().runs.len()).collect()
}

#[test]
fn dead_letters_stop_new_deliveries_until_they_are_moved() {
    let mut bench = bench_with(1, 0, &GroupConfig { max_pending: 3, ..config(GroupOrder::Competing) });
    let first = fetch(&mut bench, 10, 9);
    assert_eq!(of(&first), [(0, 3, 1)]);
    nack(&mut bench, Redelivery::Never, "no", &[Settlement::all(first.attempt)]);
    assert_eq!((info(&bench).pending, info(&bench).dying), (0, 3));
    bench.run(12, &[command(|out| groups::encode_seek(out, GROUP, Some(Offset(0))))]);
    for _ in 0..2 {
        assert_eq!(of(&fetch(&mut bench, 13, 9)), [], "a seek makes no room");
        assert_eq!(bench.machine.group_ready(GROUP, SpaceTime(13)).unwrap(), GroupReady::At(None));
        bench.reopen();
    }
    let letter = bench.machine.dead_letters(GROUP, None).unwrap().unwrap();
    ack(&mut bench, &[some(letter.attempt, &[(0, 1)])]);
    assert_eq!(bench.machine.take_woken_groups().into_iter().collect::<Vec<_>>(), [STREAM]);
    assert_eq!(of(&fetch(&mut bench, 14, 9)), [(0, 1, 1)]);
    assert_eq!((info(&bench).pending, info(&bench).dying, info(&bench).dead), (1, 2, 1));
}

#[test]
fn the_reasons_of_dead_letters_share_a_number_of_bytes() {
    let mut bench = bench_with(2, 0, &config(GroupOrder::Competing));
    let reason = "r".repeat(MAX_NACK_REASON_BYTES);
    for _ in 0..1_100 {
        let attempt = fetch(&mut bench, 10, 1).attempt;
        nack(&mut bench, Redelivery::Never, &reason, &[Settlement::all(attempt)]);
    }
    bench.reopen();
    assert_eq!(info(&bench).dying, 1_100);
    let (mut bytes, mut after) = (0, None);
    while let Some(letter) = bench.machine.dead_letters(GROUP, after).unwrap() {
        bytes += letter.reason.len();
        after = Some(letter.attempt);
    }
    assert_eq!(bytes, MAX_GROUP_REASON_BYTES);
}

#[test]
fn an_attempt_has_at_most_a_thousand_records() {
    let mut bench = bench_with(6, 0, &config(GroupOrder::PerKey));
    let fetched: Vec<_> = (0..4)
        .map(|number| {
            let window = 1_000 * number;
            let keys: Vec<u64> = (window..window + 1_000).map(|offset| 10_000 + offset).collect();
            fetch_keyed(&mut bench, GROUP, window, &keys).attempt
        })
        .collect();
    let wholes = |attempts: &[Attempt]| attempts.iter().copied().map(Settlement::all).collect::<Vec<_>>();
    nack(&mut bench, later(0), "", &wholes(&fetched));
    assert_eq!(sizes(&bench), [1_000; 4], "waiting");
    let again: Vec<_> = (0..4).map(|_| fetch_keyed(&mut bench, GROUP, 0, &[]).attempt).collect();
    nack(&mut bench, Redelivery::Never, "no", &wholes(&again));
    assert_eq!(sizes(&bench), [1_000; 4], "dead");
    let behind = fetch_keyed(&mut bench, GROUP, 4_000, &[9; 2_000]);
    assert_eq!(of(&behind), [(4_000, 1, 1)]);
    assert_eq!(sizes(&bench), [1_000, 1_000, 1_000, 1_000, 1_000, 999, 1], "parked");
    bench.reopen();
    assert_eq!((info(&bench).pending, info(&bench).dying, info(&bench).parked), (2_000, 4_000, 1_999));
}

#[test]
fn larger_rows_of_earlier_builds_are_divided_when_a_command_changes_them() {
    for holder in [Holder::Waiting, Holder::Parked, Holder::Dead("no".into())] {
        let mut bench = bench_with(3, 2_500, &config(GroupOrder::PerKey));
        let attempt = fetch_keyed(&mut bench, GROUP, 2_500, &[7]).attempt;
        let due = if holder == Holder::Waiting { SpaceTime(0) } else { NEVER };
        let runs = (0..2_500).map(|offset| Run { first: Offset(offset), count: 1, deliveries: 1, key: 100 + offset });
        let parcel = Parcel { holder: holder.clone(), due, runs: runs.collect() };
        let mut map = bench.backend.dump();
        *map.iter_mut().find(|(key, _)| key[0] == 0x14).unwrap().1 = parcel.encode();
        bench.backend = MapBackend::of(map, bench.backend.applied());
        bench.machine = bench.log.machine(bench.backend.clone(), bench.options);
        assert_eq!(sizes(&bench), [2_500], "{holder:?}");
        if holder == Holder::Dead("no".into()) {
            bench.run(12, &[command(|out| encode_ack(out, GROUP, &[some(attempt, &[(0, 1)])]).unwrap())]);
            assert_eq!((sizes(&bench), info(&bench).dying), (vec![1_000, 1_000, 499], 2_499));
            continue;
        }
        assert_eq!(of(&fetch(&mut bench, 12, 10)).len(), 1);
        assert_eq!(sizes(&bench), [1_000, 1_000, 490, 10], "{holder:?}");
        let before = info(&bench);
        bench.reopen();
        assert_eq!(info(&bench), before);
        let rest = [1_000, 1_000, 490].map(|_| of(&fetch(&mut bench, 12, 1_000)));
        let records: u32 = rest.iter().flatten().map(|(_, count, _)| count).sum();
        assert_eq!((records, info(&bench).in_flight), (2_490, 2_500), "{holder:?}");
    }
}

#[test]
fn a_fetch_takes_freed_records_from_few_large_attempts() {
    let mut bench = bench_with(3, 0, &config(GroupOrder::PerKey));
    let key = |offset| match offset {
        0..500 => offset,
        500..1_500 => offset % 250,
        _ => 250 + offset % 250,
    };
    let keys: Vec<u64> = (0..2_500).map(|offset| 1 + key(offset)).collect();
    let first = fetch_keyed(&mut bench, GROUP, 0, &keys);
    assert_eq!((of(&first), sizes(&bench)), (vec![(0, 500, 1)], vec![1_000, 1_000, 500]));
    ack(&mut bench, &[Settlement::all(first.attempt)]);
    assert_eq!(of(&fetch_keyed(&mut bench, GROUP, 0, &[])), [(500, 250, 1)], "only those of one row");
    assert_eq!(bench.machine.group_ready(GROUP, SpaceTime(12)).unwrap(), GroupReady::Now);
    assert_eq!(of(&fetch_keyed(&mut bench, GROUP, 0, &[])), [(1_500, 250, 1)]);
    assert_eq!(of(&fetch_keyed(&mut bench, GROUP, 0, &[])), []);
}

#[test]
fn a_commit_pays_for_the_runs_under_the_attempts_that_it_names() {
    let mut bench = bench_with(100, 0, &config(GroupOrder::PerKey));
    create_group(&mut bench, "h", 0, &config(GroupOrder::PerKey));
    let groups = [GROUP, GroupId(2)].map(|group| {
        let held = (0..100).map(|number| {
            let window = 1_000 * number;
            let keys: Vec<u64> = (window..window + 1_000).map(|offset| 1 + offset).collect();
            some(fetch_keyed(&mut bench, group, window, &keys).attempt, &[(window, 1)])
        });
        (group, held.collect::<Vec<_>>())
    });
    let commit = |groups: &[(GroupId, Vec<Settlement>)]| {
        let mut commit = CommitBuilder::new();
        groups.iter().for_each(|(group, held)| _ = commit.ack(*group, held).unwrap());
        // The price of the settlements is checked only beside another write.
        commit.ack(groups[0].0, &[some(groups[0].1[0].attempt, &[(1, 1)])]).unwrap();
        command(|out| commit.encode(out))
    };
    let outcome = bench.run(13, &[commit(&groups)]).remove(0);
    assert_eq!(outcome, Outcome::TooExpensive { limit: MAX_COMMAND_STEPS });
    assert!(matches!(run(&mut bench, 13, commit(&groups[..1])), Outcome::Committed { .. }));
    // An ack of its own has no budget, but its steps are counted.
    let before = bench.machine.steps().unwrap();
    run(&mut bench, 13, command(|out| encode_ack(out, GroupId(2), &groups[1].1).unwrap()));
    assert!(bench.machine.steps().unwrap() - before > 200_000);
}
