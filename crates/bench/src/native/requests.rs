//! Requests and replies: so many under way on each channel, sent as replies come or by a schedule.
//!
//! Owns: ids, pacing, times, and the threads of such a run. Does not own what is asked or what a right answer is: that is a
//! [`Work`]'s.
//!
//! What can be asked is asked before the channel is written, and all that came with a read is answered before it is written again:
//! many requests share a call to the kernel.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Barrier, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use thalweg_transport::Outbox;
use thalweg_wire::RawFrame;
use tokio::task::JoinSet;

use super::{
    alarm::{Alarm, Clock},
    crew,
    line::{Line, LineError},
    place::Place,
};
use crate::{
    BenchError,
    latency::{Latencies, nanos},
    load::{
        schedule::{Arrivals, Schedule},
        validity::{MAX_BUSY, Validity},
    },
    report::duration,
    usage::{Cost, Effort, Usage, Whose},
};

/// What is asked on a channel, and what answers are right.
pub trait Work: Send + 'static {
    /// Appends a request with this id, one that waits in `slot`; false: there is nothing more to ask.
    fn ask(&mut self, slot: usize, id: u32, out: &mut Outbox) -> Result<bool, LineError>;

    /// Judges the reply to the request in `slot`: how many items it carried or acked, or what is wrong with it.
    fn judge(&mut self, slot: usize, reply: RawFrame<'_>) -> Result<u64, LineError>;
}

/// A run.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// Where the server is.
    pub place: Place,
    /// Connections.
    pub connections: usize,
    /// Streams of each.
    pub streams: usize,
    /// Requests under way, over all channels.
    pub in_flight: usize,
    /// Requests per second by a schedule; as replies come without it.
    pub rate: Option<(f64, Arrivals)>,
    /// Asked but not counted.
    pub warmup: Duration,
    /// Counted.
    pub duration: Duration,
    /// Longest wait for the last replies.
    pub give_up: Duration,
    /// See [`crate::pubsub::plan::Plan::max_lag`].
    pub max_lag: Duration,
    /// Feeds arrivals.
    pub seed: u64,
    /// Threads.
    pub workers: usize,
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// From the moment a request was due to its reply; in a closed loop it is due when it can be sent.
    pub times: Latencies,
    /// How late requests were sent although there was a free slot.
    pub lag: Latencies,
    /// Replies that came within the counted time.
    pub replies: u64,
    /// Items of these.
    pub items: u64,
    /// Bytes received within it.
    pub received_bytes: u64,
    /// Replies in all.
    pub all_replies: u64,
    /// Items in all.
    pub all_items: u64,
    /// Requests that had no reply in the end.
    pub unanswered: u64,
    /// The first thing that went wrong, in words.
    pub problem: Option<String>,
}

impl CallCounts {
    fn merge(&mut self, other: Self) {
        self.times.merge(&other.times);
        self.lag.merge(&other.lag);
        self.replies += other.replies;
        self.items += other.items;
        self.received_bytes += other.received_bytes;
        self.all_replies += other.all_replies;
        self.all_items += other.all_items;
        self.unanswered += other.unanswered;
        self.problem = self.problem.take().or(other.problem);
    }
}

/// A run's figures.
#[derive(Debug)]
pub struct CallOutcome {
    /// Merged counts.
    pub counts: CallCounts,
    /// Replies per second.
    pub rate: f64,
    /// Items per second.
    pub items_rate: f64,
    /// Bytes received per second.
    pub received_rate: f64,
    /// What the server used.
    pub server: Cost,
    /// CPU seconds of the generator's threads.
    pub generator_cpu: f64,
    /// Share of its time that the busiest of them was busy.
    pub busiest: f64,
    /// Whether to believe it.
    pub validity: Validity,
}

/// Runs a plan; `make` gives each channel, by its number, what it asks. Gives that back too, in the order of the channels.
pub fn run<W: Work>(
    plan: &CallPlan,
    server: Option<u32>,
    make: impl Fn(usize) -> W + Sync,
) -> Result<(CallOutcome, Vec<W>), BenchError> {
    let workers = plan.workers.clamp(1, plan.connections.max(1));
    let stage = Stage {
        plan,
        clock: Clock::start(),
        begin: OnceLock::new(),
        before: OnceLock::new(),
        barrier: Barrier::new(workers),
        failed: AtomicBool::new(false),
        server,
        make,
    };
    let brought = crew::run(workers, |number| stage.work(number, workers));
    let (mut counts, mut works) = (CallCounts::default(), Vec::new());
    let (mut generator_cpu, mut busiest) = (0.0, 0.0_f64);
    for one in brought {
        let one: Brought<W> = one?;
        counts.merge(one.counts);
        works.extend(one.works);
        generator_cpu += one.cpu.as_secs_f64();
        busiest = busiest.max(one.busy);
    }
    works.sort_by_key(|(channel, _)| *channel);
    let cost = match (server, stage.before.get()) {
        (Some(id), Some(before)) => Usage::read(Whose::Process(id)).since(before),
        _ => Cost::default(),
    };
    let seconds = plan.duration.as_secs_f64();
    let mut outcome = CallOutcome {
        rate: counts.replies as f64 / seconds,
        items_rate: counts.items as f64 / seconds,
        received_rate: counts.received_bytes as f64 / seconds,
        server: cost,
        generator_cpu,
        busiest,
        validity: Validity::Good,
        counts,
    };
    outcome.validity = judge(plan, &outcome);
    Ok((outcome, works.into_iter().map(|(_, work)| work).collect()))
}

