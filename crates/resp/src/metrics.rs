//! Metrics of Redis clients.
//!
//! Owns: the counters of connections, bytes and turns (a turn handles the commands of one read, until the last of them
//! is answered), the totals since `CONFIG RESETSTAT`, and the counts that a session has not reported yet (`Tally`).
//! Does not own: the counters of single commands and errors (`statistics`).
//!
//! Invariant: counting a command costs one comparison while the same command repeats. A different command, and the end
//! of a turn, cost a few relaxed atomic additions.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
    registry::Unit,
};
use thalweg_redis::table::full_names;
use thalweg_serving::metrics::{Connections, NoLabels, Shards, counter, gauge};

use super::statistics::{Figures, Statistics};

/// Index of the counter of turns. A turn handles the commands of one read from a client, until the last of them is
/// answered.
const TURNS: usize = 0;
/// Index of the counter of bytes received from clients.
const RECEIVED_BYTES: usize = 1;
/// Index of the counter of bytes sent to clients.
const SENT_BYTES: usize = 2;
/// Number of counters beside the histogram of turns: one of turns, one of received bytes, and one of sent bytes.
const COUNTERS: usize = 3;

/// Counters of all Redis clients, from which metrics and `INFO` are made.
#[derive(Debug)]
pub struct Metrics {
    /// Histogram of the times of turns, with counters of turns and of the bytes received and sent. The time of a turn
    /// runs from a read that brings commands of a client to the last reply to these commands.
    turns: Shards,
    /// Counters of each command and of error replies.
    pub(crate) statistics: Statistics,
    /// Counters of connections of Redis clients.
    pub(crate) connections: Connections,
    not_authenticated: AtomicU64,
    auth_failures: AtomicU64,
    /// Totals of commands, connections and bytes at the last `CONFIG RESETSTAT`. `INFO` shows the difference from these
    /// totals.
    reset: Mutex<Totals>,
}

/// Totals of commands, connections and bytes since the start or the last `CONFIG RESETSTAT`, which `INFO` shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Counts and latencies of commands, and counts of error replies.
    pub figures: Figures,
    /// Number of connections of Redis clients that were accepted.
    pub connections: u64,
    /// Number of connections rejected because there were too many.
    pub rejected_connections: u64,
    /// Number of bytes received from Redis clients.
    pub received: u64,
    /// Number of bytes sent to Redis clients.
    pub sent: u64,
}

impl Totals {
    fn since(self, earlier: &Self) -> Self {
        Self {
            figures: self.figures.since(&earlier.figures),
            connections: self.connections.saturating_sub(earlier.connections),
            rejected_connections: self.rejected_connections.saturating_sub(earlier.rejected_connections),
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            turns: Shards::new(1, COUNTERS),
            statistics: Statistics::default(),
            connections: Connections::default(),
            not_authenticated: AtomicU64::new(0),
            auth_failures: AtomicU64::new(0),
            reset: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Records the time of a turn: from a read with commands of a client to the last reply to these commands.
    pub(crate) fn turn(&self, took: Duration) {
        self.turns.record(0, TURNS, took);
    }

    /// Counts an attempt to authenticate with a wrong password.
    pub(crate) fn auth_failure(&self) {
        self.auth_failures.fetch_add(1, Relaxed);
    }

    /// Counts a client that did not authenticate in time.
    pub(crate) fn not_authenticated(&self) {
        self.not_authenticated.fetch_add(1, Relaxed);
    }

    /// Adds to the number of bytes received from Redis clients.
    pub(crate) fn received(&self, bytes: usize) {
        self.turns.add(RECEIVED_BYTES, bytes as u64);
    }

    /// Adds to the number of bytes sent to Redis clients.
    pub(crate) fn sent(&self, bytes: usize) {
        self.turns.add(SENT_BYTES, bytes as u64);
    }

    /// Returns the totals since the last [`reset`](Self::reset). The caller passes the number of rejected connections
    /// since the start, because a limit that all protocols share counts them.
    pub(crate) fn totals(&self, rejected_connections: u64) -> Totals {
        let reset = self.reset.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.since_start(rejected_connections).since(&reset)
    }

    /// Sets the totals to zero for later calls of [`totals`](Self::totals). The metrics do not change.
    pub(crate) fn reset(&self, rejected_connections: u64) {
        let totals = self.since_start(rejected_connections);
        *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }

    fn since_start(&self, rejected_connections: u64) -> Totals {
        Totals {
            figures: self.statistics.figures(),
            connections: self.connections.opened(),
            rejected_connections,
            received: self.turns.count(RECEIVED_BYTES),
            sent: self.turns.count(SENT_BYTES),
        }
    }
}

/// Counts of one session that are not yet added to the server's metrics. Commands are identified by their
/// [number](thalweg_redis::Command::number_of).
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Number of the command that the session has counted last; `None` if it has counted none.
    last: Option<usize>,
    /// Number of times that the command `last` was counted and not yet added to its counter.
    count: u64,
    /// Commands counted before `last` that are not yet added to their counters, each with its number of times.
    earlier: Vec<(usize, u64)>,
    /// Commands of the client that are not all answered yet, each with its number of times. Their latency is known when
    /// the last one is answered.
    turn: Vec<(usize, u64)>,
    /// Number of error replies of the session that are not yet added to the metrics.
    pub errors: u64,
}

/// Number of different commands for which an idle session keeps memory.
const IDLE_COMMANDS: usize = 16;

/// Adds `count` to the count of a command in `list`. The list has one item for each different command.
fn add(list: &mut Vec<(usize, u64)>, command: usize, count: u64) {
    match list.iter_mut().find(|(known, _)| *known == command) {
        Some((_, known)) => *known += count,
        None => list.push((command, count)),
    }
}

impl Tally {
    /// Counts a command that the session has run or proposed.
    #[inline]
    pub(crate) fn command(&mut self, command: usize) {
        match self.last {
            Some(last) if last == command => self.count += 1,
            _ => self.count_command(command),
        }
    }

