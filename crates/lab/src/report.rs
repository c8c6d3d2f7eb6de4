//! Reports of suites: as text or as an HTML page for people, and as JSON for programs. All forms have the same figures.
//!
//! Owns: the types of a report, its checks and verdict, and its text and JSON. Does not own: the HTML page (`html`),
//! the drawing of plots (`plots`), or the figures, which the suites measure.

#[cfg(test)]
mod browser;
#[cfg(test)]
mod browser_tests;
#[cfg(test)]
#[allow(unreachable_pub, reason = "a file of another crate's tests")]
#[path = "../../thalweg/tests/node/chromium.rs"]
mod chromium;
mod derived;
mod escape;
mod html;
pub mod index;
mod numbers;
mod over_time;
pub mod plots;
#[cfg(test)]
#[allow(unreachable_pub, reason = "a file of another crate's tests")]
#[path = "../../thalweg/tests/node/skip.rs"]
pub(crate) mod skip;
mod words;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, ContentArrangement, Table as TextTable, presets};
use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::{
    BenchError, Samples, Scratch, Spectrum,
    machine::{Build, Machine},
    usage::{Cost, MeasuredProcess, Usage},
};

/// Report of a suite's run: conditions, tables of figures, plots and checks.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark suite, such as `log`, `engine` or `http`.
    pub suite: &'static str,
    /// Command line of the process, with secrets left out.
    pub command: String,
    /// Description of the machine that the suite ran on.
    pub machine: Machine,
    /// Build of the program that generated the load. It is also the measured build, unless a condition names another
    /// one.
    pub build: Build,
    /// Main findings in sentences. A report shows them first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<String>,
    /// Conditions that hold for the whole report, such as durability, backend, rounds and payload.
    pub conditions: Vec<Condition>,
    /// Tables of the measured figures.
    pub tables: Vec<Table>,
    /// Values of the figures in each single run and in short windows of each run. Comparisons of two reports use these
    /// values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Samples>,
    /// Distributions of all response times: one for each benchmark run, or for each kind of request in a run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spectra: Vec<Spectrum>,
    /// Command-line arguments that repeat the measurement. Empty unless the report is a baseline for later comparisons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Plots of the figures. JSON reports omit plots, because they contain the figures as tables, samples and spectra.
    /// Flame graphs therefore are in no JSON report.
    #[serde(skip)]
    pub plots: Vec<Plot>,
    /// Comparisons of figures with their required values.
    pub checks: Vec<Check>,
    /// Remarks that prevent readers from misunderstanding the figures.
    pub notes: Vec<String>,
    /// Resources that this process used in the whole benchmark run.
    pub cost: Cost,
    /// Duration of the whole benchmark run in seconds.
    pub seconds: f64,
    /// Time at which the benchmark run began, and the resources that this process had used before.
    #[serde(skip)]
    begun: (Instant, Usage),
}

/// Condition of a benchmark run as a name and a value, such as the durability level of its writes.
#[derive(Clone, Debug, Serialize)]
pub struct Condition {
    /// Name of the condition, such as `durability`.
    pub name: &'static str,
    /// Value of the condition.
    pub value: String,
}

/// A table of measured figures in a report.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title above the table.
    pub title: String,
    /// Headings of the columns. They are also the keys of the rows in JSON.
    pub columns: Vec<&'static str>,
    /// Lines of the table. Each has as many cells as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// Plot of figures as an SVG image.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Name of the plot's file, without the extension.
    pub name: String,
    /// Title above the plot. It is not part of the drawing.
    pub title: String,
    /// Sentences that explain how to read the plot.
    pub caption: String,
    /// SVG source of the plot. A page that shows it must contain the style of plots.
    pub svg: String,
    /// SVG source of the plot in a layout for narrow screens. A page that shows it must contain the style of plots.
    pub narrow: String,
    /// Kind of the plot. It determines the plot's place in a report.
    pub kind: PlotKind,
}

/// Kind of a plot. Reports show plots in the order of these kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlotKind {
    /// A plot of the measured figures. If a report has none, it gets plots of its tables.
    Figures,
    /// A plot that divides a figure into its parts, such as the time of a write into its stages.
    Parts,
    /// A plot of a profile. Because it is too detailed for a page, an HTML report also gets it as a file of its own.
    Profile,
}

/// Value of one cell of a report's table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// Text that is aligned to the left.
    Text(String),
    /// A whole number, such as a count.
    Count(u64),
    /// A measured number, shown with three significant digits.
    Number(f64),
    /// No value: the figure was not measured, or the column does not apply to this row.
    Missing(()),
}

