//! Row P's compaction tests: small memtables make many tables; reads, ranges and space are measured
//! as the writes left them, and again when nothing is left to compact.
//!
//! Our engine compacts by its own schedule while the writes go on, so its *before* is already the
//! better for it; the number of tables at both times is in the report.

use super::{
    results::Test,
    subject::{Found, KvSubject},
    timing::timed,
    workloads::{self, Context, Keys},
};
use crate::{
    BenchError,
    data::{self, KEY_BYTES, Values},
    random::Rng,
};

const READS_BEFORE: Test = Test::new("compaction: reads before", "5 × 1000 keys × 200 B", "");
const READS_AFTER: Test = Test::new("compaction: reads after", "5 × 1000 keys × 200 B", "+2 % / +33 %");
const RANGES_BEFORE: Test = Test::new("compaction: ranges of 50 before", "1000 queries", "92 / 345 q/s");
const RANGES_AFTER: Test = Test::new("compaction: ranges of 50 after", "1000 queries", "561 / 1,998 q/s");
const LARGE: Test = Test::new("compaction: large, until done", "10 × 2000 × 200 B", "0.69 s / 0.38 s in all");
const MEMTABLE_BYTES: u64 = 64 << 10;
const VALUE_BYTES: usize = 200;

/// Runs all four tests.
pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    overwrites(context)?;
    tombstones(context)?;
    large(context)
}

/// What the keys hold after the last pass.
fn pass_values(seed: u64, pass: u64) -> Values {
    Values::new(VALUE_BYTES, seed.wrapping_mul(1000) + pass)
}

/// Writes all keys `passes` times, each time with other values; returns the last ones.
fn overwrite(context: &Context<'_>, subject: &dyn KvSubject, passes: u64, keys: &Keys) -> Result<Values, BenchError> {
    for pass in 0..passes {
        workloads::fill(subject, keys, &pass_values(context.seed, pass))?;
        subject.flush()?;
    }
    Ok(pass_values(context.seed, passes - 1))
}

fn overwrites(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(1000);
    let subject = context.open(Some(MEMTABLE_BYTES))?;
    let keys = Keys::sequential(count);
    let values = overwrite(context, &*subject, 5, &keys)?;
    let payload = count * (KEY_BYTES + VALUE_BYTES) as u64;
    let random = Keys::random(context.count(10_000), count, context.seed);
    context.record_space("5 × 1000 × 200 B, before compaction", &*subject, payload);
    workloads::gets(context, &*subject, READS_BEFORE, &random, &values, Found::Right)?;
    workloads::ranges(context, &*subject, RANGES_BEFORE, 50, count, &values)?;
    subject.compact()?;
    context.record_space("5 × 1000 × 200 B, after compaction", &*subject, payload);
    workloads::gets(context, &*subject, READS_AFTER, &random, &values, Found::Right)?;
    workloads::ranges(context, &*subject, RANGES_AFTER, 50, count, &values)
}

/// 5000 keys, every second one deleted: the space comes back, and no deleted key does.
fn tombstones(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(5000);
    let values = Values::new(VALUE_BYTES, context.seed);
    let subject = context.open(Some(MEMTABLE_BYTES))?;
    workloads::fill(&*subject, &Keys::sequential(count), &values)?;
    subject.flush()?;
    let each = (KEY_BYTES + VALUE_BYTES) as u64;
    context.record_space("5000 × 200 B, before deletes", &*subject, count * each);
    for index in (0..count).step_by(2) {
        subject.delete(&data::key(index))?;
    }
    subject.flush()?;
    subject.compact()?;
    context.record_space("5000 × 200 B, half deleted, compacted", &*subject, count / 2 * each);
    for index in 0..count {
        let found = subject.get(&data::key(index), values.of(index))?;
        let expected = if index % 2 == 0 { Found::Missing } else { Found::Right };
        if found != expected {
            return Err(context.wrong("reading after deletes", format!("key {index}: {found:?}, not {expected:?}")));
        }
    }
    Ok(())
}

fn large(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(2000);
    let subject = context.open(Some(MEMTABLE_BYTES))?;
    let payload = count * (KEY_BYTES + VALUE_BYTES) as u64;
    let mut order: Vec<u64> = (0..count).collect();
    Rng::new(context.seed).shuffle(&mut order);
    let values = overwrite(context, &*subject, 10, &Keys::of(order))?;
    context.record_space("10 × 2000 × 200 B, before compaction", &*subject, payload);
    let mut measure = timed(&*subject, 1, 1, |_| subject.compact())?;
    measure.payload_bytes = payload;
    context.record(LARGE, measure);
    context.record_space("10 × 2000 × 200 B, after compaction", &*subject, payload);
    workloads::check_all(context, &*subject, &Keys::sequential(count), &values)
}
