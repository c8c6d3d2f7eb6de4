//! Sends requests of the native protocol, and counts their replies. Each channel has a number of requests in progress.
//! The next requests are sent when replies arrive, or by a schedule.
//!
//! Owns: request ids, times, counts, and the threads of such a run. Does not own: the content of requests and the check
//! of replies ([`ChannelRequests`]), pacing ([`crate::Pace`]), or the event loop of a channel ([`super::drive()`]).
//!
//! Replies may arrive in any order. A channel numbers the requests that it can have in progress (its slots). The id of
//! a request is the number of its slot plus 1.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    time::Duration,
};

use thalweg_transport::Outbox;
use thalweg_wire::RawFrame;
use tokio::task::JoinSet;

use super::{
    drive::{Session, SessionWait, drive},
    endpoint::NativeEndpoint,
    line::{ChannelError, ReadyChannel},
    options::LoadOptions,
};
use crate::{
    BenchError, Clock, Pace, Pacer, ServerSource, Tally, Validity, latency::nanos, live::FsyncCount, report::duration,
    run_counted, saturated, unusable_clocks,
};

/// Makes the requests of one channel (a TCP connection or a QUIC stream) and checks their replies.
pub trait ChannelRequests: Send + 'static {
    /// Appends a request with this id. The request occupies `slot` until its reply arrives. Returns false if there are
    /// no more requests to send.
    fn ask(&mut self, slot: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError>;

    /// Checks the reply to the request in `slot`. Returns the number of items that the reply carries or acknowledges.
    /// If the reply is wrong, returns a description of the fault.
    fn judge(&mut self, slot: usize, reply: RawFrame<'_>) -> Result<u64, ChannelError>;
}

/// Parameters of a run of requests.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// Address of the server, and the transport of connections to it.
    pub place: NativeEndpoint,
    /// Number of connections to the server.
    pub connections: usize,
    /// Number of streams on each connection.
    pub streams: usize,
    /// Maximum number of requests in progress at a time, over all channels.
    pub in_flight: usize,
    /// How requests are paced: by a schedule or by the replies.
    pub pace: Pace,
    /// Duration, warm-up and windows of the benchmark run, number of load threads, and seed of the random content.
    pub load: LoadOptions,
    /// Id of the server's process; `None` if it is not known.
    pub server: Option<u32>,
    /// Source of the number of the server's fsyncs, for the windows of the benchmark run; `None` if it is not known.
    pub fsyncs: Option<FsyncCount>,
}

/// Results of a run. Its rate counts the items (such as records) in replies that arrived after the warm-up and before
/// the end of the run.
pub type Outcome = crate::Outcome<()>;

impl CallPlan {
    /// Returns the plan for requests during setup, which are not measured. The run ends when there are no more requests
    /// to send, or after `time`.
    pub fn setup(place: &NativeEndpoint, in_flight: usize, time: Duration, load: &LoadOptions) -> Self {
        let load = LoadOptions { warmup: Duration::ZERO, duration: time, window: None, workers: 1, ..load.clone() };
        let (place, pace) = (place.clone(), Pace::Closed);
        Self { place, connections: 1, streams: 1, in_flight, pace, load, server: None, fsyncs: None }
    }

    /// Returns the part of the benchmark run in which replies are counted, in nanoseconds since the start of the run.
    fn counted(&self) -> Range<u64> {
        self.pace.counted(self.load.warmup, self.load.duration)
    }

    /// Creates counts that are all zero, with the windows into which the benchmark run is divided.
    fn empty_tally(&self) -> Tally<()> {
        Tally::with_windows(1, &self.counted(), self.load.window)
    }
}

