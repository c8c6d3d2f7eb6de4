//! The generator's loop: one thread, many connections.
//!
//! Two paces. *Closed*: a connection sends as many requests as may be under way, in one write, and sends again when all of
//! them are answered, as redis-benchmark does; times count from the send. *Open*: requests are due by a schedule, go to the
//! connection that has been free longest, and their times count from when they were due; lateness although a connection was
//! free is the generator's, and voids the run when it grows.
//!
//! It waits in `epoll` with nanosecond timeouts and does not spin: the server needs the cycles.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use rustix::{
    event::epoll::{self, Event, EventData, EventFlags},
    fd::OwnedFd,
    thread::set_current_timer_slack,
    time::Timespec,
};

use super::{
    client::{Client, Greeting},
    connection::{Asked, Connection, More},
    requests::{Mix, Requests, Wrong},
};
use crate::{
    BenchError,
    http::run::Loop,
    latency::Latencies,
    load::{
        schedule::Schedule,
        validity::{MAX_BUSY, Validity},
    },
    native::crew::Effort,
    random::{KeyChooser, Rng},
    report::duration,
    usage::{Cost, Usage, Whose},
};

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How connections begin.
    pub greeting: Greeting,
    /// How many.
    pub connections: usize,
    /// Requests that may be under way on each.
    pub pipeline: usize,
    /// What makes it send.
    pub pace: Loop,
    /// Makes and judges.
    pub requests: Requests,
    /// Which operations.
    pub mix: Mix,
    /// Which keys.
    pub keys: KeyChooser,
    /// Sent but not counted.
    pub warmup: Duration,
    /// Counted.
    pub duration: Duration,
    /// Longest wait for a reply.
    pub give_up: Duration,
    /// The generator's own lateness above which a scheduled run is void.
    pub max_lag: Duration,
    /// What a wrong reply means.
    pub on_wrong: OnWrong,
    /// Feeds choices and arrivals.
    pub seed: u64,
    /// The server's process, for its CPU time and memory.
    pub process: Option<u32>,
}

/// What a wrong reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnWrong {
    /// The end of the run.
    Stop,
    /// It is counted.
    Count,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Times by kind of the mix.
    pub times: Vec<Latencies>,
    /// How late requests were sent although a connection was free.
    pub lag: Latencies,
    /// Replies that are right.
    pub right: u64,
    /// Replies that are wrong, and connections that broke.
    pub wrong: u64,
    /// Requests that were due and have no reply.
    pub unanswered: u64,
    /// When the last counted reply came.
    pub last_reply: u64,
    /// The first thing that went wrong.
    pub first_problem: Option<String>,
}

impl Tally {
    /// Times of all operations.
    #[must_use]
    pub fn all(&self) -> Latencies {
        let mut all = Latencies::default();
        self.times.iter().for_each(|times| all.merge(times));
        all
    }

