//! Comparison of the entries that nodes apply.
//!
//! Owns: the one committed entry of each index, its commands with their outcomes, and the violations found so far.
//! Invariants checked here: all nodes apply the same entry at an index, and have the same running hash after it, also
//! after restarts. The running hash covers all entries applied so far and their outcomes. States after the same entry
//! have the same digest. The time of an entry is not later than the time that the wall clocks of a majority have
//! reached. Before the first fault, all voters apply an entry soon after the first voter.
//!
//! Does not own: entries that are written but not applied (`logs`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use thalweg_log::{LogRecord, RecordKind};
use thalweg_store::Applied;
use thalweg_types::{
    SpaceTime,
    command::{Commands, Outcome},
};

use crate::runtime::{EPOCH_MICROS, ProcessId, now, record};

/// Error of a node's wall clock, in microseconds, that the check of log entry times tolerates in addition to the
/// planned errors.
const CLOCK_SLACK_MICROS: u64 = 10_000;
/// Maximum time between the application of an entry by the first node and by each voter, in a cluster without faults.
/// It is far below the interval of heartbeats, because a heartbeat would also tell followers which entries are
/// committed. It is far above the usual time, even with the longest delay of a notice.
const APPLIED_WITHIN: Duration = Duration::from_millis(25);
/// Maximum number of violations that one simulation reports.
const MAX_VIOLATIONS: usize = 20;

/// A log entry that a node has applied, which proves that it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CommittedEntry {
    term: u64,
    payload: Bytes,
    running_hash: u64,
    /// Virtual time at which the first node applied the log entry.
    applied_at: Duration,
}

/// A command of a committed log entry.
#[derive(Clone, Debug)]
pub struct CommittedCommand {
    /// Index of the command's log entry.
    pub index: u64,
    /// Time of the log entry by the cluster's own clock (space time).
    pub time: SpaceTime,
    /// Bytes of the command.
    pub command: Bytes,
    /// Outcome of the command on the first node that applied it.
    pub outcome: Outcome,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<u64, CommittedEntry>,
    /// Commands of each log entry, by its index.
    commands: BTreeMap<u64, Vec<CommittedCommand>>,
    /// Running hashes of opened states, by the index of the state's last log entry. A hash is stored here if no node
    /// has reported this entry yet, and is compared when one does.
    opened: BTreeMap<u64, u64>,
    /// Digests of whole states, by the index of the last log entry that the state includes.
    digests: BTreeMap<u64, u128>,
    /// Highest revision that any node's state has reached.
    revision: u64,
    /// Number of records in the longest stream of any node.
    stream_end: u64,
    /// Commands that are valid only in one term of the leader, each with this term. Every log entry that contains such
    /// a command must have the command's term.
    required: BTreeMap<Bytes, u64>,
    /// Number of voters that the cluster has at its start.
    voters: usize,
    /// True while each voter must apply a log entry within `APPLIED_WITHIN` of the first node.
    is_prompt: bool,
    /// Largest time so far by which each node's wall clock was ahead of true time, in microseconds.
    clock_errors: BTreeMap<ProcessId, i64>,
    /// Time by which the timestamp of the last committed log entry was behind true time when a node first applied the
    /// entry.
    time_behind: Duration,
    violations: Vec<String>,
}

/// The committed log entries of a simulation, and the violations found so far. Clones refer to the same entries.
#[derive(Clone, Debug, Default)]
pub struct Truth(Arc<Mutex<Inner>>);

fn commands_of(applied: &LogRecord, outcomes: &[Outcome]) -> Option<Vec<CommittedCommand>> {
    let found: Vec<(usize, &[u8])> = Commands::new(&applied.payload).collect::<Result<_, _>>().ok()?;
    let of = |((at, bytes), outcome): (&(usize, &[u8]), &Outcome)| CommittedCommand {
        index: applied.index.0,
        time: applied.time,
        command: applied.payload.slice(*at..at + bytes.len()),
        outcome: outcome.clone(),
    };
    (found.len() == outcomes.len()).then(|| found.iter().zip(outcomes).map(of).collect())
}