/// Runs a plan. `make` gets the number of a channel (a TCP connection or a QUIC stream), and creates the value that
/// makes this channel's requests. Returns the figures of the run, and these values as they are after the run, in the
/// order of the channels.
pub fn run<W: ChannelRequests>(
    plan: &CallPlan,
    make: impl Fn(usize) -> W + Sync,
) -> Result<(Outcome, Vec<W>), BenchError> {
    let workers = plan.load.workers.clamp(1, plan.connections.max(1));
    let open = async |number| {
        let mine = |connection: usize| connection % workers == number;
        plan.place.open(plan.connections, plan.streams, mine).await
    };
    let load = async |lines, clock| call(plan, clock, lines, &make).await;
    let server = plan.server.map(|process| ServerSource { process, fsyncs: plan.fsyncs.as_ref() });
    let (tally, works, spent) = run_counted(workers, server, plan.empty_tally(), open, load)?;
    let mut works: Vec<(usize, W)> = works.into_iter().flatten().collect();
    works.sort_by_key(|(channel, _)| *channel);
    let seconds = plan.load.duration.as_secs_f64();
    let mut outcome = Outcome::new(tally, seconds, spent).paced(plan.pace);
    outcome.validity = judge(plan, &outcome);
    Ok((outcome, works.into_iter().map(|(_, work)| work).collect()))
}

fn judge(plan: &CallPlan, outcome: &Outcome) -> Validity {
    let tally = &outcome.tally;
    if let Some(problem) = &tally.first_problem {
        return Validity::Errors(problem.clone());
    }
    if tally.replies == 0 {
        return Validity::Errors("no reply arrived in the counted time".to_owned());
    }
    if let Some(validity) = unusable_clocks(&outcome.spent.clocks) {
        return validity;
    }
    if let Pace::Open { rate, .. } = plan.pace {
        if let Some(validity) = saturated(&tally.lag, plan.load.max_lag, outcome.spent.busiest) {
            return validity;
        }
        // A backlog of a quarter of a second at the end is accepted; it shows in the times. A longer one means that the
        // server did not keep up.
        if (tally.replies as f64) < 0.97 * outcome.times.count() as f64 - rate / 4.0 {
            let answered = outcome.replies_rate();
            return Validity::Overloaded(format!("{answered:.0} of {rate:.0} requests/s answered"));
        }
    }
    match tally.unanswered {
        0 => Validity::Good,
        unanswered => {
            let waited = duration(plan.load.give_up);
            Validity::Overloaded(format!("{unanswered} requests had no reply {waited} after the end"))
        }
    }
}

/// Runs the channels of one thread until all of them have finished, or until the timeout of the benchmark run.
async fn call<W: ChannelRequests>(
    plan: &CallPlan,
    clock: Clock,
    lines: Vec<(usize, ReadyChannel)>,
    make: impl Fn(usize) -> W,
) -> (Tally<()>, Vec<(usize, W)>) {
    let end = nanos(plan.load.warmup + plan.load.duration + plan.load.give_up);
    let shared = Rc::new(Shared { clock, end, tally: plan.empty_tally().into(), is_over: Cell::new(false) });
    let mut tasks: JoinSet<(usize, W)> = JoinSet::new();
    for (channel, line) in lines {
        let caller = Caller::new(&line, channel, make(channel), plan, Rc::clone(&shared));
        tasks.spawn_local(async move { (channel, caller.run(line).await) });
    }
    let mut works = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        works.push(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
    }
    (shared.tally.take(), works)
}

/// Data that the channels of one thread share.
struct Shared {
    clock: Clock,
    /// Time at which the wait for outstanding replies ends, in nanoseconds since the start of the benchmark run.
    end: u64,
    tally: RefCell<Tally<()>>,
    /// True if a channel (a TCP connection or a QUIC stream) has failed, so that all channels must stop.
    is_over: Cell<bool>,
}

/// State of one channel (a TCP connection or a QUIC stream): the value that makes its requests (`work`), and the
/// requests in progress.
struct Caller<W> {
    work: W,
    pacer: Pacer,
    shared: Rc<Shared>,
    /// Due time of the request in each slot, in nanoseconds since the start of the benchmark run.
    due: Vec<u64>,
    free: Vec<usize>,
    /// Time since which the channel (a TCP connection or a QUIC stream) could have sent a request at any moment, in
    /// nanoseconds since the start of the run: a slot for a request was free, and the server accepted bytes.
    free_since: u64,
    /// True if the last write did not send all bytes.
    is_blocked: bool,
    /// Time at which requests were last composed, in nanoseconds since the start of the benchmark run.
    now: u64,
    /// True if `work` has no more requests to send on this channel (a TCP connection or a QUIC stream).
    has_no_requests: bool,
}

