//! Finds the resource that limited the server in a search for its highest rate: processors, fsync, network, or a queue
//! in the server.
//!
//! Owns: the evidence of each run, and the verdict, which follows from a run at the lowest rate that failed. Does not
//! own: the search, or the measuring of the resources.
//!
//! The evidence has a share for each resource, mostly of the run's time. A resource whose share reaches its threshold
//! is saturated, and several resources can be saturated. If none is, but commands spend most of the server's time in
//! the queue, the verdict names the queue. Then something that is not measured here, such as a lock, delays the thread
//! that empties the queue.

use std::{fs, net::SocketAddr};

use crate::{
    Report,
    account::Account,
    load::{Knee, Limit, Outcome, Trial},
    report::{Table, cells, number},
    usage::RunResources,
};

/// Share of the machine's processor time above which the processors count as saturated. The share is the sum over the
/// server and a load generator on the same machine.
const CPU: f64 = 0.9;
/// Share of the run that one thread of the server is running, above which this thread counts as saturated.
const THREAD: f64 = 0.95;
/// Share of the run during which the log syncs, above which the disk counts as saturated.
const FSYNC: f64 = 0.8;
/// Share of the link's speed above which the network counts as saturated.
const NETWORK: f64 = 0.8;
/// Share of a command's time in the server that the command spends in the queue, above which the verdict names the
/// queue.
const QUEUE: f64 = 0.5;

/// Shares of the machine's resources that one run used, as evidence for the resource that limited it. `None` means that
/// a share is not known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Average numbers of processors that the server and the load generator used, in this order. The server's is `None`
    /// if it is not known.
    processors: (Option<f64>, f64),
    /// Number of processors of the machine; `None` if the server runs on another machine, where it is not known.
    all_processors: Option<f64>,
    /// Name of the busiest thread of the server, and the share of the run during which it was running.
    thread: Option<(String, f64)>,
    fsync: Option<f64>,
    network: Option<f64>,
    queue: Option<f64>,
}

impl Evidence {
    /// Collects the evidence of a run. `server` is the server's address.
    pub(crate) fn of<C>(outcome: &Outcome<C>, account: &Account, server: Option<SocketAddr>) -> Self {
        let RunResources { server: cost, generator_cpu, server_thread, clocks, .. } = outcome.spent;
        let seconds = clocks.seconds.max(1e-9);
        let bytes = outcome.tally.received_bytes.max(outcome.tally.sent_bytes) as f64;
        let is_remote = server.is_some_and(|address| !address.ip().is_loopback());
        let link = is_remote.then(link_bytes_per_second).flatten();
        Self {
            processors: (cost.map(|cost| cost.cpu_seconds / seconds), generator_cpu / seconds),
            // The process of a server is known only if it is on this machine.
            all_processors: cost.and_then(|_| std::thread::available_parallelism().ok()).map(|all| all.get() as f64),
            thread: server_thread.map(|thread| (thread.name().to_owned(), thread.share)),
            fsync: account.fsync_seconds().map(|busy| busy / seconds),
            network: link.map(|link| bytes / outcome.seconds / link),
            queue: account.queue_share(),
        }
    }

    /// Returns the share of all processors that the server and the generator used together.
    fn cpu(&self) -> Option<f64> {
        let (server, generator) = self.processors;
        Some((server? + generator) / self.all_processors?)
    }

