//! A server in a comparison, ready for the runs of a load.
//!
//! Owns: the interface between `compare` and the suites. A comparison uses the loads and protocols of the suites. Does
//! not own: the order of the runs and the evaluation of their figures, which are in `compare`.

use crate::{BenchError, Progress, Report, figures::SampledLoad, load::Outcome};

/// A server in a comparison. All keys that its load reads are stored on it.
pub(crate) struct Contender {
    /// Load of each run, and the durability level of its writes.
    pub load: SampledLoad,
    /// Protocol and address of the server.
    pub place: String,
    /// Runs of the load.
    pub runs: Box<dyn Runs>,
}

/// The runs of one load on one server.
pub(crate) trait Runs {
    /// Performs one run.
    fn run(&mut self) -> Result<Outcome<()>, BenchError>;

    /// Checks the state of the server after all runs. `what` names the server and the load in the report.
    fn verify(&mut self, _what: &str, _report: &mut Report, _progress: &mut dyn Progress) -> Result<(), BenchError> {
        Ok(())
    }
}
