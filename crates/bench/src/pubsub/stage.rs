//! Performs one run of the publish-and-subscribe benchmark: opens the channels and subscriptions, runs the load, and
//! compares the received messages with the published ones.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use tokio::task::{JoinSet, spawn_local};

use super::{
    options::{Channels, PubsubOptions},
    publisher::PublishChannel,
    recorder::{Deliveries, Outcome, Shared},
    subscriber::{IdleSubscriber, SubscribeChannel},
};
use crate::{
    BenchError,
    load::{BACKLOG, Clock, Pace, ServerSource, Tally, Validity, run_counted, saturated, unusable_clocks},
    native::{
        ChannelError, Faults, Finish, NativeEndpoint, Payloads, ReadyChannel, SubscriberAccount, compare_accounts,
    },
    report::duration,
};

/// Runs the publishers and subscribers that the options describe. `server` is the id of the server's process; `None` if
/// it is not known.
pub(super) fn run(place: &NativeEndpoint, options: &PubsubOptions, server: Option<u32>) -> Result<Outcome, BenchError> {
    let workers = options.load.workers.max(1);
    let finish = Arc::new(Finish::new(options.publishers, options.subscriptions(), options.fan_out));
    let stage = RunContext { place, options, finish, workers };
    let (tally, _, spent) = run_counted(
        workers,
        server.map(|process| ServerSource { process, fsyncs: None }),
        options.empty_tally(),
        async |number| stage.open(number).await,
        async |opened, clock| (stage.work(opened, clock).await, ()),
    )?;
    let seconds = options.load.duration.as_secs_f64();
    let mut outcome = Outcome::new(tally, seconds, spent).paced(options.pace());
    outcome.validity = judge(options, &stage.finish, &outcome);
    Ok(outcome)
}

/// Data that the threads of a run share.
struct RunContext<'a> {
    place: &'a NativeEndpoint,
    options: &'a PubsubOptions,
    finish: Arc<Finish>,
    workers: usize,
}

impl RunContext<'_> {
    async fn work(&self, opened: Opened, clock: Clock) -> Tally<Deliveries> {
        let (options, Opened { payloads, subscribers, publishers }) = (self.options, opened);
        let shared = Rc::new(Shared {
            clock,
            counted: options.counted(),
            finish: Arc::clone(&self.finish),
            tally: RefCell::new(options.empty_tally()),
        });
        let mut tasks = JoinSet::new();
        for unstarted in subscribers {
            let (line, channel) = unstarted.start(Rc::clone(&shared));
            tasks.spawn_local(channel.run(line));
        }
        for (line, numbers) in publishers {
            let (shared, payloads) = (Rc::clone(&shared), Rc::clone(&payloads));
            let channel = PublishChannel::new(&line, numbers.into_iter(), options, shared, payloads);
            tasks.spawn_local(channel.run(line));
        }
        self.wait_for_tasks(&mut tasks, &shared).await;
        drop(tasks);
        shared.tally.take()
    }

    /// Waits until all tasks of a thread have ended. Aborts the run after its timeout.
    async fn wait_for_tasks(&self, tasks: &mut JoinSet<Result<(), ChannelError>>, shared: &Shared) {
        let left = Duration::from_nanos(shared.counted.end.saturating_sub(shared.clock.now()));
        let patience = left + self.options.load.give_up;
        let finish = Arc::clone(&self.finish);
        let watchdog = spawn_local(async move {
            tokio::time::sleep(patience).await;
            finish.give_up();
        });
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    shared.tally.borrow_mut().problem(|| error.to_string());
                    self.finish.give_up();
                }
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        watchdog.abort();
    }

    /// Opens the channels of the load thread with this number: those of its publishers and those of its subscribers.
    /// Makes the subscriptions.
    async fn open(&self, number: usize) -> Result<Opened, BenchError> {
        let (place, options) = (self.place, self.options);
        let payloads = Rc::new(Payloads::new(options.payload, options.load.seed, options.depth()));
        let mine = |connection: usize| connection % self.workers == number;
        let channels = options.subscribe().count();
        let Channels { connections, streams } = options.subscribe();
        let mut subscribers = Vec::new();
        for (channel, line) in place.open(connections, streams, mine).await? {
            let groups = (channel..options.subscriptions()).step_by(channels).map(|at| at % options.fan_out).collect();
            let opened = SubscribeChannel::open(line, groups, options, Rc::clone(&payloads)).await;
            subscribers.push(opened.map_err(BenchError::subject(place.endpoint.address(), "subscribing"))?);
        }
        let channels = options.publish().count();
        let Channels { connections, streams } = options.publish();
        let lines = place.open(connections, streams, mine).await?;
        let numbered = |(channel, line)| (line, (channel..options.publishers).step_by(channels).collect());
        Ok(Opened { payloads, subscribers, publishers: lines.into_iter().map(numbered).collect() })
    }
}

