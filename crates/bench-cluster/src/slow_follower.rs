//! One slow follower: puts of many clients while one follower has little processor time, or while its disk stands
//! still.
//!
//! Owns: the conditions, the ways to slow a process or its disk down, and the table of this part. Does not own: the
//! loop devices (`disks`), control groups (`thalweg_lab`), or the puts (`work`).
//!
//! A control group gives the follower a tenth of a processor. `fsfreeze` stops the writes to its file system for 1 s of
//! each 5 s; all nodes then have file systems on loop devices. Both need privileges. Without them, SIGSTOP and SIGCONT
//! are used instead: a stopped process neither answers nor writes. The report states the reason.
//!
//! The other nodes are a majority, so the rate should hold. They must not profit from the slow node either: on one
//! machine, a slow node leaves processor time to the others. Therefore the benchmark uses this time itself
//! ([`unused_share`](crate::unused_share)). The conditions are measured alternately. Each measurement begins when the
//! follower has all entries.

use std::{
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use thalweg_lab::control_group::ControlGroup;

use crate::{
    BenchError,
    disks::{Disks, freeze},
    load::turns,
    nodes::{Nodes, Setup},
    options::ClusterOptions,
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    stats::{Summary, median, median_of, ratio},
    unused_share::{ProcessorShares, using_rest},
    work::{self, Kind, RequestLoad, TargetNodes, Turn},
};

/// Goal: smallest rate of puts with a slow follower, as a part of the rate without one.
const MIN_SHARE: f64 = 0.9;
/// Shortest measurement. A disk that stands still once in five seconds does so twice in this time.
const MIN_DURATION: Duration = Duration::from_secs(10);
/// Share of one processor that the slow follower gets, in percent.
const CPU_PERCENT: u32 = 10;
/// Time for which the follower's disk stands still.
const DISK_STANDS: Duration = Duration::from_secs(1);
/// Time for which the follower's disk works between two standstills.
const DISK_MOVES: Duration = Duration::from_secs(4);

/// Way in which the follower is slowed down.
#[derive(Clone, Debug)]
enum Slowness {
    None,
    /// The follower's process is in this control group, which limits its processor time.
    Quota(std::rc::Rc<ControlGroup>),
    /// The follower's file system is repeatedly frozen and thawed.
    Frozen,
    /// The follower's process is alternately stopped and running, for these times.
    Stopped {
        stopped: Duration,
        runs: Duration,
    },
}

/// A condition under which the puts are measured, such as a follower with little processor time.
#[derive(Clone, Debug)]
struct Condition {
    name: &'static str,
    slowness: Slowness,
}

/// The follower that is slowed down, as a process and a disk.
#[derive(Clone, Copy, Debug)]
struct SlowNode<'a> {
    process: u32,
    /// Mount point of the follower's own file system; `None` if all nodes share one file system.
    disk: Option<&'a Path>,
}

/// Returns the three conditions under which puts are measured on this machine: all nodes run, one follower has little
/// processor time, and the disk of one follower stands still. Also returns notes for the report. They say if stopping
/// the process replaces a quota or a frozen disk that the machine does not permit, and why.
fn conditions(disks: &Result<Disks, String>) -> ([Condition; 3], Vec<String>) {
    let mut notes = vec![
        "slow-follower: a thread of the benchmark uses the processor time that the slow follower leaves unused of its \
         share when all run, because nodes on machines of their own get none from each other"
            .to_owned(),
    ];
    let little = match ControlGroup::with_processor(CPU_PERCENT) {
        Ok(group) => Condition {
            name: "one follower has 10 % of a processor",
            slowness: Slowness::Quota(std::rc::Rc::new(group)),
        },
        Err(reason) => {
            notes.push(format!("slow-follower: SIGSTOP stands in for a quota of processor time: {reason}"));
            let (stopped, runs) = (Duration::from_millis(90), Duration::from_millis(10));
            Condition { name: "one follower runs 10 ms of each 100 ms", slowness: Slowness::Stopped { stopped, runs } }
        }
    };
    let disk = match disks {
        Ok(_) => {
            notes.push("slow-follower: each node has a file system of its own, on a loop device".to_owned());
            Condition { name: "the disk of one follower is frozen for 1 s of each 5 s", slowness: Slowness::Frozen }
        }
        Err(reason) => {
            notes.push(format!("slow-follower: SIGSTOP stands in for a frozen disk: {reason}"));
            Condition {
                name: "one follower stands still 1 s of each 5 s",
                slowness: Slowness::Stopped { stopped: DISK_STANDS, runs: DISK_MOVES },
            }
        }
    };
    ([Condition { name: "all run", slowness: Slowness::None }, little, disk], notes)
}

