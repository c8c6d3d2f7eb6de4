//! `thalweg bench report`: repeats the runs that give the figures of docs/performance.md, one after the other, into a
//! directory.
//!
//! Owns: the list of the runs (`list`), running each in a process of its own, so that none leaves memory or threads to the
//! next, and the page with links to their reports. Does not own: the suites.

mod list;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Instant,
};

use serde::Deserialize;

use self::list::{ALL, Figures};
use crate::{
    BenchError, Progress, Report,
    report::{
        Check, Table, Verdict, cells,
        index::{Entry, index_page},
    },
};

/// Exit code of `thalweg bench` after a check was missed.
const MISSED: i32 = 4;
/// Exit code of `thalweg bench` after a void run, or an error.
const FAILED: i32 = 1;

/// Options of `thalweg bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct RegenerateOptions {
    /// Run everything that docs/performance.md has figures of.
    #[arg(long, required_unless_present_any = ["only", "list"])]
    pub all: bool,
    /// Run only the runs with one of these texts in their name or section, such as http or "The engine"; separated by
    /// commas.
    #[arg(long, value_delimiter = ',', value_name = "TEXT", conflicts_with = "all")]
    pub only: Vec<String>,
    /// Print the runs with their commands instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Make the runs short. Their figures then only show that the runs work on this machine. Runs without a shorter form
    /// are left out.
    #[arg(long)]
    pub quick: bool,
    /// Directory for the reports, which is created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "figures")]
    pub into: PathBuf,
    /// Command to run as `COMMAND bench`; by default this program.
    #[arg(long, value_name = "COMMAND")]
    pub program: Option<PathBuf>,
}

/// Result of one run.
#[derive(Debug)]
struct Done {
    figures: Figures,
    command: String,
    seconds: f64,
    outcome: Outcome,
    /// First sentence of the report's summary, or the reason of a failure.
    said: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Met,
    Missed,
    Void,
    /// There is no report.
    Failed,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Met => "all checks met",
            Self::Missed => "a check missed",
            Self::Void => "void",
            Self::Failed => "failed",
        }
    }
}

/// The part of a stored report that the list of reports shows.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    summary: Vec<String>,
}

impl RegenerateOptions {
    /// Returns the list of the runs if the options request it instead of running them.
    pub fn printed(&self) -> Result<Option<String>, BenchError> {
        if !self.list {
            return Ok(None);
        }
        let line = |(figures, arguments): &(Figures, Vec<&str>)| {
            format!("{:18} {:28} thalweg bench {}", figures.name, figures.section, quoted(arguments))
        };
        Ok(Some(self.runs()?.iter().map(line).collect::<Vec<_>>().join("\n")))
    }

    /// Returns the runs that the options select, with their arguments.
    fn runs(&self) -> Result<Vec<(Figures, Vec<&'static str>)>, BenchError> {
        let is_wanted = |figures: &&Figures| {
            let has = |text: &String| figures.name.contains(&**text) || figures.section.contains(&**text);
            self.only.is_empty() || self.only.iter().any(has)
        };
        let wanted = ALL.iter().filter(is_wanted);
        let runs: Vec<_> = wanted.filter_map(|figures| Some((*figures, figures.arguments(self.quick)?))).collect();
        check_any(&runs)?;
        Ok(runs)
    }
}

/// Returns an error if no run was chosen.
fn check_any<T>(runs: &[T]) -> Result<(), BenchError> {
    if runs.is_empty() {
        let message = "matches no run: --list shows their names and sections".to_owned();
        return Err(BenchError::Option { option: "--only", message });
    }
    Ok(())
}

/// Runs everything that the options select, and returns a report about it.
pub fn run(options: &RegenerateOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let runs = options.runs()?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(BenchError::files("the running command"))?,
    };
    fs::create_dir_all(&options.into).map_err(BenchError::files(&options.into))?;
    let mut report = Report::begin("report", &options.into);
    let mut all = Vec::new();
    for (number, (figures, arguments)) in runs.iter().enumerate() {
        progress.step(&format!("{} of {}: thalweg bench {}", number + 1, runs.len(), quoted(arguments)));
        let done = one(&program, figures, arguments, &options.into)?;
        progress.step(&format!("{}: {} after {:.0} s. {}", figures.name, done.outcome.name(), done.seconds, done.said));
        all.push(done);
        write_index(&options.into, &all, options.quick)?;
    }
    report.condition("directory", options.into.display().to_string());
    report.condition("page", options.into.join("index.html").display().to_string());
    describe(&mut report, &all, options.quick);
    Ok(report.finish())
}

