//! Statistics of commands and of error replies, which `INFO` and `/metrics` show.
//!
//! Owns: the counters of each command and subcommand by its [number](thalweg_redis::Command::number_of), the error
//! replies by their first word, and the figures at the last `CONFIG RESETSTAT`. Does not own: the gathering of a
//! session's counts ([`metrics`](super::metrics)).
//!
//! Invariants: counters never decrease, so `/metrics` shows them as they are. `CONFIG RESETSTAT` stores the current
//! figures, and `INFO` shows the difference from them. The memory of the counters (about 0.5 MiB) is allocated with the
//! first command.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use thalweg_redis::table::full_names;
use thalweg_serving::metrics::{HistogramCounts, Shards};

/// Index of one counter among the [`COUNTERS`] counters of a command.
#[derive(Clone, Copy, Debug)]
enum Counter {
    /// Counter of the runs of the command.
    Calls,
    /// Counter of the runs of the command that ended with an error.
    Failed,
    /// Counter of the rejections of the command before it ran.
    Rejected,
}

/// Number of counters of each command.
const COUNTERS: usize = 3;

/// Maximum number of different first words of error replies that are counted separately.
const MAX_ERROR_NAMES: usize = 128;

/// Counters of all commands and error replies; see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// For each command, a histogram of its latency and [`COUNTERS`] counters.
    commands: OnceLock<Shards>,
    errors: Mutex<BTreeMap<Box<str>, u64>>,
    error_replies: AtomicU64,
}

/// Counts of one command: its calls, failures and rejections, and its latency.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandFigures {
    /// Number of times that the command ran, with or without an error.
    pub calls: u64,
    failed: u64,
    rejected: u64,
    latency: Option<HistogramCounts>,
}

/// Counts of all commands and error replies at one point in time, or their difference between two points in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Counts of each command that ran or was rejected, by the [number](thalweg_redis::Command::number_of) of the
    /// command.
    pub commands: BTreeMap<usize, CommandFigures>,
    errors: BTreeMap<Box<str>, u64>,
    /// Number of error replies of all commands, including those whose first word is not counted separately.
    pub error_replies: u64,
}

impl Statistics {
    fn shards(&self) -> &Shards {
        self.commands.get_or_init(|| Shards::new(full_names().len(), full_names().len() * COUNTERS))
    }

    fn add(&self, command: usize, counter: Counter, count: u64) {
        self.shards().add(command * COUNTERS + counter as usize, count);
    }

    /// Counts `count` runs of the command with the number `command`.
    pub(crate) fn called(&self, command: usize, count: u64) {
        self.add(command, Counter::Calls, count);
    }

    /// Counts a run of the command with this number that ended with an error.
    pub(crate) fn failed(&self, command: usize) {
        self.add(command, Counter::Failed, 1);
    }

    /// Counts a command with this number that was rejected before it ran.
    pub(crate) fn rejected(&self, command: usize) {
        self.add(command, Counter::Rejected, 1);
    }

    /// Records that `count` commands with this number were answered `latency` after their arrival. `share` is
    /// the part of the latency that counts for them, if the client sent other commands at the same time.
    pub(crate) fn answered(&self, command: usize, latency: Duration, share: Duration, count: u64) {
        self.shards().record_many(command, latency, share, count);
    }

    /// Counts an error reply with this text under its first word.
    pub(crate) fn error(&self, text: &str) {
        self.error_replies.fetch_add(1, Relaxed);
        let name = text.split(' ').next().unwrap_or_default();
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = errors.get_mut(name) {
            *count += 1;
        } else if errors.len() < MAX_ERROR_NAMES {
            errors.insert(name.into(), 1);
        }
    }

    /// Returns the counts of all commands and error replies up to now.
    pub(crate) fn figures(&self) -> Figures {
        let of = |shards: &Shards, command: usize| {
            let count = |counter: Counter| shards.count(command * COUNTERS + counter as usize);
            let (calls, failed) = (count(Counter::Calls), count(Counter::Failed));
            let rejected = count(Counter::Rejected);
            let latency = shards.histogram(command);
            (calls + rejected > 0).then_some((command, CommandFigures { calls, failed, rejected, latency }))
        };
        let commands = self.commands.get().map_or_else(BTreeMap::new, |shards| {
            (0..full_names().len()).filter_map(|command| of(shards, command)).collect()
        });
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Figures { commands, errors, error_replies: self.error_replies.load(Relaxed) }
    }
}

