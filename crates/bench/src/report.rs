//! Reports of suites: as text or as a page for people, and as JSON for programs. All have the same figures.

mod html;
pub(crate) mod plots;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, ContentArrangement, Table as TextTable, presets};
use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::{
    BenchError, Scratch,
    machine::{Build, Machine},
    usage::{Cost, MeasuredProcess, Usage},
};

/// A finished run of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `log`, `engine`, `http`, `peers`.
    pub suite: &'static str,
    /// The machine that the suite ran on.
    pub machine: Machine,
    /// The build that was measured.
    pub build: Build,
    /// Conditions of the whole report: durability, backend, rounds, payload and so on.
    pub conditions: Vec<Condition>,
    /// The figures.
    pub tables: Vec<Table>,
    /// Figures as pictures; not in JSON, which has the figures.
    #[serde(skip)]
    pub plots: Vec<Plot>,
    /// Figures compared with their requirements.
    pub checks: Vec<Check>,
    /// Remarks without which the figures can be misread.
    pub notes: Vec<String>,
    /// Resources that this process used in the whole run.
    pub cost: Cost,
    /// How long the whole run took.
    pub seconds: f64,
    /// When the run began, and what this process had used by then.
    #[serde(skip)]
    begun: (Instant, Usage),
}

/// A named condition of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    /// Name of the condition.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// A table of figures.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title above the table.
    pub title: String,
    /// Column heads; also the keys of the rows in JSON.
    pub columns: Vec<&'static str>,
    /// Rows with as many cells as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A picture.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Name of its file, without the ending.
    pub name: String,
    /// Title above the picture.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// One value of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Text, aligned left.
    Text(String),
    /// A count.
    Count(u64),
    /// A measured number.
    Number(f64),
    /// The value was not measured, or does not apply.
    Missing(()),
}

/// A figure compared with its requirement.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the figure.
    pub what: String,
    /// The required value.
    pub required: String,
    /// The measured value.
    pub measured: String,
    /// Result of the comparison.
    pub verdict: Verdict,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The figure is as good as required, or better.
    Met,
    /// The figure is not as good as required.
    Missed,
    /// The measurement says nothing: generator saturated, errors, too few samples.
    Void,
}

impl Check {
    /// A measured ratio or rate that should be at least `required`.
    pub fn at_least(what: impl Into<String>, measured: f64, required: f64, unit: &str) -> Self {
        Self::compare(what, measured, ("at least", required), measured >= required, unit)
    }

    /// A measured value that should stay below `bound`.
    pub fn below(what: impl Into<String>, measured: f64, bound: f64, unit: &str) -> Self {
        Self::compare(what, measured, ("below", bound), measured < bound, unit)
    }

    fn compare(what: impl Into<String>, measured: f64, (how, bound): (&str, f64), is_met: bool, unit: &str) -> Self {
        Self {
            what: what.into(),
            required: format!("{how} {}{unit}", number(bound)),
            measured: format!("{}{unit}", number(measured)),
            verdict: match (measured.is_nan(), is_met) {
                (true, _) => Verdict::Void,
                (false, true) => Verdict::Met,
                (false, false) => Verdict::Missed,
            },
        }
    }
}

/// Declares how values become cells.
macro_rules! into_cell {
    ($($from:ty: $value:ident => $cell:expr;)*) => {
        $(impl From<$from> for Cell {
            fn from($value: $from) -> Self {
                $cell
            }
        })*
    };
}

into_cell! {
    &str: text => Self::Text(text.to_owned());
    String: text => Self::Text(text);
    u64: count => Self::Count(count);
    usize: count => Self::Count(count as u64);
    f64: value => if value.is_finite() { Self::Number(value) } else { Self::Missing(()) };
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing(()), Into::into)
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => grouped(*count),
            Self::Number(value) => number(*value),
            Self::Missing(()) => "-".to_owned(),
        }
    }
}