/// Runs one suite in a process of its own. Its progress and its report as text are in files beside the others.
fn one(program: &Path, figures: &Figures, arguments: &[&'static str], dir: &Path) -> Result<Done, BenchError> {
    let path = |extension: &str| dir.join(format!("{}.{extension}", figures.name));
    let file = |path: PathBuf| File::create(&path).map_err(BenchError::files(path));
    let json = path("json");
    let _ = fs::remove_file(&json);
    let mut command = Command::new(program);
    command.arg("bench").args(arguments).arg("--output").arg(&json).arg("--html").arg(path("html"));
    command.stdin(Stdio::null()).stdout(file(path("txt"))?).stderr(file(path("log"))?);
    let begun = Instant::now();
    let status = command.status().map_err(BenchError::files(program))?;
    let stored = fs::read_to_string(&json).ok().and_then(|text| serde_json::from_str::<Stored>(&text).ok());
    let outcome = outcome(status, stored.is_some());
    let said = match &stored {
        Some(stored) => stored.summary.first().cloned().unwrap_or_default(),
        None => last_line(&path("log")),
    };
    let command = format!("thalweg bench {}", quoted(arguments));
    Ok(Done { figures: *figures, command, seconds: begun.elapsed().as_secs_f64(), outcome, said })
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
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned()
}

fn describe(report: &mut Report, all: &[Done], is_quick: bool) {
    let mut table = Table::new("runs");
    for Done { figures, command, seconds, outcome, said } in all {
        table.row(cells! {
            "run" => figures.name, "section of docs/performance.md" => figures.section, "command" => command.as_str(),
            "seconds" => *seconds, "outcome" => outcome.name(), "result" => said.as_str(),
        });
    }
    report.tables.push(table);
    let failed: Vec<&str> =
        all.iter().filter(|done| done.outcome == Outcome::Failed).map(|done| done.figures.name).collect();
    report.checks.push(Check {
        what: "runs with a report".to_owned(),
        required: all.len().to_string(),
        measured: format!("{}{}", all.len() - failed.len(), if failed.is_empty() { "" } else { ", without: " })
            + &failed.join(", "),
        verdict: if failed.is_empty() { Verdict::Met } else { Verdict::Missed },
        is_goal: false,
    });
    if is_quick {
        report.notes.push("the runs were short (--quick): their figures only show that the runs work".to_owned());
    }
}

/// Writes the page with links to the reports. It is written after each run, so that it exists when a run is interrupted.
fn write_index(dir: &Path, all: &[Done], is_quick: bool) -> Result<(), BenchError> {
    let entry = |done: &Done| {
        let links: Vec<String> = ["html", "json", "txt", "log"]
            .map(|extension| format!("{}.{extension}", done.figures.name))
            .into_iter()
            .filter(|file| dir.join(file).exists())
            .collect();
        Entry {
            section: done.figures.section.to_owned(),
            name: done.figures.name.to_owned(),
            command: done.command.clone(),
            outcome: format!("{}, {:.0} s", done.outcome.name(), done.seconds),
            is_good: done.outcome == Outcome::Met,
            said: done.said.clone(),
            links,
        }
    };
    let title = if is_quick {
        "Figures of short runs, which only show that they work"
    } else {
        "Figures of docs/performance.md"
    };
    let page = index_page(title, &all.iter().map(entry).collect::<Vec<_>>());
    let path = dir.join("index.html");
    fs::write(&path, page).map_err(BenchError::files(path))
}

/// Returns arguments as one types them.
fn quoted(arguments: &[&str]) -> String {
    let one = |argument: &&str| {
        if argument.contains(['<', '>', '\'']) { format!("'{argument}'") } else { (*argument).to_owned() }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser as _;

    use super::*;
    use crate::{Quiet, Scratch};

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: RegenerateOptions,
    }

    fn options(flags: &[&str]) -> RegenerateOptions {
        Cli::parse_from(["bench"].iter().chain(flags)).options
    }

    #[test]
    fn the_runs_are_selected_and_listed() {
        assert!(Cli::try_parse_from(["bench"]).is_err(), "something must be asked for");
        assert_eq!(options(&["--all"]).runs().unwrap().len(), ALL.len());
        let list = options(&["--only", "http,The log", "--list"]).printed().unwrap().unwrap();
        assert_eq!(list.lines().count(), 5, "{list}");
        assert!(list.contains("thalweg bench http --search 'p99<5ms' --mix put"), "{list}");
        let quick = options(&["--only", "http,cluster", "--quick"]).runs().unwrap();
        assert_eq!(quick.len(), 6, "three of HTTP; Redis clients, a snapshot and TLS of the cluster");
        assert!(options(&["--only", "nonsense"]).runs().unwrap_err().to_string().contains("--list"));
        assert!(options(&["--all"]).printed().unwrap().is_none());
    }

    /// A program in place of thalweg: the engine's runs write a report, the others fail.
    const PROGRAM: &str = r#"#!/bin/sh
echo "the text of $2"
case "$2" in engine) ;; *) echo "no such disk" >&2; exit 1 ;; esac
while [ $# -gt 0 ]; do
  case "$1" in
    --output) echo '{"summary":["It was <fast>."]}' > "$2" ;;
    --html) echo '<!DOCTYPE html>' > "$2" ;;
  esac
  shift
done
exit 4
"#;

    #[test]
    fn runs_that_fail_do_not_stop_the_others() {
        let scratch = Scratch::below(None).unwrap();
        let (program, into) = (scratch.path().join("program"), scratch.path().join("deep/figures"));
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let options =
            RegenerateOptions { into: into.clone(), program: Some(program), ..options(&["--only", "engine,groups"]) };
        let report = run(&options, &mut Quiet).unwrap();
        assert_eq!(report.verdict(), Verdict::Missed);
        let text = report.to_text();
        for part in ["a check missed", "It was <fast>.", "failed", "no such disk", "3, without: groups"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let page = fs::read_to_string(into.join("index.html")).unwrap();
        for part in
            ["href=\"engine-full.html\"", "It was &lt;fast&gt;.", "href=\"groups.log\"", "<h2>Consumer groups</h2>"]
        {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("groups.html"), "there is none");
        assert_eq!(fs::read_to_string(into.join("engine-full.txt")).unwrap(), "the text of engine\n");
    }
}
