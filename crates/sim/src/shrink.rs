//! Shrinking: the search for fewer faults that still lead to a violation.
//!
//! Owns: the search. It leaves out halves of the script of faults, then quarters, down to single faults, as long as a
//! violation remains (A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2),
//! 2002, without the tests of complements). Without a fault, the later course is different, so the result may show
//! another violation than the original.

use crate::{report::Report, settings::Settings, simulation::run};

/// Runs the simulation again and again with fewer faults, as long as a violation remains. Returns the report of the run
/// with the fewest faults, or `None` if the first run, with all faults, has no violation. After each further run, calls
/// `tried` with the lowest number of faults found so far.
pub fn shrink(settings: &Settings, mut tried: impl FnMut(usize)) -> Option<Report> {
    let mut best = run(settings);
    if best.violations.is_empty() {
        return None;
    }
    let kept = |settings: &Settings| -> Vec<usize> {
        settings.script().iter().map(|fault| fault.number).filter(|number| !settings.without.contains(number)).collect()
    };
    let mut size = kept(settings).len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        loop {
            let present = kept(&best.settings);
            let Some(left_out) = present.get(at..(at + size).min(present.len())).filter(|part| !part.is_empty()) else {
                break;
            };
            let mut settings = best.settings.clone();
            settings.without.extend(left_out);
            let report = run(&settings);
            if report.violations.is_empty() {
                at += size;
            } else {
                best = report;
            }
            tried(kept(&best.settings).len());
        }
        size /= 2;
    }
    Some(best)
}
