//! Samples of a figure: its value in each run of a scenario, and in short windows of each run.
//!
//! Owns: the form in which reports store samples as JSON, and reading them back. Does not own their evaluation
//! ([`crate::comparison`]).

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{BenchError, Build, embedded};

/// Size in bytes of the largest report file that is read.
const MAX_REPORT_BYTES: u64 = 256 << 20;

/// Direction in which a measured value (figure) improves: up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A higher value is better, for example for a rate.
    Higher,
    /// A lower value is better, for example for a response time.
    Lower,
}

/// Use of a measured value (figure) when two measurements of one scenario are compared: it decides, is compared without
/// deciding, or is only shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The value decides which of two measurements of its scenario is better. Each scenario has one deciding value.
    Deciding,
    /// The value is compared, but does not decide which measurement is better.
    Compared,
    /// The value is shown but not compared, because the load determines it.
    Shown,
}

/// Values of one figure in the benchmark runs of one scenario (a kind of load), for comparisons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Name of the scenario with its load, such as `put, 1000/s constant, 64 connections`. Only figures of scenarios
    /// with equal names are compared.
    pub scenario: String,
    /// Durability level of the scenario's writes; `-` if the scenario does not write.
    pub durability: String,
    /// Name of the measured value (figure) with its unit, such as `p99 µs`.
    pub figure: String,
    /// Direction in which the measured value improves: up or down.
    pub better: Better,
    /// Use of the measured value in a comparison: it decides, is compared without deciding, or is only shown.
    pub role: Role,
    /// Length in seconds of the windows into which each benchmark run is divided.
    pub window_seconds: f64,
    /// Runs in the order in which they were made.
    pub runs: Vec<Run>,
}

/// Values of a figure in one benchmark run of its scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Value over the whole benchmark run; `None` if the run has none, for example because no reply arrived.
    pub whole: Option<f64>,
    /// Values in the windows of the benchmark run, in order; `None` for a window without a value.
    pub windows: Vec<Option<f64>>,
    /// True if the run must not be compared with others: it is void, the load generator limited its rate, or replies
    /// were wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_void: bool,
}

impl Samples {
    /// Returns the values over whole benchmark runs. Leaves out void runs and runs without a value.
    pub fn wholes(&self) -> Vec<f64> {
        self.runs.iter().filter(|run| !run.is_void).filter_map(|run| run.whole).collect()
    }

    /// Returns true if `other` is the same figure of the same scenario. The durability may differ.
    pub fn is_same_figure(&self, other: &Self) -> bool {
        (&self.scenario, &self.figure, self.better) == (&other.scenario, &other.figure, other.better)
    }
}

/// The parts of a stored report that a comparison needs. Other parts of the file are ignored.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredReport {
    /// Name of the benchmark suite that made the report.
    pub suite: String,
    /// Machine that the suite ran on.
    pub machine: StoredMachine,
    /// Build of Thalweg that the report describes.
    pub build: StoredBuild,
    /// Samples of the report's figures: their values in each benchmark run.
    #[serde(default)]
    pub samples: Vec<Samples>,
    /// Command-line arguments that repeat the measurement; empty unless the report is a baseline for comparisons.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Checks of the report, each with its verdict.
    #[serde(default)]
    pub checks: Vec<StoredCheck>,
}

/// Description of the machine in a stored report.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StoredMachine {
    /// CPU model of the machine.
    pub cpu: String,
    /// Number of CPU cores that the benchmark could use.
    pub cores: usize,
    /// Type of the filesystem that the measured directory was on.
    pub filesystem: String,
}

/// Description of the build in a stored report.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredBuild {
    /// Version of the Thalweg workspace that was measured.
    pub version: String,
    /// Build profile of the measured program: `release` or `debug`.
    pub profile: String,
    /// Commit from which the measured program was built, if it is known.
    pub commit: Option<String>,
    /// True if the source had changes that were not committed.
    #[serde(default)]
    pub dirty: bool,
}

/// Check of a stored report.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredCheck {
    /// Name of the figure that the check compares.
    pub what: String,
    /// Result of the check: `met`, `missed` or `void`.
    pub verdict: String,
}

impl StoredReport {
    /// Reads a report of at most 256 MiB from a JSON file, or from an HTML page that contains the JSON.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let size = fs::metadata(path).map_err(BenchError::files(path))?.len();
        let fail = BenchError::target(path.display());
        if size > MAX_REPORT_BYTES {
            return Err(fail(format!("{size} bytes are more than a report has")));
        }
        let text = fs::read_to_string(path).map_err(BenchError::files(path))?;
        let json = embedded::json_of(&text).unwrap_or(&text);
        serde_json::from_str(json).map_err(|error| {
            fail(format!("is not a report: {error}; write reports with thalweg bench http --output FILE"))
        })
    }

    /// Returns the samples. If the report has none, returns an error that names `path`.
    pub fn samples(&self, path: &Path) -> Result<&[Samples], BenchError> {
        if self.samples.is_empty() {
            let message = format!("is a report of the suite {} without samples of single runs", self.suite);
            return Err(BenchError::target(path.display())(message));
        }
        Ok(&self.samples)
    }

    /// Describes the measured build in a few words.
    pub fn build_name(&self) -> String {
        let StoredBuild { version, profile, commit, dirty } = &self.build;
        Build::name(version, profile, commit.as_deref(), *dirty)
    }

    /// Returns the name of the first check whose verdict is void; `None` if there is none.
    pub fn first_invalid(&self) -> Option<&str> {
        self.checks.iter().find(|check| check.verdict == "void").map(|check| &*check.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Report, Scratch};

    fn samples() -> Samples {
        Samples {
            scenario: "put".to_owned(),
            durability: "disk".to_owned(),
            figure: "p99 µs".to_owned(),
            better: Better::Lower,
            role: Role::Deciding,
            window_seconds: 0.5,
            runs: vec![
                Run { whole: Some(3.0), windows: vec![Some(2.0), None, Some(4.0)], is_void: false },
                Run { whole: Some(9.0), windows: Vec::new(), is_void: true },
                Run::default(),
            ],
        }
    }

    #[test]
    fn samples_of_a_report_are_read_back() {
        let scratch = Scratch::below(None).unwrap();
        let path = scratch.path().join("report.json");
        let mut report = Report::begin("http", scratch.path());
        report.samples.push(samples());
        fs::write(&path, report.to_json()).unwrap();
        let stored = StoredReport::read(&path).unwrap();
        assert_eq!(stored.samples(&path).unwrap(), [samples()]);
        assert_eq!(stored.samples[0].wholes(), [3.0]);
        assert_eq!(stored.machine.cpu, report.machine.cpu);
        let page = scratch.path().join("report.html");
        fs::write(&page, report.to_html()).unwrap();
        assert_eq!(StoredReport::read(&page).unwrap().samples, stored.samples);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let scratch = Scratch::below(None).unwrap();
        let path = scratch.path().join("x.json");
        assert!(StoredReport::read(&path).is_err());
        for text in ["", "[]", "{\"suite\": 1}", "{\"suite\":\"log\",\"machine\":null}"] {
            fs::write(&path, text).unwrap();
            assert!(StoredReport::read(&path).unwrap_err().to_string().contains("is not a report"), "{text}");
        }
        fs::write(&path, Report::begin("log", scratch.path()).to_json()).unwrap();
        let stored = StoredReport::read(&path).unwrap();
        assert!(stored.samples(&path).unwrap_err().to_string().contains("without samples"));
    }
}
