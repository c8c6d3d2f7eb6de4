//! Tests of replacing batches by sparse ones: the remaining records, the counts, and void replacements.

use std::time::Duration;

use thalweg_state::{
    machine::{LocalOutcome, Machine, MachineOptions},
    streams::{BatchForm, BatchRange, CompactionCandidate},
};
use thalweg_types::{
    BlobRef, Generation, Offset, SpaceTime, StreamId,
    command::{self, Compacted, Compaction, MoveTarget, Outcome, StreamConfig, StreamLimit},
    record::{Record, RecordBatch, Records},
    sparse::{Runs, SparseBuilder},
};

use crate::{
    support::{Bench, MapBackend, apply, command},
    workload::{Rng, for_seeds},
};

const STREAM: StreamId = StreamId(1);

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let config = StreamConfig {
        compaction: Some(Compaction { tombstone_grace: Duration::from_micros(10) }),
        ..StreamConfig::default()
    };
    bench.run(1, &[command(|out| command::encode_create_stream(out, "s", &config).unwrap())]);
    bench
}

fn append(keys: &[u8]) -> Vec<u8> {
    let mut batch = RecordBatch::new();
    for key in keys {
        batch.push(&Record { key: Some(&[*key]), payload: b"0123456789", ..Record::default() }).unwrap();
    }
    command(|out| command::encode_append(out, STREAM, None, &batch))
}

/// Returns every record from an offset on, as a reader finds it: offset, time, key.
fn read(bench: &Bench, from: u64) -> Vec<(u64, u64, u8)> {
    let found = bench.machine.batches_from(STREAM, Offset(from), usize::MAX, u64::MAX).unwrap();
    let mut all = Vec::new();
    for batch in found.batches {
        let mut push = |first: u64, time: SpaceTime, bytes: &[u8]| {
            for (number, record) in Records::new(bytes).enumerate() {
                all.push((first + number as u64, time.0, record.unwrap().key.unwrap()[0]));
            }
        };
        match batch.form {
            BatchForm::Whole => push(batch.first.0, batch.time, &bench.log.read(&batch.blob)),
            BatchForm::Sparse { kept: 0, .. } => assert_eq!(batch.blob.len, 0),
            BatchForm::Sparse { .. } => {
                for run in Runs::new(&bench.log.read(&batch.blob)) {
                    let run = run.unwrap();
                    push(batch.first.0 + u64::from(run.delta), run.time, run.batch);
                }
            }
        }
    }
    all.retain(|(offset, ..)| *offset >= from);
    all
}

/// Compacts a stretch to the records for which `keeps` returns true.
fn compact(bench: &mut Bench, stretch: &BatchRange, keeps: &dyn Fn(u64) -> bool) -> LocalOutcome {
    let (first, end) = (stretch.batches[0].first, stretch.batches.last().unwrap().end());
    let mut builder = SparseBuilder::new();
    for batch in &stretch.batches {
        let mut push = |from: u64, time: SpaceTime, bytes: &[u8]| {
            let mut records = Records::new(bytes);
            for offset in from.. {
                let Some(framed) = records.next_framed() else { break };
                if keeps(offset) {
                    builder.push((offset - first.0) as u32, time, framed.unwrap());
                }
            }
        };
        match batch.form {
            BatchForm::Whole => push(batch.first.0, batch.time, &bench.log.read(&batch.blob)),
            BatchForm::Sparse { kept: 0, .. } => {}
            BatchForm::Sparse { .. } => {
                for run in Runs::new(&bench.log.read(&batch.blob)) {
                    let run = run.unwrap();
                    push(batch.first.0 + u64::from(run.delta), run.time, run.batch);
                }
            }
        }
    }
    let kept = builder.kept();
    let bytes = builder.finish();
    let crc = crc_fast::crc32_iscsi(&bytes);
    let from = BlobRef { generation: Generation(0), offset: 0, len: bytes.len() as u32, crc };
    let sources = stretch.batches.len() as u32;
    let target =
        MoveTarget::Compacted(Compacted { stream: STREAM, first, end, sources, rows_crc: stretch.rows_crc, kept });
    let record = bench.log.moved(&from, &target, &bytes);
    apply(&bench.machine, &record).1.unwrap()
}

fn batch_range(bench: &Bench, from: u64, end: u64) -> BatchRange {
    bench.machine.batch_range(STREAM, Offset(from), Offset(end), usize::MAX, u64::MAX).unwrap()
}

fn stream_bytes(bench: &Bench) -> u64 {
    bench.machine.liveness().iter().map(|(_, row)| row.stream_bytes).sum()
}

