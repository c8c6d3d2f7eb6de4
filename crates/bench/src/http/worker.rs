//! The event loop of one load thread: sends what is due on whatever connection is free, and reads.
//!
//! Owns: its connections, its share of the schedule, its counts.
//! Invariants: an arrival is sent at its scheduled moment if a connection is free then, else as soon
//! as one is; its response time counts from the scheduled moment either way. Lateness although a
//! connection was free is recorded as lag: it is the generator's, and voids the run when it grows.
//!
//! It waits in `epoll_pwait2` with nanosecond timeouts rather than in a runtime whose timers tick in
//! milliseconds, and it does not spin: on a small machine the server needs the cycles.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    num::NonZeroU64,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::epoll::{self, Event, EventData, EventFlags},
    fd::OwnedFd,
    thread::set_current_timer_slack,
    time::Timespec,
};

use super::{
    connection::{Connection, Inflight, More},
    request::{Judgement, Operation, Requests},
    tally::Tally,
};
use crate::{
    load::schedule::Schedule,
    random::{KeyChooser, Rng},
    usage::thread_cpu,
};

/// What makes a worker send.
#[derive(Clone, Debug)]
pub enum Pace {
    /// The schedule does, whatever the replies.
    Open(Schedule),
    /// A reply does: as fast as the server answers.
    Closed,
    /// As `Closed`, each key of `first, first + step, ...` below `end` once.
    Each {
        /// The worker's first key.
        first: u64,
        /// Distance between its keys.
        step: u64,
        /// Exclusive.
        end: u64,
    },
}

/// A worker's orders.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Where to connect.
    pub address: SocketAddr,
    /// How many connections.
    pub connections: usize,
    /// Requests that may be under way on a connection; 1 is no pipelining.
    pub pipeline: usize,
    /// Builds and judges.
    pub requests: Arc<Requests>,
    /// What makes it send.
    pub pace: Pace,
    /// Share of gets in per cent; the rest are puts.
    pub get_percent: u8,
    /// Which keys.
    pub keys: KeyChooser,
    /// Feeds the choices.
    pub seed: u64,
    /// Arrivals before this are sent but not counted.
    pub warmup: Duration,
    /// How long arrivals are counted. Ignored by [`Pace::Each`].
    pub duration: Duration,
    /// A request that waits longer than this ends the run.
    pub give_up: Duration,
    /// Run time zero.
    pub start: Instant,
}

/// Lost connections after which a worker stops: the server is gone, not merely grumpy.
const MAX_IO_ERRORS: u64 = 1000;
const EVENTS: usize = 256;

/// Runs the orders to their end.
#[must_use]
pub fn work(orders: Orders) -> Tally {
    // Without it the kernel may wake the thread 50 µs late. Where that is refused, lag shows it.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut tally = Tally::default();
    match Worker::open(orders) {
        Ok(mut worker) => {
            worker.run();
            tally.merge(worker.tally);
        }
        Err(error) => {
            tally.io_errors += 1;
            tally.problem(|| format!("could not connect: {error}"));
        }
    }
    tally
}

struct Worker {
    orders: Orders,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Connections that can take a request, longest free first.
    free: VecDeque<usize>,
    rng: Rng,
    tally: Tally,
    /// Requests under way on all connections.
    under_way: usize,
    /// Arrivals counted from here to `to`, in nanoseconds.
    from: u64,
    to: u64,
    /// The server is gone or hopelessly behind.
    over: bool,
}

impl Worker {
    fn open(orders: Orders) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::with_capacity(orders.connections);
        for number in 0..orders.connections {
            let connection = Connection::open(orders.address)?;
            epoll::add(&epoll, &connection.stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            connections.push(connection);
        }
        let from = nanos(orders.warmup);
        let to = if matches!(orders.pace, Pace::Each { .. }) { u64::MAX } else { from + nanos(orders.duration) };
        Ok(Self {
            rng: Rng::new(orders.seed),
            free: (0..orders.connections).collect(),
            orders,
            epoll,
            connections,
            tally: Tally::default(),
            under_way: 0,
            from,
            to,
            over: false,
        })
    }

