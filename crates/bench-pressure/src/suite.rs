//! `thalweg bench pressure`: runs the parts that the command's options name, and makes the report.

use crate::{
    BenchError, Progress, Report, gets, interrupt, loading, many_keys, misses,
    options::{Part, PressureOptions},
    report::{Check, Verdict, number},
    room,
    scenario::{Figures, Scenario},
    server::{MemoryLimit, Server},
    tails,
};

/// Function that measures one part of the suite.
type Run = fn(&mut Scenario<'_>) -> Result<Figures, BenchError>;

/// All parts of the suite with the functions that measure them, in the order of the report.
const PARTS: [(Part, Run); 5] = [
    (Part::Load, loading::run),
    (Part::Gets, gets::run),
    (Part::Misses, misses::run),
    (Part::Keys, many_keys::run),
    (Part::Tails, tails::run),
];

/// Runs the pressure suite and returns its report.
pub fn run(options: &PressureOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("pressure", options.dir.as_deref())?;
    let _watch = interrupt::watch(scratch.path())?;
    room::check(scratch.path(), options)?;
    let mut scenario = Scenario { options, dir: scratch.path(), progress };
    let limit = scenario.limit();
    // All other parts need a limit of memory.
    if options.parts.iter().any(|part| *part != Part::Tails) {
        Server::check_limit(limit)?;
    }
    for (name, value) in conditions(options, limit) {
        report.condition(name, value);
    }
    for (part, run) in PARTS.into_iter().filter(|(part, _)| options.runs(*part)) {
        let Figures { tables, checks, notes } = match run(&mut scenario) {
            // The error of one part must not lose the results of earlier parts, which may have taken hours.
            Err(BenchError::Subject { message, .. }) if options.parts.len() > 1 => {
                scenario.step(&format!("{} ended: {message}", part.name()));
                ended(part, message)
            }
            measured => measured?,
        };
        report.tables.extend(tables);
        report.checks.extend(checks);
        report.notes.extend(notes);
    }
    Ok(report.finish())
}

/// Returns the report of a part of the suite that ended early because the server failed. It contains only a missed
/// check with the reason.
fn ended(part: Part, message: String) -> Figures {
    let (what, required) = (part.name(), "measured to its end".to_owned());
    let check = Check { what, required, measured: message, verdict: Verdict::Missed, is_goal: false };
    Figures { checks: vec![check], ..Figures::default() }
}

fn conditions(options: &PressureOptions, limit: MemoryLimit) -> Vec<(&'static str, String)> {
    let memory = match limit {
        MemoryLimit::None => "NO LIMIT (--no-limit): the data may fit into memory".to_owned(),
        MemoryLimit::Bytes(_) => format!(
            "{} for the server and the page cache of its files, by a control group; the load generator is outside",
            limit.name()
        ),
    };
    let data = format!(
        "{} values of {} B ({} MiB), loaded in {} order over RESP by {} connections with {} requests in flight each",
        options.values(),
        options.value_size,
        number(options.data_bytes() as f64 / f64::from(1 << 20)),
        options.order.name(),
        options.connections,
        options.pipeline
    );
    vec![
        ("memory", memory),
        ("durability", "interval: written to the kernel, and fsynced soon; disk for the part tails".to_owned()),
        ("data", data),
        (
            "runs",
            format!(
                "{} s after {} s of warm-up, {} rounds; seed {}",
                options.duration.as_secs_f64(),
                options.warmup.as_secs_f64(),
                options.rounds,
                options.seed
            ),
        ),
    ]
}