impl<W: ChannelRequests> Caller<W> {
    fn new(line: &ReadyChannel, channel: usize, work: W, plan: &CallPlan, shared: Rc<Shared>) -> Self {
        let channels = plan.connections * plan.streams;
        let slots = plan.in_flight / channels + usize::from(channel < plan.in_flight % channels);
        let slots = slots.min(line.max_requests as usize);
        Self {
            work,
            pacer: Pacer::new(plan.pace, plan.counted(), channel, channels, plan.load.seed),
            shared,
            due: vec![0; slots],
            free: (0..slots).rev().collect(),
            free_since: 0,
            is_blocked: false,
            now: 0,
            has_no_requests: slots == 0,
        }
    }

    async fn run(mut self, mut line: ReadyChannel) -> W {
        let Shared { clock, end, .. } = *self.shared;
        let left = Duration::from_nanos(end.saturating_sub(clock.now()));
        match tokio::time::timeout(left, drive(&mut line, &clock, &mut self)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.shared.is_over.set(true);
                self.shared.tally.borrow_mut().problem(|| error.to_string());
            }
            Err(_) => self.count_unanswered(),
        }
        self.work
    }

    /// Counts all requests of the channel (a TCP connection or a QUIC stream) that were due and have no reply when the
    /// wait for outstanding replies ends. The time that each has waited counts as its response time.
    fn count_unanswered(&mut self) {
        let (now, mut tally) = (self.shared.clock.now(), self.shared.tally.borrow_mut());
        let mut waits = vec![true; self.due.len()];
        self.free.iter().for_each(|slot| waits[*slot] = false);
        let sent = self.due.iter().zip(waits).filter(|(_, waits)| *waits).map(|(due, _)| *due);
        for due in sent.filter(|due| self.pacer.counts(*due)) {
            tally.unanswered(0, due, now);
        }
        while let Some(due) = self.pacer.scheduled().filter(|due| *due <= now && !self.has_no_requests) {
            self.pacer.take();
            if self.pacer.counts(due) {
                tally.unanswered(0, due, now);
            }
        }
    }

    fn sends_no_more(&self) -> bool {
        self.has_no_requests || self.shared.is_over.get()
    }
}

impl<W: ChannelRequests> Session for Caller<W> {
    fn compose(&mut self, line: &mut ReadyChannel) -> Result<(), ChannelError> {
        self.now = self.shared.clock.now();
        if self.is_blocked {
            self.free_since = self.now;
        }
        while let Some(&slot) = self.free.last().filter(|_| !self.sends_no_more()) {
            let Some(due) = self.pacer.next_due(self.now).filter(|due| *due <= self.now) else { break };
            let id = u32::try_from(slot).unwrap_or(u32::MAX - 1) + 1;
            if !self.work.ask(slot, id, &mut line.out)? {
                self.has_no_requests = true;
                break;
            }
            self.pacer.take();
            if self.pacer.is_open() && self.free_since <= due && self.pacer.counts(due) {
                self.shared.tally.borrow_mut().lag.record_nanos(self.now - due);
            }
            self.free.pop();
            self.due[slot] = due;
        }
        Ok(())
    }

    fn receive(&mut self, line: &mut ReadyChannel, bytes: usize) -> Result<(), ChannelError> {
        let now = self.shared.clock.now();
        let mut tally = self.shared.tally.borrow_mut();
        let is_counted = self.pacer.counts(now);
        tally.received_bytes += if is_counted { bytes as u64 } else { 0 };
        if self.free.is_empty() {
            self.free_since = now;
        }
        while let Some(raw) = line.frame()? {
            let slot = (raw.header.id as usize).wrapping_sub(1);
            if slot >= self.due.len() {
                return Err(super::line::unexpected(raw));
            }
            let items = self.work.judge(slot, raw)?;
            self.free.push(slot);
            tally.all_right += items;
            if is_counted {
                tally.replies += 1;
                tally.arrived(items, now);
            }
            if self.pacer.counts(self.due[slot]) {
                tally.responded(0, self.due[slot], now, 1);
            }
        }
        Ok(())
    }

