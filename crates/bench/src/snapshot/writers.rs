//! Those who put while a snapshot is taken: as fast as they are answered, or as a schedule says.
//!
//! A writer is a thread that puts one value at a time under a random key of those that are there. In an open loop
//! a put's time counts from its scheduled moment: what a writer could not begin on time waits, and that counts.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::set_current_timer_slack;
use thalweg_engine::Keyspace;

use super::{NAME, content::Content};
use crate::{
    BenchError, data,
    http::schedule::{Arrivals, Schedule},
    latency::Latencies,
    random::Rng,
};

/// What all writers of a phase did.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Response times.
    pub(super) times: Latencies,
    /// From the first scheduled moment to the last answer.
    pub(super) seconds: f64,
}

impl Written {
    pub(super) fn rate(&self) -> f64 {
        self.times.count() as f64 / self.seconds
    }
}

/// Who writes, and where.
pub(super) struct Writers<'a> {
    pub(super) keyspace: &'a Keyspace,
    pub(super) content: &'a Content,
    pub(super) count: u32,
    /// Feeds keys, values and schedules; another one in each phase.
    pub(super) seed: u64,
}

impl Writers<'_> {
    /// All put as fast as they are answered.
    pub(super) fn closed(&self, time: Duration) -> Result<Written, BenchError> {
        let until = AtomicU64::new(nanos(time));
        self.run(&until, None, || Ok(())).map(|(written, ())| written)
    }

    /// Together they put `rate` times a second, for `time`.
    pub(super) fn open(&self, rate: f64, time: Duration) -> Result<Written, BenchError> {
        let until = AtomicU64::new(nanos(time));
        self.run(&until, Some(rate), || Ok(())).map(|(written, ())| written)
    }

    /// Together they put `rate` times a second, for as long as `beside` takes.
    pub(super) fn open_beside<T>(
        &self,
        rate: f64,
        beside: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(Written, T), BenchError> {
        self.run(&AtomicU64::new(u64::MAX), Some(rate), beside)
    }

    fn run<T>(
        &self,
        until: &AtomicU64,
        rate: Option<f64>,
        beside: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(Written, T), BenchError> {
        let begun = Instant::now();
        let (outcomes, done) = thread::scope(|scope| {
            let writer = |number| {
                scope.spawn(move || {
                    let done = self.write(number, begun, until, rate);
                    if done.is_err() {
                        until.store(0, Ordering::Relaxed);
                    }
                    done
                })
            };
            let writers: Vec<_> = (0..self.count).map(writer).collect();
            let done = beside();
            let end = nanos(begun.elapsed());
            // Not if it has an end already, which failing gives it.
            let _ = until.compare_exchange(u64::MAX, end, Ordering::Relaxed, Ordering::Relaxed);
            let panicked = |_| Err(BenchError::subject(NAME, "putting")("a writer panicked"));
            let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap_or_else(panicked)).collect();
            (outcomes, done)
        });
        let mut written = Written { seconds: begun.elapsed().as_secs_f64(), ..Written::default() };
        for times in outcomes {
            written.times.merge(&times?);
        }
        Ok((written, done?))
    }

    /// One writer's part. Whatever is due before the end is put, however late.
    fn write(
        &self,
        number: u32,
        begun: Instant,
        until: &AtomicU64,
        rate: Option<f64>,
    ) -> Result<Latencies, BenchError> {
        // Sleeps end up to 50 µs late otherwise; without it they do, which the times then show.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut rng = Rng::new(self.seed.wrapping_add(u64::from(number)));
        let schedule = |rate| Schedule::new(Arrivals::Constant, rate, number as usize, self.count as usize, self.seed);
        let mut schedule = rate.map(schedule);
        let (mut times, mut value) = (Latencies::default(), Vec::new());
        loop {
            let key = data::key(rng.below(self.content.entries));
            self.content.value(rng.next_u64(), &mut value);
            let due = schedule.as_mut().map_or_else(|| nanos(begun.elapsed()), Schedule::take);
            if due >= until.load(Ordering::Relaxed) {
                return Ok(times);
            }
            let early = due.saturating_sub(nanos(begun.elapsed()));
            if early > 0 {
                thread::sleep(Duration::from_nanos(early));
                if due >= until.load(Ordering::Relaxed) {
                    return Ok(times);
                }
            }
            self.keyspace.put(&key, &value).map_err(BenchError::subject(NAME, "putting"))?;
            times.record_nanos(nanos(begun.elapsed()).saturating_sub(due));
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
