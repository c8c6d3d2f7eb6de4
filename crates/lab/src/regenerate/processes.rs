//! The process of one run, and its files.
//!
//! Owns: starting `thalweg bench`, or a shell command in the source tree, and judging how the process ended. Does not
//! own: the selection of the runs.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, ExitStatus, Stdio},
    time::Instant,
};

use serde::Deserialize;

use super::list::{Command, Figures, quoted};
use crate::BenchError;

/// Exit code of `thalweg bench` after a check was missed.
const MISSED: i32 = 4;
/// Exit code of `thalweg bench` after a void run or an error.
const FAILED: i32 = 1;
/// Word in the arguments of a comparison that stands for the running program.
const OWN_NAME: &str = "thalweg";

/// Result of one benchmark run, as the page with links shows it.
#[derive(Debug)]
pub(super) struct Done {
    pub figures: Figures,
    pub command: String,
    pub seconds: f64,
    pub outcome: Outcome,
    /// Result in one sentence. For a run with a report, it is the first sentence of the report's summary. For a program
    /// without a report, it is the last line of the program's output. For a failure, it is the reason.
    pub said: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Met,
    Missed,
    Void,
    /// A program of the source tree has ended without an error. Its output is not judged.
    Done,
    /// There is no report, or a program of the source tree has ended with an error.
    Failed,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Met => "all checks met",
            Self::Missed => "a check missed",
            Self::Void => "void",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Parts of a stored report that the page with links shows.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    summary: Vec<String>,
}

/// Paths that all runs share: the program, the source tree and the directory of the reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    /// Command that performs runs when it is called as `COMMAND bench`.
    pub program: &'a Path,
    /// Root of the source tree; `None` if it is not given.
    pub source: Option<&'a Path>,
    /// Directory for the reports and other files of all runs.
    pub into: &'a Path,
}

impl Places<'_> {
    /// Performs a run. Passes its command to `started` when it begins. The run's report, its progress and its output as
    /// text are files in one directory.
    pub(super) fn run(
        self,
        figures: &Figures,
        is_quick: bool,
        mut started: impl FnMut(&str),
    ) -> Result<Done, BenchError> {
        let json = self.file(figures, "json");
        let _ = fs::remove_file(&json);
        let (shown, mut command) = match figures.command {
            Command::Bench(_) => {
                let arguments = figures.arguments(is_quick).unwrap_or_default();
                let mut command = process::Command::new(self.program);
                command.arg("bench").args(self.with_own_name(&arguments)).arg("--output").arg(&json);
                command.arg("--html").arg(self.file(figures, "html"));
                (format!("thalweg bench {}", quoted(&arguments)), command)
            }
            Command::Source(line) => {
                let mut command = process::Command::new("sh");
                command.args(["-c", line]).env("THALWEG", self.program);
                command.current_dir(self.source.unwrap_or(Path::new(".")));
                (line.to_owned(), command)
            }
        };
        started(&shown);
        let create = |path: PathBuf| File::create(&path).map_err(BenchError::files(path));
        command
            .stdin(Stdio::null())
            .stdout(create(self.file(figures, "txt"))?)
            .stderr(create(self.file(figures, "log"))?);
        let begun = Instant::now();
        let status = command.status().map_err(BenchError::files(self.program))?;
        let (outcome, said) = self.judged(figures, status, &json);
        Ok(Done { figures: *figures, command: shown, seconds: begun.elapsed().as_secs_f64(), outcome, said })
    }

    fn file(self, figures: &Figures, extension: &str) -> PathBuf {
        self.into.join(format!("{}.{extension}", figures.name))
    }

    /// Returns the arguments of a comparison. The word [`OWN_NAME`] is replaced by the program's path.
    fn with_own_name<'b>(&'b self, arguments: &[&'b str]) -> Vec<&'b std::ffi::OsStr> {
        let path =
            |argument: &&'b str| if *argument == OWN_NAME { self.program.as_os_str() } else { (*argument).as_ref() };
        arguments.iter().map(path).collect()
    }

    fn judged(self, figures: &Figures, status: ExitStatus, json: &Path) -> (Outcome, String) {
        let of_file = |extension| last_line(&self.file(figures, extension));
        if matches!(figures.command, Command::Source(_)) {
            return if status.success() { (Outcome::Done, of_file("txt")) } else { (Outcome::Failed, of_file("log")) };
        }
        let stored = fs::read_to_string(json).ok().and_then(|text| serde_json::from_str::<Stored>(&text).ok());
        let outcome = outcome(status, stored.is_some());
        let said = stored.map(|stored| stored.summary.first().cloned().unwrap_or_default());
        (outcome, said.unwrap_or_else(|| of_file("log")))
    }
}

fn outcome(status: ExitStatus, has_report: bool) -> Outcome {
    match status.code() {
        Some(0) if has_report => Outcome::Met,
        Some(MISSED) if has_report => Outcome::Missed,
        Some(FAILED) if has_report => Outcome::Void,
        _ => Outcome::Failed,
    }
}

fn last_line(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}
