//! One slow follower: puts of many clients while a follower gets little processor time, or is stopped repeatedly.
//!
//! Owns: the times at which the follower's process is stopped. SIGSTOP and SIGCONT do that without privileges; a
//! stopped process neither answers nor writes, as one whose disk is frozen, but it leaves its processor time to the
//! others. The other nodes are a majority, so the rate should hold. The conditions are measured alternately, and each
//! measurement begins when the follower has all entries.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    BenchError,
    load::{Validity, turns},
    nodes::Nodes,
    options::ClusterOptions,
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    stats::{Summary, median_of, ratio},
    work::{self, Kind, TargetNodes, Turn, Work},
};

/// Goal: share of the rate without a slow follower.
const MIN_SHARE: f64 = 0.9;
/// Shortest measurement, in which a follower that is stopped once in five seconds is stopped twice.
const MIN_DURATION: Duration = Duration::from_secs(10);

/// The follower's process is alternately stopped and running for these times.
#[derive(Clone, Copy, Debug)]
struct Slowness {
    name: &'static str,
    stopped: Duration,
    runs: Duration,
}

const CONDITIONS: [Slowness; 3] = [
    Slowness { name: "all run", stopped: Duration::ZERO, runs: Duration::MAX },
    Slowness {
        name: "one follower runs 10 ms of each 100 ms",
        stopped: Duration::from_millis(90),
        runs: Duration::from_millis(10),
    },
    Slowness {
        name: "one follower stands still 1 s of each 5 s",
        stopped: Duration::from_secs(1),
        runs: Duration::from_secs(4),
    },
];

/// Measures the puts of the largest number of clients in each condition.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = ClusterOptions { duration: scenario.options.duration.max(MIN_DURATION), ..scenario.options.clone() };
    let nodes = Nodes::start(scenario.setup("slow"), scenario.progress)?;
    let clients = options.clients.iter().copied().max().unwrap_or(1);
    let work = Work { kind: Kind::Put, place: TargetNodes::Leader, clients };
    let mut rounds: [Vec<Turn>; CONDITIONS.len()] = Default::default();
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), CONDITIONS.len()) {
            let leader = nodes.leader()?;
            let follower = (0..options.count).find(|number| *number != leader).unwrap_or(leader);
            nodes.wait("the follower has all entries", |nodes| nodes.has_caught_up(follower))?;
            scenario.probe()?;
            let slowness = CONDITIONS[turn];
            let figures = slowed(nodes.process_id(follower), slowness, || work::run(&nodes, work, &options))?;
            scenario.step(&format!("round {}, {}: {:.0}/s", round + 1, slowness.name, figures.rate));
            rounds[turn].push(figures);
        }
    }
    Ok(figures(clients, &rounds))
}

fn figures(clients: usize, rounds: &[Vec<Turn>]) -> Figures {
    let title = "one slow follower: puts, medians of the rounds, closed loop, durability quorum";
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    let rates = |turns: &[Turn]| turns.iter().map(|turn| turn.rate).collect::<Vec<_>>();
    for (Slowness { name, stopped, .. }, turns) in CONDITIONS.iter().zip(rounds) {
        let (summary, share) = (Summary::of(&rates(turns)), ratio(&rates(turns), &rates(&rounds[0])));
        table.row(cells! {
            "followers" => *name, "clients" => clients, "puts/s" => summary.median, "± MAD" => summary.mad,
            "of all run" => share, "p50 µs" => median_of(turns, |turn| turn.p50_us),
            "p99 µs" => median_of(turns, |turn| turn.p99_us),
        });
        checks.push(Validity::worst(turns.iter().map(|turn| &turn.validity)).check(*name, "all answered, rightly"));
        if !stopped.is_zero() {
            checks.push(Check::at_least(format!("{name}: of the rate when all run"), share, MIN_SHARE, " ×"));
        }
    }
    Figures { tables: vec![table], checks, notes: Vec::new() }
}

/// Does the work while the process is stopped from time to time.
fn slowed<T>(process: Option<u32>, slowness: Slowness, work: impl FnOnce() -> T) -> T {
    let (over, ended) = channel::<()>();
    let process = process.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    std::thread::scope(|scope| {
        // Dropped when the work ends or panics, which ends the thread.
        let _over = over;
        if let Some(process) = process.filter(|_| !slowness.stopped.is_zero()) {
            scope.spawn(move || {
                let lasts = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
                while lasts(slowness.runs) {
                    let _ = kill_process(process, Signal::STOP);
                    let goes_on = lasts(slowness.stopped);
                    let _ = kill_process(process, Signal::CONT);
                    if !goes_on {
                        break;
                    }
                }
            });
        }
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns the letter of a process's state.
    fn state(id: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[test]
    fn a_process_stands_still_during_the_work_and_runs_afterwards() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let slowness = Slowness { name: "", stopped: Duration::from_secs(600), runs: Duration::from_millis(1) };
        let until = |letter: char| {
            (0..10_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                state(child.id()) == Some(letter)
            })
        };
        assert!(slowed(Some(child.id()), slowness, || until('T')), "it stands still");
        assert!(until('S'), "it runs again");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_shares_are_judged_and_the_rate_without_a_slow_follower_is_not() {
        let rounds = [100.0, 95.0, 80.0].map(|rate| vec![Turn::of_rate(rate)]);
        let Figures { checks, .. } = figures(100, &rounds);
        let missed: Vec<_> = checks.iter().filter(|check| check.verdict == crate::report::Verdict::Missed).collect();
        assert_eq!((checks.len(), missed.len()), (5, 1));
        assert!(missed[0].what.contains("stands still"), "{}", missed[0].what);
    }
}
