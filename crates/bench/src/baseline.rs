//! `thalweg bench baseline save` and `check`: a stored measurement, and a later one that must not be worse.
//!
//! Owns: the file, which is a report with the arguments that repeat its load, and the rule of the check. Does not own:
//! the load, which is that of the HTTP suite, or the statistics, which are in the crate `lab`.
//!
//! Between a baseline and its check the machine may have changed, and the confidence interval of the difference does
//! not cover this. The check therefore has a tolerance, and fails only if the whole confidence interval lies beyond the
//! tolerance. To show a difference that is smaller than the tolerance, use `thalweg bench compare` with both programs.

use std::path::PathBuf;

use thalweg_lab::{
    comparison::{Effect, MIN_PAIRS, compare_samples},
    samples::{Better, Role, Samples, StoredReport},
};

use crate::{
    BenchError, Progress, Report,
    compare::{Row, agree, describe_method, table, void_report},
    http::{self, HttpLoad, OF_SCHEDULES, ServerOptions},
    load::{Timeline, Validity, http::Outcome},
    options::{require, within},
    report::{Check, Verdict, number},
};

/// Options of `thalweg bench baseline save`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("closed", |arg| arg.conflicts_with_all(OF_SCHEDULES)))]
pub struct SaveOptions {
    /// File that receives the baseline, as JSON.
    pub file: PathBuf,
    /// Number of runs of the load that the baseline consists of, at least 6.
    #[arg(long, default_value_t = 10)]
    pub runs: u32,
    /// Server under load.
    #[command(flatten)]
    pub server: ServerOptions,
    /// Load of each measured run.
    #[command(flatten)]
    pub load: HttpLoad,
}

/// Options of `thalweg bench baseline check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckOptions {
    /// File that `thalweg bench baseline save` wrote. It contains the load, which the check repeats.
    pub file: PathBuf,
    /// Tolerated worsening of the deciding figure, in per cent. The rate decides in a closed loop, and otherwise the
    /// 99th percentile of the response time.
    #[arg(long, default_value_t = 10.0)]
    pub tolerance: f64,
    /// Check although the baseline was measured on another kind of machine.
    #[arg(long)]
    pub other_machine: bool,
    /// Server under load.
    #[command(flatten)]
    pub server: ServerOptions,
}

/// The runs of a baseline's load against one server.
struct BaselineRuns {
    level: String,
    outcomes: Vec<Outcome>,
    samples: Vec<Samples>,
}

/// Measures a baseline and writes it to its file.
pub fn save(options: &SaveOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.load.check()?;
    within("--runs", options.runs as usize, 10_000)?;
    require(options.runs as usize >= MIN_PAIRS, "--runs", format!("must be at least {MIN_PAIRS} for an interval"))?;
    let (mut report, scratch) = Report::begin_below("baseline", options.server.start.dir.as_deref())?;
    let target = http::target(&options.server, &scratch, progress)?;
    let measured = BaselineRuns::of(&target, &options.load, options.runs, progress)?;
    report.condition("load", options.load.describe());
    report.condition("server build", target.build());
    report.condition("durability", measured.level.clone());
    report.condition("runs", options.runs.to_string());
    report.condition("windows", Timeline::describe(options.load.duration, options.load.window));
    report.arguments = options.load.arguments();
    report.arguments.splice(0..0, ["--runs".to_owned(), options.runs.to_string()]);
    report.checks.push(measured.check(&options.load));
    report.samples = measured.samples;
    let report = report.finish();
    std::fs::write(&options.file, report.to_json()).map_err(BenchError::files(&options.file))?;
    Ok(report)
}

/// Repeats the load of a baseline. Checks that the deciding figure is worse by at most the tolerance. This figure is
/// the rate in a closed loop, and otherwise the 99th percentile of the response time.
pub fn check(options: &CheckOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let is_share = options.tolerance >= 0.0 && options.tolerance < 100.0;
    require(is_share, "--tolerance", "must be from 0 to below 100")?;
    let stored = StoredReport::read(&options.file)?;
    let (load, runs) = load_of(&stored, options)?;
    let (mut report, scratch) = Report::begin_below("baseline", options.server.start.dir.as_deref())?;
    let is_same_machine = (&stored.machine.cpu, stored.machine.cores) == (&report.machine.cpu, report.machine.cores);
    require(is_same_machine || options.other_machine, "FILE", other_machine(&stored))?;
    let target = http::target(&options.server, &scratch, progress)?;
    let level = http::level(&target, &load)?;
    let levels = agree(&stored.samples(&options.file)?[0].durability, &level, false)?;
    let measured = BaselineRuns::of(&target, &load, runs, progress)?;
    report.condition("load", load.describe());
    report.condition("A", format!("baseline {}: {}", options.file.display(), stored.build_name()));
    report.condition("B", format!("this run: {}", target.build()));
    report.condition("durability", level);
    report.condition("runs", runs.to_string());
    report.condition("windows", Timeline::describe(load.duration, load.window));
    report.checks.extend(void_report("A", &stored));
    report.checks.push(measured.check(&load));
    let rows = rows(&stored.samples, &measured.samples);
    let deciding = rows.iter().find(|row| row.decides);
    let deciding = deciding.ok_or_else(|| BenchError::target(options.file.display())("has no figure that decides"))?;
    report.summary.push(deciding.sentence(&levels));
    report.checks.push(tolerance_check(deciding, better_of(&measured.samples, deciding), options.tolerance));
    report.tables.push(table(format!("this run (B) against the baseline (A), {levels}: {}", load.describe()), &rows));
    report.notes.push(describe_method());
    report.samples = measured.samples;
    Ok(report.finish())
}

