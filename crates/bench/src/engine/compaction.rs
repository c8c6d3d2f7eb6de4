//! Compaction tests of *row P*, a published benchmark of another storage engine (see docs/performance.md): small
//! memtables make many tables. Gets, range reads and disk space are measured before and after a compaction that merges
//! all tables.
//!
//! As in the published benchmark, no compaction runs before the test requests one: Thalweg's engine gets
//! [`Compaction::WhenAsked`]. Other stores that have no such option compact by their own schedule. This improves their
//! figures *before* the compaction.
//!
//! Stores count the bytes of a memtable differently. Therefore the test requests a flush after as many changes as fit
//! into a memtable of 64 KB in the published benchmark. There, 5 × 1000 changes with a flush after every 250 made 20
//! tables, and 10 × 2000 changes with a flush after every 200 made 100. The published sizes of the tests with 1,000 and
//! 2,000 keys agree with values of 200 bytes and 74 bytes of overhead. Those of the tests with 5,000 keys agree with
//! values of 100 bytes and the same overhead.

use rand::seq::SliceRandom as _;
use thalweg_engine::Compaction;

use super::{
    results::{CompactionEffect, Footprint, Results, Row, Test},
    subject::{KvSubject, LookupResult},
    timing::timed,
    workloads::{self, Context, Keys, Store},
};
use crate::{
    BenchError,
    data::{self, KEY_BYTES, Values},
    random::generator,
    report::Check,
    stats::ratio,
};

const READS_BEFORE: Test = Test::new("compaction: reads before", "5 × {1000} keys × 200 B", "");
const READS_AFTER: Test = Test::new("compaction: reads after", "5 × {1000} keys × 200 B", "+2 % / +33 %");
/// Test that reads ranges before the compaction, from all tables that 5 passes of overwrites have made.
const RANGES_BEFORE: Test = Test::new("compaction: ranges of 50 before", "{1000} queries", "92 / 345 q/s");
/// Test that reads ranges after the compaction, from the one table that it has made.
const RANGES_AFTER: Test = Test::new("compaction: ranges of 50 after", "{1000} queries", "561 / 1,998 q/s");
const OVERWRITES: Test = Test::new("compaction: overwrites, until done", "5 × {1000} × 200 B", "");
const TOMBSTONES: Test = Test::new("compaction: tombstones, until done", "{2500} of {5000} × 100 B deleted", "");
const LARGE: Test = Test::new("compaction: large, until done", "10 × {2000} × 200 B", "0.69 s / 0.38 s in all");
/// Goal of the tombstones test: largest size on disk after the compaction, divided by the size of the pairs that are
/// not deleted. It follows from the bytes that the authors of another storage engine published (row P of
/// docs/performance.md).
const TOMBSTONES_LEFT: f64 = 471e3 / (2500.0 * (KEY_BYTES + VALUE_BYTES_OF_TOMBSTONES) as f64);
const LARGE_LEFT: f64 = 576e3 / (2000.0 * (KEY_BYTES + VALUE_BYTES) as f64);
const MEMTABLE_BYTES: u64 = 1 << 20;
const FLUSHED_OVERWRITES: usize = 250;
const FLUSHED_PUTS: usize = 350;
const FLUSHED_DELETES: usize = 700;
const FLUSHED_LARGE: usize = 200;
const VALUE_BYTES: usize = 200;
const VALUE_BYTES_OF_TOMBSTONES: usize = 100;

/// Runs the compaction tests: on a store with overwritten keys, on a store with deleted keys, and on a large store.
pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    overwrites(context)?;
    tombstones(context)?;
    large(context)
}

fn open(context: &Context<'_>) -> Result<Box<dyn KvSubject>, BenchError> {
    context.open(Some(MEMTABLE_BYTES), Compaction::WhenAsked)
}

/// Compares Thalweg's figures of the last round with the figures that the authors of another storage engine published
/// for the same compaction tests (row P of docs/performance.md).
pub(super) fn checks(results: &Results, first: &str) -> Vec<Check> {
    let of =
        |test: Test| results.compacted.iter().find(|compacted| compacted.test == test && compacted.contender == first);
    let rates = |test: Test| {
        let row = results.rows.iter().find(|row| row.test == test && row.contender == first);
        row.map_or_else(Vec::new, Row::rates)
    };
    let (Some(overwrites), Some(tombstones), Some(large)) = (of(OVERWRITES), of(TOMBSTONES), of(LARGE)) else {
        return Vec::new();
    };
    let saved = |what: &str, compacted: &CompactionEffect, required| {
        Check::at_least(format!("compaction, {what}: space saved"), 100.0 * compacted.saved(), required, " %")
    };
    let left = |what: &str, compacted: &CompactionEffect, bound| {
        Check::below(format!("compaction, {what}: left, of what is alive"), compacted.per_alive(), bound, " ×")
    };
    let speed_up = ratio(&rates(RANGES_AFTER), &rates(RANGES_BEFORE));
    vec![
        saved("overwrites", overwrites, 80.0),
        saved("tombstones", tombstones, 60.0),
        left("tombstones", tombstones, TOMBSTONES_LEFT),
        saved("large", large, 90.0),
        left("large", large, LARGE_LEFT),
        Check::at_least("compaction: ranges of 50, after of before", speed_up, 6.1, " ×"),
    ]
}