    /// Returns the saturated resources in words with their shares; empty if none is.
    fn saturated(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let above = |share: Option<f64>, threshold: f64| share.filter(|share| *share >= threshold).map(percent);
        let mut found = Vec::new();
        if let Some(share) = above(self.cpu(), CPU) {
            let (server, generator) = (number(self.processors.0.unwrap_or(0.0)), number(self.processors.1));
            found.push(format!("CPU ({share} of all processors: server {server}, generator {generator})"));
        }
        if let Some((name, share)) = &self.thread
            && *share >= THREAD
        {
            found.push(format!("CPU of the server's thread {name} ({} busy)", percent(*share)));
        }
        found.extend(above(self.fsync, FSYNC).map(|share| format!("fsync (the log syncs {share} of the time)")));
        found.extend(above(self.network, NETWORK).map(|share| format!("network ({share} of the link's speed)")));
        if found.is_empty() {
            let queue = above(self.queue, QUEUE);
            found.extend(queue.map(|share| format!("queue (commands spend {share} of the server's time in it)")));
        }
        found
    }
}

/// Evidence of all runs of a search, with their rates.
#[derive(Debug, Default)]
pub(crate) struct SearchEvidence {
    runs: Vec<(f64, Evidence)>,
}

impl SearchEvidence {
    /// Adds the evidence of one run, in which `rate` was the scheduled rate.
    pub(crate) fn push(&mut self, rate: f64, evidence: Evidence) {
        self.runs.push((rate, evidence));
    }

    /// Names the resource that limited the server in a search for the knee, the highest rate that meets the objective.
    /// The evidence is that of the last failed run at the lowest rate that failed twice. If no rate failed twice, it is
    /// that of a failed run at the lowest rate above the knee. If the load generator limited the search, names the
    /// generator's CPU. `None` if neither the server nor the generator limited the search, or if no run failed.
    fn verdict(&self, knee: &Knee) -> Option<String> {
        match knee.limited_by {
            Limit::MaxRate | Limit::Machine => return None,
            Limit::Generator => return Some("CPU of the load generator".to_owned()),
            Limit::Server => {}
        }
        let failed = knee.trials.iter().filter(|(_, how)| matches!(how, Trial::Fail(_))).map(|(rate, _)| *rate);
        let above = failed.filter(|rate| knee.rate.is_none_or(|knee| *rate > knee));
        let rate = knee.fails_at.or_else(|| above.reduce(f64::min))?;
        // Evidence and trials have the same order, one of each for every run of the search.
        let mut runs = self.runs.iter().zip(&knee.trials).rev();
        let ((_, evidence), _) = runs.find(|(_, (other, how))| *other == rate && matches!(how, Trial::Fail(_)))?;
        let found = evidence.saturated();
        Some(if found.is_empty() { "nothing that is measured".to_owned() } else { found.join(" and ") })
    }

    /// Adds the verdict and the shares of the resources to a report.
    pub(crate) fn conclude(&self, knee: &Knee, report: &mut Report) {
        report.summary.extend(self.verdict(knee).map(|found| format!("Saturated: {found}.")));
        report.tables.push(self.table());
    }

    /// Returns the table of the shares of the resources in each run of the search.
    fn table(&self) -> Table {
        let mut table = Table::new("resources in the runs of the search, in % of the time");
        let percent = |share: Option<f64>| share.map(|share| 100.0 * share);
        for (rate, evidence) in &self.runs {
            table.row(cells! {
                "offered/s" => *rate, "server processors" => evidence.processors.0,
                "generator processors" => evidence.processors.1, "of all processors %" => percent(evidence.cpu()),
                "busiest server thread" => evidence.thread.as_ref().map(|(name, _)| name.as_str()),
                "busy %" => percent(evidence.thread.as_ref().map(|(_, share)| *share)),
                "fsync %" => percent(evidence.fsync), "of link %" => percent(evidence.network),
                "in queue %" => percent(evidence.queue),
                "saturated" => match evidence.saturated() {
                    none if none.is_empty() => "-".to_owned(),
                    found => found.join(" and "),
                },
            });
        }
        table
    }
}