fn judge(plan: &CallPlan, outcome: &CallOutcome) -> Validity {
    let counts = &outcome.counts;
    if let Some(problem) = &counts.problem {
        return Validity::Errors(problem.clone());
    }
    if counts.replies == 0 {
        return Validity::Errors("no reply came in the counted time".to_owned());
    }
    if let Some((rate, _)) = plan.rate {
        let lag = counts.lag.percentile(99.0);
        if lag > plan.max_lag || outcome.busiest > MAX_BUSY {
            return Validity::Saturated(format!(
                "the generator was late by {} at its 99th percentile and {:.0} % busy: lower the rate, or add --workers",
                duration(lag),
                100.0 * outcome.busiest
            ));
        }
        // A quarter of a second of backlog at the end tells in the times; more is not keeping up.
        if (counts.replies as f64) < 0.97 * counts.times.count() as f64 - rate / 4.0 {
            return Validity::Overloaded(format!("{:.0} of {rate:.0} requests/s answered", outcome.rate));
        }
    }
    match counts.unanswered {
        0 => Validity::Good,
        unanswered => {
            Validity::Overloaded(format!("{unanswered} requests had no reply {} after the end", duration(plan.give_up)))
        }
    }
}

struct Brought<W> {
    counts: CallCounts,
    works: Vec<(usize, W)>,
    cpu: Duration,
    busy: f64,
}

struct Stage<'a, M> {
    plan: &'a CallPlan,
    clock: Clock,
    begin: OnceLock<u64>,
    before: OnceLock<Usage>,
    barrier: Barrier,
    failed: AtomicBool,
    server: Option<u32>,
    make: M,
}

impl<W: Work, M: Fn(usize) -> W + Sync> Stage<'_, M> {
    async fn work(&self, number: usize, workers: usize) -> Result<Brought<W>, BenchError> {
        let plan = self.plan;
        let mine = |connection: usize| connection % workers == number;
        let lines = plan.place.open(plan.connections, plan.streams, mine).await;
        self.failed.fetch_or(lines.is_err(), Ordering::AcqRel);
        if self.barrier.wait().is_leader() {
            let _ = self.before.set(self.server.map(|id| Usage::read(Whose::Process(id))).unwrap_or_default());
            let _ = self.begin.set(self.clock.now() + 1_000_000);
        }
        self.barrier.wait();
        let lines = lines?;
        if self.failed.load(Ordering::Acquire) {
            // Another thread says why.
            return Ok(Brought { counts: CallCounts::default(), works: Vec::new(), cpu: Duration::ZERO, busy: 0.0 });
        }
        let begin = *self.begin.get().expect("set between the barriers");
        let (counts, over) = (Rc::new(RefCell::new(CallCounts::default())), Rc::new(std::cell::Cell::new(false)));
        let effort = Effort::begin();
        let mut tasks: JoinSet<(usize, W)> = JoinSet::new();
        for (channel, line) in lines {
            let work = (self.make)(channel);
            let caller = Caller::new(
                line,
                channel,
                work,
                plan,
                begin,
                Pulse { clock: self.clock, counts: Rc::clone(&counts), over: Rc::clone(&over) },
            );
            match caller {
                Ok(caller) => drop(tasks.spawn_local(async move { (channel, caller.run().await) })),
                Err(error) => counts.borrow_mut().problem = Some(error.to_string()),
            }
        }
        let end = begin + nanos(plan.warmup + plan.duration + plan.give_up);
        let patience = Duration::from_nanos(end.saturating_sub(self.clock.now()));
        let mut works = Vec::new();
        let all = async {
            while let Some(ended) = tasks.join_next().await {
                match ended {
                    Ok(work) => works.push(work),
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                }
            }
        };
        let in_time = tokio::time::timeout(patience, all).await.is_ok();
        let (cpu, busy) = effort.end();
        if !in_time {
            counts.borrow_mut().unanswered += tasks.len() as u64;
            tasks.shutdown().await;
        }
        let counts = counts.take();
        Ok(Brought { counts, works, cpu, busy })
    }
}