impl CommandFigures {
    fn since(self, earlier: &Self) -> Self {
        let latency = match (self.latency, &earlier.latency) {
            (Some(now), Some(earlier)) => now.since(earlier),
            (now, _) => now,
        };
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            failed: self.failed.saturating_sub(earlier.failed),
            rejected: self.rejected.saturating_sub(earlier.rejected),
            latency,
        }
    }
}

impl Figures {
    /// Returns the counts that were added since the counts `earlier`.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        let none = CommandFigures::default();
        let commands = self.commands.into_iter().map(|(command, figures)| {
            let earlier = earlier.commands.get(&command).unwrap_or(&none);
            (command, figures.since(earlier))
        });
        let errors = self.errors.into_iter().map(|(name, count)| {
            let earlier = earlier.errors.get(&name).copied().unwrap_or(0);
            (name, count.saturating_sub(earlier))
        });
        Self {
            commands: commands.filter(|(_, figures)| figures.calls + figures.rejected > 0).collect(),
            errors: errors.filter(|(_, count)| *count > 0).collect(),
            error_replies: self.error_replies.saturating_sub(earlier.error_replies),
        }
    }

    /// Number of runs of all commands together.
    pub(crate) fn calls(&self) -> u64 {
        self.commands.values().map(|figures| figures.calls).sum()
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &CommandFigures)> {
        self.commands.iter().map(|(command, figures)| (full_names()[*command], figures))
    }

    /// Appends the lines of `INFO commandstats`.
    pub(crate) fn command_stats(&self, text: &mut String) {
        for (name, CommandFigures { calls, failed, rejected, latency }) in self.named() {
            let micros = latency.as_ref().map_or(0.0, |latency| (latency.sum * 1e6).round());
            let each = if *calls == 0 { 0.0 } else { micros / *calls as f64 };
            let _ = write!(
                text,
                "cmdstat_{name}:calls={calls},usec={micros:.0},usec_per_call={each:.2},rejected_calls={rejected},\
                 failed_calls={failed}\r\n"
            );
        }
    }

    /// Appends the lines of `INFO errorstats`.
    pub(crate) fn error_stats(&self, text: &mut String) {
        for (name, count) in &self.errors {
            let _ = write!(text, "errorstat_{name}:count={count}\r\n");
        }
    }

    /// Appends the lines of `INFO latencystats`.
    pub(crate) fn latency_stats(&self, text: &mut String) {
        for (name, CommandFigures { latency, .. }) in self.named() {
            let Some(latency) = latency else { continue };
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| latency.quantile(part) * 1e6);
            let _ = write!(text, "latency_percentiles_usec_{name}:p50={p50:.3},p99={p99:.3},p99.9={p999:.3}\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_since_a_reset_leave_out_what_came_before() {
        let statistics = Statistics::default();
        let micros = Duration::from_micros;
        assert_eq!(statistics.figures().calls(), 0);
        statistics.called(3, 2);
        statistics.answered(3, micros(20_000), micros(40_000), 2);
        statistics.failed(3);
        statistics.rejected(4);
        statistics.error("WRONGTYPE Operation");
        let earlier = statistics.figures();
        assert_eq!((earlier.calls(), earlier.error_replies), (2, 1));
        statistics.called(3, 4);
        statistics.answered(3, micros(40), micros(50), 4);
        statistics.error("ERR syntax error");
        let now = statistics.figures().since(&earlier);
        let name = full_names()[3];
        let text = |write: fn(&Figures, &mut String)| {
            let mut text = String::new();
            write(&now, &mut text);
            text
        };
        assert_eq!(
            text(Figures::command_stats),
            format!("cmdstat_{name}:calls=4,usec=50,usec_per_call=12.50,rejected_calls=0,failed_calls=0\r\n")
        );
        assert_eq!(text(Figures::error_stats), "errorstat_ERR:count=1\r\n");
        // 48 microseconds is the upper bound of the bucket that contains 40 microseconds.
        let line = format!("latency_percentiles_usec_{name}:p50=48.000,p99=48.000,p99.9=48.000\r\n");
        assert_eq!(text(Figures::latency_stats), line);
    }

    #[test]
    fn the_names_of_errors_have_a_bound() {
        let statistics = Statistics::default();
        (0..2 * MAX_ERROR_NAMES).for_each(|at| statistics.error(&format!("E{at} text")));
        let figures = statistics.figures();
        assert_eq!((figures.errors.len(), figures.error_replies), (MAX_ERROR_NAMES, 2 * MAX_ERROR_NAMES as u64));
    }
}
