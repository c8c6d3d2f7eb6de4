//! The result of a comparison in words and as a table, and the refusal of different durability levels.

use thalweg_lab::{
    comparison::{CONFIDENCE, Difference, Effect, MIN_RUNS},
    samples::StoredReport,
};

use crate::{
    BenchError,
    report::{Cell, Check, Table, Verdict, cells, number},
};

/// One figure in which two servers are compared: a row in the report's table of changes.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Scenario in which the figure was measured.
    pub scenario: String,
    /// Name of the compared value (figure) with its unit.
    pub figure: String,
    /// True if this value decides the comparison of its scenario.
    pub decides: bool,
    /// Relative change of the figure from server A to server B, with its interval and verdict.
    pub effect: Effect,
}

/// Describes the durability levels of A and B in words, for titles. Figures of different levels cannot be compared, so
/// this returns an error if the two levels differ, unless `across` is true.
pub(crate) fn agree(a: &str, b: &str, across: bool) -> Result<String, BenchError> {
    match (a == b, across) {
        (true, _) if a == "-" => Ok("without writes".to_owned()),
        (true, _) => Ok(format!("durability {a}")),
        (false, true) => Ok(format!("DIFFERENT DURABILITIES: A {a}, B {b}")),
        (false, false) => Err(BenchError::Option {
            option: "A, B",
            message: format!(
                "the writes of A have durability {a}, those of B {b}: their figures are not comparable. Give both the \
                 same level with --durability, or in the settings of servers that speak RESP, or compare them \
                 nevertheless with --across-durabilities"
            ),
        }),
    }
}

/// Returns the table of the compared figures.
pub(crate) fn table(title: String, rows: &[Row]) -> Table {
    let mut table = Table::new(title);
    let has_scenarios = rows.iter().any(|row| row.scenario != rows[0].scenario);
    for Row { scenario, figure, effect, .. } in rows {
        let percent = |change: f64| Cell::from(signed(change));
        let mut row = if has_scenarios {
            cells! { "scenario" => scenario.as_str() }
        } else {
            Vec::new()
        };
        row.extend(cells! {
            "figure" => figure.as_str(), "A" => effect.a, "B" => effect.b, "change" => percent(effect.change),
            "interval from" => effect.interval.map(|(low, _)| signed(low)),
            "to" => effect.interval.map(|(_, high)| signed(high)),
            "B is" => effect.difference.name(),
        });
        table.row(row);
    }
    table
}

fn signed(change: f64) -> String {
    format!("{}{} %", if change > 0.0 { "+" } else { "" }, number(100.0 * change))
}

impl Row {
    /// Describes the result of the comparison by this figure in a sentence. `levels` names the durability levels.
    pub(crate) fn sentence(&self, levels: &str) -> String {
        let Self { figure, effect: Effect { a, b, change, interval, difference }, .. } = self;
        let values = format!("{figure} {} with A and {} with B ({levels})", number(*a), number(*b));
        let interval = interval.map_or_else(
            || format!("no interval, which needs at least {MIN_RUNS} valid runs of each side"),
            |(low, high)| format!("{:.0} % interval {} to {}", 100.0 * CONFIDENCE, signed(low), signed(high)),
        );
        match difference {
            Difference::NoVerdict => format!("No verdict: {values}; change {}, {interval}.", signed(*change)),
            Difference::NoneSeen => format!("No difference seen: {values}; change {}, {interval}.", signed(*change)),
            _ => format!("B is {}: {values}; change {}, {interval}.", difference.name(), signed(*change)),
        }
    }

    /// Creates the check that server B is not worse than server A in this figure.
    pub(crate) fn check(&self) -> Check {
        let verdict = match self.effect.difference {
            Difference::Worse => Verdict::Missed,
            Difference::Better | Difference::NoneSeen => Verdict::Met,
            Difference::NoVerdict => Verdict::Void,
        };
        Check {
            what: format!("{}, {}", self.scenario, self.figure),
            required: "B is not worse than A".to_owned(),
            measured: format!("{}, {}", signed(self.effect.change), self.effect.difference.name()),
            verdict,
            is_goal: false,
        }
    }
}

