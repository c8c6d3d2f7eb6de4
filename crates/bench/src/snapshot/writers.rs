//! Writers that run while a snapshot is taken. They put in a closed loop (the next put after a reply) or by a schedule
//! (an open loop).
//!
//! Owns: the writers' tasks and threads, their schedules, and the response times. Does not own: the keys and values
//! (`content`), the rate (`knee`), or the snapshot that is taken meanwhile.
//!
//! Each writer puts one value at a time under a random existing key. In an open loop the response time of a put counts
//! from its scheduled time. So if a put could not begin on time, the delay is included.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use rand::{Rng as _, RngExt as _};
use rustix::thread::set_current_timer_slack;
use thalweg_engine::{AsyncDatabase, Keyspace};

use super::{
    content::Content,
    options::{NAME, SnapshotOptions, WriterKind},
};
use crate::{
    BenchError, data,
    latency::{Latencies, nanos},
    load::{Arrivals, Clock, Schedule},
    random::{Generator, generator},
    tasks::{self, NextStep},
};

/// Figures of all writers in one phase of writing, such as a window of the suite or a run of the search for the rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Response times of the writers' puts.
    pub(super) times: Latencies,
    /// Seconds from the first scheduled put to the last reply.
    pub(super) seconds: f64,
    /// True if the writers were stopped because they fell too far behind the schedule.
    pub(super) gave_up: bool,
}

impl Written {
    pub(super) fn rate(&self) -> f64 {
        self.times.count() as f64 / self.seconds
    }
}

/// The writers of the snapshot suite, which put values into a database.
pub(super) struct Writers<'a> {
    pub(super) database: &'a AsyncDatabase,
    pub(super) keyspace: &'a Keyspace,
    pub(super) content: &'a Content,
    pub(super) options: &'a SnapshotOptions,
    /// Seed of the keys, values and schedules. Each phase of writing uses another seed.
    pub(super) seed: u64,
}

/// Clock, end and rate of one phase of writing, which all writers share.
struct WritePhase {
    clock: Clock,
    /// End of the phase, in nanoseconds of its clock. All puts that are due before the end are made, even if they are
    /// late.
    until: AtomicU64,
    /// Puts per second of all writers together; `None` in a closed loop.
    rate: Option<f64>,
    /// Response time in nanoseconds. If a put takes longer, all writers stop.
    give_up: u64,
}

impl WritePhase {
    fn new(until: u64, rate: Option<f64>, give_up: Option<Duration>) -> Self {
        Self { clock: Clock::start(), until: until.into(), rate, give_up: give_up.map_or(u64::MAX, nanos) }
    }

    fn is_over(&self, due: u64) -> bool {
        due >= self.until.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    fn was_stopped(&self) -> bool {
        self.until.load(Ordering::Relaxed) == 0
    }

    /// Counts a put whose reply has just arrived. If the put took too long, stops all writers.
    fn answered(&self, due: u64, times: &mut Latencies) {
        let took = self.clock.now().saturating_sub(due);
        times.record_nanos(took);
        if took > self.give_up {
            self.stop();
        }
    }
}

/// The puts of one writer, with their due times.
struct Puts<'a> {
    content: &'a Content,
    rng: Generator,
    schedule: Option<Schedule>,
    key: [u8; data::KEY_BYTES],
    value: Vec<u8>,
    /// Due time of the writer's next put, in nanoseconds of the phase's clock.
    due: u64,
}

impl<'a> Puts<'a> {
    fn new(writers: &Writers<'a>, number: u32, phase: &WritePhase) -> Self {
        let schedule = |rate| {
            let writer = number as usize;
            Schedule::new(Arrivals::Constant, rate, 0, writer, writers.options.writers as usize, writers.seed)
        };
        let mut puts = Self {
            content: writers.content,
            rng: generator(writers.seed.wrapping_add(u64::from(number))),
            schedule: phase.rate.map(schedule),
            key: data::key(0),
            value: Vec::new(),
            due: 0,
        };
        puts.next(phase);
        puts
    }

    fn next(&mut self, phase: &WritePhase) {
        self.key = data::key(self.rng.random_range(0..self.content.entries));
        self.content.value(self.rng.next_u64(), &mut self.value);
        self.due = self.schedule.as_mut().map_or_else(|| phase.clock.now(), Schedule::take);
    }
}

