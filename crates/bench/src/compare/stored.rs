//! Comparison of two stored reports, from the values of their runs.

use std::path::Path;

use thalweg_lab::{
    comparison::{Incomparable, compare_samples},
    samples::{Role, Samples, StoredReport},
};

use super::{
    drawing,
    options::CompareOptions,
    verdict::{Row, agree, describe_method, table, undecided, void_report},
};
use crate::{BenchError, Report};

/// Reads both reports and compares the figures that both have.
pub(super) fn run(options: &CompareOptions, paths: [&Path; 2]) -> Result<Report, BenchError> {
    let [a, b] = [StoredReport::read(paths[0])?, StoredReport::read(paths[1])?];
    let (of_a, of_b) = (a.samples(paths[0])?, b.samples(paths[1])?);
    let levels = levels(of_a, of_b, options.across_durabilities)?;
    let mut report = Report::begin("compare", paths[0].parent().unwrap_or(Path::new(".")));
    for (name, path, stored) in [("A", paths[0], &a), ("B", paths[1], &b)] {
        report.condition(name, format!("{}: {}", path.display(), stored.build_name()));
        report.checks.extend(void_report(name, stored));
    }
    report.condition("levels", levels.clone());
    let is_void = a.first_invalid().or(b.first_invalid()).is_some();
    if pairs(of_a, of_b).next().is_none() {
        let message = "A and B have no figure of the same scenario in common".to_owned();
        return Err(BenchError::Option { option: "A, B", message });
    }
    let rows = rows(of_a, of_b, is_void);
    for row in rows.iter().filter(|row| row.decides) {
        report.summary.push(format!("{}: {}", row.scenario, row.sentence(&levels)));
        report.checks.extend(options.fail_if_worse.then(|| row.check()));
    }
    let deciding = || pairs(of_a, of_b).filter(|(a, _)| a.role == Role::Deciding);
    let has_row = |a: &Samples| rows.iter().any(|row| row.decides && row.scenario == a.scenario);
    for (a, _) in deciding().filter(|(a, _)| !has_row(a)) {
        let why = "a side has no run that can be compared in the figure that decides";
        report.summary.push(format!("{}: No verdict: {why}.", a.scenario));
        report.checks.extend(options.fail_if_worse.then(|| undecided(&a.scenario, why)));
    }
    for (name, own, other) in [("A", of_a, of_b), ("B", of_b, of_a)] {
        report.notes.extend(only_in_one(own, other).map(|scenario| format!("only {name} has {scenario}")));
    }
    if !rows.is_empty() {
        report.plots.push(drawing::changes(&levels, &rows));
    }
    report.plots.extend(deciding().filter_map(|(a, b)| drawing::course(&levels, a, b)));
    report.tables.push(table(format!("B against A, {levels}, means of the runs"), &rows));
    report.notes.push(describe_method());
    report.notes.push(
        "the interval covers what changed between the runs of each measurement, but not what changed on the machine between them; \
         only alternating runs can distinguish the two: thalweg bench compare with two programs or addresses"
            .to_owned(),
    );
    if a.machine != b.machine {
        report
            .notes
            .push("A and B were measured on different machines: the figures compare the machines too".to_owned());
    }
    Ok(report.finish())
}

/// Returns the durability levels of the scenarios that both reports have, in words. Returns an error if a scenario has
/// different levels in the two reports, unless `across` is true.
fn levels(a: &[Samples], b: &[Samples], across: bool) -> Result<String, BenchError> {
    let mut found: Vec<String> = Vec::new();
    for (a, b) in pairs(a, b) {
        let level = agree(&a.durability, &b.durability, across)?;
        if !found.contains(&level) {
            found.push(level);
        }
    }
    Ok(found.join("; "))
}

fn pairs<'a>(a: &'a [Samples], b: &'a [Samples]) -> impl Iterator<Item = (&'a Samples, &'a Samples)> {
    a.iter().filter_map(|a| Some((a, b.iter().find(|b| a.is_same_figure(b))?)))
}

/// Returns the names of the scenarios in the samples `own` whose deciding figure has no counterpart in the samples
/// `other`.
fn only_in_one<'a>(own: &'a [Samples], other: &'a [Samples]) -> impl Iterator<Item = &'a str> {
    let alone = own.iter().filter(move |samples| {
        samples.role == Role::Deciding && !other.iter().any(|other| samples.is_same_figure(other))
    });
    alone.map(|samples| &*samples.scenario)
}

