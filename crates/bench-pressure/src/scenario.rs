//! Context of all measurements of the suite: the options, the directory, and the progress output.
//!
//! Does not own: the measurements themselves.

use std::path::Path;

use crate::{
    BenchError, Progress,
    options::PressureOptions,
    server::{Level, MemoryLimit, Server},
};

pub(crate) use crate::report::Figures;

/// Context of a measurement: the options, the directory for the servers' data, and the progress output.
pub(crate) struct Scenario<'a> {
    pub options: &'a PressureOptions,
    pub dir: &'a Path,
    pub progress: &'a mut dyn Progress,
}

impl Scenario<'_> {
    pub(crate) fn step(&mut self, line: &str) {
        self.progress.step(line);
    }

    /// Returns the limit of memory that the options set for servers; no limit with `--no-limit`.
    pub(crate) fn limit(&self) -> MemoryLimit {
        if self.options.no_limit { MemoryLimit::None } else { MemoryLimit::Bytes(self.options.memory) }
    }

    /// Returns the limits of memory that are compared: no limit, and the limit that the options set. With `--no-limit`,
    /// no limit is the only one.
    pub(crate) fn limits(&self) -> Vec<MemoryLimit> {
        let all = [MemoryLimit::None, self.limit()];
        all[..if self.options.no_limit { 1 } else { 2 }].to_vec()
    }

    /// Starts a server with an empty data directory `name` below the suite's directory, under this limit of memory.
    /// `level` is the default durability of its writes.
    pub(crate) fn start(&mut self, name: &str, limit: MemoryLimit, level: Level) -> Result<Server, BenchError> {
        Server::start(self.options, self.dir, name, limit, level, self.progress)
    }
}