/// Tables, checks and notes from one step of a suite, which the suite then adds to its report.
#[derive(Debug, Default)]
pub struct Figures {
    /// Tables of the figures that this step of the suite has measured.
    pub tables: Vec<Table>,
    /// Comparisons of figures from this step of the suite with their required values.
    pub checks: Vec<Check>,
    /// Remarks about the figures from this step of the suite.
    pub notes: Vec<String>,
}

/// Comparison of a measured figure with its required value.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the compared figure.
    pub what: String,
    /// The required value, as text.
    pub required: String,
    /// The measured value, as text.
    pub measured: String,
    /// Result of the comparison.
    pub verdict: Verdict,
    /// True if the required value is a goal of Thalweg's developers for their machine. Such a goal says nothing about a
    /// run on another machine. Other checks require a valid run, or a result that the user requests.
    pub is_goal: bool,
}

/// Result of comparing a figure with its required value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The figure is as good as required, or better.
    Met,
    /// The figure is not as good as required.
    Missed,
    /// The measurement is not valid: the load generator was saturated, there were errors, or there were too few
    /// samples.
    Void,
}

impl Check {
    /// Creates a check of a goal: the measured ratio or rate should be at least `required`.
    pub fn at_least(what: impl Into<String>, measured: f64, required: f64, unit: &str) -> Self {
        Self::compare(what, measured, ("at least", required), measured >= required, unit)
    }

    /// Creates a check of a goal: the measured value should stay below `bound`.
    pub fn below(what: impl Into<String>, measured: f64, bound: f64, unit: &str) -> Self {
        Self::compare(what, measured, ("below", bound), measured < bound, unit)
    }

    /// Creates a check of a goal: the measured value should be at most `bound`.
    pub fn at_most(what: impl Into<String>, measured: f64, bound: f64, unit: &str) -> Self {
        Self::compare(what, measured, ("at most", bound), measured <= bound, unit)
    }

    fn compare(what: impl Into<String>, measured: f64, (how, bound): (&str, f64), is_met: bool, unit: &str) -> Self {
        Self {
            what: what.into(),
            required: format!("{how} {}{unit}", number(bound)),
            measured: format!("{}{unit}", number(measured)),
            // A ratio to zero is infinite or NaN. Such a value makes the check void.
            verdict: match (measured.is_finite(), is_met) {
                (false, _) => Verdict::Void,
                (true, true) => Verdict::Met,
                (true, false) => Verdict::Missed,
            },
            is_goal: true,
        }
    }

    /// Marks the check as requested by the user instead of as a goal of the developers. Such a check is shown on every
    /// machine, and a missed one changes the exit status of the process.
    #[must_use]
    pub fn asked_for(self) -> Self {
        Self { is_goal: false, ..self }
    }
}

/// Implements `From` for [`Cell`], so that values of these types become cells of a table.
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
            Self::Count(count) => numbers::grouped(*count),
            Self::Number(value) => number(*value),
            Self::Missing(()) => "-".to_owned(),
        }
    }
}

/// Cells of one table row in the order of the columns, each with the name of its column.
pub type Row = Vec<(&'static str, Cell)>;

/// Makes a [`Row`] of column names and values: `cells! { "rate/s" => 5.0, "verdict" => "good" }`. Each value becomes a
/// [`Cell`].
#[macro_export]
macro_rules! cells {
    ($($name:expr => $value:expr),* $(,)?) => {
        vec![$(($name, $crate::report::Cell::from($value))),*]
    };
}

/// Creates a [`Table`] with a row for each item of a collection. The caller declares each column once, with its title
/// and the expression that computes an item's value. The expressions may use variables that are declared before the
/// columns.
#[macro_export]
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

pub use self::numbers::number;
pub use crate::{cells, table};

/// Converts a number of bytes to a table cell in MiB; `None` gives an empty cell.
pub fn mebibytes(bytes: Option<u64>) -> Cell {
    bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)).into()
}

impl Table {
    /// Creates a table without rows. The first row that is added names the columns.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), columns: Vec::new(), rows: Vec::new() }
    }

    /// Adds a row to the table. Panics if its columns are not those of the first row.
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

/// Maximum number of complete percentile spectra that a report prints as text.
const MAX_SPECTRA: usize = 3;

/// Load average of the machine above which a report warns that other programs were running.
const BUSY: f64 = 1.5;

