//! Well-formed commands of every kind, on few names, so that what they do to each other is reached:
//! transactions, deadlines and leases, deletes by prefix, history, producers, consumer groups.
//!
//! Two machines get the same entries; one is reopened wherever the input says. Never a panic or a stop; the
//! same outcomes, the same rows byte for byte, and the same answers to readers.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{Input, machine::Bench};
use thalweg_types::{
    Attempt, GroupId, Index, KeyspaceId, LeaseId, Offset, Revision, SpaceTime, StreamId,
    command::{
        AppendTerms, CommandError, CommitBuilder, Compaction, Deadline, Expect, ExpectedOffset, Framed, HistoryFloor,
        KeyspaceConfig, KeyspaceHistory, Operations, ProducerStamp, ScanOperation, StreamConfig, TransactionBuilder,
        UnchangedRange, encode_append_with, encode_configure_keyspace, encode_configure_stream, encode_create_keyspace,
        encode_create_stream, encode_delete, encode_delete_stream, encode_drop_keyspace, encode_expire,
        encode_forget_rows, encode_grant_lease, encode_keep_lease, encode_open_producer, encode_prune_versions,
        encode_put, encode_put_until, encode_raise_history_floor, encode_reclaim_stream, encode_revoke_lease,
        encode_sweep, encode_trim_stream,
        groups::{
            Again, GroupConfig, GroupOrder, OffsetRun, Settlement, encode_ack, encode_configure_group,
            encode_create_group, encode_delete_group, encode_extend, encode_fetch, encode_nack, encode_seek,
        },
    },
    record::{Record, RecordBatch},
};

type Encoded = Result<(), CommandError>;

const NAMES: [&str; 3] = ["a", "b", "dead"];
const KEYS: [&[u8]; 8] = [b"", b"a", b"aa", b"ab", b"b", b"ba", b"\xff", b"\xff\xff"];
const VALUES: [&[u8]; 6] = [b"", b"7", b"-9223372036854775808", b"no number", b"a value that stays in the log", b"42"];

fn keyspace(input: &mut Input<'_>) -> KeyspaceId {
    KeyspaceId(u32::from(input.byte() % 4))
}

fn stream(input: &mut Input<'_>) -> StreamId {
    StreamId(u32::from(input.byte() % 4))
}

fn group(input: &mut Input<'_>) -> GroupId {
    GroupId(u32::from(input.byte() % 4))
}

fn lease(input: &mut Input<'_>) -> Option<LeaseId> {
    Some(LeaseId(u64::from(input.byte() % 4))).filter(|lease| *lease != LeaseId::ZERO)
}

fn name(input: &mut Input<'_>) -> &'static str {
    NAMES[usize::from(input.byte()) % NAMES.len()]
}

fn key(input: &mut Input<'_>) -> &'static [u8] {
    KEYS[usize::from(input.byte()) % KEYS.len()]
}

fn value(input: &mut Input<'_>) -> &'static [u8] {
    VALUES[usize::from(input.byte()) % VALUES.len()]
}

/// Milliseconds, or anything.
fn span(input: &mut Input<'_>) -> Duration {
    match input.byte() {
        255 => Duration::from_micros(input.number()),
        short => Duration::from_millis(u64::from(short)),
    }
}

fn deadline(input: &mut Input<'_>) -> Deadline {
    match input.byte() % 5 {
        0 => Deadline::Default,
        1 => Deadline::Never,
        2 => Deadline::After(span(input)),
        3 => Deadline::At(SpaceTime(input.number())),
        _ => Deadline::Keep,
    }
}

fn expect(input: &mut Input<'_>) -> Expect<'static> {
    match input.byte() % 7 {
        0 => Expect::Absent,
        1 => Expect::Present,
        2 => Expect::Revision(Revision(input.number())),
        3 => Expect::Before(Revision(input.number())),
        4 => Expect::After(Revision(input.number())),
        5 => {
            let end = (input.byte() % 2 == 0).then(|| key(input));
            let (since, count) = (Revision(input.number()), u32::from(input.byte() % 4));
            Expect::Unchanged(UnchangedRange { end, since, count })
        }
        _ => Expect::Value(value(input)),
    }
}

fn batch(input: &mut Input<'_>) -> RecordBatch {
    let mut batch = RecordBatch::new();
    for _ in 0..=input.byte() % 4 {
        let key = Some(key(input)).filter(|key| !key.is_empty());
        let record = Record { key, payload: value(input), ..Record::default() };
        batch.push(&record).expect("a small record");
    }
    batch
}

fn terms<'a>(input: &mut Input<'_>) -> AppendTerms<'a> {
    let expected = match input.byte() % 8 {
        0 => ExpectedOffset::NoRecords,
        1 => ExpectedOffset::Exact(Offset(input.number())),
        _ => ExpectedOffset::Any,
    };
    let produced = input.byte() % 2 == 0;
    let producer = produced.then(|| ProducerStamp {
        id: name(input),
        epoch: u32::from(input.byte() % 3),
        sequence: if input.byte() == 255 { input.number() } else { u64::from(input.byte() % 8) },
    });
    AppendTerms { expected, producer }
}

fn settlements(input: &mut Input<'_>) -> Vec<Settlement> {
    let settlement = |input: &mut Input<'_>| {
        let attempt = Attempt(u64::from(input.byte() % 16));
        let run = |input: &mut Input<'_>| OffsetRun {
            first: Offset(if input.byte() == 255 { input.number() } else { u64::from(input.byte() % 16) }),
            count: if input.byte() == 255 { u32::MAX } else { u32::from(input.byte() % 8) },
        };
        let runs = (0..input.byte() % 3).map(|_| run(input)).collect();
        Settlement { attempt, runs }
    };
    (0..input.byte() % 3).map(|_| settlement(input)).collect()
}

