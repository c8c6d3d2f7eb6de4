//! Commands about streams, producers and consumer groups.

use std::time::Duration;

use thalweg_types::{
    Attempt, Offset, StreamId,
    command::{
        AppendTerms, Compaction, ExpectedOffset, ProducerStamp, StreamConfig, encode_append_with,
        encode_configure_stream, encode_create_stream, encode_delete_stream, encode_open_producer, encode_trim_stream,
        groups::{
            Again, GroupConfig, GroupOrder, OffsetRun, Settlement, encode_ack, encode_configure_group,
            encode_create_group, encode_delete_group, encode_extend, encode_fetch, encode_nack, encode_seek,
        },
    },
    record::{Record, RecordBatch},
};

use super::{
    Input,
    generator::{Encoded, Generator, encoded, group, key, name, offset, span, stream, value},
};

/// Streams and groups for the other commands to find.
pub fn names(input: &mut Input<'_>) -> Vec<Vec<u8>> {
    let compacted = StreamConfig {
        compaction: Some(Compaction { tombstone_grace: Duration::from_millis(1) }),
        ..StreamConfig::default()
    };
    vec![
        encoded(|out| encode_create_stream(out, "a", &StreamConfig::default())),
        encoded(|out| encode_create_stream(out, "b", &compacted)),
        encoded(|out| encode_create_group(out, StreamId(1), "a", Some(Offset(0)), &group_config(input))),
        encoded(|out| encode_create_group(out, StreamId(2), "a", Some(Offset(0)), &group_config(input))),
    ]
}

pub fn encode(_: &mut Generator, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 10 {
        0..5 => return encode_append_with(out, stream(input), &terms(input), &batch(input)),
        5 => encode_trim_stream(out, stream(input), offset(input)),
        6 | 7 => return encode_open_producer(out, stream(input), name(input)),
        _ => return about_names(input, kind / 10, out),
    }
    Ok(())
}

/// Commands that make, change and delete streams.
pub fn about_names(input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 5 {
        0 => return encode_create_stream(out, name(input), &stream_config(input)),
        1 => encode_configure_stream(out, stream(input), &stream_config(input)),
        2 => encode_delete_stream(out, stream(input)),
        _ => encode_trim_stream(out, stream(input), offset(input)),
    }
    Ok(())
}

pub fn about_groups(input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 16 {
        0 => {
            let start = input.one_in(2).then(|| offset(input));
            return encode_create_group(out, stream(input), name(input), start, &group_config(input));
        }
        1 => return encode_configure_group(out, group(input), &group_config(input)),
        2 => encode_delete_group(out, group(input)),
        3..8 => return fetch(input, out),
        8 | 9 => return encode_ack(out, group(input), &settlements(input)),
        10 | 11 => return encode_nack(out, group(input), again(input), "why", &settlements(input)),
        12 => {
            let attempts = [Attempt(u64::from(input.byte() % 16)), Attempt(input.number())];
            return encode_extend(out, group(input), span(input), &attempts);
        }
        13 => encode_seek(out, group(input), input.one_in(2).then(|| offset(input))),
        _ => return encode_append_with(out, stream(input), &terms(input), &batch(input)),
    }
    Ok(())
}

fn fetch(input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let hashes: Vec<_> = (0..input.below(16)).map(|_| u64::from(input.byte() % 4)).collect();
    let window = Offset(u64::from(input.byte() % 16));
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

pub fn terms<'a>(input: &mut Input<'_>) -> AppendTerms<'a> {
    let expected = match input.below(8) {
        0 => ExpectedOffset::NoRecords,
        1 => ExpectedOffset::Exact(offset(input)),
        _ => ExpectedOffset::Any,
    };
    let producer = input.one_in(2).then(|| ProducerStamp {
        id: name(input),
        epoch: input.below(3) as u32,
        sequence: if input.byte() == 255 { input.number() } else { u64::from(input.byte() % 8) },
    });
    AppendTerms { expected, producer }
}

pub fn settlements(input: &mut Input<'_>) -> Vec<Settlement> {
    let settlement = |input: &mut Input<'_>| {
        let attempt = Attempt(1 + u64::from(input.byte() % 8));
        let run = |input: &mut Input<'_>| OffsetRun {
            first: offset(input),
            count: if input.byte() == 255 { u32::MAX } else { 1 + u32::from(input.byte() % 4) },
        };
        let runs = (0..input.below(3)).map(|_| run(input)).collect();
        Settlement { attempt, runs }
    };
    (0..=input.below(2)).map(|_| settlement(input)).collect()
}

pub fn again(input: &mut Input<'_>) -> Again {
    match input.below(3) {
        0 => Again::After(span(input)),
        1 => Again::Never,
        _ => Again::Uncounted,
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
        ack_deadline: Duration::from_millis([1, 50, 100, 10_000][input.below(4)]),
        max_deliveries: (flags & 2 != 0).then(|| 1 + input.below(4) as u32),
        max_pending: 1 + u32::from(input.byte()),
        dead_letters: (flags & 4 != 0).then(|| name(input).to_owned()),
    }
}
