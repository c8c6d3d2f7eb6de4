//! Event loop of one load thread: sends due requests on free connections, and reads replies.
//!
//! Owns: the thread's connections, its share of the requests, its counts. Does not own: the encoding of requests and
//! the checking of replies ([`super::protocol`]).
//!
//! Invariants: a request is sent at the moment at which it is due if a connection is free then, and otherwise as soon
//! as a connection is free. In both cases its response time counts from the due time. If the generator sends a request
//! late although a connection was free, it records the lateness as lag; a large lag makes the run invalid. Replies
//! arrive in the order of `inflight`, which never exceeds the pipeline's depth. An operation of several requests
//! ([`Protocol::follow_up`]) occupies one place of the pipeline until its last reply, and counts once.

use std::{collections::VecDeque, io::ErrorKind, sync::Arc};

use super::{
    calls::Bell,
    connection::{Connection, MoreInput},
    live::{Shared, TICK},
    pace::Pacer,
    poller::{Event, EventFlags, Poller},
    protocol::{BadReply, Batching, OnLoss, Plan, Protocol},
    run_threads::Clock,
    tally::{CoalescedReplies, Tally},
    timeline::Timeline,
};
use crate::{
    BenchError,
    latency::nanos,
    random::{Generator, generator},
};

/// Number of lost connections after which a worker stops. Then the server has ended, and is not only slow.
const MAX_LOST: u64 = 1000;
const EVENTS: usize = 256;
/// Event token of the bell, which rings when calls in this process have replies. The tokens of connections are smaller.
const BELL: u64 = u64::MAX;
/// Longest wait for events in nanoseconds. After each wait, the worker checks how long the oldest request has waited.
const LONGEST_WAIT: u64 = 100_000_000;

/// A request whose reply has not arrived yet. Times are in nanoseconds since the benchmark run's start.
struct Inflight<R> {
    due: u64,
    /// Time at which the request was sent. While it waits in the connection's buffer, the time at which it was encoded.
    sent: u64,
    request: R,
}

struct Lane<P: Protocol> {
    connection: Connection,
    inflight: VecDeque<Inflight<P::Request>>,
    /// Time at which the connection last became able to take a request, in nanoseconds since the benchmark run's start.
    free_since: u64,
    /// Number of requests at the end of `inflight` that are still in the connection's buffer. They wait until the whole
    /// burst of requests, which shares one write call, is encoded.
    unsent: usize,
    state: P::State,
}

pub(super) struct Worker<'a, P: Protocol> {
    plan: &'a Plan<P>,
    poller: Poller,
    /// Wakes this thread when calls in this process have replies.
    bell: Arc<Bell>,
    lanes: Vec<Lane<P>>,
    /// Connections that can take a request. The first one has been free longest.
    free: VecDeque<usize>,
    /// Connections whose buffers contain requests that are not written to the socket yet.
    unsent: Vec<usize>,
    pacer: Pacer,
    rng: Generator,
    tally: Tally<P::Counts>,
    /// Number of unanswered requests on all connections of this worker.
    under_way: usize,
    /// True if a call in this process has returned its reply at once since this flag was last cleared.
    replied_at_once: bool,
    /// Time at which the last call that returned its reply at once ended, in nanoseconds since the run's start. The
    /// call kept the thread from sending, so a request that was due during it does not count as late.
    calls_until: u64,
    /// Shared counts of the live view; `None` if runs are not shown.
    live: Option<&'a Shared>,
    /// Time at which the worker last added its counts to those of the live view, in nanoseconds since the benchmark
    /// run's start.
    shown_at: u64,
    clock: Clock,
    /// True if the worker must stop, because the server has ended or cannot catch up.
    is_over: bool,
}

impl<'a, P: Protocol> Worker<'a, P> {
    /// Opens the connections of the worker with the number `worker` of `workers`.
    pub(super) fn open(
        plan: &'a Plan<P>,
        number: usize,
        workers: usize,
        live: Option<&'a Shared>,
    ) -> Result<Self, BenchError> {
        let poller = Poller::new().map_err(BenchError::subject("epoll", "starting"))?;
        let bell = Bell::new().and_then(|bell| poller.add(bell.source(), BELL).map(|()| Arc::new(bell)));
        let bell = bell.map_err(BenchError::subject("an eventfd", "opening"))?;
        let connections = plan.connections / workers + usize::from(number < plan.connections % workers);
        let counted = plan.pace.counted(plan.warmup, plan.duration);
        let (timeline, recent) = (Timeline::over(&counted, plan.window), live.map(|_| Box::default()));
        let tally = Tally { timeline, recent, ..Tally::new(plan.protocol.kinds()) };
        let mut worker = Self {
            plan,
            poller,
            bell,
            lanes: Vec::with_capacity(connections),
            free: (0..connections).collect(),
            unsent: Vec::new(),
            pacer: Pacer::new(plan.pace, counted, number, workers, plan.seed),
            rng: generator(plan.seed.wrapping_mul(31).wrapping_add(number as u64)),
            tally,
            under_way: 0,
            replied_at_once: false,
            calls_until: 0,
            live,
            shown_at: 0,
            clock: Clock::start(),
            is_over: false,
        };
        for lane in 0..connections {
            let lane = worker.connect(lane)?;
            worker.tally.is_in_process |= lane.connection.is_in_process();
            worker.lanes.push(lane);
        }
        Ok(worker)
    }

