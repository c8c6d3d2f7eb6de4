//! Entry payloads, moves and record batches made of the input, through the state machine.
//!
//! The state is a memory backend with a keyspace, values in the log and a stream, so that decoded ids
//! mean something. Never a panic; what was applied can be read; the same entries give the same state.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{Input, machine::Bench};
use thalweg_types::{
    KeyspaceId, StreamId,
    command::{
        Command, KeyspaceConfig, Move, StreamConfig, encode_append, encode_create_keyspace, encode_create_stream,
        encode_put, uses_revision,
    },
    record::{Record, RecordBatch, Records},
};

fn bench() -> Bench {
    let bench = Bench::new();
    bench.command(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default()));
    bench.command(|out| encode_create_stream(out, "s", &StreamConfig::default()));
    bench.command(|out| encode_put(out, KeyspaceId(1), b"key", &[7; 64]));
    bench.command(|out| {
        let mut batch = RecordBatch::new();
        let record = Record { key: Some(b"k"), headers: Vec::new(), ..Record::default() };
        batch.push(&record).expect("a small record");
        encode_append(out, StreamId(1), None, &batch);
        Ok(())
    });
    bench
}

/// Frames the input's bytes as commands, so that what is behind the framing is reached.
fn framed(input: &mut Input<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=input.byte() % 4 {
        let command = input.bytes();
        payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
        payload.extend_from_slice(command);
    }
    payload
}

fuzz_target!(|data: &[u8]| {
    if let Ok(command) = Command::decode(data) {
        command.writes().for_each(drop);
    }
    let _ = uses_revision(data);
    let _ = Move::decode(data);
    let mut records = Records::new(data);
    while records.skip_one().is_some_and(|skipped| skipped.is_ok()) {}
    Records::new(data).take_while(Result::is_ok).for_each(drop);

    let mut input = Input(data);
    let (one, two) = (bench(), bench());
    while !input.is_empty() {
        match input.byte() % 4 {
            0 => {
                let payload = input.bytes();
                assert_eq!(one.entry(payload, 1), two.entry(payload, 1));
            }
            1 | 2 => {
                let payload = framed(&mut input);
                assert_eq!(one.entry(&payload, 1), two.entry(&payload, 1));
            }
            _ => {
                let payload = input.bytes();
                assert_eq!(one.relocate(payload), two.relocate(payload));
            }
        }
    }
    let seen = one.read_all();
    assert_eq!(seen, two.read_all(), "the machine is deterministic");
    assert_eq!(one.rows(), two.rows(), "byte for byte");
    assert_eq!(seen, one.reopened().read_all(), "the same state after reopening");
});
