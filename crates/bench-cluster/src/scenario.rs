//! Data that all scenarios with nodes of their own share: the options, the directory, and the probes of the machine.
//!
//! Owns: probing the machine before each measurement. If the probes of a scenario disagree, the suite makes the run
//! void, because another program was then using the machine. Does not own: what a scenario measures.

use std::path::Path;

use crate::{
    BenchError, Progress,
    nodes::Setup,
    options::ClusterOptions,
    probes::{Probed, Probes},
};

pub(crate) use crate::report::Figures;

/// Options, directory, progress and probes of a scenario.
pub(crate) struct Scenario<'a> {
    pub options: &'a ClusterOptions,
    pub dir: &'a Path,
    pub progress: &'a mut dyn Progress,
    probes: Probes,
    /// Results of the probes so far, one for each measurement.
    pub probed: Vec<Probed>,
}

impl<'a> Scenario<'a> {
    pub(crate) fn new(
        options: &'a ClusterOptions,
        dir: &'a Path,
        progress: &'a mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let probes = Probes::create(dir, options.value_size)?;
        Ok(Self { options, dir, progress, probes, probed: Vec::new() })
    }

    /// Returns the setup of the nodes of a scenario. `name` is the name of their directory.
    pub(crate) fn setup(&self, name: &'a str) -> Setup<'a> {
        Setup::new(name, self.dir, self.options)
    }

    /// Probes the machine. The caller calls this right before each measurement.
    pub(crate) fn probe(&mut self) -> Result<Probed, BenchError> {
        let probed = self.probes.run(self.options.duration / 10)?;
        self.probed.push(probed);
        Ok(probed)
    }

    pub(crate) fn step(&mut self, line: &str) {
        self.progress.step(line);
    }
}
