//! A server in a comparison, ready for the runs of a load.
//!
//! Owns: the interface between `compare` and the suites. A comparison uses the loads and protocols of the suites. Does
//! not own: the order of the runs and the evaluation of their figures, which are in `compare`.

use crate::{BenchError, Progress, Report, figures::SampledLoad, load::Outcome};

/// A server in a comparison, prepared for its runs: it already stores all keys that the load reads.
pub(crate) struct Contender {
    /// Load of each run, and the durability level of its writes.
    pub load: SampledLoad,
    /// Protocol and address of this server.
    pub place: String,
    /// Performs the runs of the load on this server.
    pub runs: Box<dyn Runs>,
}

/// Performs runs of one load on one server, and checks the server after the last one.
pub(crate) trait Runs {
    /// Performs one run and returns its results.
    fn run(&mut self) -> Result<Outcome<()>, BenchError>;

    /// Checks the state of the server after all runs. `what` names the server and the load in the report.
    fn verify(&mut self, _what: &str, _report: &mut Report, _progress: &mut dyn Progress) -> Result<(), BenchError> {
        Ok(())
    }
}
