//! Commands about streams, producers and consumer groups.

use std::time::Duration;

use thalweg_types::{
    Attempt, Offset, StreamId,
    command::{
        AppendConditions, Compaction, ExpectedOffset, ProducerStamp, StreamConfig, encode_append_with,
        encode_configure_stream, encode_create_stream, encode_delete_stream, encode_open_producer, encode_trim_stream,
        groups::{
            GroupConfig, GroupOrder, OffsetRun, Redelivery, Settlement, encode_ack, encode_configure_group,
            encode_create_group, encode_delete_group, encode_extend, encode_fetch, encode_nack, encode_reclaim_group,
            encode_seek,
        },
    },
    record::{Record, RecordBatch},
};

use super::{
    Input,
    generator::{Encoded, Generator, encoded, group, key, name, offset, span, stream, value},
};

/// Returns commands that create streams and groups for the other commands to use.
pub fn names(input: &mut Input<'_>) -> Vec<Vec<u8>> {
    let compacted = StreamConfig {
        compaction: Some(Compaction { tombstone_grace: Duration::from_millis(1) }),
        ..StreamConfig::default()
    };
    let mut names = vec![
        encoded(|out| encode_create_stream(out, "a", &StreamConfig::default())),
        encoded(|out| encode_create_stream(out, "b", &compacted)),
        encoded(|out| encode_create_group(out, StreamId(1), "a", Some(Offset(0)), &group_config(input))),
        encoded(|out| encode_create_group(out, StreamId(2), "a", Some(Offset(0)), &group_config(input))),
    ];
    for stream in [1, 2, 1, 2].map(StreamId) {
        let batch = batch(input);
        names.push(encoded(|out| encode_append_with(out, stream, &AppendConditions::default(), &batch)));
    }
    names
}

/// Encodes an append to a random stream.
fn append(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let stream = stream(input);
    encode_append_with(out, stream, &terms(generator, input, stream), &batch(input))
}

pub fn encode(generator: &mut Generator, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 10 {
        0..5 => return append(generator, input, out),
        5 => encode_trim_stream(out, stream(input), trim_to(input)),
        6 | 7 => return encode_open_producer(out, stream(input), name(input)),
        _ => return about_names(input, kind / 10, out),
    }
    Ok(())
}

/// Encodes commands that create, change and delete streams.
pub fn about_names(input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 5 {
        0 => return encode_create_stream(out, name(input), &stream_config(input)),
        1 => encode_configure_stream(out, stream(input), &stream_config(input)),
        2 if input.one_in(3) => encode_delete_stream(out, stream(input)),
        _ => encode_trim_stream(out, stream(input), trim_to(input)),
    }
    Ok(())
}

pub fn about_groups(generator: &mut Generator, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 16 {
        0 => {
            let start = input.one_in(2).then(|| offset(input));
            return encode_create_group(out, stream(input), name(input), start, &group_config(input));
        }
        1 => return encode_configure_group(out, group(input), &group_config(input)),
        2 => encode_delete_group(out, group(input)),
        3..8 => return fetch(generator, input, out),
        8 | 9 => return encode_ack(out, group(input), &settlements(generator, input)),
        10 | 11 => return encode_nack(out, group(input), again(input), "why", &settlements(generator, input)),
        12 => {
            let attempts = [generator.attempt(input), Attempt(input.number())];
            return encode_extend(out, group(input), span(input), &attempts);
        }
        13 => encode_seek(out, group(input), input.one_in(2).then(|| offset(input))),
        14 => encode_reclaim_group(out, group(input), u32::from(input.byte())),
        _ => return append(generator, input, out),
    }
    Ok(())
}

/// Returns an offset, mostly with some records before it and some after.
fn trim_to(input: &mut Input<'_>) -> Offset {
    if input.one_in(8) { offset(input) } else { Offset(input.below(7) as u64) }
}

fn fetch(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    generator.note_fetch();
    let hashes: Vec<_> = (0..8 + input.below(16)).map(|_| u64::from(input.byte() % 4)).collect();
    let window = Offset([0, 0, 0, 2, 5][input.below(5)]);
    let count = 1 + u32::from(input.byte() % 8);
    encode_fetch(out, group(input), count, window, &hashes, name(input))
}

pub fn batch(input: &mut Input<'_>) -> RecordBatch {
    let mut batch = RecordBatch::new();
    for _ in 0..=input.below(4) {
        let (key, payload) = (key(input), value(input));
        let record = Record { key: Some(key).filter(|key| !key.is_empty()), payload: &payload, ..Record::default() };
        batch.push(&record).expect("a small record");
    }
    batch
}

pub fn terms<'a>(generator: &mut Generator, input: &mut Input<'_>, stream: StreamId) -> AppendConditions<'a> {
    let expected = match input.below(16) {
        14 => ExpectedOffset::NoRecords,
        15 => ExpectedOffset::Exact(offset(input)),
        _ => ExpectedOffset::Any,
    };
    let producer = input.one_in(2).then(|| {
        let id = name(input);
        let epoch = u32::from(input.one_in(8));
        ProducerStamp { id, epoch, sequence: generator.sequence(input, stream, id) }
    });
    AppendConditions { expected, producer }
}

pub fn settlements(generator: &Generator, input: &mut Input<'_>) -> Vec<Settlement> {
    let settlement = |input: &mut Input<'_>| {
        let attempt = generator.attempt(input);
        let run = |input: &mut Input<'_>| OffsetRun {
            first: offset(input),
            count: if input.byte() == 255 { u32::MAX } else { 1 + u32::from(input.byte() % 4) },
        };
        // Mostly all records that the attempt holds.
        let runs = (0..input.below(5).saturating_sub(2)).map(|_| run(input)).collect();
        Settlement { attempt, runs }
    };
    (0..=input.below(4) / 3).map(|_| settlement(input)).collect()
}

pub fn again(input: &mut Input<'_>) -> Redelivery {
    match input.below(3) {
        0 => Redelivery::After(span(input)),
        1 => Redelivery::Never,
        _ => Redelivery::Uncounted,
    }
}

fn stream_config(input: &mut Input<'_>) -> StreamConfig {
    let flags = input.byte();
    let given = |flag: u8| flags & flag != 0;
    StreamConfig {
        max_age: given(1).then(|| span(input)),
        max_bytes: given(2).then(|| input.number()),
        max_records: given(4).then(|| input.number()),
        compaction: given(8).then(|| Compaction { tombstone_grace: span(input) }),
        max_record_bytes: given(48).then(|| input.number()),
        ..StreamConfig::default()
    }
}

fn group_config(input: &mut Input<'_>) -> GroupConfig {
    let flags = input.byte();
    GroupConfig {
        order: if flags & 1 == 0 { GroupOrder::Competing } else { GroupOrder::PerKey },
        ack_deadline: Duration::from_millis([10_000, 50, 100, 10_000, 1][input.below(5)]),
        max_deliveries: (flags & 2 != 0).then(|| 1 + input.below(4) as u32),
        max_pending: 1 + u32::from(input.byte()),
        dead_letters: (flags & 4 != 0).then(|| name(input).to_owned()),
    }
}