/// Returns the values that pass number `pass` over all keys writes. Each pass overwrites the values of the previous
/// pass.
fn pass_values(seed: u64, pass: u64) -> Values {
    Values::new(VALUE_BYTES, seed.wrapping_mul(1000) + pass)
}

/// Writes all keys `passes` times, each time with other values. Flushes the memtable after every `flushed` keys.
/// Returns the values of the last pass.
fn overwrite(
    context: &Context<'_>,
    subject: &dyn KvSubject,
    passes: u64,
    order: &[u64],
    flushed: usize,
) -> Result<Values, BenchError> {
    for pass in 0..passes {
        let values = pass_values(context.seed, pass);
        for keys in order.chunks(flushed) {
            workloads::fill(subject, &Keys::of(keys.to_vec()), &values)?;
            subject.flush()?;
        }
    }
    Ok(pass_values(context.seed, passes - 1))
}

fn footprint(subject: &dyn KvSubject) -> Footprint {
    Footprint { tables: subject.tables(), bytes: subject.data_bytes() }
}

/// Runs a compaction of the store `subject`. Records its duration, and the number and size of the tables before and
/// after it. `alive` is the number of bytes of keys and values that are not deleted.
fn compact(
    context: &mut Context<'_>,
    subject: &dyn KvSubject,
    test: Test,
    alive: u64,
    published: &'static str,
) -> Result<(), BenchError> {
    let before = footprint(subject);
    let mut measure = timed(subject, 1, 1, |_| subject.compact())?;
    measure.payload_bytes = alive;
    context.record(test, measure);
    let contender = context.contender.name().to_owned();
    let after = footprint(subject);
    let parameters = test.parameters_at(context.scale);
    let effect = CompactionEffect { test, parameters, contender, before, after, alive, published };
    context.results.record_compacted(effect);
    Ok(())
}

fn overwrites(context: &mut Context<'_>) -> Result<(), BenchError> {
    let (count, reads) = (context.count(1000), context.count(10_000));
    let subject = open(context)?;
    let order: Vec<u64> = (0..count).collect();
    let values = overwrite(context, &*subject, 5, &order, FLUSHED_OVERWRITES)?;
    let alive = count * (KEY_BYTES + VALUE_BYTES) as u64;
    let random = Keys::random(reads, count, context.seed);
    let mut store = Store { context, subject, values };
    store.gets(READS_BEFORE, &random)?;
    store.ranges(RANGES_BEFORE, 50, count)?;
    compact(store.context, &*store.subject, OVERWRITES, alive, "20 → 1 tables, -80 %")?;
    store.gets(READS_AFTER, &random)?;
    store.ranges(RANGES_AFTER, 50, count)
}

/// Runs a test with 5000 keys of which every second one is deleted. Checks that the compaction frees the space and that
/// no deleted key reappears.
fn tombstones(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(5000);
    let values = Values::new(VALUE_BYTES_OF_TOMBSTONES, context.seed);
    let subject = open(context)?;
    let all: Vec<u64> = (0..count).collect();
    for keys in all.chunks(FLUSHED_PUTS) {
        workloads::fill(&*subject, &Keys::of(keys.to_vec()), &values)?;
        subject.flush()?;
    }
    let deleted: Vec<u64> = (0..count).step_by(2).collect();
    for keys in deleted.chunks(FLUSHED_DELETES) {
        keys.iter().try_for_each(|index| subject.delete(&data::key(*index)))?;
        subject.flush()?;
    }
    let alive = (count - deleted.len() as u64) * (KEY_BYTES + VALUE_BYTES_OF_TOMBSTONES) as u64;
    compact(context, &*subject, TOMBSTONES, alive, "1170 → 471 KB, -60 %")?;
    for index in 0..count {
        let found = subject.get(&data::key(index), values.of(index))?;
        let expected = if index % 2 == 0 { LookupResult::Missing } else { LookupResult::Right };
        if found != expected {
            return Err(context.wrong("reading after deletes", format!("key {index}: {found:?}, not {expected:?}")));
        }
    }
    Ok(())
}

fn large(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(2000);
    let subject = open(context)?;
    let mut order: Vec<u64> = (0..count).collect();
    order.shuffle(&mut generator(context.seed));
    let values = overwrite(context, &*subject, 10, &order, FLUSHED_LARGE)?;
    let alive = count * (KEY_BYTES + VALUE_BYTES) as u64;
    compact(context, &*subject, LARGE, alive, "100 → 1 tables, 5763 → 576 KB, -90 %")?;
    Store { context, subject, values }.check_all(&Keys::sequential(count))
}