    fn connect(&self, number: usize) -> Result<Lane<P>, BenchError> {
        let mut connection = self.plan.protocol.connect()?;
        let added = connection.attach(&self.poller, &self.bell, number);
        added.map_err(BenchError::subject("epoll", "adding a connection"))?;
        let (inflight, free_since) = (VecDeque::new(), self.clock.now());
        Ok(Lane { connection, inflight, free_since, unsent: 0, state: P::State::default() })
    }

    /// Sends requests and reads replies until the plan ends; all workers use the same `clock`.
    pub(super) fn run(mut self, clock: Clock) -> Tally<P::Counts> {
        self.clock = clock;
        self.plan.protocol.begun();
        self.lanes.iter_mut().for_each(|lane| lane.free_since = 0);
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.is_over {
            if P::BATCHING == Batching::Burst && !self.pacer.is_open() {
                self.send_bursts();
            } else {
                self.send_due();
            }
            if self.is_over || (self.under_way == 0 && self.pacer.next_due(self.clock.now()).is_none()) {
                break;
            }
            self.wait(&mut events);
            for event in events.drain(..) {
                match event.data.u64() {
                    BELL => self.serve_rung(),
                    number => self.serve(number as usize, event.flags),
                }
            }
            self.check_timeout();
            self.hand_over_counts();
        }
        self.count_unanswered();
        self.tally
    }

    /// Sends all requests that are due while connections are free.
    fn send_due(&mut self) {
        let mut now = self.clock.now();
        while let Some(&number) = self.free.front().filter(|_| !self.is_over) {
            let Some(due) = self.pacer.next_due(now) else { break };
            if due > now {
                now = self.clock.now();
                if due > now {
                    break;
                }
            }
            self.free.pop_front();
            self.ask(number, due, now);
            if self.lanes[number].inflight.len() < self.plan.pipeline {
                self.free.push_back(number);
            }
            match P::BATCHING {
                Batching::PerRequest => {
                    self.record_lag(number, due, now);
                    self.send(number);
                    // In a fast schedule, several requests become due during one send. So the clock is read again.
                    now = self.clock.now();
                }
                Batching::Burst => {
                    let lane = &mut self.lanes[number];
                    lane.unsent += 1;
                    if lane.unsent == 1 {
                        self.unsent.push(number);
                    }
                }
            }
            if self.replied_at_once {
                // A closed loop may never leave this loop. So it also serves the other connections and the live view
                // here.
                self.replied_at_once = false;
                self.serve_rung();
                self.hand_over_counts();
                now = self.clock.now();
                self.calls_until = now;
            }
        }
        while let Some(number) = self.unsent.pop() {
            self.send_unsent(number);
        }
    }

    /// Records the time by which the generator sends a scheduled request late. If the connection was busy, or a call
    /// kept the thread from sending, the lateness is not the generator's, and nothing is recorded.
    #[inline]
    fn record_lag(&mut self, number: usize, due: u64, now: u64) {
        let free_since = self.lanes[number].free_since.max(self.calls_until);
        if self.pacer.is_open() && free_since <= due && self.pacer.counts(due) {
            self.tally.lag.record_nanos(now - due);
        }
    }

    /// Sends the requests that wait in the connection's buffer. They count as sent only now: the lateness that is
    /// recorded for them ends here, and their service times begin here.
    fn send_unsent(&mut self, number: usize) {
        let now = self.clock.now();
        let lane = &mut self.lanes[number];
        let from = lane.inflight.len().saturating_sub(std::mem::take(&mut lane.unsent));
        for at in from..lane.inflight.len() {
            let asked = &mut self.lanes[number].inflight[at];
            asked.sent = now;
            let due = asked.due;
            self.record_lag(number, due, now);
        }
        self.send(number);
    }