impl Writers<'_> {
    /// Runs the writers in a closed loop for `time`. Each writer makes its next put after the reply to its last one.
    pub(super) fn closed(&self, time: Duration) -> Result<Written, BenchError> {
        self.run(&WritePhase::new(nanos(time), None, None), || Ok(())).map(|(written, ())| written)
    }

    /// Runs the writers by a schedule of `rate` puts per second in total for `time`. Stops early if a put takes longer
    /// than `give_up`.
    pub(super) fn open(&self, rate: f64, time: Duration, give_up: Option<Duration>) -> Result<Written, BenchError> {
        self.run(&WritePhase::new(nanos(time), Some(rate), give_up), || Ok(())).map(|(written, ())| written)
    }

    /// Runs the writers by a schedule of `rate` puts per second in total while `beside` runs. Also returns the result
    /// of `beside`.
    pub(super) fn write_during<T>(
        &self,
        rate: f64,
        beside: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(Written, T), BenchError> {
        self.run(&WritePhase::new(u64::MAX, Some(rate), None), beside)
    }

    fn run<T>(
        &self,
        phase: &WritePhase,
        beside: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(Written, T), BenchError> {
        let numbers: Vec<Vec<u32>> = match self.options.drive {
            WriterKind::Tasks => vec![(0..self.options.writers).collect()],
            WriterKind::Threads => (0..self.options.writers).map(|number| vec![number]).collect(),
        };
        let (outcomes, done) = thread::scope(|scope| {
            let writer = |numbers: Vec<u32>| {
                scope.spawn(move || {
                    // With the usual timer slack, sleeps end up to 50 µs late. If the kernel refuses the change, the
                    // times show the lateness.
                    let _ = set_current_timer_slack(NonZeroU64::new(1));
                    let done = match self.options.drive {
                        WriterKind::Tasks => self.write_by_tasks(&numbers, phase),
                        WriterKind::Threads => self.write(numbers[0], phase),
                    };
                    if done.is_err() {
                        phase.stop();
                    }
                    done
                })
            };
            let writers: Vec<_> = numbers.into_iter().map(writer).collect();
            let done = beside();
            let end = phase.clock.now();
            // If a writer has failed, it has already set the end.
            let _ = phase.until.compare_exchange(u64::MAX, end, Ordering::Relaxed, Ordering::Relaxed);
            let panicked = |_| Err(BenchError::subject(NAME, "putting")("a writer panicked"));
            let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap_or_else(panicked)).collect();
            (outcomes, done)
        });
        let seconds = phase.clock.now() as f64 / 1e9;
        let mut written = Written { seconds, gave_up: phase.was_stopped(), ..Written::default() };
        for times in outcomes {
            written.times.merge(&times?);
        }
        Ok((written, done?))
    }

    /// Runs one writer on the calling thread until the phase ends.
    fn write(&self, number: u32, phase: &WritePhase) -> Result<Latencies, BenchError> {
        let (mut times, mut puts) = (Latencies::default(), Puts::new(self, number, phase));
        while !phase.is_over(puts.due) {
            let early = puts.due.saturating_sub(phase.clock.now());
            if early > 0 {
                thread::sleep(Duration::from_nanos(early));
                if phase.is_over(puts.due) {
                    break;
                }
            }
            self.keyspace.put(&puts.key, &puts.value).map_err(BenchError::subject(NAME, "putting"))?;
            phase.answered(puts.due, &mut times);
            puts.next(phase);
        }
        Ok(times)
    }

    /// Runs the writers with these numbers as tasks on the calling thread until the phase ends.
    fn write_by_tasks(&self, numbers: &[u32], phase: &WritePhase) -> Result<Latencies, BenchError> {
        let mut times = Latencies::default();
        let mut writers: Vec<_> = numbers.iter().map(|number| Puts::new(self, *number, phase)).collect();
        tasks::run(writers.len(), &phase.clock, |number, put: Option<Result<_, _>>| {
            let puts = &mut writers[number];
            if let Some(put) = put {
                put.map_err(BenchError::subject(NAME, "putting"))?;
                phase.answered(puts.due, &mut times);
                puts.next(phase);
            }
            Ok(if phase.is_over(puts.due) {
                NextStep::Nothing
            } else if puts.due > phase.clock.now() {
                NextStep::Due(puts.due)
            } else {
                NextStep::Future(self.database.put(self.keyspace.id(), &puts.key, &puts.value, self.options.durability))
            })
        })?;
        Ok(times)
    }
}