impl BaselineRuns {
    fn of(
        target: &crate::server::Target,
        load: &HttpLoad,
        runs: u32,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let level = http::level(target, load)?;
        http::store_keys(target, load, progress)?;
        let mut outcomes = Vec::new();
        for run in 1..=runs {
            let outcome = crate::load::run(&http::plan(target, load, http::api(load), load.pace()))?;
            progress.step(&format!("run {run} of {runs}: {}", outcome.summary("/s")));
            outcomes.push(outcome);
        }
        let samples = http::sampled(load, level.clone()).samples(&outcomes);
        Ok(Self { level, outcomes, samples })
    }

    fn check(&self, load: &HttpLoad) -> Check {
        let validity = Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity));
        validity.check(load.describe(), "all answered, rightly, in step")
    }
}

/// Returns the load and the number of runs that a baseline contains.
fn load_of(stored: &StoredReport, options: &CheckOptions) -> Result<(HttpLoad, u32), BenchError> {
    let fail = BenchError::target(options.file.display());
    let (runs, arguments) = match &*stored.arguments {
        [flag, runs, rest @ ..] if flag == "--runs" => (runs.parse::<u32>().ok(), rest),
        _ => (None, &[][..]),
    };
    let runs = runs.filter(|runs| (MIN_PAIRS..=10_000).contains(&(*runs as usize)));
    let runs = runs.ok_or_else(|| fail("is not a baseline: write one with thalweg bench baseline save".to_owned()))?;
    let load = HttpLoad::of_arguments(arguments).map_err(|error| fail(format!("has a load that is wrong: {error}")))?;
    load.check()?;
    Ok((load, runs))
}

fn other_machine(stored: &StoredReport) -> String {
    format!(
        "the baseline is of a machine with {} cores of {}: measure one here, or give --other-machine",
        stored.machine.cores, stored.machine.cpu
    )
}

fn rows(stored: &[Samples], measured: &[Samples]) -> Vec<Row> {
    let pairs = stored.iter().filter_map(|a| Some((a, measured.iter().find(|b| a.is_same_figure(b))?)));
    let compared = pairs.filter(|(a, _)| a.role != Role::Shown);
    let row = |(a, b): (&Samples, &Samples)| {
        let effect = compare_samples(a, b).ok()?;
        let (scenario, figure) = (a.scenario.clone(), a.figure.clone());
        Some(Row { scenario, figure, decides: a.role == Role::Deciding, effect })
    };
    compared.filter_map(row).collect()
}

fn better_of(samples: &[Samples], row: &Row) -> Better {
    let found = samples.iter().find(|samples| samples.figure == row.figure);
    found.map_or(Better::Lower, |samples| samples.better)
}

/// Checks that a figure is worse than the baseline by at most `tolerance` per cent. The check fails only if the whole
/// confidence interval of the change lies beyond the tolerance.
fn tolerance_check(row: &Row, better: Better, tolerance: f64) -> Check {
    let Effect { change, interval, .. } = row.effect;
    let verdict = match (interval, better) {
        (None, _) => Verdict::Void,
        (Some((low, _)), Better::Lower) if 100.0 * low > tolerance => Verdict::Missed,
        (Some((_, high)), Better::Higher) if -100.0 * high > tolerance => Verdict::Missed,
        (Some(_), _) => Verdict::Met,
    };
    let interval = interval.map_or_else(
        || "no interval: too few valid runs".to_owned(),
        |(low, high)| format!("interval {} to {} %", number(100.0 * low), number(100.0 * high)),
    );
    Check {
        what: format!("{}, {} against the baseline", row.scenario, row.figure),
        required: format!("worse by at most {} %", number(tolerance)),
        measured: format!("{} %, {interval}", number(100.0 * change)),
        verdict,
        is_goal: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_lab::comparison::{compare_pairs, compare_wholes};

    #[test]
    fn a_check_fails_only_beyond_the_tolerance() {
        let a = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];
        let verdict = |factor: f64, better| {
            let effect = compare_pairs(&a, &a.map(|value| value * factor), better).unwrap();
            let row = Row { scenario: String::new(), figure: String::new(), decides: true, effect };
            tolerance_check(&row, better, 10.0).verdict
        };
        assert_eq!(verdict(1.05, Better::Lower), Verdict::Met);
        assert_eq!(verdict(1.2, Better::Lower), Verdict::Missed);
        assert_eq!(verdict(0.5, Better::Lower), Verdict::Met);
        assert_eq!(verdict(0.95, Better::Higher), Verdict::Met);
        assert_eq!(verdict(0.8, Better::Higher), Verdict::Missed);
        assert_eq!(verdict(3.0, Better::Higher), Verdict::Met);
    }

    #[test]
    fn a_check_of_few_valid_runs_gives_no_verdict() {
        let effect = compare_wholes(&[100.0; 6], &[200.0; 5], Better::Lower).unwrap();
        let row = Row { scenario: String::new(), figure: String::new(), decides: true, effect };
        let check = tolerance_check(&row, Better::Lower, 10.0);
        assert_eq!(check.verdict, Verdict::Void);
        assert!(check.measured.contains("too few valid runs"), "{}", check.measured);
    }
}
