//! Comparison of two servers by alternating runs.

use thalweg_lab::{
    comparison::{Incomparable, compare_pairs},
    samples::Role,
};

use super::{
    drawing,
    options::{CompareOptions, Side},
    prepare::prepare,
    verdict::{Row, agree, describe_method, table},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    contender::Contender,
    figures::{Figure, figures},
    load::{Outcome, Validity, turns},
    report::{self, Table},
};

const NAMES: [&str; 2] = ["A", "B"];

/// One server with the runs made so far.
struct Rival {
    name: &'static str,
    contender: Contender,
    outcomes: Vec<Outcome<()>>,
}

/// Starts or finds both servers, makes the runs, and compares them.
pub(super) fn run(
    options: &CompareOptions,
    sides: &[Side; 2],
    progress: &mut dyn Progress,
) -> Result<Report, BenchError> {
    let (mut report, scratch) = Report::begin_below("compare", options.dir.as_deref())?;
    let below = || Scratch::below(Some(scratch.path()));
    let scratches = [below()?, below()?];
    let mut rival = |at: usize| {
        let contender = prepare(options, sides, at, &scratches[at], progress)?;
        Ok::<_, BenchError>(Rival { name: NAMES[at], contender, outcomes: Vec::new() })
    };
    let mut rivals = [rival(0)?, rival(1)?];
    let [level_a, level_b] = rivals.each_ref().map(|rival| &*rival.contender.load.durability);
    let levels = agree(level_a, level_b, options.across_durabilities)?;
    let load = load_of(&rivals);
    report.condition("load", load.clone());
    report.condition("levels", levels.clone());
    report.condition("order", format!("{} pairs of alternating runs, A B, B A, A B …", options.pairs));
    for (rival, text) in rivals.iter().zip([&options.a, &options.b]) {
        report.condition(rival.name, format!("{text}: {}", rival.contender.place));
    }
    for pair in 0..u64::from(options.pairs) {
        for turn in turns(pair, rivals.len()) {
            rivals[turn].run(pair, progress)?;
        }
    }
    conclude(options, (&load, &levels), &rivals, &mut report)?;
    for rival in &mut rivals {
        let what = format!("{}: {load}", rival.name);
        rival.contender.runs.verify(&what, &mut report, progress)?;
    }
    Ok(report.finish())
}

/// Returns the load in words, which is the same for both servers except for its protocol.
fn load_of([a, b]: &[Rival; 2]) -> String {
    let (a, b) = (&a.contender.load.scenario, &b.contender.load.scenario);
    if a == b { a.clone() } else { format!("A: {a}; B: {b}") }
}

impl Rival {
    fn run(&mut self, pair: u64, progress: &mut dyn Progress) -> Result<(), BenchError> {
        let outcome = self.contender.runs.run()?;
        progress.step(&format!("pair {}, {}: {}", pair + 1, self.name, outcome.summary("/s")));
        self.outcomes.push(outcome);
        Ok(())
    }

    fn values(&self, figure: &Figure<()>) -> Vec<f64> {
        self.outcomes.iter().filter_map(|outcome| figure.whole(outcome)).collect()
    }

    fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}

fn conclude(
    options: &CompareOptions,
    (load, levels): (&str, &str),
    rivals: &[Rival; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let [a, b] = rivals;
    let (pace, unit) = (a.contender.load.pace, a.contender.load.unit);
    let mut rows = Vec::new();
    for figure in figures(pace, unit).iter().filter(|figure| figure.role != Role::Shown) {
        let (of_a, of_b) = (a.values(figure), b.values(figure));
        if of_a.len() != a.outcomes.len() || of_b.len() != b.outcomes.len() {
            continue;
        }
        let (scenario, decides) = (load.to_owned(), figure.role == Role::Deciding);
        match compare_pairs(&of_a, &of_b, figure.better) {
            Ok(effect) => rows.push(Row { scenario, figure: figure.name.clone(), decides, effect }),
            Err(Incomparable::NotPositive) => {}
            Err(few @ Incomparable::TooFew { .. }) => return Err(BenchError::subject("A, B", "comparing")(few)),
        }
    }
    let samples = rivals.each_ref().map(|rival| {
        let mut samples = rival.contender.load.samples(&rival.outcomes);
        samples.iter_mut().for_each(|samples| samples.scenario = format!("{}: {load}", rival.name));
        samples
    });
    for rival in rivals {
        let what = format!("{}: {load}", rival.name);
        report.checks.push(rival.validity().check(what, "all answered, rightly, in step"));
    }
    for row in rows.iter().filter(|row| row.decides) {
        report.summary.push(row.sentence(levels));
        report.checks.extend(options.fail_if_worse.then(|| row.check()));
    }
    if !rows.iter().any(|row| row.decides) {
        report.summary.push("No comparison: the figure that decides is missing in a run.".to_owned());
    }
    if !rows.is_empty() {
        report.plots.push(drawing::changes(levels, &rows));
    }
    let [of_a, of_b] = samples.each_ref().map(|all| all.iter().find(|samples| samples.role == Role::Deciding));
    report.plots.extend(of_a.zip(of_b).and_then(|(a, b)| drawing::course(levels, a, b)));
    report.samples.extend(samples.into_iter().flatten());
    report.tables.push(table(format!("B against A, {levels}: {load}"), &rows));
    report.tables.push(runs_table(levels, a, b));
    report.notes.push(describe_method());
    Ok(())
}

fn runs_table(levels: &str, a: &Rival, b: &Rival) -> Table {
    report::table! {
        format!("runs in pairs, {levels}; the rate is in {}s/s", a.contender.load.unit);
        (pair, (a, b)) in (1_u64..).zip(a.outcomes.iter().zip(&b.outcomes));
        "pair" => pair, "A rate" => a.rate, "B rate" => b.rate,
        "A p50 µs" => a.time_us(50.0), "B p50 µs" => b.time_us(50.0),
        "A p99 µs" => a.time_us(99.0), "B p99 µs" => b.time_us(99.0),
        "A is" => a.validity.name(), "B is" => b.validity.name(),
    }
}
