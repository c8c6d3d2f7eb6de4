//! One run: channels are opened, subscriptions begun, then the load runs and what came is reckoned up.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, Barrier, OnceLock},
    time::Duration,
};

use tokio::task::{JoinSet, spawn_local};

use super::{
    plan::{Channels, Pace, Plan},
    publisher::PublishChannel,
    recorder::{Recorder, Shared},
    subscriber::SubscribeChannel,
};
use crate::{
    BenchError,
    load::validity::{MAX_BUSY, Validity},
    native::{
        alarm::Clock,
        check::{Account, Faults, reckon},
        crew,
        finish::Finish,
        line::LineError,
        payload::Payloads,
    },
    report::duration,
    usage::{Cost, Effort, Usage, Whose},
};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Merged counts of the generator's threads.
    pub counts: Recorder,
    /// Messages published, in all.
    pub published: u64,
    /// Deliveries per second of the counted time.
    pub deliveries_rate: f64,
    /// Bytes per second that came from the server, everything included.
    pub received_rate: f64,
    /// What was dropped, and said to be.
    pub dropped: u64,
    /// What is wrong.
    pub faults: Faults,
    /// What the server used, from before the load to after it.
    pub server: Cost,
    /// CPU seconds of the generator's threads, in the same time.
    pub generator_cpu: f64,
    /// Share of its time that the busiest of them was busy.
    pub busiest: f64,
    /// Whether to believe it.
    pub validity: Validity,
}

impl Outcome {
    /// CPU seconds a million deliveries: the server's, if it is known, and the generator's.
    #[must_use]
    pub fn cpu_per_million(&self) -> (Option<f64>, f64) {
        let millions = self.counts.all_deliveries as f64 / 1e6;
        let server = self.server.peak_rss_bytes.map(|_| self.server.cpu_seconds / millions);
        (server, self.generator_cpu / millions)
    }
}

/// A run on schedule whose last deliveries come later than this, or than 3 % of it, did not keep up: a shorter backlog tells in the
/// times.
const BACKLOG: Duration = Duration::from_millis(250);

/// What a thread brings home.
struct Brought {
    counts: Recorder,
    cpu: Duration,
    busy: f64,
}

/// Runs a plan to its end. `server` is the server's process, if it is known.
pub fn run(plan: &Plan, server: Option<u32>) -> Result<Outcome, BenchError> {
    let workers = plan.workers.max(1);
    let stage = Stage {
        plan,
        finish: Arc::new(Finish::new(plan.publishers, plan.subscriptions(), plan.fan_out)),
        clock: Clock::start(),
        begin: OnceLock::new(),
        barrier: Barrier::new(workers),
        before: OnceLock::new(),
        server,
    };
    let brought = crew::run(workers, |number| stage.work(number, workers));
    let (mut counts, mut cpu, mut busiest) = (Recorder::default(), Duration::ZERO, 0.0_f64);
    for one in brought {
        let one = one?;
        counts.merge(one.counts);
        cpu += one.cpu;
        busiest = busiest.max(one.busy);
    }
    let used = match (server, stage.before.get()) {
        (Some(id), Some(before)) => Usage::read(Whose::Process(id)).since(before),
        _ => Cost::default(),
    };
    Ok(outcome(plan, &stage.finish, counts, used, cpu.as_secs_f64(), busiest))
}

/// What the threads of a run share.
struct Stage<'a> {
    plan: &'a Plan,
    finish: Arc<Finish>,
    clock: Clock,
    /// When the load begins; set by one thread when all are ready.
    begin: OnceLock<u64>,
    barrier: Barrier,
    before: OnceLock<Usage>,
    server: Option<u32>,
}

impl Stage<'_> {
    async fn work(&self, number: usize, workers: usize) -> Result<Brought, BenchError> {
        let plan = self.plan;
        let depth = plan.depth;
        let payloads = Rc::new(Payloads::new(plan.payload_bytes, plan.seed, depth));
        let opened = self.open(number, workers, &payloads).await;
        if opened.is_err() {
            self.finish.give_up(); // the others need not begin
        }
        // Nothing runs on this thread meanwhile: no load has begun, and setup is answered.
        if self.barrier.wait().is_leader() {
            let _ = self.before.set(self.server.map(|id| Usage::read(Whose::Process(id))).unwrap_or_default());
            let _ = self.begin.set(self.clock.now() + 2_000_000);
        }
        self.barrier.wait();
        let (subscribers, publishers) = opened?;
        let begin = *self.begin.get().expect("set between the barriers");
        let counted = plan.counted();
        let shared = Rc::new(Shared {
            clock: self.clock,
            begin,
            counted: begin + counted.start..begin + counted.end,
            finish: Arc::clone(&self.finish),
            recorder: Rc::new(RefCell::default()),
        });
        let effort = Effort::begin();
        let mut tasks = JoinSet::new();
        for unstarted in subscribers {
            tasks.spawn_local(unstarted.start(Rc::clone(&shared)).run());
        }
        for (line, numbers) in publishers {
            let channel =
                PublishChannel::new(line, numbers.into_iter(), plan, Rc::clone(&shared), Rc::clone(&payloads));
            tasks.spawn_local(channel.map_err(failed(plan, "preparing to publish"))?.run());
        }
        self.see_through(&mut tasks, &shared).await;
        let (cpu, busy) = effort.end();
        drop(tasks);
        let counts = shared.recorder.take();
        Ok(Brought { counts, cpu, busy })
    }

    /// Waits for all tasks of a thread; gives the run up when patience is at its end.
    async fn see_through(&self, tasks: &mut JoinSet<Result<(), LineError>>, shared: &Shared) {
        let plan = self.plan;
        let patience = Duration::from_nanos(shared.counted.end.saturating_sub(self.clock.now())) + plan.give_up;
        let finish = Arc::clone(&self.finish);
        let watchdog = spawn_local(async move {
            tokio::time::sleep(patience).await;
            finish.give_up();
        });
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    shared.recorder.borrow_mut().problem(|| error.to_string());
                    self.finish.give_up();
                }
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        watchdog.abort();
    }

    /// Opens this thread's channels, and subscribes.
    async fn open(&self, number: usize, workers: usize, payloads: &Rc<Payloads>) -> Result<Opened, BenchError> {
        let plan = self.plan;
        let mine = |connection: usize| connection % workers == number;
        let Channels { connections, streams } = plan.subscribe_channels;
        let channels = plan.subscribe_channels.count();
        let mut subscribers = Vec::new();
        for (channel, line) in plan.place.open(connections, streams, mine).await? {
            let groups = (channel..plan.subscriptions()).step_by(channels).map(|at| at % plan.fan_out).collect();
            let opened = SubscribeChannel::open(line, groups, plan, Rc::clone(payloads)).await;
            subscribers.push(opened.map_err(failed(plan, "subscribing"))?);
        }
        let Channels { connections, streams } = plan.publish_channels;
        let channels = plan.publish_channels.count();
        let lines = plan.place.open(connections, streams, mine).await?;
        let numbered = |(channel, line)| (line, (channel..plan.publishers).step_by(channels).collect());
        Ok((subscribers, lines.into_iter().map(numbered).collect()))
    }
}