#[test]
fn offsets_and_times_stay_and_bytes_come_back() {
    let mut bench = bench();
    for time in 2..8 {
        bench.run(time, &[append(b"ab")]);
    }
    let before = bench.machine.stream(STREAM).unwrap();
    let all = batch_range(&bench, 0, 10);
    assert_eq!(compact(&mut bench, &all, &|offset| offset >= 7 || offset == 1), LocalOutcome::Applied);
    let expected = [(1, 2, b'b'), (7, 5, b'b'), (8, 6, b'a'), (9, 6, b'b'), (10, 7, b'a'), (11, 7, b'b')];
    assert_eq!(read(&bench, 0), expected);
    assert_eq!(read(&bench, 8), expected[2..]);
    let after = bench.machine.stream(STREAM).unwrap();
    assert_eq!((after.start, after.next, after.last_time), (before.start, before.next, before.last_time));
    assert_eq!(after.bytes, stream_bytes(&bench), "the stream's bytes equal its live bytes in the log");
    assert!(after.bytes < before.bytes);
    assert_eq!(compact(&mut bench, &all, &|_| true), LocalOutcome::Void, "its source entries have changed");
    let at = |time| bench.machine.offset_at_or_after(STREAM, SpaceTime(time)).unwrap();
    assert_eq!((at(0), at(6), at(7), at(8)), (Offset(0), Offset(0), Offset(10), Offset(12)));
    bench.reopen();
    assert_eq!(read(&bench, 0), expected);
}

#[test]
fn nothing_may_be_left_of_a_stretch() {
    let mut bench = bench();
    for time in 2..6 {
        bench.run(time, &[append(b"ab")]);
    }
    let (head, tail) = (batch_range(&bench, 0, 4), batch_range(&bench, 4, 6));
    assert_eq!(compact(&mut bench, &tail, &|_| false), LocalOutcome::Applied);
    assert_eq!(compact(&mut bench, &head, &|offset| offset == 3), LocalOutcome::Applied);
    assert_eq!(read(&bench, 0), [(3, 3, b'b'), (6, 5, b'a'), (7, 5, b'b')]);
    let both = batch_range(&bench, 0, 6);
    assert_eq!(both.batches.len(), 2);
    assert_eq!(compact(&mut bench, &both, &|_| false), LocalOutcome::Applied, "sparse batches can be compacted again");
    assert_eq!(read(&bench, 0), [(6, 5, b'a'), (7, 5, b'b')]);
    assert_eq!(bench.machine.stream(STREAM).unwrap().bytes, stream_bytes(&bench));
    let trim = command(|out| command::encode_trim_stream(out, STREAM, Offset(5)));
    assert_eq!(bench.run(9, &[trim]), [Outcome::Done]);
    assert_eq!(read(&bench, 5), [(6, 5, b'a'), (7, 5, b'b')]);
}

#[test]
fn a_replacement_loses_every_race() {
    let mut bench = bench();
    for time in 2..6 {
        bench.run(time, &[append(b"ab")]);
    }
    let seen = batch_range(&bench, 0, 6);
    bench.run(7, &[command(|out| command::encode_trim_stream(out, STREAM, Offset(3)))]);
    assert_eq!(compact(&mut bench, &seen, &|_| false), LocalOutcome::Void, "a trim came first");
    let seen = batch_range(&bench, 2, 8);
    let batch = seen.batches[1];
    let bytes = bench.log.read(&batch.blob).to_vec();
    let moved = bench.log.moved(&batch.blob, &MoveTarget::Batch { stream: STREAM, first: batch.first }, &bytes);
    assert_eq!(apply(&bench.machine, &moved).1, Some(LocalOutcome::Applied));
    assert_eq!(compact(&mut bench, &seen, &|_| false), LocalOutcome::Void, "the bytes moved");
    let seen = batch_range(&bench, 2, 8);
    assert_eq!(compact(&mut bench, &seen, &|_| true), LocalOutcome::Applied);
    bench.run(8, &[command(|out| command::encode_delete_stream(out, STREAM))]);
    assert_eq!(compact(&mut bench, &seen, &|_| true), LocalOutcome::Void);
}

#[test]
fn how_far_it_is_clean_only_rises() {
    let mut bench = bench();
    bench.run(2, &[append(b"abcd")]);
    let mut clean = |before| {
        let none = BlobRef { generation: Generation(0), offset: 0, len: 0, crc: 0 };
        let record = bench.log.moved(&none, &MoveTarget::Cleaned { stream: STREAM, before: Offset(before) }, b"");
        apply(&bench.machine, &record).1.unwrap()
    };
    assert_eq!(
        [clean(3), clean(2), clean(5), clean(4)],
        [LocalOutcome::Applied, LocalOutcome::Void, LocalOutcome::Void, LocalOutcome::Applied]
    );
    let candidate = bench.machine.compaction_candidates()[0];
    assert_eq!((candidate.cleaned, candidate.start, candidate.next), (Offset(4), Offset(0), Offset(4)));
}