/// Returns the number of records in the stream after a successful append; `None` for other commands.
fn end_of_append(command: &CommittedCommand) -> Option<u64> {
    let Outcome::Committed { appends, .. } = &command.outcome else { return None };
    appends.last().map(|append| append.first.0 + u64::from(append.count))
}

impl Truth {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that a node has applied the log entry `applied` with these outcomes of its commands, and has reached
    /// `state`.
    pub fn applied(&self, node: ProcessId, applied: &LogRecord, outcomes: &[Outcome], state: Applied) {
        let (index, running_hash) = (applied.index.0, state.running_hash);
        self.raise_revision(state.revision.0);
        let (term, payload) = (applied.term.0, applied.payload.clone());
        let entry = CommittedEntry { term, payload, running_hash, applied_at: now() };
        let before = self.inner().entries.get(&index).cloned();
        match before {
            None => {
                if applied.kind == RecordKind::Entry {
                    self.check_time(node, applied);
                }
                let commands =
                    if applied.kind == RecordKind::Entry { commands_of(applied, outcomes) } else { Some(Vec::new()) };
                if commands.is_none() {
                    self.violation(node, format!("entry {index} has {} outcomes: one is missing", outcomes.len()));
                }
                if self.inner().opened.get(&index).is_some_and(|hash| *hash != running_hash) {
                    self.opened_other(node, index);
                }
                let commands = commands.unwrap_or_default();
                self.check_required(node, entry.term, &commands);
                let mut inner = self.inner();
                inner.stream_end = commands.iter().filter_map(end_of_append).fold(inner.stream_end, u64::max);
                inner.commands.insert(index, commands);
                inner.entries.insert(index, entry);
            }
            Some(before) if (before.term, &before.payload) != (entry.term, &entry.payload) => {
                self.violation(
                    node,
                    format!("entry {index} of term {} is not that of term {}", entry.term, before.term),
                );
            }
            Some(before) if before.running_hash != running_hash => {
                self.violation(node, format!("the state after entry {index} differs from that of another node"));
            }
            Some(before) => self.check_prompt(node, index, entry.applied_at.saturating_sub(before.applied_at)),
        }
    }

    /// Requires that every log entry with this command has the given term.
    pub fn requires(&self, command: Bytes, term: u64) {
        self.inner().required.insert(command, term);
    }

    fn check_required(&self, node: ProcessId, term: u64, commands: &[CommittedCommand]) {
        for command in commands {
            let required = self.inner().required.get(&command.command).copied();
            if let Some(required) = required.filter(|required| *required != term) {
                let index = command.index;
                self.violation(
                    node,
                    format!("entry {index} of term {term} has a command that requires term {required}"),
                );
            }
        }
    }

    /// Starts or stops the check that every voter applies each entry within `APPLIED_WITHIN` of the first node. The
    /// processes 1 to `voters` are the voters until a fault changes the membership.
    pub fn expect_prompt(&self, is_prompt: bool) {
        self.inner().is_prompt = is_prompt;
    }

    fn check_prompt(&self, node: ProcessId, index: u64, late: Duration) {
        let is_due = {
            let inner = self.inner();
            inner.is_prompt && node <= inner.voters as ProcessId
        };
        if is_due && late > APPLIED_WITHIN {
            self.violation(
                node,
                format!("entry {index} was applied {late:?} later than on the first node, without a fault"),
            );
        }
    }