/// Channels that have subscribed, and those that will publish with their publishers' numbers.
type Opened = (Vec<super::subscriber::Unstarted>, Vec<(crate::native::line::Line, Vec<usize>)>);

fn failed(plan: &Plan, doing: &'static str) -> impl FnOnce(LineError) -> BenchError + use<> {
    let subject = plan.place.endpoint.address().to_owned();
    move |error| BenchError::Subject { subject, doing, message: error.to_string() }
}

fn outcome(plan: &Plan, finish: &Finish, counts: Recorder, server: Cost, generator_cpu: f64, busiest: f64) -> Outcome {
    let sent = finish.all_sent();
    let mut groups: BTreeMap<usize, Vec<&Account>> = BTreeMap::new();
    for (group, account) in &counts.accounts {
        groups.entry(*group).or_default().push(account);
    }
    let groups: Vec<Vec<&Account>> = groups.into_values().collect();
    let seconds = plan.duration.as_secs_f64();
    let mut outcome = Outcome {
        published: sent.iter().sum(),
        deliveries_rate: counts.deliveries as f64 / seconds,
        received_rate: counts.received_bytes as f64 / seconds,
        dropped: counts.accounts.iter().map(|(_, account)| account.dropped).sum(),
        faults: reckon(&groups, &sent),
        server,
        generator_cpu,
        busiest,
        validity: Validity::Good,
        counts,
    };
    outcome.validity = judge(plan, finish, &outcome);
    outcome
}

fn judge(plan: &Plan, finish: &Finish, outcome: &Outcome) -> Validity {
    let counts = &outcome.counts;
    let unfinished = finish.is_given_up() || finish.total().is_none();
    let faults = outcome.faults;
    if let Some(problem) = &counts.problem {
        return Validity::Errors(problem.clone());
    }
    let only_late = Faults { lost: 0, ..faults };
    if only_late.any() || (faults.any() && !unfinished) {
        return Validity::Errors(faults.to_string());
    }
    if plan.in_flight > 0 && !unfinished {
        let told = counts.acked_deliveries;
        let wanted = outcome.published / u64::from(plan.batch) * plan.fan_out as u64;
        if plan.unit == super::plan::Unit::Batch && told + counts.acked_misses != wanted {
            return Validity::Errors(format!("acks said {told} subscriptions got batches, {wanted} should have"));
        }
    }
    if let Pace::Open { rate, .. } = plan.pace {
        let lag = counts.lag.percentile(99.0);
        if lag > plan.max_lag {
            return Validity::Saturated(format!(
                "the generator itself was late by {} at its 99th percentile: lower the rate, or add --workers or cores",
                duration(lag)
            ));
        }
        if outcome.busiest > MAX_BUSY {
            return Validity::Saturated(format!(
                "a load thread was {:.0} % busy: lower the rate, or add --workers or cores",
                100.0 * outcome.busiest
            ));
        }
        let late = Duration::from_nanos(counts.last).saturating_sub(plan.duration);
        if unfinished || late > BACKLOG.max(plan.duration * 3 / 100) {
            return Validity::Overloaded(format!(
                "{:.0} of {:.0} deliveries/s; what was due took {} longer than its time, and {} were missing {} after the last publish",
                outcome.deliveries_rate,
                rate * plan.fan_out as f64,
                duration(late),
                faults.lost,
                duration(plan.give_up)
            ));
        }
    } else if unfinished {
        return Validity::Overloaded(format!(
            "{} messages had not come {} after the end",
            faults.lost,
            duration(plan.give_up)
        ));
    }
    if counts.all_deliveries == 0 {
        return Validity::Errors("nothing was delivered".to_owned());
    }
    Validity::Good
}
