//! A server in a comparison, ready for the runs of a load.
//!
//! Owns: the interface between `compare` and the suites, whose loads and protocols a comparison uses. Does not own the
//! order of the runs and the evaluation of their figures, which are in `compare`.

use crate::{BenchError, Progress, Report, figures::SampledLoad, load::Outcome};

/// A server in a comparison, with all keys that its load reads.
pub(crate) struct Contender {
    /// Load of each run, and the durability level of its writes.
    pub load: SampledLoad,
    /// Protocol and address of the server.
    pub place: String,
    /// Runs of the load.
    pub runs: Box<dyn Runs>,
}

/// Runs of one load on one server.
pub(crate) trait Runs {
    /// Performs one run.
    fn run(&mut self) -> Result<Outcome<()>, BenchError>;

    /// Checks the state that all runs have left on the server. `what` names the server and the load in the report.
    fn verify(&mut self, _what: &str, _report: &mut Report, _progress: &mut dyn Progress) -> Result<(), BenchError> {
        Ok(())
    }
}
