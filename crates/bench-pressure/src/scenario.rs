//! Data that all parts of the report share: the options, the directory, and the progress.
//!
//! Does not own: what a part measures.

use std::path::Path;

use crate::{
    BenchError, Progress,
    options::PressureOptions,
    server::{Level, MemoryLimit, Server},
};

pub(crate) use crate::report::Figures;

/// Options, directory and progress of a part.
pub(crate) struct Scenario<'a> {
    pub options: &'a PressureOptions,
    pub dir: &'a Path,
    pub progress: &'a mut dyn Progress,
}

impl Scenario<'_> {
    pub(crate) fn step(&mut self, line: &str) {
        self.progress.step(line);
    }

    /// Returns the limit of memory under which the parts measure.
    pub(crate) fn limit(&self) -> MemoryLimit {
        if self.options.no_limit { MemoryLimit::None } else { MemoryLimit::Bytes(self.options.memory) }
    }

    /// Returns the limits that are compared: none, and the limit of the options. With `--no-limit` only none.
    pub(crate) fn limits(&self) -> Vec<MemoryLimit> {
        let all = [MemoryLimit::None, self.limit()];
        all[..if self.options.no_limit { 1 } else { 2 }].to_vec()
    }

    /// Starts a server on an empty directory `name` in the suite's directory.
    pub(crate) fn start(&mut self, name: &str, limit: MemoryLimit, level: Level) -> Result<Server, BenchError> {
        Server::start(self.options, self.dir, name, limit, level, self.progress)
    }
}
