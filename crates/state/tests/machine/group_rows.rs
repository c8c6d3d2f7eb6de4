//! Rows of consumer groups: pinned byte for byte, and damaged.
//!
//! `THALWEG_BLESS=1` rewrites the golden file. A change of it is a change of the on-disk format.

use std::{path::Path, time::Duration};

use thalweg_state::machine::{Entry, Machine, MachineError, MachineOptions};
use thalweg_store::{Applied, Backend};
use thalweg_types::{
    Attempt, Generation, GroupId, Index, LogPosition, Lsn, Offset, SpaceTime, StreamId, Term,
    command::{
        self, StreamConfig,
        groups::{self, GroupConfig, GroupOrder, OffsetRun, Redelivery, Settlement, key_hash},
    },
    record::{Record, RecordBatch},
};

use crate::{
    golden::{map_of, text_of},
    support::{Bench, Map, MapBackend, command, frame},
    workload::{Rng, for_seeds},
};

const STREAM: StreamId = StreamId(1);
const AT: LogPosition = LogPosition { generation: Generation(1), offset: 4096 };
/// Tags of heads, members and parcels.
const TAGS: [u8; 3] = [0x0e, 0x0f, 0x14];

fn fetch(group: u32, max: u32, keys: &[u64], member: &str) -> Vec<u8> {
    command(|out| groups::encode_fetch(out, GroupId(group), max, Offset(0), keys, member).unwrap())
}

fn runs(attempt: u64, runs: &[(u64, u32)]) -> Settlement {
    let runs = runs.iter().map(|&(first, count)| OffsetRun { first: Offset(first), count }).collect();
    Settlement { attempt: Attempt(attempt), runs }
}

/// Creates two groups with every kind of row: held by members, waiting, parked, dead.
fn fixed() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let mut batch = RecordBatch::new();
    for key in [b"a", b"a", b"b", b"b"] {
        batch.push(&Record { key: Some(key), payload: b"p", ..Record::default() }).unwrap();
    }
    let plain = GroupConfig {
        max_deliveries: Some(2),
        dead_letters: Some("dead".to_owned()),
        ack_deadline: Duration::from_secs(60),
        ..GroupConfig::default()
    };
    let ordered = GroupConfig { order: GroupOrder::PerKey, max_pending: 7, ..GroupConfig::default() };
    bench.run(
        1_000_000,
        &[
            command(|out| command::encode_create_stream(out, "jobs", &StreamConfig::default()).unwrap()),
            command(|out| command::encode_append(out, STREAM, None, &batch)),
            command(|out| groups::encode_create_group(out, STREAM, "plain", Some(Offset(0)), &plain).unwrap()),
            command(|out| groups::encode_create_group(out, STREAM, "ordered", Some(Offset(0)), &ordered).unwrap()),
            command(|out| groups::encode_create_group(out, STREAM, "gone", None, &ordered).unwrap()),
            command(|out| groups::encode_delete_group(out, GroupId(3))),
        ],
    );
    let keys = [b"a", b"a", b"b", b"b"].map(|key| key_hash(key));
    let again = Redelivery::After(Duration::from_secs(1));
    bench.run(2_000_000, &[fetch(1, 4, &[], "one"), fetch(2, 4, &keys, "two")]);
    bench.run(
        3_000_000,
        &[
            command(|out| groups::encode_ack(out, GroupId(1), &[runs(2_000_000, &[(1, 1)])]).unwrap()),
            command(|out| {
                groups::encode_nack(out, GroupId(1), again, "later", &[runs(2_000_000, &[(2, 1)])]).unwrap();
            }),
            command(|out| {
                groups::encode_nack(out, GroupId(1), Redelivery::Never, "no good", &[runs(2_000_000, &[(3, 1)])])
                    .unwrap();
            }),
        ],
    );
    let much_later = Redelivery::After(Duration::from_secs(100));
    // The previous attempt number belongs to the parked records.
    let waits = [runs(2_000_001, &[(0, 1)])];
    let nack = command(|out| groups::encode_nack(out, GroupId(2), much_later, "", &waits).unwrap());
    bench.run(5_000_000, &[fetch(1, 1, &[], "three"), nack]);
    bench
}

fn rows(map: &Map) -> Map {
    map.iter().filter(|(key, _)| TAGS.contains(&key[0])).map(|(key, row)| (key.clone(), row.clone())).collect()
}

fn golden() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/golden/groups-v1.txt");
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(&path, text_of(&rows(&fixed().backend.dump()))).unwrap();
    }
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_rows_of_a_fixed_log_are_pinned() {
    let rows = rows(&fixed().backend.dump());
    assert_eq!(text_of(&rows), golden());
    let holders: Vec<u8> = rows.iter().filter(|(key, _)| key[0] == 0x14).map(|(_, row)| row[0]).collect();
    assert!((0..4).all(|kind| holders.contains(&kind)), "every kind of holder exists: {holders:?}");
}

