//! Comparison of two servers by alternating runs.
//!
//! Owns: the order of the runs, the values of each run, and the report. Does not own: preparing the servers
//! (`prepare`), the comparison of the values (`thalweg_lab`), or the result in words (`verdict`).

use thalweg_lab::{
    comparison::{Effect, Incomparable, MIN_PAIRS, compare_pairs, compare_wholes},
    samples::Role,
};

use super::{
    drawing,
    options::{CompareOptions, Side},
    prepare::prepare,
    verdict::{Row, agree, describe_method, table, undecided},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    contender::Contender,
    figures::{Figure, figures},
    load::{Outcome, Validity, turns},
    report::{self, Table},
};

const NAMES: [&str; 2] = ["A", "B"];

/// One server, with the runs made on it so far.
struct ComparedServer {
    name: &'static str,
    contender: Contender,
    outcomes: Vec<Outcome<()>>,
}

/// Starts or reaches both servers, makes the runs, and compares the results of the two servers.
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
        Ok::<_, BenchError>(ComparedServer { name: NAMES[at], contender, outcomes: Vec::new() })
    };
    let mut rivals = [rival(0)?, rival(1)?];
    let [level_a, level_b] = rivals.each_ref().map(|rival| &*rival.contender.load.durability);
    let levels = agree(level_a, level_b, options.across_durabilities)?;
    let load = load_of(&rivals);
    report.condition("load", load.clone());
    report.condition("levels", levels.clone());
    report.condition("order", format!("{} pairs of alternating runs, A B, B A, A B …", options.pairs()));
    for (rival, text) in rivals.iter().zip([&options.a, &options.b]) {
        report.condition(rival.name, format!("{text}: {}", rival.contender.place));
    }
    for pair in 0..u64::from(options.pairs()) {
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

/// Describes the load of a comparison in words. It is the same for both servers, except for the protocol.
fn load_of([a, b]: &[ComparedServer; 2]) -> String {
    let (a, b) = (&a.contender.load.scenario, &b.contender.load.scenario);
    if a == b { a.clone() } else { format!("A: {a}; B: {b}") }
}

impl ComparedServer {
    fn run(&mut self, pair: u64, progress: &mut dyn Progress) -> Result<(), BenchError> {
        let outcome = self.contender.runs.run()?;
        progress.step(&format!("pair {}, {}: {}", pair + 1, self.name, outcome.summary("/s")));
        self.outcomes.push(outcome);
        Ok(())
    }

    /// Returns the figure's value in each run; `None` for a run that has no value or cannot be compared.
    fn values(&self, figure: &Figure<()>) -> Vec<Option<f64>> {
        self.outcomes.iter().map(|outcome| figure.whole(outcome).filter(|_| outcome.is_comparable())).collect()
    }

    fn validity(&self) -> Validity {
        Validity::worst(self.outcomes.iter().map(|outcome| &outcome.validity))
    }
}

fn conclude(
    options: &CompareOptions,
    (load, levels): (&str, &str),
    rivals: &[ComparedServer; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let [a, b] = rivals;
    let (pace, unit) = (a.contender.load.pace, a.contender.load.unit);
    let mut rows = Vec::new();
    for figure in figures(pace, unit).iter().filter(|figure| figure.role != Role::Shown) {
        let has = |outcome: &Outcome<()>| !outcome.is_comparable() || figure.whole(outcome).is_some();
        let has_value = |rival: &ComparedServer| rival.outcomes.iter().all(has);
        if !has_value(a) || !has_value(b) {
            continue;
        }
        // If one run of a pair is void, the other run has no neighbour to be compared with. So the whole pair is left
        // out.
        let pairs = a.values(figure).into_iter().zip(b.values(figure)).filter_map(|(a, b)| a.zip(b));
        let (of_a, of_b): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let (scenario, decides) = (load.to_owned(), figure.role == Role::Deciding);
        let effect = match of_a.len() {
            0..MIN_PAIRS => compare_wholes(&of_a, &of_b, figure.better).map(Effect::of_void_runs),
            _ => compare_pairs(&of_a, &of_b, figure.better),
        };
        match effect {
            Ok(effect) => rows.push(Row { scenario, figure: figure.name.clone(), decides, effect }),
            Err(Incomparable::NotPositive | Incomparable::TooFew { .. }) => {}
        }
    }
    let is_left_out = |(a, b): &(&Outcome<()>, &Outcome<()>)| !a.is_comparable() || !b.is_comparable();
    let left_out = a.outcomes.iter().zip(&b.outcomes).filter(is_left_out).count();
    if left_out > 0 {
        let all = a.outcomes.len();
        report.notes.push(format!(
            "{left_out} of {all} pairs have a void run, one with errors, or one whose rate is that of the generator, and \
             are left out of the comparison"
        ));
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
        let why = "the figure that decides is missing, or each pair has a run that cannot be compared";
        report.summary.push(format!("No verdict: {why}."));
        report.checks.extend(options.fail_if_worse.then(|| undecided(load, why)));
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

fn runs_table(levels: &str, a: &ComparedServer, b: &ComparedServer) -> Table {
    report::table! {
        format!("runs in pairs, {levels}; the rate is in {}s/s", a.contender.load.unit);
        (pair, (a, b)) in (1_u64..).zip(a.outcomes.iter().zip(&b.outcomes));
        "pair" => pair, "A rate" => a.rate, "B rate" => b.rate,
        "A p50 µs" => a.time_us(50.0), "B p50 µs" => b.time_us(50.0),
        "A p99 µs" => a.time_us(99.0), "B p99 µs" => b.time_us(99.0),
        "A is" => a.verdict(), "B is" => b.verdict(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contender::Runs,
        figures::SampledLoad,
        load::{Pace, Tally},
        options::parsed,
        report::Verdict,
        usage::RunResources,
    };

    struct NoRuns;

    impl Runs for NoRuns {
        fn run(&mut self) -> Result<Outcome<()>, BenchError> {
            unreachable!("the runs of this test are made up")
        }
    }

    /// Makes a compared server for a test, with one run for each of these rates. A rate below 0 makes a void run, and a
    /// rate of 0 makes a run with errors.
    fn rival(name: &'static str, rates: &[f64]) -> ComparedServer {
        let (scenario, durability) = ("put".to_owned(), "disk".to_owned());
        let load = SampledLoad { scenario, durability, pace: Pace::Closed, unit: "request" };
        let outcome = |rate: &f64| {
            let mut tally = Tally::new(1);
            (tally.right, tally.all_right) = (rate.abs() as u64, rate.abs() as u64);
            let validity = if *rate < 0.0 {
                Validity::Saturated("busy".to_owned())
            } else if *rate < 1.0 {
                Validity::Errors("refused".to_owned())
            } else {
                Validity::Good
            };
            Outcome { validity, ..Outcome::new(tally, 1.0, RunResources::default()) }
        };
        let contender = Contender { load, place: String::new(), runs: Box::new(NoRuns) };
        ComparedServer { name, contender, outcomes: rates.iter().map(outcome).collect() }
    }

    fn compared(a: &[f64], b: &[f64]) -> Report {
        let options = parsed(["h:1", "h:2", "--fail-if-worse"]).unwrap();
        let mut report = Report::begin("compare", std::path::Path::new("."));
        conclude(&options, ("put", "durability disk"), &[rival("A", a), rival("B", b)], &mut report).unwrap();
        report
    }

    #[test]
    fn void_pairs_are_left_out_and_too_few_others_give_no_verdict() {
        let a = [1000.0, 1010.0, 1005.0, 1000.0, 1010.0, 1005.0, 1002.0];
        let mut b = a;
        assert!(compared(&a, &b).summary[0].starts_with("No difference seen"));
        // The void run, which is far slower, is left out with its pair.
        b[3] = -10.0;
        let report = compared(&a, &b);
        assert!(report.summary[0].starts_with("No difference seen"), "{:?}", report.summary);
        assert!(report.notes.iter().any(|note| note.starts_with("1 of 7 pairs")), "{:?}", report.notes);
        // With two void runs, five pairs are left.
        b[5] = -10.0;
        let report = compared(&a, &b);
        assert!(report.summary[0].starts_with("No verdict"), "{:?}", report.summary);
        assert_eq!(report.verdict(), Verdict::Void);
        // Without any pair, there is not even a change.
        let report = compared(&a, &[-10.0; 7]);
        assert!(report.summary[0].starts_with("No verdict: the figure"), "{:?}", report.summary);
        let check = report.checks.iter().find(|check| check.required == "B is not worse than A");
        assert_eq!(check.map(|check| check.verdict), Some(Verdict::Void));
    }

    #[test]
    fn runs_with_errors_are_not_compared() {
        let a = [1000.0, 1010.0, 1005.0, 1000.0, 1010.0, 1005.0, 1002.0];
        let mut b = a.map(|rate| 2.0 * rate);
        (b[0], b[1]) = (0.0, 0.0);
        let report = compared(&a, &b);
        assert!(report.summary[0].starts_with("No verdict"), "{:?}", report.summary);
        assert!(report.notes.iter().any(|note| note.starts_with("2 of 7 pairs")), "{:?}", report.notes);
    }
}