/// Creates the check that server B is not worse than server A, for a scenario whose deciding figure cannot be compared.
/// The check is void.
pub(super) fn undecided(scenario: &str, why: &str) -> Check {
    Check {
        what: scenario.to_owned(),
        required: "B is not worse than A".to_owned(),
        measured: format!("no verdict: {why}"),
        verdict: Verdict::Void,
        is_goal: false,
    }
}

/// Creates a void check if a stored report has void runs; `None` if it has none. `name` is the name of the report.
pub(crate) fn void_report(name: &str, stored: &StoredReport) -> Option<Check> {
    stored.first_invalid().map(|what| Check {
        what: format!("{name}: {what}"),
        required: "valid".to_owned(),
        measured: "void in the stored report".to_owned(),
        verdict: Verdict::Void,
        is_goal: false,
    })
}

/// Describes how the confidence intervals are computed, for a note of the report.
pub(crate) fn describe_method() -> String {
    format!(
        "each interval covers the true change with a probability of {:.0} %, also if one value is much like the one before \
         it (equally weighted cosines, Lazarus, Lewis, Stock and Watson 2018). One of twenty figures shows a difference \
         although there is none, so the figure that decides is fixed before the run: the rate in a closed loop, else the \
         99th percentile",
        100.0 * CONFIDENCE
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_lab::{comparison::compare_pairs, samples::Better};

    fn row(b: f64) -> Row {
        let a = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];
        let effect = compare_pairs(&a, &a.map(|value| value * b), Better::Higher).unwrap();
        Row { scenario: "put".to_owned(), figure: "requests/s".to_owned(), decides: true, effect }
    }

    #[test]
    fn different_levels_are_refused_unless_told_and_then_named() {
        assert_eq!(agree("disk", "disk", false).unwrap(), "durability disk");
        assert_eq!(agree("-", "-", false).unwrap(), "without writes");
        let error = agree("disk", "interval", false).unwrap_err().to_string();
        assert!(
            error.contains("disk") && error.contains("interval") && error.contains("--across-durabilities"),
            "{error}"
        );
        let title = agree("disk", "interval", true).unwrap();
        assert_eq!(title, "DIFFERENT DURABILITIES: A disk, B interval");
    }

    #[test]
    fn a_void_report_is_no_measure() {
        let scratch = crate::Scratch::below(None).unwrap();
        let stored = |verdict| {
            let mut report = crate::Report::begin("baseline", scratch.path());
            report.checks.push(Check { verdict, ..row(1.0).check() });
            let path = scratch.path().join("report.json");
            std::fs::write(&path, report.to_json()).unwrap();
            void_report("A", &StoredReport::read(&path).unwrap()).map(|check| check.verdict)
        };
        assert_eq!([Verdict::Met, Verdict::Missed, Verdict::Void].map(stored), [None, None, Some(Verdict::Void)]);
    }

    #[test]
    fn results_are_sentences_and_checks() {
        let sentence = row(1.5).sentence("durability disk");
        for part in ["B is better", "durability disk", "+50.0 %", "95 % interval"] {
            assert!(sentence.contains(part), "{part} in {sentence}");
        }
        assert_eq!(row(1.5).check().verdict, Verdict::Met);
        assert_eq!(row(0.5).check().verdict, Verdict::Missed);
        assert!(row(1.0).sentence("").starts_with("No difference seen"));
        let void = Row { effect: row(0.5).effect.of_void_runs(), ..row(0.5) };
        assert!(void.sentence("").starts_with("No verdict"), "{}", void.sentence(""));
        assert_eq!(void.check().verdict, Verdict::Void);
        assert_eq!(row(1.0).check().verdict, Verdict::Met);
    }

    #[test]
    fn a_table_names_scenarios_only_if_there_are_several() {
        assert_eq!(table("t".to_owned(), &[row(1.0), row(2.0)]).columns[0], "figure");
        let other = Row { scenario: "get".to_owned(), ..row(1.0) };
        assert_eq!(table("t".to_owned(), &[row(1.0), other]).columns[0], "scenario");
    }
}
