//! Shrinking: the search for fewer faults that still lead to a violation.
//!
//! Owns: the search. It leaves out halves of the script of faults, then quarters, down to single faults, as long as a
//! violation remains (A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2),
//! 2002, without the tests of complements). Without a fault, the later course is different, so the result may show
//! another violation than the original.

use crate::{report::Report, settings::Settings, simulation::run};

/// Result of a search for fewer faults.
#[derive(Clone, Debug)]
pub struct ShrinkResult {
    /// Report of the run with the fewest faults among the runs with a violation.
    pub report: Report,
    /// Number of runs that the search has made.
    pub runs: usize,
    /// True if the search has ended because of the bound on its runs.
    pub is_cut: bool,
}

/// Runs the simulation again and again with fewer faults, as long as a violation remains. Returns the report of the run
/// with the fewest faults, or `None` if the first run, with all faults, has no violation. After each further run, calls
/// `tried` with the lowest number of faults found so far.
pub fn shrink(settings: &Settings, tried: impl FnMut(usize)) -> Option<Report> {
    let report = run(settings);
    if report.violations.is_empty() {
        return None;
    }
    Some(shrink_report(report, usize::MAX, tried).report)
}

/// Searches like [`shrink`], from the report of a run with a violation, and ends after `max_runs` runs.
pub fn shrink_report(report: Report, max_runs: usize, mut tried: impl FnMut(usize)) -> ShrinkResult {
    let mut size = report.settings.faults_left().len().div_ceil(2);
    let mut result = ShrinkResult { report, runs: 0, is_cut: false };
    while size > 0 {
        let mut at = 0;
        loop {
            let present = result.report.settings.faults_left();
            let Some(left_out) = present.get(at..(at + size).min(present.len())).filter(|part| !part.is_empty()) else {
                break;
            };
            if result.runs == max_runs {
                result.is_cut = true;
                return result;
            }
            let mut settings = result.report.settings.clone();
            settings.without.extend(left_out);
            let report = run(&settings);
            result.runs += 1;
            if report.violations.is_empty() {
                at += size;
            } else {
                result.report = report;
            }
            tried(result.report.settings.faults_left().len());
        }
        size /= 2;
    }
    result
}