    fn count_command(&mut self, command: usize) {
        if let Some(last) = self.last.replace(command)
            && self.count > 0
        {
            add(&mut self.earlier, last, self.count);
        }
        self.count = 1;
    }

    /// Adds the session's counts to the metrics. Returns the name of the last command if any command was counted since
    /// the previous call; `None` otherwise.
    pub(crate) fn report(&mut self, metrics: &Metrics) -> Option<&'static str> {
        let last = self.last.filter(|_| self.count > 0)?;
        let count = std::mem::take(&mut self.count);
        for (command, count) in self.earlier.drain(..).chain([(last, count)]) {
            metrics.statistics.called(command, count);
            add(&mut self.turn, command, count);
        }
        self.earlier.shrink_to(IDLE_COMMANDS);
        Some(full_names()[last])
    }

    /// Records the latency of all commands counted since the previous call. They are now answered, `latency` after they
    /// arrived.
    pub(crate) fn end_turn(&mut self, metrics: &Metrics, latency: Duration) {
        let all: u64 = self.turn.iter().map(|(_, count)| count).sum();
        for (command, count) in self.turn.drain(..) {
            // `all` includes `count`, so the share is at most the whole latency.
            let share = Duration::from_nanos((latency.as_nanos() * u128::from(count) / u128::from(all)) as u64);
            metrics.statistics.answered(command, latency, share, count);
        }
        self.turn.shrink_to(IDLE_COMMANDS);
    }
}

/// Collector that encodes the metrics of Redis clients when they are scraped.
#[derive(Debug)]
pub struct RespCollector(pub Arc<Metrics>);

impl Collector for RespCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &*self.0;
        let to = &mut encoder;
        let opened = "Connections of Redis clients accepted";
        counter(to, "resp_connections_opened", opened, metrics.connections.opened())?;
        let late = "Redis clients that did not authenticate in time";
        counter(to, "resp_not_authenticated", late, metrics.not_authenticated.load(Relaxed))?;
        let wrong = "Attempts of Redis clients to authenticate with a wrong password";
        counter(to, "resp_auth_failures", wrong, metrics.auth_failures.load(Relaxed))?;
        let figures = metrics.statistics.figures();
        counter(to, "resp_errors", "Error replies to Redis clients", figures.error_replies)?;
        let received = "Bytes received of Redis clients";
        counter(to, "resp_received_bytes", received, metrics.turns.count(RECEIVED_BYTES))?;
        counter(to, "resp_sent_bytes", "Bytes sent to Redis clients", metrics.turns.count(SENT_BYTES))?;
        gauge(to, "resp_connections", "Connections of Redis clients open", metrics.connections.count())?;
        let help = "Commands of Redis clients by name, with the subcommand";
        let mut metric = encoder.encode_descriptor("resp_commands", help, None, MetricType::Counter)?;
        for (command, figures) in figures.commands.iter().filter(|(_, figures)| figures.calls > 0) {
            let labels = vec![("command", full_names()[*command])];
            ConstCounter::new(figures.calls).encode(metric.encode_family(&labels)?)?;
        }
        let help = "Time from what a Redis client sent at once to the last of its replies";
        let mut metric =
            encoder.encode_descriptor("resp_turn_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let Some(turns) = metrics.turns.histogram(0) else { return Ok(()) };
        metric.encode_histogram::<NoLabels>(turns.sum, turns.count, &turns.buckets, None)
    }
}
