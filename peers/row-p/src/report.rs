//! Medians over rounds, their spread, and ratios to the other stores.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    subjects::SubjectKind,
    timing::{Measured, Quantiles, Unit},
};

/// All figures of a run, line by line in the order in which they were first measured.
#[derive(Debug, Serialize)]
pub struct Report {
    conditions: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    title: String,
    unit: Unit,
    cells: Vec<Cell>,
}

/// The figures of one store in one line.
#[derive(Debug, Serialize)]
struct Cell {
    subject: String,
    median: f64,
    /// Distance between the highest and the lowest round, as a share of the median.
    spread: f64,
    /// The median of Thalweg's rounds divided by this store's; `None` for Thalweg itself.
    of_this: Option<f64>,
    rounds: Vec<f64>,
    /// Latencies of each round in microseconds.
    micros: Vec<Quantiles>,
}

impl Report {
    /// Begins a report.
    pub fn new(subjects: &[SubjectKind], rounds: u32, quick: bool) -> Self {
        let mut conditions: Vec<String> = subjects.iter().map(|subject| subject.describe().to_owned()).collect();
        conditions.push(format!(
            "{rounds} rounds, stores in turn, a process for each store and workload; one thread; cache 256 MiB each; \
             mimalloc; every operation timed{}",
            if quick { "; a tenth of the operations: a look, no figure" } else { "" }
        ));
        conditions.push(
            "interval: synced once a second; fjall by a thread that calls persist, redb commits with Durability::None \
             and a thread commits with Immediate. disk: synced before each put returns. Reads of redb share one \
             transaction"
                .to_owned(),
        );
        Self { conditions, rows: Vec::new() }
    }

    /// Adds what one process measured.
    pub fn add(&mut self, subject: SubjectKind, figures: &[Measured]) {
        for figure in figures {
            let known = self.rows.iter().position(|row| row.title == figure.title);
            let at = known.unwrap_or_else(|| {
                self.rows.push(Row { title: figure.title.clone(), unit: figure.unit, cells: Vec::new() });
                self.rows.len() - 1
            });
            self.rows[at].add(&subject.to_string(), figure);
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The report as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for condition in &self.conditions {
            _ = writeln!(text, "{condition}");
        }
        let own = SubjectKind::Thalweg.to_string();
        for row in &self.rows {
            _ = writeln!(text, "\n{}", row.title);
            for cell in &row.cells {
                let name = if cell.subject == "probe" { "raw probe" } else { &*cell.subject };
                let value = match row.unit {
                    Unit::PerSecond => format!("{:>10.0} /s", cell.median),
                    Unit::OfPayload => format!("{:>10.2} × of the payload", cell.median),
                };
                _ = write!(text, "  {name:<10}{value}  spread {:>3.0} %", cell.spread * 100.0);
                if let Some(micros) = cell.middle() {
                    _ = write!(
                        text,
                        "  p50 {:.2}  p99 {:.2}  p99.9 {:.1}  max {:.0} µs",
                        micros.p50, micros.p99, micros.p999, micros.max
                    );
                }
                if let Some(ratio) = cell.of_this {
                    _ = write!(text, "  {own} {ratio:.2} × {name}");
                }
                text.push('\n');
            }
        }
        text
    }
}

impl Row {
    fn add(&mut self, subject: &str, figure: &Measured) {
        let at = self.cells.iter().position(|cell| cell.subject == subject).unwrap_or_else(|| {
            self.cells.push(Cell {
                subject: subject.to_owned(),
                median: 0.0,
                spread: 0.0,
                of_this: None,
                rounds: Vec::new(),
                micros: Vec::new(),
            });
            // The order of the table does not depend on whose turn was first.
            self.cells.sort_by_key(|cell| {
                ["thalweg", "fjall", "redb", "probe"].iter().position(|name| *name == cell.subject)
            });
            self.cells.iter().position(|cell| cell.subject == subject).unwrap_or_default()
        });
        let cell = &mut self.cells[at];
        cell.rounds.push(figure.value);
        cell.micros.extend(figure.micros);
        cell.median = median(&cell.rounds);
        let lowest = cell.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = cell.rounds.iter().copied().fold(0.0, f64::max);
        cell.spread = (highest - lowest) / cell.median;
        let own = self.cells.iter().find(|cell| cell.subject == "thalweg").map(|cell| cell.median);
        for cell in self.cells.iter_mut().filter(|cell| cell.subject != "thalweg") {
            cell.of_this = own.map(|own| own / cell.median);
        }
    }
}

impl Cell {
    /// The latencies of the round whose median latency is the median of all rounds.
    fn middle(&self) -> Option<Quantiles> {
        let mut rounds = self.micros.clone();
        rounds.sort_by(|left, right| left.p50.total_cmp(&right.p50));
        rounds.get(rounds.len() / 2).copied()
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_spreads_and_ratios() {
        let mut report = Report::new(&SubjectKind::STORES, 3, false);
        let figure = |value| Measured { title: "t [disk]".to_owned(), unit: Unit::PerSecond, value, micros: None };
        for (fjall, own) in [(10.0, 30.0), (12.0, 24.0), (8.0, 20.0)] {
            report.add(SubjectKind::Fjall, &[figure(fjall)]);
            report.add(SubjectKind::Thalweg, &[figure(own)]);
        }
        let [own, fjall] = &report.rows[0].cells[..] else { panic!("{report:?}") };
        assert_eq!((own.subject.as_str(), own.median, own.of_this), ("thalweg", 24.0, None));
        assert_eq!((fjall.median, fjall.spread, fjall.of_this), (10.0, 0.4, Some(2.4)));
        assert!(report.to_text().contains("thalweg 2.40 × fjall"), "{}", report.to_text());
        assert_eq!(median(&[1.0, 4.0]), 2.5);
    }
}