#[test]
fn a_streams_own_limits_are_typed_refusals() {
    let mut bench = bench();
    let config = StreamConfig { max_record_bytes: Some(16), max_batch_bytes: Some(40), ..StreamConfig::default() };
    bench.run(2, &[command(|out| command::encode_configure_stream(out, STREAM, &config))]);
    let over = |limit, max, got| Outcome::OverStreamLimit { stream: STREAM, limit, max, got };
    assert!(matches!(bench.run(3, &[append(b"ab")])[..], [Outcome::Committed { .. }]));
    assert_eq!(bench.run(3, &[append(b"abc")]), [over(StreamLimit::BatchBytes, 40, 60)]);
    let mut large = RecordBatch::new();
    large.push_payload(b"0123456789abcdef").unwrap();
    let large = command(|out| command::encode_append(out, STREAM, None, &large));
    assert_eq!(bench.run(3, &[large]), [over(StreamLimit::RecordBytes, 16, 17)]);
    assert_eq!(bench.machine.stream(STREAM).unwrap().next, Offset(2));
}

/// Random appends, trims, reclaims and compactions of random stretches, with retention by bytes between them.
#[test]
fn any_sequence_of_replacements_keeps_the_figures_true() {
    for_seeds(30, |seed| {
        let mut rng = Rng(seed);
        let mut bench = bench();
        let mut model: Vec<(u64, u64, u8)> = Vec::new();
        let (mut start, mut next, mut applied) = (0, 0, 0);
        for time in 2..250 {
            match rng.below(10) {
                0..5 => {
                    let keys: Vec<u8> = (0..=rng.below(4)).map(|_| b'a' + rng.below(5) as u8).collect();
                    bench.run(time, &[append(&keys)]);
                    model.extend(keys.iter().zip(next..).map(|(key, offset)| (offset, time, *key)));
                    next += keys.len() as u64;
                }
                5 => {
                    start += rng.below((next - start) / 4 + 1);
                    bench.run(time, &[command(|out| command::encode_trim_stream(out, STREAM, Offset(start)))]);
                    model.retain(|(offset, ..)| *offset >= start);
                }
                6 => {
                    let max = rng.below(6) as u32;
                    bench.local(&MoveTarget::Reclaimed { stream: STREAM, max });
                }
                7 if rng.below(4) == 0 => bench.reopen(),
                _ => {
                    let Some(candidate) = bench.machine.compaction_candidates().first().copied() else { continue };
                    let batches = bench.machine.batches_from(STREAM, candidate.start, 99, u64::MAX).unwrap().batches;
                    let from = batches[rng.below(batches.len() as u64) as usize].first;
                    let count = 1 + rng.below(6) as usize;
                    let seen = bench.machine.batch_range(STREAM, from, candidate.next, count, u64::MAX).unwrap();
                    let (salt, end) = (rng.next(), seen.batches.last().unwrap().end().0);
                    let keeps = |offset: u64| Rng(salt ^ offset).below(3) > 0;
                    assert_eq!(compact(&mut bench, &seen, &keeps), LocalOutcome::Applied);
                    model.retain(|(offset, ..)| *offset < from.0 || *offset >= end || keeps(*offset));
                    if rng.below(3) == 0 {
                        let cleaned = MoveTarget::Cleaned { stream: STREAM, before: Offset(end) };
                        bench.local(&cleaned);
                    }
                    applied += 1;
                }
            }
            assert_eq!(read(&bench, start), model);
            if let Some(candidate) = bench.machine.compaction_candidates().first() {
                // The next pass must find a batch at this offset.
                let CompactionCandidate { cleaned, next, .. } = *candidate;
                bench.machine.batch_range(STREAM, cleaned, next, usize::MAX, u64::MAX).unwrap();
            }
            let info = bench.machine.stream(STREAM).unwrap();
            assert_eq!((info.start.0, info.next.0), (start, next));
            let pending = bench.machine.reclaim_due().contains(&STREAM);
            if !pending {
                assert_eq!(info.bytes, stream_bytes(&bench), "seed {seed}, time {time}");
            }
        }
        assert!(applied > 10, "the workload compacts");
        let replayed = MapBackend::of(Default::default(), None);
        let machine = Machine::open(replayed.clone(), bench.options).unwrap();
        bench.log.records.iter().for_each(|record| _ = apply(&machine, record));
        assert_eq!(replayed.dump(), bench.backend.dump());
    });
}