#[test]
fn groups_of_format_1_can_be_read() {
    let bench = fixed();
    let mut map = bench.backend.dump();
    map.retain(|key, _| !TAGS.contains(&key[0]));
    map.extend(map_of(&golden()));
    let backend = MapBackend::of(map, bench.backend.applied());
    let machine = Machine::open(backend, MachineOptions::default()).unwrap();
    for id in [GroupId(1), GroupId(2)] {
        let now = SpaceTime(5_000_001);
        let (read, was) = (machine.group(id, now).unwrap().unwrap(), bench.machine.group(id, now).unwrap().unwrap());
        assert_eq!(read, was);
    }
    let info = machine.group(GroupId(1), SpaceTime(5_000_001)).unwrap().unwrap();
    assert_eq!((info.pending, info.in_flight, info.dying, info.acked, info.redelivered), (2, 2, 1, 1, 1));
    let letter = machine.dead_letters(GroupId(1), None).unwrap().unwrap();
    assert_eq!((letter.reason.as_str(), letter.records[0].run.first), ("no good", Offset(3)));
    assert_eq!(machine.group(GroupId(2), SpaceTime(5_000_001)).unwrap().unwrap().parked, 2);
}

fn apply(machine: &Machine, commands: &[Vec<u8>]) -> Result<(), MachineError> {
    let Applied { lsn, index, time, .. } = machine.applied();
    let payload = &frame(commands)[..];
    let time = SpaceTime(time.0 + 10_000_000);
    let entry = Entry { term: Term(1), index: Index(index.0 + 1), time, payload, at: AT, next_lsn: Lsn(lsn.0 + 1) };
    machine.apply(&entry, &mut Vec::new()).map(|_| ())
}

/// Opens a damaged map and runs every kind of read and write of its groups.
fn use_damaged(map: Map, applied: Option<Applied>) -> Result<(), MachineError> {
    let machine = Machine::open(MapBackend::of(map, applied), MachineOptions::default())?;
    for id in machine.groups(None)? {
        machine.group(id, SpaceTime(u64::MAX))?;
        machine.group_ready(id, SpaceTime(7))?;
        machine.dead_letters(id, None)?;
        machine.held_attempts(id, SpaceTime(0), &[Attempt(2_000_000), Attempt(0)])?;
    }
    machine.group_counters(10)?;
    let keys = [3; 9];
    let settle = [Settlement::all(Attempt(2_000_000)), runs(5_000_000, &[(0, 3)])];
    for group in 1..3 {
        let id = GroupId(group);
        apply(
            &machine,
            &[
                command(|out| groups::encode_ack(out, id, &settle).unwrap()),
                fetch(group, 1000, &keys, "m"),
                command(|out| groups::encode_nack(out, id, Redelivery::Uncounted, "", &settle).unwrap()),
                command(|out| groups::encode_extend(out, id, Duration::ZERO, &[Attempt(2_000_000)]).unwrap()),
                command(|out| command::encode_trim_stream(out, STREAM, Offset(2))),
            ],
        )?;
        apply(
            &machine,
            &[
                fetch(group, 1000, &keys, "m"),
                command(|out| groups::encode_seek(out, id, Some(Offset(1)))),
                fetch(group, 1000, &keys, "n"),
            ],
        )?;
    }
    apply(&machine, &[command(|out| command::encode_delete_stream(out, STREAM))])
}

#[test]
fn damaged_rows_are_typed_errors_or_other_data() {
    let bench = fixed();
    let (map, applied) = (bench.backend.dump(), bench.backend.applied());
    use_damaged(map.clone(), applied).unwrap();
    let (mut errors, mut tried) = (0, 0);
    let mut attempt = |damaged: Map| {
        tried += 1;
        errors += usize::from(use_damaged(damaged, applied).is_err());
    };
    for (key, row) in rows(&map) {
        let mut removed = map.clone();
        removed.remove(&key);
        attempt(removed);
        let mut moved = map.clone();
        moved.remove(&key);
        moved.insert([&key[..], b"x"].concat(), row.clone());
        attempt(moved);
        for at in 0..row.len() {
            for bit in 0..8 {
                let mut damaged = map.clone();
                damaged.get_mut(&key).unwrap()[at] ^= 1 << bit;
                attempt(damaged);
            }
            let mut damaged = map.clone();
            damaged.get_mut(&key).unwrap().truncate(at);
            attempt(damaged);
        }
    }
    assert!(errors * 4 > tried, "much damage is detected: {errors} of {tried}");
}

#[test]
fn garbage_commands_are_harmless() {
    for_seeds(2, |seed| {
        let (bench, mut rng) = (fixed(), Rng(seed));
        for _ in 0..2000 {
            let len = rng.below(70);
            let mut bytes = rng.bytes(len);
            // Restricts the bytes to kinds of group commands, likely ids and counts.
            bytes.iter_mut().skip(1).for_each(|byte| *byte %= 4);
            if let Some(kind) = bytes.first_mut() {
                *kind = 48 + *kind % 8;
            }
            apply(&bench.machine, &[bytes]).unwrap();
        }
        let valid = [
            fetch(1, 9, &[1, 2, 3], "m"),
            command(|out| groups::encode_ack(out, GroupId(1), &[runs(2_000_000, &[(0, 1)])]).unwrap()),
            command(|out| groups::encode_nack(out, GroupId(2), Redelivery::Never, "r", &[runs(7, &[(0, 1)])]).unwrap()),
            command(|out| groups::encode_extend(out, GroupId(1), Duration::MAX, &[Attempt(9)]).unwrap()),
            command(|out| groups::encode_create_group(out, STREAM, "x", None, &GroupConfig::default()).unwrap()),
        ];
        for bytes in valid {
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                apply(&bench.machine, &[flipped, bytes[..bit / 8].to_vec()]).unwrap();
            }
        }
        Machine::open(bench.backend.copy(), bench.options).unwrap();
    });
}