/// Compares the figures that both reports have. `is_void` is true if a report has void runs. Then the changes of the
/// figures get neither an interval nor a verdict.
fn rows(a: &[Samples], b: &[Samples], is_void: bool) -> Vec<Row> {
    let compared = pairs(a, b).filter(|(a, _)| a.role != Role::Shown);
    let row = |(a, b): (&Samples, &Samples)| match compare_samples(a, b) {
        Ok(effect) => Some(Row {
            scenario: a.scenario.clone(),
            figure: a.figure.clone(),
            decides: a.role == Role::Deciding,
            effect: if is_void { effect.of_void_runs() } else { effect },
        }),
        Err(Incomparable::TooFew { .. } | Incomparable::NotPositive) => None,
    };
    compared.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Scratch,
        options::parsed,
        report::{Check, Verdict},
    };
    use thalweg_lab::samples::{Better, Run};

    fn store(scratch: &Scratch, name: &str, durability: &str, value: f64) -> String {
        store_runs(scratch, name, durability, value, 6, Verdict::Met)
    }

    /// Stores a report with this number of runs. Its check of validity has this verdict. Returns the path of the file.
    fn store_runs(scratch: &Scratch, name: &str, durability: &str, value: f64, runs: u32, verdict: Verdict) -> String {
        let mut report = Report::begin("http", scratch.path());
        let windows: Vec<_> = (0..20).map(|at| Some(value * (1.0 + 0.01 * f64::from(at % 3)))).collect();
        let run = |at: u32| Run {
            whole: Some(value * (1.0 + 0.01 * f64::from(at % 3))),
            windows: windows.clone(),
            is_void: false,
        };
        report.samples.push(Samples {
            scenario: "put".to_owned(),
            durability: durability.to_owned(),
            figure: "p99 µs".to_owned(),
            better: Better::Lower,
            role: Role::Deciding,
            window_seconds: 0.25,
            runs: (0..runs).map(run).collect(),
        });
        let (what, required, measured) = ("put".to_owned(), "valid".to_owned(), String::new());
        report.checks.push(Check { what, required, measured, verdict, is_goal: false });
        let path = scratch.path().join(name);
        std::fs::write(&path, report.to_json()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn compared(arguments: &[&str]) -> Result<Report, BenchError> {
        super::super::run(&parsed(arguments.iter().copied()).unwrap(), &mut crate::Quiet)
    }

    #[test]
    fn few_or_void_runs_give_no_verdict() {
        let scratch = Scratch::below(None).unwrap();
        let good = store(&scratch, "good.json", "disk", 100.0);
        let few = store_runs(&scratch, "few.json", "disk", 200.0, 3, Verdict::Met);
        let void = store_runs(&scratch, "void.json", "disk", 200.0, 6, Verdict::Void);
        for other in [few, void] {
            let report = compared(&[&good, &other, "--fail-if-worse"]).unwrap();
            assert!(report.summary[0].contains("No verdict") && report.summary[0].contains("at least 6 valid runs"));
            assert_eq!(report.verdict(), Verdict::Void);
            assert!(report.to_html().contains("p99 µs (decides): no verdict"));
        }
    }

    #[test]
    fn runs_that_cannot_be_compared_give_no_verdict_in_a_valid_report() {
        let scratch = Scratch::below(None).unwrap();
        let good = store(&scratch, "good.json", "disk", 100.0);
        let bound = store(&scratch, "bound.json", "disk", 200.0);
        let mut changed: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&bound).unwrap()).unwrap();
        let samples = changed["samples"].as_array_mut().unwrap();
        for run in samples[0]["runs"].as_array_mut().unwrap() {
            run["is_void"] = true.into();
        }
        let mut more = samples[0].clone();
        more["scenario"] = "get".into();
        samples.push(more);
        std::fs::write(&bound, changed.to_string()).unwrap();
        let report = compared(&[&good, &bound, "--fail-if-worse"]).unwrap();
        assert!(report.summary[0].starts_with("put: No verdict"), "{:?}", report.summary);
        assert_eq!(report.verdict(), Verdict::Void);
        assert!(report.notes.contains(&"only B has get".to_owned()), "{:?}", report.notes);
    }

    #[test]
    fn stored_reports_are_compared_only_at_one_level() {
        let scratch = Scratch::below(None).unwrap();
        let slow = store(&scratch, "slow.json", "disk", 200.0);
        let fast = store(&scratch, "fast.json", "disk", 100.0);
        let unsafe_ = store(&scratch, "unsafe.json", "interval", 50.0);
        let report = compared(&[&slow, &fast, "--fail-if-worse"]).unwrap();
        assert!(report.summary[0].contains("B is better") && report.tables[0].title.contains("durability disk"));
        assert_eq!(report.verdict(), Verdict::Met);
        assert_eq!(compared(&[&fast, &slow, "--fail-if-worse"]).unwrap().verdict(), Verdict::Missed);
        let html = report.to_html();
        assert!(
            html.contains("change from A to B, durability disk") && html.contains("p99 µs (decides): better"),
            "{html}"
        );
        assert!(html.contains("p99 µs over time, durability disk: A and B"), "{html}");
        assert!(compared(&[&fast, &fast]).unwrap().summary[0].contains("No difference seen"));
        let refused = compared(&[&slow, &unsafe_]).unwrap_err().to_string();
        assert!(refused.contains("not comparable"), "{refused}");
        let report = compared(&[&slow, &unsafe_, "--across-durabilities"]).unwrap();
        assert!(
            report.tables[0].title.contains("DIFFERENT DURABILITIES: A disk, B interval"),
            "{}",
            report.tables[0].title
        );
    }
}
