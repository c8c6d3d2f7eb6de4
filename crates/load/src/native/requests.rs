//! Sends requests of the native protocol, and counts their replies. Each channel has a number of requests in progress,
//! which are sent as replies arrive or by a schedule.
//!
//! Owns: request ids, times, counts, and the threads of such a run. Does not own the content of requests and the check
//! of replies (a [`ChannelRequests`] does), pacing ([`crate::Pace`]), and the event loop of a channel
//! ([`super::drive()`]).
//!
//! Replies may arrive in any order: a request's id is its slot plus 1.

use std::{
    cell::{Cell, RefCell},
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
    BenchError, Clock, Pace, Pacer, Tally, Validity, latency::nanos, report::duration, run_threads, saturated,
    unusable_clocks,
};

/// Makes the requests of one channel and checks their replies.
pub trait ChannelRequests: Send + 'static {
    /// Appends a request with this id, which occupies `slot` until its reply arrives. Returns false if there are no
    /// more requests to send.
    fn ask(&mut self, slot: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError>;

    /// Checks the reply to the request in `slot`. Returns the number of items that the reply carries or acknowledges,
    /// or a description of the fault.
    fn judge(&mut self, slot: usize, reply: RawFrame<'_>) -> Result<u64, ChannelError>;
}

/// Parameters of a run of requests.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// Address of the server, and the transport.
    pub place: NativeEndpoint,
    /// Number of connections to the server.
    pub connections: usize,
    /// Number of streams on each connection.
    pub streams: usize,
    /// Number of requests in progress at a time, over all channels.
    pub in_flight: usize,
    /// How requests are paced: by a schedule or by the replies.
    pub pace: Pace,
    /// Durations, number of threads, and seed.
    pub load: LoadOptions,
    /// Id of the server's process; `None` if it is not known.
    pub server: Option<u32>,
}

/// Figures of a run. Its rate counts the items of replies that arrived after the warm-up and before the end.
pub type Outcome = crate::Outcome<()>;

impl CallPlan {
    /// Returns the plan for requests during setup, which are not measured. The run ends when there are no more requests
    /// to send, or after `time`.
    pub fn setup(place: &NativeEndpoint, in_flight: usize, time: Duration, load: &LoadOptions) -> Self {
        let load = LoadOptions { warmup: Duration::ZERO, duration: time, workers: 1, ..load.clone() };
        Self { place: place.clone(), connections: 1, streams: 1, in_flight, pace: Pace::Closed, load, server: None }
    }
}

/// Runs a plan. `make` creates the work of each channel from the channel's number. Also returns the work of each
/// channel as it was after the run, in the order of the channels.
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
    let (brought, spent) = run_threads::run(workers, plan.server, open, load)?;
    let (tallies, works): (Vec<_>, Vec<_>) = brought.into_iter().unzip();
    let mut works: Vec<(usize, W)> = works.into_iter().flatten().collect();
    works.sort_by_key(|(channel, _)| *channel);
    let mut outcome = Outcome::new(Tally::sum(1, tallies), plan.load.duration.as_secs_f64(), spent);
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
        // A quarter of a second of backlog at the end shows in the times; more is not keeping up.
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

/// Runs the channels of one thread until all of them have finished, or until the timeout of the run.
async fn call<W: ChannelRequests>(
    plan: &CallPlan,
    clock: Clock,
    lines: Vec<(usize, ReadyChannel)>,
    make: impl Fn(usize) -> W,
) -> (Tally<()>, Vec<(usize, W)>) {
    let shared = Rc::new(Shared { clock, tally: Tally::new(1).into(), is_over: Cell::new(false) });
    let mut tasks: JoinSet<(usize, W)> = JoinSet::new();
    for (channel, line) in lines {
        let caller = Caller::new(&line, channel, make(channel), plan, Rc::clone(&shared));
        tasks.spawn_local(async move { (channel, caller.run(line).await) });
    }
    let end = nanos(plan.load.warmup + plan.load.duration + plan.load.give_up);
    let mut works = Vec::new();
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            works.push(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())));
        }
    };
    if tokio::time::timeout(Duration::from_nanos(end.saturating_sub(clock.now())), all).await.is_err() {
        shared.tally.borrow_mut().unanswered += tasks.len() as u64;
        tasks.shutdown().await;
    }
    (shared.tally.take(), works)
}

/// Data that the channels of one thread share.
struct Shared {
    clock: Clock,
    tally: RefCell<Tally<()>>,
    /// True if a channel has failed, so that all channels must stop.
    is_over: Cell<bool>,
}

/// State of one channel: its work and its requests in progress.
struct Caller<W> {
    work: W,
    pacer: Pacer,
    shared: Rc<Shared>,
    /// Due time of the request in each slot, in nanoseconds since the start.
    due: Vec<u64>,
    free: Vec<usize>,
    /// Time since which at least one slot has always been free, in nanoseconds since the start.
    free_since: u64,
    /// Time at which requests were last composed, in nanoseconds since the start.
    now: u64,
    /// True if the work has no more requests to send.
    has_no_requests: bool,
}

impl<W: ChannelRequests> Caller<W> {
    fn new(line: &ReadyChannel, channel: usize, work: W, plan: &CallPlan, shared: Rc<Shared>) -> Self {
        let channels = plan.connections * plan.streams;
        let slots = plan.in_flight / channels + usize::from(channel < plan.in_flight % channels);
        let slots = slots.min(line.max_requests as usize);
        let counted = plan.pace.counted(plan.load.warmup, plan.load.duration);
        Self {
            work,
            pacer: Pacer::new(plan.pace, counted, channel, channels, plan.load.seed),
            shared,
            due: vec![0; slots],
            free: (0..slots).rev().collect(),
            free_since: 0,
            now: 0,
            has_no_requests: slots == 0,
        }
    }

    async fn run(mut self, mut line: ReadyChannel) -> W {
        let clock = self.shared.clock;
        if let Err(error) = drive(&mut line, &clock, &mut self).await {
            self.shared.is_over.set(true);
            self.shared.tally.borrow_mut().problem(|| error.to_string());
        }
        self.work
    }

    fn sends_no_more(&self) -> bool {
        self.has_no_requests || self.shared.is_over.get()
    }
}

impl<W: ChannelRequests> Session for Caller<W> {
    fn compose(&mut self, line: &mut ReadyChannel) -> Result<(), ChannelError> {
        self.now = self.shared.clock.now();
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
                tally.right += items;
            }
            if self.pacer.counts(self.due[slot]) {
                tally.times[0].record_nanos(now.saturating_sub(self.due[slot]));
            }
        }
        Ok(())
    }

    fn next(&mut self, is_blocked: bool) -> SessionWait {
        let due = self.pacer.next_due(self.now).filter(|_| !self.sends_no_more());
        match due {
            None if self.free.len() == self.due.len() => SessionWait::Done,
            Some(due) if !is_blocked && !self.free.is_empty() => SessionWait::Due(due),
            _ => SessionWait::Channel,
        }
    }
}
