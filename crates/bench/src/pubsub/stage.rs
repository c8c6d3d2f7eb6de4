//! One run: channels are opened, subscriptions begun, then the load runs and what came is reckoned up.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use tokio::task::{JoinSet, spawn_local};

use super::{
    plan::Plan,
    publisher::PublishChannel,
    recorder::{Recorder, Shared},
    scenario::{Channels, Unit},
    subscriber::{SubscribeChannel, Unstarted},
};
use crate::{
    BenchError,
    load::{
        crew::{self, Clock},
        pace::Pace,
        validity::{Validity, saturated},
    },
    native::{
        check::{Account, Faults, reckon},
        finish::Finish,
        line::{Line, LineError},
        payload::Payloads,
    },
    report::duration,
    usage::Cost,
};

/// Figures of a run.
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
    /// Messages that the server reported as dropped.
    pub dropped: u64,
    /// Lost, repeated, reordered and wrong messages.
    pub faults: Faults,
    /// Resources that the server used, from before the load to after it.
    pub server: Cost,
    /// CPU seconds of the generator's threads, in the same time.
    pub generator_cpu: f64,
    /// Share of its time that the busiest thread was running.
    pub busiest: f64,
    /// Validity of the figures.
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

/// Time after a scheduled run, at least 3 % of it, after which late deliveries mean that the server did not keep up. A
/// shorter backlog shows in the response times.
const BACKLOG: Duration = Duration::from_millis(250);

/// Runs a plan to its end. `server` is the server's process, if it is known.
pub fn run(plan: &Plan<'_>, server: Option<u32>) -> Result<Outcome, BenchError> {
    let (workers, scenario) = (plan.load.workers.max(1), plan.scenario);
    let finish = Arc::new(Finish::new(scenario.publishers, scenario.subscriptions(), scenario.fan_out));
    let stage = Stage { plan, finish, workers };
    let crew = crew::run(
        workers,
        server,
        async |number| stage.open(number).await,
        async |opened, clock| stage.work(opened, clock).await,
    )?;
    let mut counts = Recorder::default();
    for more in crew.brought {
        counts.merge(more);
    }
    Ok(outcome(plan, &stage.finish, counts, crew.server.unwrap_or_default(), crew.generator_cpu, crew.busiest))
}

/// Data that the threads of a run share.
struct Stage<'a> {
    plan: &'a Plan<'a>,
    finish: Arc<Finish>,
    workers: usize,
}

impl Stage<'_> {
    async fn work(&self, opened: Opened, clock: Clock) -> Recorder {
        let (plan, Opened { payloads, subscribers, publishers }) = (self.plan, opened);
        let shared = Rc::new(Shared {
            clock,
            counted: plan.pace.counted(plan.load.warmup, plan.load.duration),
            finish: Arc::clone(&self.finish),
            recorder: RefCell::default(),
        });
        let mut tasks = JoinSet::new();
        for unstarted in subscribers {
            let (line, channel) = unstarted.start(Rc::clone(&shared));
            tasks.spawn_local(channel.run(line));
        }
        for (line, numbers) in publishers {
            let (shared, payloads) = (Rc::clone(&shared), Rc::clone(&payloads));
            let channel = PublishChannel::new(&line, numbers.into_iter(), plan, shared, payloads);
            tasks.spawn_local(channel.run(line));
        }
        self.see_through(&mut tasks, &shared).await;
        drop(tasks);
        shared.recorder.take()
    }

    /// Waits for all tasks of a thread; gives the run up when patience is at its end.
    async fn see_through(&self, tasks: &mut JoinSet<Result<(), LineError>>, shared: &Shared) {
        let plan = self.plan;
        let patience = Duration::from_nanos(shared.counted.end.saturating_sub(shared.clock.now())) + plan.load.give_up;
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

    /// Opens the channels of a thread, and subscribes.
    async fn open(&self, number: usize) -> Result<Opened, BenchError> {
        let (plan, scenario) = (self.plan, self.plan.scenario);
        let payloads = Rc::new(Payloads::new(scenario.payload_bytes, plan.load.seed, plan.depth));
        let mine = |connection: usize| connection % self.workers == number;
        let Channels { connections, streams } = scenario.subscribe;
        let channels = scenario.subscribe.count();
        let mut subscribers = Vec::new();
        for (channel, line) in plan.place.open(connections, streams, mine).await? {
            let groups =
                (channel..scenario.subscriptions()).step_by(channels).map(|at| at % scenario.fan_out).collect();
            let opened = SubscribeChannel::open(line, groups, plan, Rc::clone(&payloads)).await;
            subscribers.push(opened.map_err(BenchError::subject(plan.place.endpoint.address(), "subscribing"))?);
        }
        let Channels { connections, streams } = scenario.publish;
        let channels = scenario.publish.count();
        let lines = plan.place.open(connections, streams, mine).await?;
        let numbered = |(channel, line)| (line, (channel..scenario.publishers).step_by(channels).collect());
        Ok(Opened { payloads, subscribers, publishers: lines.into_iter().map(numbered).collect() })
    }
}

