//! Tests of readers concurrent with the applier: all records up to a head's end exist.

use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_state::machine::{Machine, MachineOptions, StreamReadError};
use thalweg_types::{
    Offset, SpaceTime, StreamId,
    command::{self, MoveTarget, StreamConfig},
    record::RecordBatch,
};

use crate::support::{Bench, apply, command, frame};

const STREAM: StreamId = StreamId(1);
const ENTRIES: u64 = 1500;

/// Reads all records up to the stream's current end. Returns that end.
fn read_what_is_promised(machine: &Machine) -> u64 {
    let Some(info) = machine.stream(STREAM) else { return 0 };
    let mut from = info.start;
    while from < info.next {
        match machine.batches_from(STREAM, from, 64, u64::MAX) {
            Ok(found) => {
                let last = found.batches.last().expect("promised");
                assert!(found.batches[0].first <= from && found.next >= info.next);
                from = last.first.plus(u64::from(last.count));
            }
            // A trim has overtaken the reader.
            Err(StreamReadError::Trimmed { start }) => from = start,
            Err(error) => panic!("{error}"),
        }
    }
    let found = machine.offset_at_or_after(STREAM, SpaceTime(info.last_time.0)).unwrap();
    assert!(found < info.next || info.next == Offset(0) || found <= machine.stream(STREAM).unwrap().next);
    info.next.0
}

#[test]
fn readers_find_what_heads_promise_while_entries_trims_and_reclaims_are_applied() {
    let mut bench = Bench::new(MachineOptions::default());
    bench.run(1, &[command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap())]);
    let done = AtomicBool::new(false);
    let Bench { machine, log, .. } = &mut bench;
    let machine = &*machine;
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut reached = 0;
                while !done.load(Ordering::Acquire) {
                    let now = read_what_is_promised(machine);
                    assert!(now >= reached, "the end never moves back");
                    reached = now;
                }
                read_what_is_promised(machine)
            })
        });
        let mut batch = RecordBatch::new();
        for number in 0..ENTRIES {
            batch.clear();
            (0..=number % 3).for_each(|_| batch.push_payload(b"payload").unwrap());
            let mut commands = vec![command(|out| command::encode_append(out, STREAM, None, &batch))];
            if number % 7 == 0 {
                let before = Offset(number.saturating_sub(100));
                commands.push(command(|out| command::encode_trim_stream(out, STREAM, before)));
            }
            let record = log.entry(&frame(&commands), SpaceTime(number + 2));
            apply(machine, &record);
            if number % 7 == 0 {
                let record = log.local(&MoveTarget::Reclaimed { stream: STREAM, max: 5 });
                apply(machine, &record);
            }
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), ENTRIES * 2);
        }
    });
}