    fn problem(&mut self, what: impl FnOnce() -> String) {
        if self.first_problem.is_none() {
            self.first_problem = Some(what());
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counts.
    pub tally: Tally,
    /// Times of all operations.
    pub times: Latencies,
    /// Right replies per second of the counted time.
    pub rate: f64,
    /// Right replies, those of the warm-up included: what the costs below were for.
    pub replies: u64,
    /// What the server used, if its process is known.
    pub server: Option<Cost>,
    /// CPU seconds of the generator.
    pub generator_cpu: f64,
    /// Share of its time that the generator's thread was running.
    pub busy: f64,
    /// Whether to believe it.
    pub validity: Validity,
}

const EVENTS: usize = 256;

/// Runs a plan to its end, on this thread.
pub fn run(plan: &Plan) -> Result<Outcome, BenchError> {
    let mut worker = Worker::open(plan)?;
    let before = plan.process.map(|id| Usage::read(Whose::Process(id)));
    let effort = Effort::begin();
    worker.start = Instant::now();
    worker.run();
    let (cpu, busy) = effort.end();
    let after = plan.process.map(|id| Usage::read(Whose::Process(id)));
    let server = after.zip(before).map(|(after, before)| after.since(&before));
    let tally = worker.tally;
    let times = tally.all();
    let from = if matches!(plan.pace, Loop::Each { .. }) { Duration::ZERO } else { plan.warmup };
    let replied = tally.last_reply as f64 / 1e9 - from.as_secs_f64();
    let seconds = match plan.pace {
        Loop::Each { .. } => replied,
        _ => replied.max(plan.duration.as_secs_f64()),
    };
    let rate = if seconds > 0.0 { tally.right as f64 / seconds } else { 0.0 };
    let validity = judge(plan, &tally, rate, busy);
    let replies = worker.replies;
    Ok(Outcome { tally, times, rate, replies, server, generator_cpu: cpu.as_secs_f64(), busy, validity })
}

fn judge(plan: &Plan, tally: &Tally, rate: f64, busy: f64) -> Validity {
    let first = tally.first_problem.as_deref().map_or_else(String::new, |first| format!("; first: {first}"));
    if tally.wrong > 0 {
        return Validity::Errors(format!("{} wrong replies{first}", tally.wrong));
    }
    if let Loop::Open { rate: wanted, .. } = plan.pace {
        let lag = tally.lag.percentile(99.0);
        if lag > plan.max_lag {
            let lag = duration(lag);
            return Validity::Saturated(format!("the generator itself was late by {lag} at its 99th percentile"));
        }
        if busy > MAX_BUSY {
            return Validity::Saturated(format!("the generator's thread was {:.0} % busy", 100.0 * busy));
        }
        if tally.unanswered > 0 || rate < 0.97 * wanted {
            let left = tally.unanswered;
            return Validity::Overloaded(format!("{rate:.0} of {wanted:.0}/s answered, {left} left unanswered{first}"));
        }
    }
    if tally.unanswered > 0 {
        return Validity::Overloaded(format!("{} requests left unanswered{first}", tally.unanswered));
    }
    if tally.right == 0 {
        return Validity::Errors(format!("no reply was counted{first}"));
    }
    Validity::Good
}

struct Worker<'a> {
    plan: &'a Plan,
    schedule: Option<Schedule>,
    /// The next key of [`Loop::Each`].
    each: u64,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Connections that can take a request, longest free first.
    free: VecDeque<usize>,
    /// Connections that were given requests which are not sent.
    unsent: Vec<usize>,
    rng: Rng,
    tally: Tally,
    under_way: usize,
    /// Right replies since the begin.
    replies: u64,
    start: Instant,
    from: u64,
    to: u64,
    is_over: bool,
}

impl<'a> Worker<'a> {
    fn open(plan: &'a Plan) -> Result<Self, BenchError> {
        // Without it the kernel may wake the thread 50 µs late. Where that is refused, lag shows it.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let fail = |error: rustix::io::Errno| BenchError::Target {
            target: plan.greeting.address.to_string(),
            message: error.to_string(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        let mut connections = Vec::with_capacity(plan.connections);
        for number in 0..plan.connections {
            let connection = Client::open(&plan.greeting)?.into_connection()?;
            let data = EventData::new_u64(number as u64);
            epoll::add(&epoll, connection.socket(), data, EventFlags::IN).map_err(fail)?;
            connections.push(connection);
        }
        let schedule = match plan.pace {
            Loop::Open { rate, arrivals } => Some(Schedule::new(arrivals, rate, 0, 1, plan.seed)),
            Loop::Closed | Loop::Each { .. } => None,
        };
        let is_each = matches!(plan.pace, Loop::Each { .. });
        let from = if is_each { 0 } else { nanos(plan.warmup) };
        let times = plan.mix.operations().map(|_| Latencies::default()).collect();
        Ok(Self {
            plan,
            schedule,
            each: 0,
            epoll,
            free: (0..plan.connections).collect(),
            connections,
            unsent: Vec::new(),
            rng: Rng::new(plan.seed.wrapping_mul(31)),
            tally: Tally { times, ..Tally::default() },
            under_way: 0,
            replies: 0,
            start: Instant::now(),
            from,
            to: if is_each { u64::MAX } else { from + nanos(plan.duration) },
            is_over: false,
        })
    }

    fn run(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.is_over {
            match self.schedule {
                Some(_) => self.send_due(),
                None => self.send_closed(),
            }
            if self.is_over || (self.under_way == 0 && self.next_due(self.now()).is_none()) {
                break;
            }
            self.wait(&mut events);
            for event in events.drain(..) {
                self.serve(event.data.u64() as usize, event.flags);
            }
            self.check_patience();
        }
        self.count_unanswered();
    }

    #[inline]
    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    /// When the next request is due; `None` when all were sent.
    fn next_due(&self, now: u64) -> Option<u64> {
        match (&self.schedule, self.plan.pace) {
            (Some(schedule), _) => Some(schedule.peek()).filter(|due| *due < self.to),
            (None, Loop::Each { keys }) => Some(now).filter(|_| self.each < keys),
            (None, _) => Some(now).filter(|_| now < self.to),
        }
    }

    /// Gives each connection that has nothing under way as many requests as may be, and sends them.
    fn send_closed(&mut self) {
        while let Some(number) = self.free.pop_front() {
            let now = self.now();
            for _ in 0..self.plan.pipeline {
                if self.next_due(now).is_none() {
                    break;
                }
                self.ask(number, now);
            }
            self.send(number);
        }
    }

    /// Sends what is due, as long as connections are free.
    fn send_due(&mut self) {
        let mut now = self.now();
        while let Some(&number) = self.free.front() {
            let Some(due) = self.next_due(now) else { break };
            if due > now {
                now = self.now();
                if due > now {
                    break;
                }
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.take();
            }
            if self.connections[number].free_since <= due && due >= self.from {
                self.tally.lag.record_nanos(now - due);
            }
            self.free.pop_front();
            self.ask(number, due);
            self.unsent.push(number);
            if self.connections[number].under_way.len() < self.plan.pipeline {
                self.free.push_back(number);
            }
        }
        while let Some(number) = self.unsent.pop() {
            self.send(number);
        }
    }

    fn ask(&mut self, number: usize, due: u64) {
        let plan = self.plan;
        let kind = plan.mix.choose(&mut self.rng);
        let index = match plan.pace {
            Loop::Each { .. } => {
                self.each += 1;
                self.each - 1
            }
            _ => plan.keys.choose(&mut self.rng),
        };
        let connection = &mut self.connections[number];
        plan.requests.put(plan.mix.operation(kind), index, connection.out());
        connection.under_way.push_back(Asked { due, index, kind });
        self.under_way += 1;
    }

    fn send(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let was_blocked = connection.is_blocked;
        let mut sent = connection.send();
        if sent.is_ok() && connection.is_blocked != was_blocked {
            let flags = if connection.is_blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(number as u64);
            sent = epoll::modify(&self.epoll, connection.socket(), data, flags).map_err(Into::into);
        }
        if let Err(error) = sent {
            self.lose(&format!("sending: {error}"));
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>) {
        const PATIENCE: u64 = 100_000_000;
        let timeout = match self.schedule.as_ref().map(Schedule::peek) {
            Some(due) if due < self.to && !self.free.is_empty() => due.saturating_sub(self.now()).min(PATIENCE),
            _ => PATIENCE,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout as _ };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => self.lose(&format!("waiting: {error}")),
        }
    }

    fn serve(&mut self, number: usize, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.send(number);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return;
        }
        loop {
            match self.connections[number].receive() {
                Ok(more) => {
                    self.take_replies(number);
                    if more == More::No || self.is_over {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.lose(&format!("receiving: {error}")),
            }
        }
    }

    fn take_replies(&mut self, number: usize) {
        let now = self.now();
        let Self { plan, schedule, connections, tally, free, from, under_way, replies, is_over, .. } = self;
        let connection = &mut connections[number];
        let was_full = connection.under_way.len() >= plan.pipeline;
        let (mut at, mut taken, mut problem) = (0, 0, None);
        let mut last_entry = connection.last_entry;
        let bytes = connection.input();
        // Replies to requests that were due at once are one record.
        let mut run = (0, 0, 0_u64);
        for asked in &connection.under_way {
            let operation = plan.mix.operation(asked.kind);
            match plan.requests.judge(operation, asked.index, &mut last_entry, &bytes[at..]) {
                Ok(Some(len)) => at += len,
                Ok(None) => break,
                Err(wrong) => {
                    tally.wrong += 1;
                    let skipped = skip(&wrong, &bytes[at..]).filter(|_| plan.on_wrong == OnWrong::Count);
                    tally.problem(|| wrong.to_string());
                    taken += 1;
                    match skipped {
                        Some(len) => at += len,
                        None => {
                            problem = Some(wrong);
                            break;
                        }
                    }
                    continue;
                }
            }
            taken += 1;
            *replies += 1;
            if asked.due >= *from {
                if run.0 != asked.due || run.1 != asked.kind {
                    record(tally, run, now);
                    run = (asked.due, asked.kind, 0);
                }
                run.2 += 1;
            }
        }
        record(tally, run, now);
        if taken == connection.under_way.len() && at < bytes.len() && problem.is_none() {
            tally.wrong += 1;
            tally.problem(|| "a reply that nobody asked for".to_owned());
            *is_over = true;
        }
        *is_over |= problem.is_some();
        connection.under_way.drain(..taken);
        connection.last_entry = last_entry;
        connection.consume(at);
        *under_way -= taken;
        let is_free = match schedule {
            Some(_) => was_full && taken > 0,
            None => connection.under_way.is_empty() && taken > 0,
        };
        if is_free {
            connection.free_since = now;
            free.push_back(number);
        }
    }

    /// A connection that is lost ends the run: figures of fewer connections would be another scenario's.
    fn lose(&mut self, problem: &str) {
        self.tally.problem(|| problem.to_owned());
        self.tally.wrong += 1;
        self.is_over = true;
    }

    /// Gives up when the oldest request has waited too long.
    fn check_patience(&mut self) {
        let now = self.now();
        let limit = now.saturating_sub(nanos(self.plan.give_up));
        let backlog = self.schedule.as_ref().map(Schedule::peek).filter(|due| *due < self.to);
        let oldest = self.connections.iter().filter_map(|connection| connection.under_way.front());
        if oldest.map(|asked| asked.due).chain(backlog).any(|due| due < limit) {
            let give_up = self.plan.give_up;
            self.tally.problem(|| format!("a request waited longer than {give_up:?}: given up"));
            self.is_over = true;
        }
    }

    /// After an early end: all that was due by now and has no reply. They count with the time that they waited.
    fn count_unanswered(&mut self) {
        let now = self.now();
        let under_way = self.connections.iter().flat_map(|connection| &connection.under_way);
        for asked in under_way.filter(|asked| asked.due >= self.from) {
            self.tally.unanswered += 1;
            self.tally.times[asked.kind].record_nanos(now.saturating_sub(asked.due));
        }
        let Some(schedule) = &mut self.schedule else { return };
        while schedule.peek() < self.to.min(now) {
            let due = schedule.take();
            if due >= self.from {
                self.tally.unanswered += 1;
                self.tally.times[0].record_nanos(now - due);
            }
        }
    }
}

fn record(tally: &mut Tally, (due, kind, count): (u64, usize, u64), now: u64) {
    if count > 0 {
        tally.times[kind].record_nanos_times(now.saturating_sub(due), count);
        tally.right += count;
        tally.last_reply = now;
    }
}

/// How many bytes a wrong reply takes, if it is one at all and whole.
fn skip(wrong: &Wrong, bytes: &[u8]) -> Option<usize> {
    match wrong {
        Wrong::Protocol(_) => None,
        Wrong::Refused { .. } | Wrong::Answer { .. } => thalweg_redis::wire::reply_parser::whole(bytes).ok().flatten(),
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
