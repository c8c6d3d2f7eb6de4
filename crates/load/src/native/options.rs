//! Command-line options that the suites of the native protocol share, apart from those that select the server.

use std::time::Duration;

use crate::{
    BenchError, Timeline,
    options::{check_window, parse_duration, require, within},
};

/// Default of the maximum lateness of the generator's sends.
pub const DEFAULT_MAX_LAG: &str = "1ms";

/// Duration and number of the runs, and the threads of the load generator.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadOptions {
    /// Duration of each run, without its warm-up.
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up before each run; its requests are not counted.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Length of the windows into which plots and the samples of a report divide each run: at least 10ms, and longer if
    /// a run would have more than 1,200 windows. The default is 250ms, or longer if a run would have more than 120.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Time to wait for outstanding replies after the last request.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub give_up: Duration,
    /// Runs of each scenario; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Number of load threads. Each uses up to a core that a server on the same machine then lacks.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a scheduled run is void.
    #[arg(long, default_value = DEFAULT_MAX_LAG, value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of the random content and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl LoadOptions {
    /// Returns an error if an option is out of its range.
    pub fn check(&self) -> Result<(), BenchError> {
        within("--workers", self.workers, 1024)?;
        within("--rounds", self.rounds, 100)?;
        check_window(self.window)?;
        let is_valid = !self.duration.is_zero() && self.duration <= Duration::from_secs(3600);
        require(is_valid, "--duration", "must be above 0 and at most an hour")
    }

    /// Describes the options in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "{} s after {} s, {} rounds, medians; {} threads in this process, same machine as the server if that is local; seed {}",
            self.duration.as_secs_f64(),
            self.warmup.as_secs_f64(),
            self.rounds,
            self.workers,
            self.seed
        )
    }

    /// Describes the duration and the warm-up of a run in words. Suites add this text to the description of a load that
    /// they store with its measured values.
    pub fn describe_run(&self) -> String {
        let [duration, warmup] = [self.duration, self.warmup].map(|time| time.as_secs_f64());
        format!("runs of {duration} s after {warmup} s of warm-up")
    }

    /// Describes the length of a run's windows in words, for the report.
    pub fn describe_windows(&self) -> String {
        Timeline::describe(self.duration, self.window)
    }
}