    /// Creates a record without committed log entries for a cluster with this number of voters.
    #[must_use]
    pub fn of_voters(voters: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner { voters, ..Inner::default() })))
    }

    /// Records by how many microseconds the wall clock of a node is ahead of true time.
    pub fn clock_error(&self, node: ProcessId, micros: i64) {
        let mut inner = self.inner();
        let most = inner.clock_errors.entry(node).or_default();
        *most = micros.max(*most);
    }

    /// Checks the time of a new log entry. It must not be ahead of true time by more than a tolerance plus the largest
    /// lead that the clocks of a majority have ever had. So a wrong clock of a minority has no effect.
    fn check_time(&self, node: ProcessId, applied: &LogRecord) {
        let mut inner = self.inner();
        let mut errors: Vec<i64> = inner.clock_errors.values().copied().collect();
        errors.sort_unstable();
        errors.reverse();
        // Nodes that were replaced, and learners, are counted too, so the check permits somewhat more than necessary.
        let most = errors.get(inner.voters / 2).copied().unwrap_or(0).max(0);
        let (time, truth) = (applied.time.0, EPOCH_MICROS + now().as_micros() as u64);
        inner.time_behind = Duration::from_micros(truth.saturating_sub(time));
        drop(inner);
        if time > truth + most as u64 + CLOCK_SLACK_MICROS {
            let ahead = Duration::from_micros(time - truth);
            self.violation(node, format!("entry {} is {ahead:?} ahead of the clocks of a majority", applied.index.0));
        }
    }

    /// Returns the time by which the timestamp of the last committed log entry was behind true time when a node first
    /// applied the entry.
    #[must_use]
    pub fn time_behind(&self) -> Duration {
        self.inner().time_behind
    }

    /// Reports that a node has opened a state, with the index of the state's last log entry and the running hash after
    /// it. Compares the hash with that of other nodes after the same entry. An entry without commands is not known
    /// here, so a state that ends with one is not compared.
    pub fn opened(&self, node: ProcessId, state: Applied) {
        let index = state.index.0;
        let known = self.inner().entries.get(&index).map(|entry| entry.running_hash);
        match known {
            Some(hash) if hash != state.running_hash => self.opened_other(node, index),
            Some(_) => {}
            // A node may apply the entry later. Then its running hash must equal this one.
            None => _ = self.inner().opened.insert(index, state.running_hash),
        }
    }

    /// Reports the digest of the whole state of a node that has applied log entries up to `index`.
    pub fn digest(&self, node: ProcessId, index: u64, digest: u128) {
        let known = *self.inner().digests.entry(index).or_insert(digest);
        if known != digest {
            self.violation(
                node,
                format!("the digest of the state after entry {index} differs from that of another node"),
            );
        }
    }

    fn opened_other(&self, node: ProcessId, index: u64) {
        self.violation(node, format!("a state was opened that has another entry {index}"));
    }

    fn raise_revision(&self, revision: u64) {
        let mut inner = self.inner();
        inner.revision = inner.revision.max(revision);
    }

    /// Returns the highest revision that any node has reached.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner().revision
    }

    /// Returns the number of records in the longest stream of any node.
    #[must_use]
    pub fn stream_end(&self) -> u64 {
        self.inner().stream_end
    }

    /// Adds a violation to the report of the simulation and to the event log. `node` is the node that it concerns.
    pub fn violation(&self, node: ProcessId, text: String) {
        record(node, format!("VIOLATION: {text}"));
        let mut inner = self.inner();
        if inner.violations.len() < MAX_VIOLATIONS {
            inner.violations.push(text);
        }
    }

    /// Returns the violations found so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.inner().violations.clone()
    }

    /// Returns the committed commands in their order.
    #[must_use]
    pub fn commands(&self) -> Vec<CommittedCommand> {
        self.inner().commands.values().flatten().cloned().collect()
    }

    /// Returns the index of the last committed log entry; `None` if there is none.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.inner().entries.last_key_value().map(|(index, _)| *index)
    }
}

/// Returns the positions of each command in the list. Only a repeated command has several positions.
#[must_use]
pub fn positions(commands: &[CommittedCommand]) -> HashMap<&Bytes, Vec<usize>> {
    let mut positions: HashMap<&Bytes, Vec<usize>> = HashMap::new();
    for (at, command) in commands.iter().enumerate() {
        positions.entry(&command.command).or_default().push(at);
    }
    positions
}
