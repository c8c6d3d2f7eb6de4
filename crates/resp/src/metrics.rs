//! Metrics of Redis clients.
//!
//! Invariant: counting a command costs one comparison while the same command repeats. A different command, and the end
//! of a round of commands, cost a few relaxed additions.

use std::{
    fmt,
    sync::{
        Arc, LazyLock,
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
use thalweg_redis::{Command, table::all};
use thalweg_serving::metrics::{Connections, NoLabels, Shards, counter, gauge};

/// Counters of all Redis clients.
#[derive(Debug)]
pub struct Metrics {
    /// Histogram of the time from a read with commands of a client to the last reply to these commands.
    turns: Shards,
    commands: Box<[AtomicU64]>,
    errors: AtomicU64,
    /// Counters of connections.
    pub(crate) connections: Connections,
    not_authenticated: AtomicU64,
    auth_failures: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// Address of each command's description in memory, with the index of the command's counter; sorted by address.
static PLACES: LazyLock<Vec<(usize, usize)>> = LazyLock::new(|| {
    let mut places: Vec<_> =
        all().enumerate().map(|(place, command)| (std::ptr::from_ref(command).addr(), place)).collect();
    places.sort_unstable();
    places
});

/// Returns the index of the counter that counts a command.
fn place(command: &'static Command) -> usize {
    let address = std::ptr::from_ref(command).addr();
    let found = PLACES.binary_search_by_key(&address, |(address, _)| *address);
    found.map_or(usize::MAX, |found| PLACES[found].1)
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            turns: Shards::new(1, 1),
            commands: all().map(|_| AtomicU64::new(0)).collect(),
            errors: AtomicU64::new(0),
            connections: Connections::default(),
            not_authenticated: AtomicU64::new(0),
            auth_failures: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    fn commands(&self, place: usize, count: u64) {
        if let Some(counter) = self.commands.get(place) {
            counter.fetch_add(count, Relaxed);
        }
    }

    /// Records the time from a read with commands of a client to the last reply to these commands.
    pub(crate) fn turn(&self, took: Duration) {
        self.turns.record(0, 0, took);
    }

    /// Counts an attempt to authenticate with a wrong password.
    pub(crate) fn auth_failure(&self) {
        self.auth_failures.fetch_add(1, Relaxed);
    }

    /// Counts a client that did not authenticate in time.
    pub(crate) fn not_authenticated(&self) {
        self.not_authenticated.fetch_add(1, Relaxed);
    }

    /// Number of commands run, over all clients.
    pub(crate) fn all_commands(&self) -> u64 {
        self.commands.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Number of error replies, over all clients.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Adds bytes received from clients.
    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Adds bytes sent to clients.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the number of received bytes and of sent bytes.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.received_bytes.load(Relaxed), self.sent_bytes.load(Relaxed))
    }
}

/// Counts of one session that are not added to the server's metrics yet.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Command that the session has counted last, and the index of the command's counter.
    last: Option<(&'static Command, usize)>,
    /// Number of times that the last command was counted since its counter was updated.
    count: u64,
    told: Vec<(usize, u64)>,
    errors: u64,
}

impl Tally {
    /// Counts a command that the session has run or proposed.
    #[inline]
    pub(crate) fn command(&mut self, command: &'static Command) {
        match self.last {
            Some((last, _)) if std::ptr::eq(last, command) => self.count += 1,
            _ => self.count_command(command),
        }
    }

    fn count_command(&mut self, command: &'static Command) {
        if let Some((_, place)) = self.last.replace((command, place(command)))
            && self.count > 0
        {
            self.told.push((place, self.count));
        }
        self.count = 1;
    }

    /// Counts an error reply.
    pub(crate) fn error(&mut self) {
        self.errors += 1;
    }

    /// Adds the session's counts to the metrics. Returns the name of the last command, if a command was counted
    /// since the previous call.
    pub(crate) fn report(&mut self, metrics: &Metrics) -> Option<&'static str> {
        for (place, count) in self.told.drain(..) {
            metrics.commands(place, count);
        }
        if self.errors > 0 {
            metrics.errors.fetch_add(std::mem::take(&mut self.errors), Relaxed);
        }
        let (last, place) = self.last.filter(|_| self.count > 0)?;
        metrics.commands(place, std::mem::take(&mut self.count));
        self.told.shrink_to(16);
        Some(last.name)
    }
}

/// Collector that encodes the metrics for a scrape.
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
        counter(to, "resp_errors", "Error replies to Redis clients", metrics.errors.load(Relaxed))?;
        let received = "Bytes received of Redis clients";
        counter(to, "resp_received_bytes", received, metrics.received_bytes.load(Relaxed))?;
        counter(to, "resp_sent_bytes", "Bytes sent to Redis clients", metrics.sent_bytes.load(Relaxed))?;
        gauge(to, "resp_connections", "Connections of Redis clients open", metrics.connections.count())?;
        let help = "Commands of Redis clients by name";
        let mut metric = encoder.encode_descriptor("resp_commands", help, None, MetricType::Counter)?;
        for (command, count) in all().zip(&metrics.commands) {
            let count = count.load(Relaxed);
            if count > 0 {
                let labels = vec![("command", command.name)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Time from what a Redis client sent at once to the last of its replies";
        let mut metric =
            encoder.encode_descriptor("resp_turn_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let Some(turns) = metrics.turns.histogram(0) else { return Ok(()) };
        metric.encode_histogram::<NoLabels>(turns.sum, turns.count, &turns.buckets, None)
    }
}