impl Report {
    /// Creates a scratch directory below `dir`, and an empty report. The report's duration and resource usage count
    /// from this call on.
    pub fn begin_below(suite: &'static str, dir: Option<&Path>) -> Result<(Self, Scratch), BenchError> {
        let scratch = Scratch::below(dir)?;
        Ok((Self::begin(suite, scratch.path()), scratch))
    }

    /// Creates an empty report. `dir` is on the measured disk. The report's duration and resource usage count from this
    /// call on.
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
            command: command_line(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())),
            machine,
            build: Build::detect(),
            summary: Vec::new(),
            conditions: Vec::new(),
            tables: Vec::new(),
            samples: Vec::new(),
            spectra: Vec::new(),
            arguments: Vec::new(),
            plots: Vec::new(),
            checks: Vec::new(),
            notes,
            cost: Cost::default(),
            seconds: 0.0,
            begun: (Instant::now(), Usage::read(MeasuredProcess::Own)),
        }
    }

    /// Ends the benchmark run: stores its duration and its resource usage in the report.
    pub fn finish(mut self) -> Self {
        self.cost = Cost { fsyncs: self.cost.fsyncs, ..Usage::read(MeasuredProcess::Own).since(&self.begun.1) };
        self.seconds = self.begun.0.elapsed().as_secs_f64();
        self
    }

    /// Adds a condition of the benchmark run, such as its durability level, to the report.
    pub fn condition(&mut self, name: &'static str, value: impl Into<String>) {
        self.conditions.push(Condition { name, value: value.into() });
    }

    /// Removes the checks of the developers' goals from the report. If there were any, adds a note that they were
    /// removed.
    #[must_use]
    pub fn without_goals(mut self) -> Self {
        let before = self.checks.len();
        self.checks.retain(|check| !check.is_goal);
        let goals = before - self.checks.len();
        if goals > 0 {
            let goals = if goals == 1 { "1 goal".to_owned() } else { format!("{goals} goals") };
            self.notes.push(format!(
                "the figures are not compared with {goals} for the machine of docs/performance.md; --goals compares them"
            ));
        }
        self
    }

    /// Returns the worst verdict of the report's checks. It determines the exit status of the process.
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

    /// Writes the report's plots as SVG files to a directory. Creates the directory if it does not exist.
    pub fn save_plots(&self, dir: &Path) -> Result<(), BenchError> {
        fs::create_dir_all(dir).map_err(BenchError::files(dir))?;
        for plot in &self.plots {
            let path = dir.join(format!("{}.svg", plot.name));
            fs::write(&path, plot.file()).map_err(BenchError::files(&path))?;
        }
        Ok(())
    }

    /// Writes the report as an HTML page to a file, such as `report.html`. Plots that are too large for the page are
    /// also written as SVG files beside it, such as `report-flame-cpu.svg`.
    pub fn save_html(&self, path: &Path) -> Result<(), BenchError> {
        fs::write(path, self.to_html()).map_err(BenchError::files(path))?;
        let page = path.file_stem().unwrap_or_default().to_string_lossy();
        for plot in self.plots.iter().filter(|plot| plot.kind == PlotKind::Profile) {
            let beside = path.with_file_name(format!("{page}-{}.svg", plot.name));
            fs::write(&beside, plot.file()).map_err(BenchError::files(&beside))?;
        }
        Ok(())
    }

    /// Returns the report as text with tables.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write_head(&mut out);
        if !self.summary.is_empty() {
            let _ = write!(out, "\n{}\n", self.summary.join("\n"));
        }
        for table in &self.tables {
            let _ = write!(out, "\n{}\n\n{}\n", table.title, table.render());
        }
        match &*self.spectra {
            [] => {}
            few if few.len() <= MAX_SPECTRA => {
                few.iter().for_each(|spectrum| {
                    let _ = write!(out, "\n{}", spectrum.to_text());
                });
            }
            many => {
                let _ = write!(out, "\n{} whole percentile spectra: see --html and --output\n", many.len());
            }
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
        let _ = writeln!(out, "thalweg bench {}: {}", self.suite, self.build_line());
        let _ = writeln!(out, "machine: {}", self.machine_line());
        for condition in &self.conditions {
            let _ = writeln!(out, "{}: {}", condition.name, condition.value);
        }
        let _ = writeln!(out, "whole run, this process: {}", self.cost_line());
    }

    fn build_line(&self) -> String {
        let Build { version, profile, commit, dirty } = &self.build;
        Build::name(version, profile, commit.as_deref(), *dirty)
    }

    fn machine_line(&self) -> String {
        let machine = &self.machine;
        format!(
            "{}, {} cores, {:.1} GiB, Linux {}, {}, load before the run {}",
            machine.cpu,
            machine.cores,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.kernel,
            machine.filesystem,
            Cell::from(machine.load_before).text(),
        )
    }

    fn cost_line(&self) -> String {
        format!(
            "{:.1} s, CPU {:.1} s, fsyncs {}, read {} MiB, written {} MiB, context switches {}, peak RSS {} MiB",
            self.seconds,
            self.cost.cpu_seconds,
            Cell::from(self.cost.fsyncs).text(),
            mebibytes(self.cost.read_bytes).text(),
            mebibytes(self.cost.written_bytes).text(),
            Cell::from(self.cost.switches.map(|switches| switches.voluntary + switches.involuntary)).text(),
            mebibytes(self.cost.peak_rss_bytes).text(),
        )
    }

    /// Returns the durability of the report's writes in words, for titles; `None` if no condition names it.
    fn durability(&self) -> Option<String> {
        let named = self.conditions.iter().find(|condition| matches!(condition.name, "durability" | "levels"));
        // A condition may add an explanation after the level and a colon.
        let named = named.map(|Condition { name, value }| match value.split_once(':') {
            Some((level, _)) if *name == "durability" => level.to_owned(),
            _ => value.clone(),
        });
        let mut levels: Vec<&str> = Vec::new();
        for level in self.samples.iter().map(|samples| &*samples.durability).filter(|level| *level != "-") {
            if !levels.contains(&level) {
                levels.push(level);
            }
        }
        let level = named.or_else(|| (!levels.is_empty()).then(|| levels.join(" and ")))?;
        Some(if level.to_lowercase().contains("durabilit") || level == "without writes" {
            level
        } else {
            format!("durability {level}")
        })
    }
}

