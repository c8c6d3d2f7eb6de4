//! `thalweg bench compare A B`: measures the difference between two servers, and reports it with a confidence interval
//! and a verdict.
//!
//! Owns: the order of the runs, the refusal of different durability levels, and the report. Does not own: the
//! statistics, which are in the crate `lab`, or the load, which is that of the suites of HTTP, of RESP and of
//! scenarios.
//!
//! The servers alternate, A B, B A, A B …, so a drift of the machine affects both equally. Both servers run all the
//! time, but only the measured one has load. Stored reports were not measured alternately. The report of such a
//! comparison explains the consequence.

mod drawing;
mod given;
mod live;
mod options;
mod prepare;
mod stored;
mod verdict;

pub use given::GivenLoad;
pub use options::{CompareOptions, Side};
pub(crate) use verdict::{Row, agree, describe_method, table, void_report};

use crate::{BenchError, Progress, Report};

/// Runs the comparison that the options describe, and returns its report.
pub fn run(options: &CompareOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    match options.sides()? {
        [Side::Stored(a), Side::Stored(b)] => stored::run(options, [&a, &b]),
        sides => live::run(options, &sides, progress),
    }
}