    fn run(&mut self) {
        let (cpu, began) = (thread_cpu(), Instant::now());
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            self.send_due();
            if self.over || (self.under_way == 0 && self.next_due().is_none()) {
                break;
            }
            self.wait(&mut events);
            for event in events.drain(..) {
                let number = event.data.u64() as usize;
                self.serve(number, event.flags);
            }
            self.check_patience();
        }
        self.count_unanswered();
        let spent = thread_cpu().saturating_sub(cpu);
        self.tally.cpu = spent;
        self.tally.busiest = spent.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9);
    }

    #[inline]
    fn now(&self) -> u64 {
        nanos(self.orders.start.elapsed())
    }

    /// When the next request is due; `None` when all have been sent.
    fn next_due(&self) -> Option<u64> {
        match &self.orders.pace {
            Pace::Open(schedule) => Some(schedule.peek()).filter(|due| *due < self.to),
            Pace::Closed => Some(0).filter(|_| self.now() < self.to),
            Pace::Each { first, end, .. } => Some(0).filter(|_| first < end),
        }
    }

    /// Sends every request that is due, as long as connections are free.
    fn send_due(&mut self) {
        let mut now = self.now();
        while let Some(&number) = self.free.front().filter(|_| !self.over) {
            let Some(due) = self.next_due() else { return };
            if due > now {
                now = self.now();
                if due > now {
                    return;
                }
            }
            let (scheduled, operation, index) = self.take(now);
            let free_since = self.connections[number].free_since;
            if free_since <= scheduled && scheduled >= self.from {
                self.tally.lag.record_nanos(now - scheduled);
            }
            self.free.pop_front();
            self.send(number, Inflight { scheduled, sent: now, operation, index });
        }
    }

    /// Takes the next arrival off the schedule: its time, what it does, to which key.
    fn take(&mut self, now: u64) -> (u64, Operation, u64) {
        let scheduled = match &mut self.orders.pace {
            Pace::Open(schedule) => schedule.take(),
            Pace::Closed => now,
            Pace::Each { first, step, .. } => {
                let index = *first;
                *first += *step;
                return (now, self.choose_operation(), index);
            }
        };
        (scheduled, self.choose_operation(), self.orders.keys.choose(&mut self.rng))
    }

    fn choose_operation(&mut self) -> Operation {
        match self.orders.get_percent {
            0 => Operation::Put,
            100.. => Operation::Get,
            percent if self.rng.below(100) < u64::from(percent) => Operation::Get,
            _ => Operation::Put,
        }
    }

    fn send(&mut self, number: usize, request: Inflight) {
        let connection = &mut self.connections[number];
        self.orders.requests.write(request.operation, request.index, connection.out());
        connection.inflight.push_back(request);
        self.under_way += 1;
        if connection.inflight.len() < self.orders.pipeline {
            self.free.push_back(number);
        }
        let was_blocked = connection.blocked;
        match connection.send() {
            Ok(()) => self.follow_blocked(number, was_blocked),
            Err(error) => self.lose(number, &error.to_string()),
        }
    }

    /// Asks for or stops asking for the event that says the kernel takes bytes again.
    fn follow_blocked(&mut self, number: usize, was_blocked: bool) {
        let connection = &self.connections[number];
        if connection.blocked != was_blocked {
            let flags = if connection.blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(number as u64);
            if let Err(error) = epoll::modify(&self.epoll, &connection.stream, data, flags) {
                self.lose(number, &error.to_string());
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>) {
        let now = self.now();
        let patience = 100_000_000;
        let timeout = match self.next_due() {
            Some(due) if !self.free.is_empty() => due.saturating_sub(now).min(patience),
            _ => patience,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout as _ };
        let spare = rustix::buffer::spare_capacity(events);
        if let Err(error) = epoll::wait(&self.epoll, spare, Some(&timeout))
            && error != rustix::io::Errno::INTR
        {
            self.tally.problem(|| format!("epoll failed: {error}"));
            self.tally.io_errors += 1;
            self.over = true;
        }
    }

    fn serve(&mut self, number: usize, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            let was_blocked = self.connections[number].blocked;
            match self.connections[number].send() {
                Ok(()) => self.follow_blocked(number, was_blocked),
                Err(error) => return self.lose(number, &error.to_string()),
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            loop {
                match self.connections[number].receive() {
                    Err(error) => return self.lose(number, &error.to_string()),
                    Ok(more) => match self.take_replies(number) {
                        Err(problem) => return self.lose(number, problem),
                        Ok(()) if more == More::No => return,
                        Ok(()) => {}
                    },
                }
            }
        }
    }

    fn take_replies(&mut self, number: usize) -> Result<(), &'static str> {
        let now = self.now();
        let Self { connections, orders, tally, free, .. } = self;
        let connection = &mut connections[number];
        let mut closes = false;
        loop {
            let Some(&request) = connection.inflight.front() else {
                return if connection.next_reply()?.is_some() { Err("a reply that nobody asked for") } else { Ok(()) };
            };
            let Some((reply, bytes)) = connection.next_reply()? else { break };
            let how = orders.requests.judge(request.operation, request.index, &reply, bytes);
            closes |= reply.closes;
            if request.scheduled >= self.from {
                let (response, service) = (now - request.scheduled, now - request.sent);
                tally.reply(request.operation, response, service, reply.status, how);
                tally.last_reply = now;
            } else if !matches!(how, Judgement::Right | Judgement::Missing) {
                tally.problem(|| format!("{:?} answered {} while warming up", request.operation, reply.status));
            }
            if connection.inflight.len() == orders.pipeline {
                connection.free_since = now;
                free.push_back(number);
            }
            connection.inflight.pop_front();
            self.under_way -= 1;
        }
        if closes { Err("the server closed the connection after a reply") } else { Ok(()) }
    }

    /// Counts what was under way on a broken connection and opens another in its place.
    fn lose(&mut self, number: usize, problem: &str) {
        let now = self.now();
        self.tally.io_errors += 1;
        self.tally.problem(|| problem.to_owned());
        let lost = std::mem::take(&mut self.connections[number].inflight);
        self.under_way -= lost.len();
        for request in lost.iter().filter(|request| request.scheduled >= self.from) {
            self.tally.unanswered(request.operation, now - request.scheduled);
        }
        self.free.retain(|other| *other != number);
        if self.tally.io_errors >= MAX_IO_ERRORS {
            self.over = true;
            return;
        }
        match Connection::open(self.orders.address) {
            Ok(mut connection) => {
                let data = EventData::new_u64(number as u64);
                if epoll::add(&self.epoll, &connection.stream, data, EventFlags::IN).is_err() {
                    self.over = true;
                }
                connection.free_since = self.now();
                // The old socket leaves the epoll set when it is dropped here.
                self.connections[number] = connection;
                self.free.push_back(number);
            }
            Err(_) => self.over = true,
        }
    }

    /// Gives up when the oldest request has waited too long.
    fn check_patience(&mut self) {
        let limit = self.now().saturating_sub(nanos(self.orders.give_up));
        let oldest = self.connections.iter().filter_map(|connection| connection.inflight.front());
        let oldest = oldest.map(|request| request.scheduled).min();
        let backlog = self.next_due().filter(|_| matches!(self.orders.pace, Pace::Open(_)));
        if oldest.into_iter().chain(backlog).any(|scheduled| scheduled < limit) {
            self.tally.problem(|| format!("a request waited longer than {:?}: given up", self.orders.give_up));
            self.over = true;
        }
    }

    /// After an early end: all that was due by now and has no reply.
    fn count_unanswered(&mut self) {
        let now = self.now();
        for connection in &self.connections {
            for request in connection.inflight.iter().filter(|request| request.scheduled >= self.from) {
                self.tally.unanswered(request.operation, now.saturating_sub(request.scheduled));
            }
        }
        while let Some(due) = self.next_due().filter(|due| *due <= now) {
            if !matches!(self.orders.pace, Pace::Open(_)) {
                return;
            }
            let (_, operation, _) = self.take(now);
            if due >= self.from {
                self.tally.unanswered(operation, now - due);
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With timeouts rounded up to milliseconds no wait could be shorter than one.
    #[test]
    fn waits_are_finer_than_a_millisecond() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let wait = |_| {
            let (began, mut events) = (Instant::now(), Vec::<Event>::with_capacity(1));
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap();
            began.elapsed()
        };
        let shortest = (0..100).map(wait).min().unwrap();
        assert!(shortest >= Duration::from_micros(100) && shortest < Duration::from_millis(1), "{shortest:?}");
    }
}