    fn next(&mut self, is_blocked: bool) -> SessionWait {
        self.is_blocked = is_blocked;
        let due = self.pacer.next_due(self.now).filter(|_| !self.sends_no_more());
        match due {
            None if self.free.len() == self.due.len() => SessionWait::Done,
            Some(due) if !is_blocked && !self.free.is_empty() => SessionWait::Due(due),
            _ => SessionWait::Channel,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpListener},
    };

    use thalweg_transport::Endpoint;
    use thalweg_types::{Durability, NodeId};
    use thalweg_wire::{
        Frame as _, Ping,
        handshake::{self, ServerParameters},
    };

    use super::*;
    use crate::{Arrivals, native::TransportKind};

    /// Starts a server that welcomes clients and answers nothing.
    fn silent_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let parameters = ServerParameters {
            max_frame_bytes: 1 << 20,
            keep_alive: Duration::from_secs(60),
            max_requests: 100,
            max_subscriptions: 1,
            durability: Durability::Os,
            node: NodeId(1),
            run: 1,
            server: "silent",
            features: &[],
            spaces: &[],
        };
        let hello = handshake::hello("test", 1 << 20, Duration::ZERO, &[]);
        let (agreed, mut welcome) = (parameters.accept(&hello).unwrap(), Vec::new());
        parameters.welcome(&agreed).encode(&mut welcome, 0).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                stream.write_all(&welcome).unwrap();
                std::thread::spawn(move || while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {});
            }
        });
        address
    }

    struct Pings;

    impl ChannelRequests for Pings {
        fn ask(&mut self, _: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError> {
            Ping { token: 0 }.encode(out.buffer(), id).map_err(ChannelError::protocol)?;
            Ok(true)
        }

        fn judge(&mut self, _: usize, raw: RawFrame<'_>) -> Result<u64, ChannelError> {
            Err(super::super::line::unexpected(raw))
        }
    }

    #[test]
    fn each_unanswered_request_counts_with_the_time_that_it_waited() {
        let load = LoadOptions {
            warmup: Duration::ZERO,
            duration: Duration::from_millis(100),
            window: Some(Duration::from_millis(20)),
            give_up: Duration::from_millis(200),
            rounds: 1,
            workers: 1,
            max_lag: Duration::from_secs(1),
            seed: 1,
        };
        let place =
            NativeEndpoint { carrier: TransportKind::Tcp, endpoint: Endpoint::tcp(silent_server().to_string()) };
        let open = Pace::Open { rate: 1000.0, arrivals: Arrivals::Constant };
        // In an open loop all requests that were due count, also those that had to wait for a slot.
        for (pace, unanswered) in [(Pace::Closed, 6), (open, 100)] {
            let (place, load) = (place.clone(), load.clone());
            let (server, fsyncs) = (None, None);
            let plan = CallPlan { place, connections: 2, streams: 1, in_flight: 6, pace, load, server, fsyncs };
            let (outcome, works) = run(&plan, |_| Pings).unwrap();
            assert_eq!((outcome.tally.unanswered, outcome.times.count(), works.len()), (unanswered, unanswered, 2));
            let windows = outcome.tally.timeline.as_ref().unwrap().windows();
            let waits =
                windows.iter().map(|window| window.times.as_ref().map_or(0, |times| times.count())).sum::<u64>();
            assert_eq!((windows.len(), waits), (5, unanswered), "each counts in the window in which it was due");
            assert!(outcome.times.percentile(0.0) > Duration::from_millis(190), "{:?}", outcome.times.quantiles());
            // While all slots wait for replies, no request can be sent, so the generator is not late.
            assert!(outcome.tally.lag.count() <= 6, "{}", outcome.tally.lag.count());
        }
    }
}