/// Formats a command line as a user would type it, but without the values of passwords.
fn command_line(arguments: impl IntoIterator<Item = String>) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=,:@+%".contains(c);
    let mut words = Vec::new();
    let mut is_secret = false;
    for argument in arguments {
        let is_flag = argument.starts_with("--") && argument.contains("password");
        let shown = match argument.split_once('=') {
            _ if is_secret => "***".to_owned(),
            Some((flag, _)) if is_flag => format!("{flag}=***"),
            _ if !argument.is_empty() && argument.chars().all(is_plain) => argument.clone(),
            _ => format!("'{}'", argument.replace('\'', "'\\''")),
        };
        is_secret = !is_secret && is_flag && !argument.contains('=');
        words.push(shown);
    }
    words.join(" ")
}

/// Formats a duration with a unit that suits its length.
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
        for ratio in [f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Check::at_least("nothing to divide by", ratio, 1.0, " ×").verdict, Verdict::Void);
            assert_eq!(Check::below("nothing to divide by", ratio, 1.0, " ×").verdict, Verdict::Void);
        }
        report.checks.clear();
        assert_eq!(report.verdict(), Verdict::Met);
    }

    #[test]
    fn goals_are_left_out_and_other_checks_stay() {
        let mut report = sample();
        report.checks.push(Check::below("p99", 5.0, 4.0, " ms").asked_for());
        let report = report.without_goals();
        assert_eq!(report.checks.len(), 1);
        assert_eq!(report.verdict(), Verdict::Missed, "what the user asks for decides");
        let text = report.to_text();
        assert!(!text.contains("0.850 ×") && text.contains("2 goals") && text.contains("--goals"), "{text}");
    }

    #[test]
    fn a_command_line_can_be_typed_and_has_no_secrets() {
        let line = |arguments: &[&str]| command_line(arguments.iter().map(|&argument| argument.to_owned()));
        assert_eq!(line(&["thalweg", "bench", "--search", "p99<5ms", ""]), "thalweg bench --search 'p99<5ms' ''");
        assert_eq!(line(&["a", "--password", "x y", "--password=z", "b"]), "a --password *** --password=*** b");
        assert_eq!(line(&["it's"]), "'it'\\''s'");
    }

    #[test]
    fn the_durability_is_named_for_titles() {
        let named = |name, value: &str| {
            let mut report = Report::begin("log", Path::new("."));
            report.condition(name, value);
            report.durability()
        };
        assert_eq!(named("durability", "disk: synced").as_deref(), Some("durability disk"));
        let different = "DIFFERENT DURABILITIES: A disk, B interval";
        assert_eq!(named("levels", different).as_deref(), Some(different));
        assert_eq!(named("rounds", "3"), None);
    }

    #[test]
    fn durations_are_written_for_people() {
        assert_eq!(duration(Duration::from_micros(1500)), "1.50 ms");
    }
}