/// Named cells of a row, in the order of the columns.
pub type Row = Vec<(&'static str, Cell)>;

/// Makes a [`Row`] of names and values, each of which becomes a [`Cell`]: `cells! { "rate/s" => 5.0, "verdict" =>
/// "good" }`.
macro_rules! cells {
    ($($name:expr => $value:expr),* $(,)?) => {
        vec![$(($name, $crate::report::Cell::from($value))),*]
    };
}
pub(crate) use cells;

/// Creates a table with a row for each item. Its columns are declared once: title, and figure of an item. Figures may use
/// variables that are declared before them.
macro_rules! table {
    ($title:expr; $item:pat in $items:expr; $(let $variable:pat = $of:expr;)* $($name:literal => $value:expr),* $(,)?) => {{
        let mut table = $crate::report::Table::new($title);
        for $item in $items {
            $(let $variable = $of;)*
            table.row($crate::report::cells! { $($name => $value),* });
        }
        table
    }};
}

pub(crate) use table;

/// A byte count as a cell in MiB.
pub fn mebibytes(bytes: Option<u64>) -> Cell {
    bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)).into()
}

impl Table {
    /// Creates a table without rows; its first row names its columns.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), columns: Vec::new(), rows: Vec::new() }
    }

    /// Adds a row; panics if it has other columns than the first one.
    pub fn row(&mut self, row: Row) {
        let (columns, cells): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        if self.rows.is_empty() {
            self.columns = columns;
        } else {
            assert_eq!(columns, self.columns, "a row of {:?} has other columns", self.title);
        }
        self.rows.push(cells);
    }

    fn render(&self) -> String {
        let mut table = TextTable::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.columns.clone());
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| {
                let align = if matches!(cell, Cell::Text(_)) { CellAlignment::Left } else { CellAlignment::Right };
                comfy_table::Cell::new(cell.text()).set_alignment(align)
            }));
        }
        table.to_string()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Row<'a>(&'a [&'static str], &'a [Cell]);
        impl Serialize for Row<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some(self.0.len()))?;
                for (name, cell) in self.0.iter().zip(self.1) {
                    map.serialize_entry(name, cell)?;
                }
                map.end()
            }
        }
        let rows: Vec<Row<'_>> = self.rows.iter().map(|row| Row(&self.columns, row)).collect();
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("title", &self.title)?;
        map.serialize_entry("rows", &rows)?;
        map.end()
    }
}

/// Load above which a report warns.
const BUSY: f64 = 1.5;

impl Report {
    /// Creates a scratch directory below `dir`, and a report to be filled. The run's cost counts from here.
    pub fn begin_below(suite: &'static str, dir: Option<&Path>) -> Result<(Self, Scratch), BenchError> {
        let scratch = Scratch::below(dir)?;
        Ok((Self::begin(suite, scratch.path()), scratch))
    }

    /// Creates a report to be filled; `dir` is on the measured disk. The run's cost counts from here.
    pub fn begin(suite: &'static str, dir: &Path) -> Self {
        let mut notes = Vec::new();
        if cfg!(debug_assertions) {
            notes.push("this is a debug build: its figures mean nothing, measure with --release".to_owned());
        }
        let machine = Machine::detect(dir);
        if machine.load_before.is_some_and(|load| load > BUSY) {
            notes.push(
                "others were using the machine: trust the ratios more than the rates, and neither much".to_owned(),
            );
        }
        Self {
            suite,
            machine,
            build: Build::detect(),
            conditions: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            checks: Vec::new(),
            notes,
            cost: Cost::default(),
            seconds: 0.0,
            begun: (Instant::now(), Usage::read(MeasuredProcess::Own)),
        }
    }

    /// Adds the cost and the time of the run, which ends now.
    pub fn finish(mut self) -> Self {
        self.cost = Cost { fsyncs: self.cost.fsyncs, ..Usage::read(MeasuredProcess::Own).since(&self.begun.1) };
        self.seconds = self.begun.0.elapsed().as_secs_f64();
        self
    }

    /// Adds a circumstance.
    pub fn condition(&mut self, name: &'static str, value: impl Into<String>) {
        self.conditions.push(Condition { name, value: value.into() });
    }

    /// The worst verdict of the checks: what the exit status should follow.
    pub fn verdict(&self) -> Verdict {
        let any = |wanted| self.checks.iter().any(|check| check.verdict == wanted);
        if any(Verdict::Void) {
            Verdict::Void
        } else if any(Verdict::Missed) {
            Verdict::Missed
        } else {
            Verdict::Met
        }
    }