/// What the callers of a thread share.
struct Pulse {
    clock: Clock,
    counts: Rc<RefCell<CallCounts>>,
    /// Something went wrong: nobody goes on.
    over: Rc<std::cell::Cell<bool>>,
}

/// A channel and what is asked on it.
struct Caller<W> {
    line: Line,
    work: W,
    pulse: Pulse,
    /// When each request under way was due.
    due: Vec<u64>,
    free: Vec<usize>,
    /// Since when there has been a free slot without a break.
    free_since: u64,
    schedule: Option<Schedule>,
    alarm: Alarm,
    begin: u64,
    counted: std::ops::Range<u64>,
    /// The work has nothing more to ask.
    dry: bool,
}

impl<W: Work> Caller<W> {
    fn new(line: Line, channel: usize, work: W, plan: &CallPlan, begin: u64, pulse: Pulse) -> Result<Self, LineError> {
        let channels = plan.connections * plan.streams;
        let slots = plan.in_flight / channels + usize::from(channel < plan.in_flight % channels);
        let slots = slots.min(line.max_requests as usize);
        let from = begin + nanos(plan.warmup);
        let schedule = plan.rate.map(|(rate, arrivals)| Schedule::new(arrivals, rate, channel, channels, plan.seed));
        Ok(Self {
            line,
            work,
            pulse,
            due: vec![0; slots],
            free: (0..slots).rev().collect(),
            free_since: begin,
            schedule,
            alarm: Alarm::new()?,
            begin,
            counted: from..from + nanos(plan.duration),
            dry: slots == 0,
        })
    }

    async fn run(mut self) -> W {
        let ended = std::future::poll_fn(|cx| self.poll(cx)).await;
        if let Err(error) = ended {
            self.pulse.over.set(true);
            self.pulse.counts.borrow_mut().problem.get_or_insert_with(|| error.to_string());
        }
        self.work
    }

    fn under_way(&self) -> usize {
        self.due.len() - self.free.len()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LineError>> {
        loop {
            let now = self.pulse.clock.now();
            self.ask(now)?;
            self.line.keep_alive(cx);
            let sent = self.line.poll_send(cx)?;
            match self.line.poll_receive(cx)? {
                Poll::Ready(bytes) => {
                    self.receive(bytes)?;
                    continue;
                }
                Poll::Pending => {}
            }
            let asks_no_more = self.dry || self.pulse.over.get() || now >= self.counted.end;
            if self.under_way() == 0 && asks_no_more {
                return Poll::Ready(Ok(()));
            }
            if sent.is_pending() || self.free.is_empty() || asks_no_more {
                return Poll::Pending; // for the socket
            }
            let next = self.schedule.as_ref().map_or(self.begin, |schedule| self.begin + schedule.peek());
            ready!(self.alarm.poll(cx, &self.pulse.clock, next.min(self.counted.end)))?;
        }
    }

    /// Asks as much as is due and has a slot.
    fn ask(&mut self, now: u64) -> Result<(), LineError> {
        if self.dry || self.pulse.over.get() || now < self.begin {
            return Ok(());
        }
        while let Some(&slot) = self.free.last() {
            let due = match &mut self.schedule {
                None if now < self.counted.end => now,
                Some(schedule) if self.begin + schedule.peek() <= now.min(self.counted.end - 1) => {
                    self.begin + schedule.take()
                }
                _ => return Ok(()),
            };
            let id = u32::try_from(slot).unwrap_or(u32::MAX - 1) + 1;
            if !self.work.ask(slot, id, &mut self.line.out)? {
                self.dry = true;
                return Ok(());
            }
            if self.schedule.is_some() && self.free_since <= due && self.counted.contains(&due) {
                self.pulse.counts.borrow_mut().lag.record_nanos(now - due);
            }
            self.free.pop();
            self.due[slot] = due;
        }
        Ok(())
    }

    fn receive(&mut self, bytes: usize) -> Result<(), LineError> {
        let now = self.pulse.clock.now();
        let mut counts = self.pulse.counts.borrow_mut();
        let counted = self.counted.contains(&now);
        counts.received_bytes += if counted { bytes as u64 } else { 0 };
        if self.free.is_empty() {
            self.free_since = now;
        }
        while let Some(raw) = self.line.frame()? {
            let slot = (raw.header.id as usize).wrapping_sub(1);
            if slot >= self.due.len() {
                return Err(super::line::unexpected(raw));
            }
            let items = self.work.judge(slot, raw)?;
            self.free.push(slot);
            counts.all_replies += 1;
            counts.all_items += items;
            if counted {
                counts.replies += 1;
                counts.items += items;
            }
            if self.counted.contains(&self.due[slot]) {
                counts.times.record_nanos(now.saturating_sub(self.due[slot]));
            }
        }
        Ok(())
    }
}