/// Returns the speed of the fastest link of this machine that is in use, in bytes per second. `None` if the kernel does
/// not report it, as on many virtual machines.
fn link_bytes_per_second() -> Option<f64> {
    let speed = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("speed")).ok()?;
        text.trim().parse::<f64>().ok().filter(|megabits| *megabits > 0.0)
    };
    let links = fs::read_dir("/sys/class/net").ok()?.flatten().filter_map(speed);
    links.reduce(f64::max).map(|megabits| megabits * 125_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Bounds, find_knee};

    fn idle() -> Evidence {
        let thread = Some(("log".to_owned(), 0.3));
        let (fsync, network, queue) = (Some(0.2), Some(0.1), Some(0.1));
        Evidence { processors: (Some(0.5), 0.4), all_processors: Some(2.0), thread, fsync, network, queue }
    }

    #[test]
    fn the_saturated_resource_is_named() {
        let named = |evidence: Evidence| evidence.saturated().join(" and ");
        assert_eq!(named(idle()), "");
        let cpu = named(Evidence { processors: (Some(1.2), 0.7), ..idle() });
        assert_eq!(cpu, "CPU (95 % of all processors: server 1.20, generator 0.700)");
        let thread = named(Evidence { thread: Some(("log".to_owned(), 0.99)), ..idle() });
        assert_eq!(thread, "CPU of the server's thread log (99 % busy)");
        // A queue becomes long if the disk is busy, so the disk is the reason.
        let fsync = named(Evidence { fsync: Some(0.93), queue: Some(0.8), ..idle() });
        assert_eq!(fsync, "fsync (the log syncs 93 % of the time)");
        assert_eq!(named(Evidence { network: Some(0.9), ..idle() }), "network (90 % of the link's speed)");
        let queue = named(Evidence { queue: Some(0.8), ..idle() });
        assert_eq!(queue, "queue (commands spend 80 % of the server's time in it)");
        assert_eq!(named(Evidence::default()), "", "of a server elsewhere nothing is known");
    }

    #[test]
    fn the_verdict_is_that_of_the_lowest_rate_that_failed() {
        let bounds = Bounds { start: 100.0, max: 1e6, precision: 0.03, repeats: 2 };
        let mut course = SearchEvidence::default();
        let search = |course: &mut SearchEvidence, fail: Trial| {
            find_knee(&bounds, |rate| {
                let fsync = Some(rate / 6000.0);
                course.push(rate, Evidence { fsync, ..idle() });
                Ok::<_, ()>(if rate < 5000.0 { Trial::Pass } else { fail.clone() })
            })
        };
        let knee = search(&mut course, Trial::Fail("late".to_owned())).unwrap();
        assert!(course.verdict(&knee).unwrap().starts_with("fsync (the log syncs 8"), "{:?}", course.verdict(&knee));
        let table = course.table();
        assert_eq!(table.rows.len(), knee.trials.len());
        let knee = search(&mut SearchEvidence::default(), Trial::Void("busy".to_owned())).unwrap();
        assert_eq!(course.verdict(&knee).unwrap(), "CPU of the load generator");
        let knee = find_knee(&bounds, |_| Ok::<_, ()>(Trial::Pass)).unwrap();
        assert_eq!(course.verdict(&knee), None);
    }

    #[test]
    fn a_search_that_ended_early_blames_a_failed_run_and_not_the_lowest_rate() {
        let mut course = SearchEvidence::default();
        let busy = Evidence { fsync: Some(0.9), ..idle() };
        for (rate, evidence) in [(100.0, idle()), (200.0, busy), (200.0, idle())] {
            course.push(rate, evidence);
        }
        let trials = vec![(100.0, Trial::Pass), (200.0, Trial::Fail("late".to_owned())), (200.0, Trial::Pass)];
        let knee = Knee { rate: Some(100.0), fails_at: None, limited_by: Limit::Server, missed: None, trials };
        assert_eq!(course.verdict(&knee).unwrap(), "fsync (the log syncs 90 % of the time)");
        let none = Knee { trials: vec![(100.0, Trial::Pass)], ..knee };
        assert_eq!(course.verdict(&none), None, "no run failed");
    }
}
