//! Writers as tasks: one thread begins their puts when they are due and polls those that were answered.
//!
//! Owns: a runtime as small as it gets. A server's would do the same for its connections, but its timers are
//! too coarse for a schedule: here the thread sleeps until the next put is due, or until it is woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use thalweg_engine::{Ack, WriteError};

use super::{
    NAME,
    writers::{Phase, Puts, Writers},
};
use crate::{BenchError, latency::Latencies};

type Put = Pin<Box<dyn Future<Output = Result<Ack, WriteError>>>>;

/// A task has something to be polled for.
struct Woken {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

struct Task<'a> {
    puts: Puts<'a>,
    put: Option<Put>,
    woken: Arc<Woken>,
    waker: Waker,
}

/// Event that a task waits for.
enum Next {
    Answer,
    /// Its next put is due then.
    Due(u64),
    Nothing,
}

impl<'a> Task<'a> {
    fn new(puts: Puts<'a>) -> Self {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(false), thread: thread::current() });
        Self { puts, put: None, waker: woken.clone().into(), woken }
    }

    /// Goes on as far as it can.
    fn step(&mut self, writers: &Writers<'_>, phase: &Phase, times: &mut Latencies) -> Result<Next, BenchError> {
        loop {
            if let Some(put) = &mut self.put {
                if !self.woken.is_woken.swap(false, Ordering::Acquire) {
                    return Ok(Next::Answer);
                }
                match put.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                    Poll::Pending => return Ok(Next::Answer),
                    Poll::Ready(answer) => answer.map_err(BenchError::subject(NAME, "putting"))?,
                };
                self.put = None;
                phase.answered(self.puts.due, times);
                self.puts.next(phase);
            }
            if phase.is_over(self.puts.due) {
                return Ok(Next::Nothing);
            }
            if self.puts.due > phase.now() {
                return Ok(Next::Due(self.puts.due));
            }
            let (key, value) = (&self.puts.key, &self.puts.value);
            self.put = Some(Box::pin(writers.database.put(writers.keyspace.id(), key, value, writers.level)));
            // To be polled once, so that it knows whom to wake.
            self.woken.is_woken.store(true, Ordering::Release);
        }
    }
}

/// The part of these writers.
pub(super) fn run(writers: &Writers<'_>, numbers: &[u32], phase: &Phase) -> Result<Latencies, BenchError> {
    let mut times = Latencies::default();
    let mut tasks: Vec<_> = numbers.iter().map(|number| Task::new(Puts::new(writers, *number, phase))).collect();
    loop {
        let (mut next_due, mut is_over) = (u64::MAX, true);
        for task in &mut tasks {
            match task.step(writers, phase, &mut times)? {
                Next::Nothing => continue,
                Next::Answer => {}
                Next::Due(due) => next_due = next_due.min(due),
            }
            is_over = false;
        }
        if is_over {
            return Ok(times);
        }
        match next_due {
            u64::MAX => thread::park(),
            due => thread::park_timeout(Duration::from_nanos(due.saturating_sub(phase.now()))),
        }
    }
}
