//! Result of a simulation, and its form as text and as JSON.

use std::{fmt, process::Command, sync::OnceLock, time::Duration};

use serde_json::{Value, json};

use crate::{
    failing_syncs::SYNC_FAILED,
    faults::{FaultKind, Overlap},
    runtime::Event,
    settings::Settings,
    snapshots::{INSTALL_CUT, INSTALLED, NOT_INSTALLED},
};

/// Time from a fault until the next answered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Kind of the fault that the gap follows.
    pub kind: FaultKind,
    /// Time from the fault to the next answered write, at most 8 seconds.
    pub lasted: Duration,
}

/// Result of a simulation.
#[derive(Clone, Debug)]
pub struct Report {
    /// Settings of the simulation.
    pub settings: Settings,
    /// Descriptions of violations: behaviour that a correct cluster cannot show. Empty if none was found.
    pub violations: Vec<String>,
    /// Number of operations with an answer that the oracle checked.
    pub checked: usize,
    /// Number of writes whose client got no answer.
    pub unknown: usize,
    /// Number of operations that a second check (`search`) has covered. It uses only the clients' requests and answers,
    /// and not the committed log entries.
    pub searched: usize,
    /// Number of operations that the second check (`search`) left undecided because it would have taken too long.
    pub undecided: usize,
    /// Number of changes and records that subscribers have received.
    pub followed: usize,
    /// Number of times that a node refused to continue a watch, because the node no longer had the history from that
    /// position.
    pub refused: usize,
    /// Times from each fault to the next answered write.
    pub gaps: Vec<Gap>,
    /// Time by which the timestamp of the last committed log entry was behind true time when a node first applied the
    /// entry.
    pub time_behind: Duration,
    /// Number of messages between nodes.
    pub messages: u64,
    /// Virtual time that passed during the simulation.
    pub elapsed: Duration,
    /// Number of times that the simulation's runtime has run a task.
    pub polls: u64,
    /// Hash of the order in which tasks ran, and of the events. Two runs with the same hash took the same course.
    pub fingerprint: u64,
    /// Lines of the event log, in order.
    pub events: Vec<Event>,
}

/// Numbers of installs of snapshots in a simulation, by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installs {
    /// Number of installs after which the node has the snapshot's state.
    pub done: usize,
    /// Installs during which the node's power was cut, or soon after which it was cut.
    pub cut: usize,
    /// Number of failed attempts of nodes to switch to the state of an installed snapshot.
    pub not_switched: usize,
}

impl Installs {
    /// Adds the numbers of installs in another simulation to these numbers.
    pub const fn add(&mut self, other: Self) {
        self.done += other.done;
        self.cut += other.cut;
        self.not_switched += other.not_switched;
    }
}

impl Report {
    /// Counts the installs of snapshots among the events of this report.
    #[must_use]
    pub fn installs(&self) -> Installs {
        let count = |text: &str| self.events.iter().filter(|event| event.text.starts_with(text)).count();
        Installs { done: count(INSTALLED), cut: count(INSTALL_CUT), not_switched: count(NOT_INSTALLED) }
    }

    /// Counts the stops of nodes because of a failed fsync among the events of this report.
    #[must_use]
    pub fn failed_syncs(&self) -> usize {
        self.events.iter().filter(|event| event.text.starts_with(SYNC_FAILED)).count()
    }

    /// Returns the event log as text, with one line for each event.
    #[must_use]
    pub fn story(&self) -> String {
        lines(&self.events)
    }

    /// Returns the violations, one line each, and the last `max_lines` lines of the event log as text.
    #[must_use]
    pub fn ending(&self, max_lines: usize) -> String {
        let first = self.events.len().saturating_sub(max_lines);
        let (last, all) = (&self.events[first..], self.events.len());
        let violations: String = self.violations.iter().map(|violation| format!("violation: {violation}\n")).collect();
        format!("{violations}the last {} of {all} lines of the event log:\n{}", last.len(), lines(last))
    }

    /// Returns the report as JSON. It contains the settings and the program's commit, which are needed to repeat the
    /// simulation: a change of the program changes the course of a seed. It also contains the script of faults.
    #[must_use]
    pub fn json(&self) -> Value {
        let script = self.settings.script().into_iter().map(|fault| {
            json!({
                "number": fault.number,
                "at_seconds": fault.at.as_secs_f64(),
                "lasts_seconds": fault.lasts.as_secs_f64(),
                "kind": fault.kind.name(),
                "victim": fault.victim.to_string(),
                "is_left_out": self.settings.without.contains(&fault.number),
            })
        });
        let Settings { seed, nodes, clients, rate, subscribers, lasts, kinds, overlap, on_leader, without, plant } =
            &self.settings;
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": commit(),
            "seed": seed,
            "nodes": nodes,
            "clients": clients,
            "rate_per_second": rate,
            "subscribers": subscribers,
            "seconds": lasts.as_secs_f64(),
            "faults": kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            "apart": *overlap == Overlap::Never,
            "on_leader": on_leader,
            "without": without,
            "plant": plant.map(|plant| format!("{plant:?}")),
            "script": script.collect::<Vec<_>>(),
            "violations": self.violations,
            "checked": self.checked,
            "unknown": self.unknown,
            "searched": self.searched,
            "undecided": self.undecided,
            "followed": self.followed,
            "history_gone": self.refused,
            "time_behind_seconds": self.time_behind.as_secs_f64(),
            "messages": self.messages,
            "fingerprint": format!("{:016x}", self.fingerprint),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {} operations checked, {} without an answer, {:.1} s, course {:016x}, {} violations",
            self.settings.seed,
            self.checked,
            self.unknown,
            self.elapsed.as_secs_f64(),
            self.fingerprint,
            self.violations.len()
        )
    }
}

fn lines(events: &[Event]) -> String {
    let line = |event: &Event| {
        let place = if event.process == 0 { "-".to_owned() } else { format!("node {}", event.process) };
        format!("{:>10.6} s  {place:<7} {}\n", event.at.as_secs_f64(), event.text)
    };
    events.iter().map(line).collect()
}

/// Returns the commit of the running program. If the variable `THALWEG_COMMIT` was set while building, it is that
/// value. Otherwise it is the head of the git checkout that contains the executable, with `-dirty` if files differ from
/// the head. Returns `None` if there is no such checkout.
#[must_use]
pub fn commit() -> Option<String> {
    static COMMIT: OnceLock<Option<String>> = OnceLock::new();
    COMMIT.get_or_init(|| option_env!("THALWEG_COMMIT").map(str::to_owned).or_else(commit_of_checkout)).clone()
}

fn commit_of_checkout() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let mut git = Command::new("git");
    git.arg("-C").arg(executable.parent()?).args(["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]);
    let described = git.output().ok().filter(|git| git.status.success())?;
    Some(String::from_utf8(described.stdout).ok()?.trim().to_owned())
}

/// Returns the value at a percentile: the largest of the smallest `share` (0 to 1) of the values; `None` without
/// values.
#[must_use]
pub fn percentile(values: &mut [Duration], share: f64) -> Option<Duration> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share) as usize])
}