/// A thread's channels: those that have subscribed, and those that will publish, with the numbers of their publishers.
struct Opened {
    payloads: Rc<Payloads>,
    subscribers: Vec<Unstarted>,
    publishers: Vec<(Line, Vec<usize>)>,
}

fn outcome(
    plan: &Plan<'_>,
    finish: &Finish,
    counts: Recorder,
    server: Cost,
    generator_cpu: f64,
    busiest: f64,
) -> Outcome {
    let sent = finish.all_sent();
    let mut groups: BTreeMap<usize, Vec<&Account>> = BTreeMap::new();
    for (group, account) in &counts.accounts {
        groups.entry(*group).or_default().push(account);
    }
    let groups: Vec<Vec<&Account>> = groups.into_values().collect();
    let seconds = plan.load.duration.as_secs_f64();
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

fn judge(plan: &Plan<'_>, finish: &Finish, outcome: &Outcome) -> Validity {
    let (counts, scenario) = (&outcome.counts, plan.scenario);
    let unfinished = finish.is_given_up() || finish.total().is_none();
    let faults = outcome.faults;
    if let Some(problem) = &counts.problem {
        return Validity::Errors(problem.clone());
    }
    let only_late = Faults { lost: 0, ..faults };
    if only_late.any() || (faults.any() && !unfinished) {
        return Validity::Errors(faults.to_string());
    }
    if scenario.in_flight > 0 && !unfinished {
        let told = counts.acked_deliveries;
        let wanted = outcome.published / u64::from(scenario.batch) * scenario.fan_out as u64;
        if scenario.unit == Unit::Batch && told + counts.acked_misses != wanted {
            return Validity::Errors(format!("acks said {told} subscriptions got batches, {wanted} should have"));
        }
    }
    if let Pace::Open { rate, .. } = plan.pace {
        if let Some(validity) = saturated(&counts.lag, plan.load.max_lag, outcome.busiest) {
            return validity;
        }
        let late = Duration::from_nanos(counts.last).saturating_sub(plan.load.duration);
        if unfinished || late > BACKLOG.max(plan.load.duration * 3 / 100) {
            return Validity::Overloaded(format!(
                "{:.0} of {:.0} deliveries/s; what was due took {} longer than its time, and {} were missing {} after the last publish",
                outcome.deliveries_rate,
                rate * scenario.fan_out as f64,
                duration(late),
                faults.lost,
                duration(plan.load.give_up)
            ));
        }
    } else if unfinished {
        return Validity::Overloaded(format!(
            "{} messages had not come {} after the end",
            faults.lost,
            duration(plan.load.give_up)
        ));
    }
    if counts.all_deliveries == 0 {
        return Validity::Errors("nothing was delivered".to_owned());
    }
    Validity::Good
}
