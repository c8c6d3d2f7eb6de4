//! Prepares a server for `thalweg bench compare` under the load of a scenario, and performs the runs on it.

use super::{
    feed_runs::Arrivals,
    mix::Kind,
    options::ScenarioOptions,
    protocols::WireProtocol,
    suite::{Subject, Suite, run_once},
    work::ScenarioPhase,
};
use crate::{
    BenchError, Progress, Report, Scratch,
    contender::{Contender, Runs},
    load::{Outcome, pairs::Codec},
    report::number,
};

struct ScenarioRuns<C> {
    suite: Suite,
    subject: Subject<C>,
    arrivals: Arrivals,
    /// Number of reads of the cache in all runs, and number of these reads that found nothing.
    cache_reads: (u64, u64),
}

/// Reaches or starts the server that the options name, and prepares it for runs of the scenario.
pub(crate) fn contender(
    options: &ScenarioOptions,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<Contender, BenchError> {
    let suite = Suite::new(options)?;
    match options.protocol() {
        WireProtocol::Http if suite.scenario.http.is_some() => {
            ScenarioRuns::prepare(suite.by_templates(scratch, progress)?, suite, progress)
        }
        WireProtocol::Http => ScenarioRuns::prepare(suite.over_http(scratch, progress)?, suite, progress),
        WireProtocol::Resp => ScenarioRuns::prepare(suite.over_resp(scratch, progress)?, suite, progress),
        WireProtocol::Native | WireProtocol::NativeTls | WireProtocol::NativeQuic => {
            ScenarioRuns::prepare(suite.over_native(scratch, progress)?, suite, progress)
        }
        WireProtocol::Embedded => ScenarioRuns::prepare(suite.in_process(scratch)?, suite, progress),
        WireProtocol::Nats | WireProtocol::Jetstream => {
            ScenarioRuns::prepare(suite.over_nats(scratch)?, suite, progress)
        }
    }
}

impl<C: Codec + 'static> ScenarioRuns<C> {
    fn prepare(subject: Subject<C>, suite: Suite, progress: &mut dyn Progress) -> Result<Contender, BenchError> {
        suite.prepare(&subject, progress)?;
        let build = subject.target.as_ref().map_or_else(String::new, |target| format!(", {}", target.build()));
        let place = format!("{}, {}{build}", suite.options.protocol().name(), subject.name);
        let load = suite.sampled(&subject);
        let runs = Self { suite, subject, arrivals: Arrivals::default(), cache_reads: (0, 0) };
        Ok(Contender { load, place, runs: Box::new(runs) })
    }
}

impl<C: Codec> Runs for ScenarioRuns<C> {
    fn run(&mut self) -> Result<Outcome<()>, BenchError> {
        let plan = self.suite.plan(&self.subject, ScenarioPhase::Run, self.suite.scenario.pace());
        let outcome = run_once(&self.subject, &plan, &mut self.arrivals)?;
        self.cache_reads.0 += outcome.tally.times[Kind::CacheGet as usize].count();
        self.cache_reads.1 += outcome.tally.own.misses;
        Ok(outcome.without_own())
    }

    fn verify(&mut self, what: &str, report: &mut Report, progress: &mut dyn Progress) -> Result<(), BenchError> {
        let (reads, misses) = self.cache_reads;
        if reads > 0 {
            let share = number(100.0 * misses as f64 / reads as f64);
            report.notes.push(format!("{what}: {share} % of the reads of the cache found nothing"));
        }
        self.suite.verify(&self.subject, what, &self.arrivals, report, progress)
    }
}