/// Measures puts with the largest number of clients of the options, under each condition.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = ClusterOptions { duration: scenario.options.duration.max(MIN_DURATION), ..scenario.options.clone() };
    // Declared before the nodes, so that it is dropped after them. The nodes use the disks and the group.
    let disks = Disks::create(&scenario.dir.join("disks"), options.count);
    let (conditions, notes) = conditions(&disks);
    notes.iter().for_each(|note| scenario.step(note));
    let paths = disks.as_ref().map_or(&[][..], Disks::paths);
    let nodes = Nodes::start(Setup { disks: paths, ..Setup::new("slow", scenario.dir, &options) }, scenario.progress)?;
    let clients = options.clients.iter().copied().max().unwrap_or(1);
    let work = RequestLoad { kind: Kind::Put, place: TargetNodes::Leader, clients };
    let mut rounds: [Vec<(Turn, ProcessorShares)>; 3] = Default::default();
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), conditions.len()) {
            let leader = nodes.leader()?;
            let follower = (0..options.count).find(|number| *number != leader).unwrap_or(leader);
            nodes.wait("the follower has all entries", |nodes| nodes.has_caught_up(follower))?;
            scenario.probe()?;
            let Condition { name, slowness } = &conditions[turn];
            let process = nodes.process_id(follower).unwrap_or_default();
            let node = SlowNode { process, disk: paths.get(follower).map(AsRef::as_ref) };
            // The condition without a slow follower is measured first. Its rounds give the usual share of the node.
            let usual = median(&rounds[0].iter().map(|(_, shares)| shares.node).collect::<Vec<_>>());
            let share = if matches!(slowness, Slowness::None) { 0.0 } else { usual };
            let (figures, shares) =
                using_rest(process, share, || slowed(slowness, node, || work::run(&nodes, work, &options)));
            let figures = figures.map_err(BenchError::subject("a follower", "slowing it down"))??;
            scenario.step(&format!("round {}, {name}: {:.0}/s", round + 1, figures.rate));
            rounds[turn].push((figures, shares));
        }
    }
    Ok(Figures { notes, ..figures(&conditions, clients, &rounds) })
}

fn figures(conditions: &[Condition], clients: usize, rounds: &[Vec<(Turn, ProcessorShares)>]) -> Figures {
    let title = "one slow follower: puts, medians of the rounds, closed loop, durability quorum";
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    let rates = |turns: &[(Turn, ProcessorShares)]| turns.iter().map(|(turn, _)| turn.rate).collect::<Vec<_>>();
    for (Condition { name, slowness }, turns) in conditions.iter().zip(rounds) {
        let (summary, share) = (Summary::of(&rates(turns)), ratio(&rates(turns), &rates(&rounds[0])));
        table.row(cells! {
            "followers" => *name, "clients" => clients, "puts/s" => summary.median, "± MAD" => summary.mad,
            "of all run" => share, "p50 µs" => median_of(turns, |(turn, _)| turn.p50_us),
            "p95 µs" => median_of(turns, |(turn, _)| turn.p95_us),
            "p99 µs" => median_of(turns, |(turn, _)| turn.p99_us),
            "the follower's CPU %" => median_of(turns, |(_, shares)| 100.0 * shares.node),
            "used instead of it %" => median_of(turns, |(_, shares)| 100.0 * shares.thread),
        });
        checks.push(work::check(turns.iter().map(|(turn, _)| turn), name));
        if !matches!(slowness, Slowness::None) {
            checks.push(Check::at_least(format!("{name}: of the rate when all run"), share, MIN_SHARE, " ×"));
        }
    }
    Figures { tables: vec![table], checks, notes: Vec::new() }
}