    /// Fills each free connection with as many requests as the pipeline permits, and sends them.
    fn send_bursts(&mut self) {
        while let Some(number) = self.free.pop_front() {
            let now = self.clock.now();
            for _ in 0..self.plan.pipeline {
                if self.pacer.next_due(now).is_none() {
                    break;
                }
                self.ask(number, now, now);
            }
            self.send(number);
        }
    }

    #[inline]
    fn ask(&mut self, number: usize, due: u64, sent: u64) {
        let index = self.pacer.take().unwrap_or_else(|| self.plan.keys.choose(&mut self.rng));
        let request = self.plan.protocol.choose(index, &mut self.rng);
        self.plan.protocol.asked(request, sent.saturating_sub(due));
        let lane = &mut self.lanes[number];
        let before = lane.connection.out().len();
        self.plan.protocol.encode(request, lane.connection.out());
        if self.pacer.counts(due) {
            self.tally.sent_bytes += (lane.connection.out().len() - before) as u64;
        }
        lane.inflight.push_back(Inflight { due, sent, request });
        self.under_way += 1;
    }

    /// Writes the connection's buffer to its socket. If the kernel does not accept all bytes, the poller reports when
    /// the socket becomes writable again.
    fn send(&mut self, number: usize) {
        let connection = &mut self.lanes[number].connection;
        let was_blocked = connection.is_blocked;
        let mut sent = connection.send();
        if sent.is_ok() && connection.is_blocked != was_blocked {
            sent = self.poller.report_writable(connection.socket(), number as u64, connection.is_blocked);
        }
        if let Err(error) = sent {
            return self.handle_loss(number, format!("sending: {error}"));
        }
        if self.lanes[number].connection.has_reply() {
            self.replied_at_once = true;
            if let Err(problem) = self.take_replies(number) {
                self.handle_loss(number, problem);
            }
        }
    }

    /// Adds this worker's counts to those of the live view, if it has not done so for a while.
    #[inline]
    fn hand_over_counts(&mut self) {
        let (Some(live), Some(recent)) = (self.live, &mut self.tally.recent) else { return };
        let now = self.clock.now();
        if now - self.shown_at > nanos(TICK) / 2 {
            self.shown_at = now;
            live.add(recent);
        }
    }

    /// Takes the replies to calls that other threads have completed.
    fn serve_rung(&mut self) {
        for number in self.bell.take() {
            self.serve(number, EventFlags::IN);
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>) {
        let timeout = match self.pacer.scheduled() {
            Some(due) if !self.free.is_empty() => due.saturating_sub(self.clock.now()).min(LONGEST_WAIT),
            _ => LONGEST_WAIT,
        };
        if let Err(error) = self.poller.wait(events, timeout) {
            self.tally.lost += 1;
            self.tally.problem(|| format!("waiting: {error}"));
            self.is_over = true;
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
            let taken = match self.lanes[number].connection.receive() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => Err(format!("receiving: {error}")),
                Ok(more) => self.take_replies(number).map(|()| more),
            };
            match taken {
                Err(problem) => return self.handle_loss(number, problem),
                Ok(MoreInput::No) => return,
                Ok(MoreInput::Maybe) => {}
            }
        }
    }

