//! A server in a comparison, under a scenario.

use super::{
    feed_runs::Arrivals,
    options::{ScenarioOptions, WireProtocol},
    suite::{Subject, Suite, run_once},
    work::ScenarioPhase,
};
use crate::{
    BenchError, Progress, Report, Scratch,
    contender::{Contender, Runs},
    load::{Outcome, pairs::Codec},
};

struct ScenarioRuns<C> {
    suite: Suite,
    subject: Subject<C>,
    arrivals: Arrivals,
}

/// Reaches or starts the server of the options, and prepares it for runs of the scenario.
pub(crate) fn contender(
    options: &ScenarioOptions,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<Contender, BenchError> {
    let suite = Suite::new(options)?;
    match options.protocol {
        WireProtocol::Http => ScenarioRuns::prepare(suite.over_http(scratch, progress)?, suite, progress),
        WireProtocol::Resp => ScenarioRuns::prepare(suite.over_resp(scratch, progress)?, suite, progress),
        WireProtocol::Native => ScenarioRuns::prepare(suite.over_native(scratch, progress)?, suite, progress),
    }
}

impl<C: Codec + 'static> ScenarioRuns<C> {
    fn prepare(subject: Subject<C>, suite: Suite, progress: &mut dyn Progress) -> Result<Contender, BenchError> {
        suite.prepare(&subject, progress)?;
        let place = format!("{}, {}", suite.options.protocol.name(), subject.name);
        let load = suite.sampled(&subject);
        Ok(Contender { load, place, runs: Box::new(Self { suite, subject, arrivals: Arrivals::default() }) })
    }
}

impl<C: Codec> Runs for ScenarioRuns<C> {
    fn run(&mut self) -> Result<Outcome<()>, BenchError> {
        let plan = self.suite.plan(&self.subject, ScenarioPhase::Run, self.suite.scenario.pace());
        Ok(run_once(&self.subject, &plan, &mut self.arrivals)?.without_own())
    }

    fn verify(&mut self, what: &str, report: &mut Report, progress: &mut dyn Progress) -> Result<(), BenchError> {
        self.suite.verify(&self.subject, what, &self.arrivals, report, progress)
    }
}