/// Channels that a load thread has opened: some with subscriptions, and the others with publishers. Each channel of
/// publishers has the list of their numbers.
struct Opened {
    payloads: Rc<Payloads>,
    subscribers: Vec<IdleSubscriber>,
    publishers: Vec<(ReadyChannel, Vec<usize>)>,
}

/// Compares the messages that the subscribers received with the published ones. `sent` has the number of messages of
/// each publisher.
fn faults(accounts: &[(usize, SubscriberAccount)], sent: &[u64]) -> Faults {
    let mut groups: BTreeMap<usize, Vec<&SubscriberAccount>> = BTreeMap::new();
    for (group, account) in accounts {
        groups.entry(*group).or_default().push(account);
    }
    compare_accounts(&groups.into_values().collect::<Vec<_>>(), sent)
}

fn judge(options: &PubsubOptions, finish: &Finish, outcome: &Outcome) -> Validity {
    let (tally, load, sent) = (&outcome.tally, &options.load, finish.all_sent());
    let Deliveries { last, acked_deliveries, acked_misses, accounts } = &tally.own;
    let unfinished = finish.is_given_up() || finish.total().is_none();
    let faults = faults(accounts, &sent);
    if let Some(problem) = &tally.first_problem {
        return Validity::Errors(problem.clone());
    }
    let only_late = Faults { lost: 0, ..faults };
    if only_late.any() || (faults.any() && !unfinished) {
        return Validity::Errors(faults.to_string());
    }
    if options.in_flight > 0 && !unfinished && options.linger.is_none() {
        let wanted = sent.iter().sum::<u64>() / u64::from(options.batch) * options.fan_out as u64;
        if acked_deliveries + acked_misses != wanted {
            let delivered = acked_deliveries;
            return Validity::Errors(format!("acks said {delivered} subscriptions got batches, {wanted} should have"));
        }
    }
    if let Some(validity) = unusable_clocks(&outcome.spent.clocks) {
        return validity;
    }
    let patience = duration(load.give_up);
    if let Pace::Open { rate, .. } = options.pace() {
        if let Some(validity) = saturated(&tally.lag, load.max_lag, outcome.spent.busiest) {
            return validity;
        }
        let late = Duration::from_nanos(*last).saturating_sub(load.duration);
        if unfinished || late > BACKLOG.max(load.duration * 3 / 100) {
            return Validity::Overloaded(format!(
                "{:.0} of {:.0} deliveries/s; sending took {} longer than planned, and {} were missing {patience} after the last publish",
                outcome.rate,
                rate * options.fan_out as f64,
                duration(late),
                faults.lost,
            ));
        }
    } else if unfinished {
        return Validity::Overloaded(format!("{} messages had not come {patience} after the end", faults.lost));
    }
    if tally.all_right == 0 {
        return Validity::Errors("nothing was delivered".to_owned());
    }
    Validity::Good
}