/// Calls `work` while the follower `node` is slowed down in the way that `slowness` describes.
fn slowed<T>(slowness: &Slowness, node: SlowNode<'_>, work: impl FnOnce() -> T) -> std::io::Result<T> {
    match slowness {
        Slowness::None => Ok(work()),
        Slowness::Quota(group) => {
            let _held = group.hold(node.process)?;
            Ok(work())
        }
        Slowness::Frozen => Ok(repeating(DISK_MOVES, work, |_| {
            let frozen = node.disk.map(|disk| freeze(disk, DISK_STANDS));
            // The freeze ends by itself.
            frozen
                .is_some_and(|frozen| frozen.and_then(|mut frozen| frozen.wait()).is_ok_and(|status| status.success()))
        })),
        Slowness::Stopped { stopped, runs } => {
            let process = i32::try_from(node.process).ok().and_then(Pid::from_raw);
            Ok(repeating(*runs, work, |lasts| {
                let Some(process) = process else { return false };
                let _ = kill_process(process, Signal::STOP);
                let goes_on = lasts(*stopped);
                let _ = kill_process(process, Signal::CONT);
                goes_on
            }))
        }
    }
}

/// Calls `work`. Meanwhile a thread repeats a pause and a call of `act`, until the work is over or `act` returns false.
/// `act` gets a function that waits for a time, and that returns false if the work ends first.
fn repeating<T>(
    pause: Duration,
    work: impl FnOnce() -> T,
    act: impl Fn(&dyn Fn(Duration) -> bool) -> bool + Send,
) -> T {
    let (over, ended) = channel::<()>();
    std::thread::scope(|scope| {
        // The sender is dropped when the work ends or panics. This ends the thread.
        let _over = over;
        scope.spawn(move || {
            let lasts = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            while lasts(pause) && act(&lasts) {}
        });
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns the letter with which the kernel describes a process's state, such as `T` for stopped.
    fn state(id: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[test]
    fn a_process_stands_still_during_the_work_and_runs_afterwards() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let slowness = Slowness::Stopped { stopped: Duration::from_secs(600), runs: Duration::from_millis(1) };
        let until = |letter: char| {
            (0..10_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                state(child.id()) == Some(letter)
            })
        };
        let node = SlowNode { process: child.id(), disk: None };
        assert!(slowed(&slowness, node, || until('T')).unwrap(), "it stands still");
        assert!(until('S'), "it runs again");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_shares_are_judged_and_the_rate_without_a_slow_follower_is_not() {
        let disk = Slowness::Stopped { stopped: DISK_STANDS, runs: DISK_MOVES };
        let conditions = [("all run", Slowness::None), ("slow", disk.clone()), ("stands still", disk)];
        let conditions = conditions.map(|(name, slowness)| Condition { name, slowness });
        let rounds = [100.0, 95.0, 80.0].map(|rate| vec![(Turn::of_rate(rate), ProcessorShares::default())]);
        let Figures { checks, .. } = figures(&conditions, 100, &rounds);
        let missed: Vec<_> = checks.iter().filter(|check| check.verdict == crate::report::Verdict::Missed).collect();
        assert_eq!((checks.len(), missed.len()), (5, 1));
        assert!(missed[0].what.contains("stands still"), "{}", missed[0].what);
    }
}