fn again(input: &mut Input<'_>) -> Again {
    match input.byte() % 3 {
        0 => Again::After(span(input)),
        1 => Again::Never,
        _ => Again::Uncounted,
    }
}

fn keyspace_config(input: &mut Input<'_>) -> KeyspaceConfig {
    let flags = input.byte();
    let default_ttl = (flags & 2 != 0).then(|| Duration::from_millis(1 + u64::from(input.byte())));
    let revisions = (flags & 4 != 0).then(|| u32::from(input.byte() % 5));
    let age = (flags & 8 != 0).then(|| Duration::from_millis(u64::from(input.byte())));
    KeyspaceConfig { exact_counts: flags & 1 != 0, default_ttl, history: KeyspaceHistory { revisions, age } }
}

fn stream_config(input: &mut Input<'_>) -> StreamConfig {
    let flags = input.byte();
    let given = |flag: u8| flags & flag != 0;
    StreamConfig {
        max_age: given(1).then(|| span(input)),
        max_bytes: given(2).then(|| input.number()),
        max_records: given(4).then(|| input.number()),
        compaction: given(8).then(|| Compaction { tombstone_grace: span(input) }),
        ..StreamConfig::default()
    }
}

fn group_config(input: &mut Input<'_>) -> GroupConfig {
    let flags = input.byte();
    GroupConfig {
        order: if flags & 1 == 0 { GroupOrder::Competing } else { GroupOrder::PerKey },
        ack_deadline: Duration::from_millis(1 + u64::from(input.byte())),
        max_deliveries: (flags & 2 != 0).then(|| 1 + u32::from(input.byte() % 4)),
        max_pending: 1 + u32::from(input.byte()),
        dead_letters: (flags & 4 != 0).then(|| name(input).to_owned()),
    }
}

fn operations(input: &mut Input<'_>, list: &mut Operations) -> Encoded {
    for _ in 0..input.byte() % 4 {
        let id = keyspace(input);
        match input.byte() % 7 {
            0 => list.put(id, key(input), value(input))?,
            1 => list.delete(id, key(input))?,
            2 => list.add(id, key(input), input.number().cast_signed())?,
            3 => list.delete_prefix(id, key(input))?,
            4 => list.get(id, key(input))?,
            5 => {
                let flags = input.byte();
                let bound = |flag: u8, input: &mut Input<'_>| (flags & flag != 0).then(|| key(input));
                let (start, end) = (bound(1, input), bound(2, input));
                let (reverse, keys_only) = (flags & 4 != 0, flags & 8 != 0);
                let limit = u32::from(input.byte());
                list.scan(id, &ScanOperation { prefix: key(input), start, end, reverse, keys_only, limit })?
            }
            _ => list.append(stream(input), terms(input).expected, &batch(input))?,
        };
    }
    Ok(())
}

fn transaction(input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let mut transaction = TransactionBuilder::new();
    for _ in 0..input.byte() % 3 {
        transaction.expect(keyspace(input), key(input), expect(input))?;
    }
    operations(input, transaction.then())?;
    operations(input, transaction.otherwise())?;
    transaction.encode(out)
}