    /// Checks and counts all complete replies in a connection's input. All of them get one arrival time.
    fn take_replies(&mut self, number: usize) -> Result<(), String> {
        let now = self.clock.now();
        let Self { plan, lanes, pacer, tally, .. } = self;
        let Lane { connection, inflight, state, free_since, .. } = &mut lanes[number];
        let was_full = inflight.len() >= plan.pipeline;
        let bytes = connection.input();
        let (mut follow_ups, mut asides) = (Vec::new(), Vec::new());
        let (mut at, mut taken, mut problem) = (0, 0, None);
        let skip_asides = |mut at: usize, asides: &mut Vec<u8>| {
            while at < bytes.len() {
                match plan.protocol.aside(&bytes[at..], asides) {
                    Some(0) => break,
                    Some(more) => at += more,
                    None => return (at, true),
                }
            }
            (at, false)
        };
        let mut is_cut;
        (at, is_cut) = skip_asides(at, &mut asides);
        let mut together = CoalescedReplies::default();
        for asked in &*inflight {
            if at == bytes.len() || is_cut {
                break;
            }
            let (decoded, fault) = match plan.protocol.decode(asked.request, state, &bytes[at..]) {
                Ok(Some(decoded)) => (decoded, None),
                Ok(None) => break,
                Err(BadReply { fault, decoded: Some(decoded) }) => (decoded, Some(fault)),
                Err(BadReply { fault, decoded: None }) => {
                    problem = Some(fault.to_string());
                    break;
                }
            };
            (at, is_cut) = skip_asides(at + decoded.bytes, &mut asides);
            taken += 1;
            let is_counted = pacer.counts(asked.due);
            tally.received_bytes += if is_counted { decoded.bytes as u64 } else { 0 };
            if let Some(fault) = fault {
                tally.wrong += 1;
                tally.counted_wrong += u64::from(is_counted);
                tally.problem(|| fault.to_string());
                // Wrong replies count even in the warm-up, because a server must never send one.
                plan.protocol.count(&mut tally.own, decoded.reply, None);
                tally.replies += u64::from(is_counted);
            } else if let Some(request) = plan.protocol.follow_up(asked.request, decoded.reply) {
                follow_ups.push(Inflight { due: asked.due, sent: now, request });
            } else {
                tally.all_right += 1;
                if is_counted {
                    plan.protocol.count(&mut tally.own, decoded.reply, Some(now.saturating_sub(asked.sent)));
                    let kind = P::kind(asked.request);
                    if (together.due, together.kind) != (asked.due, kind) {
                        tally.replies(together, now);
                        together = CoalescedReplies { due: asked.due, kind, count: 0 };
                    }
                    together.count += 1;
                }
            }
            if decoded.closes {
                problem = Some("the server closed the connection after a reply".to_owned());
                break;
            }
        }
        tally.replies(together, now);
        if taken == inflight.len() && at < bytes.len() && !is_cut && problem.is_none() {
            problem = Some("a reply without a request".to_owned());
        }
        inflight.drain(..taken);
        connection.consume(at);
        self.under_way = self.under_way - taken + follow_ups.len();
        let has_more = !follow_ups.is_empty() || !asides.is_empty();
        connection.out().extend_from_slice(&asides);
        for asked in follow_ups {
            let before = connection.out().len();
            plan.protocol.encode(asked.request, connection.out());
            if pacer.counts(asked.due) {
                tally.sent_bytes += (connection.out().len() - before) as u64;
            }
            inflight.push_back(asked);
        }
        let is_free = match P::BATCHING {
            Batching::Burst if !pacer.is_open() => inflight.is_empty(),
            _ => was_full && inflight.len() < plan.pipeline,
        };
        if is_free && taken > 0 {
            *free_since = now;
            self.free.push_back(number);
        }
        if let Some(problem) = problem {
            return Err(problem);
        }
        if has_more {
            self.send(number);
        }
        Ok(())
    }

    /// Counts the unanswered requests of a broken connection, and then opens a new connection or ends the benchmark
    /// run.
    #[cold]
    fn handle_loss(&mut self, number: usize, problem: String) {
        self.tally.lost += 1;
        self.tally.problem(|| problem);
        if P::ON_LOSS == OnLoss::End || self.tally.lost >= MAX_LOST {
            self.is_over = true;
            return;
        }
        let now = self.clock.now();
        let inflight = std::mem::take(&mut self.lanes[number].inflight);
        self.under_way -= inflight.len();
        for asked in inflight.iter().filter(|asked| self.pacer.counts(asked.due)) {
            self.tally.unanswered(P::kind(asked.request), asked.due, now);
        }
        self.free.retain(|other| *other != number);
        match self.connect(number) {
            Ok(lane) => {
                // Replacing the lane drops the old socket. The kernel then removes it from the epoll instance.
                self.lanes[number] = lane;
                self.free.push_back(number);
            }
            Err(_) => self.is_over = true,
        }
    }

    /// Aborts the benchmark run when the oldest request has waited too long for its reply.
    fn check_timeout(&mut self) {
        let limit = self.clock.now().saturating_sub(nanos(self.plan.give_up));
        let oldest = self.lanes.iter().filter_map(|lane| lane.inflight.front()).map(|asked| asked.due);
        if oldest.chain(self.pacer.scheduled()).any(|due| due < limit) {
            let give_up = self.plan.give_up;
            self.tally.problem(|| format!("a request waited longer than {give_up:?}: given up"));
            self.is_over = true;
        }
    }

    /// Counts all requests that were due and have no reply, after a run that ended early. The time that each has waited
    /// counts as its response time.
    fn count_unanswered(&mut self) {
        let now = self.clock.now();
        for asked in self.lanes.iter().flat_map(|lane| &lane.inflight).filter(|asked| self.pacer.counts(asked.due)) {
            self.tally.unanswered(P::kind(asked.request), asked.due, now);
        }
        while let Some(due) = self.pacer.scheduled().filter(|due| *due <= now) {
            self.pacer.take();
            if self.pacer.counts(due) {
                let request = self.plan.protocol.choose(0, &mut self.rng);
                self.tally.unanswered(P::kind(request), due, now);
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