    /// Returns the report as JSON, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("reports hold only strings and numbers")
    }

    /// Writes the plots as SVG files to a directory, which is made if it is not there.
    pub fn save_plots(&self, dir: &Path) -> Result<(), BenchError> {
        fs::create_dir_all(dir).map_err(BenchError::files(dir))?;
        for plot in &self.plots {
            let path = dir.join(format!("{}.svg", plot.name));
            fs::write(&path, &plot.svg).map_err(BenchError::files(&path))?;
        }
        Ok(())
    }

    /// Returns the report as text with tables.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write_head(&mut out);
        for table in &self.tables {
            let _ = write!(out, "\n{}\n\n{}\n", table.title, table.render());
        }
        if !self.checks.is_empty() {
            let mut table = Table::new("checks");
            for check in &self.checks {
                let verdict = match check.verdict {
                    Verdict::Met => "met",
                    Verdict::Missed => "MISSED",
                    Verdict::Void => "VOID",
                };
                table.row(cells! {
                    "figure" => check.what.as_str(), "required" => check.required.as_str(),
                    "measured" => check.measured.as_str(), "verdict" => verdict,
                });
            }
            let _ = write!(out, "\n{}\n\n{}\n", table.title, table.render());
        }
        for note in &self.notes {
            let _ = write!(out, "\nNote: {note}\n");
        }
        out
    }

    fn write_head(&self, out: &mut String) {
        let machine = &self.machine;
        let _ = writeln!(
            out,
            "thalweg bench {}: version {} ({}, commit {})",
            self.suite,
            self.build.version,
            self.build.profile,
            self.build.commit.as_deref().unwrap_or("unknown"),
        );
        let _ = writeln!(
            out,
            "machine: {}, {} cores, {:.1} GiB, Linux {}, {}, load before the run {}",
            machine.cpu,
            machine.cores,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.kernel,
            machine.filesystem,
            Cell::from(machine.load_before).text(),
        );
        for condition in &self.conditions {
            let _ = writeln!(out, "{}: {}", condition.name, condition.value);
        }
        let _ = writeln!(
            out,
            "whole run, this process: {:.1} s, CPU {:.1} s, fsyncs {}, written {} MiB, peak RSS {} MiB",
            self.seconds,
            self.cost.cpu_seconds,
            Cell::from(self.cost.fsyncs).text(),
            mebibytes(self.cost.written_bytes).text(),
            mebibytes(self.cost.peak_rss_bytes).text(),
        );
    }
}

/// Three significant digits, or all digits of the whole part with separators.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if size >= 100.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(size.round() as u64))
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 || size == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a duration with a fitting unit.
pub fn duration(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{} µs", number(n / 1e3)),
        n if n < 1e9 => format!("{} ms", number(n / 1e6)),
        n => format!("{} s", number(n / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let mut report = Report::begin("log", Path::new("."));
        report.condition("durability", "disk");
        let mut table = Table::new("appends");
        table.row(cells! {
            "batch" => "10", "rate/s" => 12_345.6, "missing" => f64::NAN,
        });
        report.tables.push(table);
        report.checks.push(Check::at_least("rate against probe", 0.9, 0.85, " ×"));
        report.checks.push(Check::below("p99 against fdatasync", 5.0, 4.0, " ×"));
        report
    }

    #[test]
    fn text_and_json_say_the_same() {
        let report = sample();
        let text = report.to_text();
        for part in ["cores", "durability: disk", "12,346", "0.900 ×", "MISSED", "peak RSS"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["tables"][0]["rows"][0]["rate/s"], 12_345.6);
        assert!(json["tables"][0]["rows"][0]["missing"].is_null());
        assert_eq!(json["checks"][0]["verdict"], "met");
        assert!(json["machine"]["kernel"].is_string());
    }

    #[test]
    fn the_worst_check_decides() {
        let mut report = sample();
        assert_eq!(report.verdict(), Verdict::Missed);
        report.checks.push(Check::at_least("nothing measured", f64::NAN, 1.0, ""));
        assert_eq!(report.verdict(), Verdict::Void);
        report.checks.clear();
        assert_eq!(report.verdict(), Verdict::Met);
    }

    #[test]
    fn numbers_are_written_for_people() {
        let shown: Vec<_> = [0.0, 0.1234, 1.234, 12.34, 123.4, 1_234_567.0, -2000.0].map(number).to_vec();
        assert_eq!(shown, ["0.00", "0.123", "1.23", "12.3", "123", "1,234,567", "-2,000"]);
        assert_eq!(duration(Duration::from_micros(1500)), "1.50 ms");
    }
}