fn commit(input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let mut commit = CommitBuilder::new();
    for _ in 0..input.byte() % 3 {
        commit.expect(keyspace(input), key(input), expect(input))?;
    }
    for _ in 0..input.byte() % 5 {
        match input.byte() % 7 {
            0 => commit.put(keyspace(input), key(input), value(input))?,
            1 => commit.put_until(keyspace(input), key(input), value(input), deadline(input), lease(input))?,
            2 => commit.touch(keyspace(input), key(input), deadline(input))?,
            3 => commit.delete(keyspace(input), key(input))?,
            4 => commit.append_with(stream(input), &terms(input), &batch(input))?,
            5 => commit.ack(group(input), &settlements(input))?,
            _ => commit.nack(group(input), again(input), "why", &settlements(input))?,
        };
    }
    commit.encode(out);
    Ok(())
}

fn fetch(input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let hashes: Vec<_> = (0..input.byte() % 16).map(|_| u64::from(input.byte() % 4)).collect();
    let window = Offset(u64::from(input.byte() % 16));
    encode_fetch(out, group(input), u32::from(input.byte()), window, &hashes, name(input))
}

fn encode(input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    match input.byte() % 35 {
        0 => return encode_create_keyspace(out, name(input), &keyspace_config(input)),
        1 => return encode_configure_keyspace(out, keyspace(input), &keyspace_config(input)),
        2 => encode_drop_keyspace(out, keyspace(input)),
        3 => encode_sweep(out, u32::from(input.byte())),
        4 => return encode_create_stream(out, name(input), &stream_config(input)),
        5 => encode_configure_stream(out, stream(input), &stream_config(input)),
        6 => encode_delete_stream(out, stream(input)),
        7 => encode_trim_stream(out, stream(input), Offset(input.number())),
        8 => encode_reclaim_stream(out, stream(input), u32::from(input.byte())),
        9 => return encode_open_producer(out, stream(input), name(input)),
        10 => {
            let floor = HistoryFloor { revision: Revision(input.number()), index: Index(input.number()) };
            encode_raise_history_floor(out, floor, u32::from(input.byte()));
        }
        11 => return encode_grant_lease(out, lease(input), span(input)),
        12 => encode_keep_lease(out, lease(input).unwrap_or_default()),
        13 => encode_revoke_lease(out, lease(input).unwrap_or_default()),
        14 => encode_expire(out, u32::from(input.byte())),
        15 => {
            let row = input.bytes();
            encode_forget_rows(out, std::iter::once(row));
        }
        16 => {
            let start = (input.byte() % 2 == 0).then(|| Offset(input.number()));
            return encode_create_group(out, stream(input), name(input), start, &group_config(input));
        }
        17 => return encode_configure_group(out, group(input), &group_config(input)),
        18 => encode_delete_group(out, group(input)),
        19 | 20 => return fetch(input, out),
        21 => return encode_ack(out, group(input), &settlements(input)),
        22 => return encode_nack(out, group(input), again(input), "why", &settlements(input)),
        23 => {
            let attempts = [Attempt(u64::from(input.byte() % 16)), Attempt(input.number())];
            return encode_extend(out, group(input), span(input), &attempts);
        }
        24 => encode_seek(out, group(input), (input.byte() % 2 == 0).then(|| Offset(input.number()))),
        25 => return encode_put(out, keyspace(input), key(input), value(input)),
        26 => return encode_put_until(out, keyspace(input), key(input), value(input), deadline(input), lease(input)),
        27 => return encode_delete(out, keyspace(input), key(input)),
        28 | 29 => return encode_append_with(out, stream(input), &terms(input), &batch(input)),
        30 => encode_prune_versions(out, keyspace(input), u32::from(input.byte())),
        31 | 32 => return transaction(input, out),
        _ => return commit(input, out),
    }
    Ok(())
}

/// An entry of some commands; those that don't encode are left out.
fn entry(input: &mut Input<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=input.byte() % 6 {
        let mut framed = Framed::new();
        if framed.encode(|out| encode(input, out)).is_ok() {
            payload.extend_from_slice(framed.bytes());
        }
    }
    payload
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (one, mut two) = (Bench::new(), Bench::new());
    while !input.is_empty() {
        let kind = input.byte();
        let payload = entry(&mut input);
        let later = if kind == 255 { input.number() } else { u64::from(kind & 0x3f) * 1000 };
        assert_eq!(one.entry(&payload, later), two.entry(&payload, later), "the same outcomes");
        if kind & 0x40 != 0 {
            two = two.reopened();
        }
        if kind & 0x80 != 0 {
            assert_eq!(one.read_all(), two.read_all(), "the same answers");
        }
    }
    assert_eq!(one.read_all(), two.read_all(), "the same answers at the end");
    assert_eq!(one.rows(), two.rows(), "byte for byte");
});
