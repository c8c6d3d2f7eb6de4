//! Comparison of two servers by runs in turns.

use thalweg_lab::{
    comparison::{Incomparable, compare_pairs},
    samples::Role,
};

use super::{
    drawing,
    options::{CompareOptions, Side},
    verdict::{Row, agree, describe_method, table},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    http::{self, HttpLoad},
    load::{Validity, http::Outcome, turns},
    report::{self, Table},
    server::Target,
};

const NAMES: [&str; 2] = ["A", "B"];

/// One server with its load and the runs made so far.
struct Contender {
    name: &'static str,
    target: Target,
    load: HttpLoad,
    level: String,
    outcomes: Vec<Outcome>,
}

/// Starts or finds both servers, makes the runs, and compares them.
pub(super) fn run(
    options: &CompareOptions,
    sides: &[Side; 2],
    progress: &mut dyn Progress,
) -> Result<Report, BenchError> {
    let (mut report, scratch) = Report::begin_below("compare", options.dir.as_deref())?;
    let mut contenders = [
        Contender::prepare(options, sides, 0, &scratch, progress)?,
        Contender::prepare(options, sides, 1, &scratch, progress)?,
    ];
    let levels = agree(&contenders[0].level, &contenders[1].level, options.across_durabilities)?;
    report.condition("load", options.load.describe());
    report.condition("levels", levels.clone());
    report.condition("order", format!("{} pairs of runs in turns, A B, B A, A B …", options.pairs));
    for (contender, text) in contenders.iter().zip([&options.a, &options.b]) {
        report.condition(contender.name, format!("{text} at {}", contender.target.address));
    }
    for pair in 0..u64::from(options.pairs) {
        for turn in turns(pair, contenders.len()) {
            contenders[turn].run(pair, progress)?;
        }
    }
    conclude(options, &levels, &contenders, &mut report)?;
    Ok(report.finish())
}

impl Contender {
    fn prepare(
        options: &CompareOptions,
        sides: &[Side; 2],
        number: usize,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let (name, arguments) = (NAMES[number], [&options.arg_a, &options.arg_b][number]);
        let mut load = options.load.clone();
        if number == 1 {
            load.durability = options.durability_b.or(load.durability);
        }
        let target = match &sides[number] {
            Side::Program(path) => http::start(Some(path), arguments, &scratch.fresh(name)?, progress)?,
            Side::Running(url) => Target::running(url)?,
            Side::Stored(path) => {
                return Err(BenchError::target(path.display())("a stored report has no server"));
            }
        };
        let level = http::level(&target, &load)?;
        http::store_keys(&target, &load, progress)?;
        Ok(Self { name, target, load, level, outcomes: Vec::new() })
    }

    fn run(&mut self, pair: u64, progress: &mut dyn Progress) -> Result<(), BenchError> {
        let plan = http::plan(&self.target, &self.load, http::api(&self.load), self.load.pace());
        let outcome = crate::load::run(&plan)?;
        progress.step(&format!("pair {}, {}: {}", pair + 1, self.name, outcome.summary("/s")));
        self.outcomes.push(outcome);
        Ok(())
    }

    fn values(&self, figure: &http::Figure) -> Vec<f64> {
        self.outcomes.iter().filter_map(|outcome| figure.whole(outcome)).collect()
    }

    fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}

fn conclude(
    options: &CompareOptions,
    levels: &str,
    contenders: &[Contender; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let (load, [a, b]) = (&options.load, contenders);
    let mut rows = Vec::new();
    for figure in http::figures(load.pace()).iter().filter(|figure| figure.role != Role::Shown) {
        let (of_a, of_b) = (a.values(figure), b.values(figure));
        if of_a.len() != a.outcomes.len() || of_b.len() != b.outcomes.len() {
            continue;
        }
        let (scenario, decides) = (load.describe(), figure.role == Role::Deciding);
        match compare_pairs(&of_a, &of_b, figure.better) {
            Ok(effect) => rows.push(Row { scenario, figure: figure.name.to_owned(), decides, effect }),
            Err(Incomparable::NotPositive) => {}
            Err(few @ Incomparable::TooFew { .. }) => return Err(BenchError::subject("A, B", "comparing")(few)),
        }
    }
    for contender in contenders {
        let what = format!("{}: {}", contender.name, load.describe());
        report.checks.push(contender.validity().check(what, "all answered, rightly, in step"));
        let scenario = format!("{}: {}", contender.name, load.describe());
        report.samples.extend(http::samples(&scenario, &contender.level, load.pace(), &contender.outcomes));
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
    let of = |contender: &Contender| {
        let samples = http::samples("", &contender.level, load.pace(), &contender.outcomes);
        samples.into_iter().find(|samples| samples.role == Role::Deciding)
    };
    report.plots.extend(of(a).zip(of(b)).and_then(|(a, b)| drawing::course(levels, &a, &b)));
    report.tables.push(table(format!("B against A, {levels}: {}", load.describe()), &rows));
    report.tables.push(runs_table(levels, a, b));
    report.notes.push(describe_method());
    Ok(())
}

fn runs_table(levels: &str, a: &Contender, b: &Contender) -> Table {
    report::table! {
        format!("runs in pairs, {levels}"); (pair, (a, b)) in (1_u64..).zip(a.outcomes.iter().zip(&b.outcomes));
        "pair" => pair, "A requests/s" => a.rate, "B requests/s" => b.rate,
        "A p50 µs" => a.time_us(50.0), "B p50 µs" => b.time_us(50.0),
        "A p99 µs" => a.time_us(99.0), "B p99 µs" => b.time_us(99.0),
        "A is" => a.validity.name(), "B is" => b.validity.name(),
    }
}
