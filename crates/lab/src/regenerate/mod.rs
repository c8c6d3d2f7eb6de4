//! `thalweg bench report`: repeats the runs that give the figures of docs/performance.md and docs/tuning.md, one after
//! the other. The reports go into a directory.
//!
//! Owns: the list of the runs (`list`), running each in a process of its own, so that no run leaves memory or threads
//! to the next (`processes`), and the page with links to the reports. Does not own: the suites.

mod list;
mod processes;

use std::{
    fs,
    path::{Path, PathBuf},
};

use self::{
    list::{ALL, Command, Figures, quoted},
    processes::{Done, Outcome, Places},
};
use crate::{
    BenchError, Progress, Report,
    report::{
        Check, Table, Verdict, cells,
        index::{Entry, index_page},
    },
};

/// Options of `thalweg bench report`.
#[derive(Clone, Debug, clap::Args)]
pub struct RegenerateOptions {
    /// Run everything that docs/performance.md and docs/tuning.md have figures of.
    #[arg(long, required_unless_present_any = ["only", "list"])]
    pub all: bool,
    /// Run only the runs with one of these texts in their name or section, such as http or "The engine"; separated by
    /// commas.
    #[arg(long, value_delimiter = ',', value_name = "TEXT", conflicts_with = "all")]
    pub only: Vec<String>,
    /// Print the runs with their commands instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Make the runs short. Their figures then only show that the runs work on this machine. Runs without a shorter
    /// form are left out.
    #[arg(long)]
    pub quick: bool,
    /// Root of Thalweg's source tree. With it, also those runs are made that are programs of the source tree:
    /// comparisons with other systems, examples and tests. They need Rust, and some of them Go or Redis; --quick leaves
    /// them out.
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    pub source: Option<PathBuf>,
    /// Directory for the reports, which is created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "figures")]
    pub into: PathBuf,
    /// Command to run as `COMMAND bench`; by default this program.
    #[arg(long, value_name = "COMMAND")]
    pub program: Option<PathBuf>,
}

impl RegenerateOptions {
    /// Returns the list of the runs if the options request the list; `None` if they request to run them.
    pub fn printed(&self) -> Result<Option<String>, BenchError> {
        if !self.list {
            return Ok(None);
        }
        let line = |figures: &Figures| match figures.command {
            Command::Bench(_) => {
                let arguments = figures.arguments(self.quick)?;
                Some(format!("{:27} {:35} thalweg bench {}", figures.name, figures.section, quoted(&arguments)))
            }
            Command::Source(_) if self.quick => None,
            Command::Source(line) => Some(format!("{:27} {:35} {line}  (--source)", figures.name, figures.section)),
        };
        let lines: Vec<_> = self.wanted().filter_map(line).collect();
        check_any(&lines, "matches no run: --list shows their names and sections")?;
        Ok(Some(lines.join("\n")))
    }

    /// Returns the runs that the option `--only` selects by their name or section; all runs without this option.
    fn wanted(&self) -> impl Iterator<Item = &'static Figures> {
        let is_wanted = move |figures: &&Figures| {
            let has = |text: &String| figures.name.contains(&**text) || figures.section.contains(&**text);
            self.only.is_empty() || self.only.iter().any(has)
        };
        ALL.iter().filter(is_wanted)
    }

    /// Returns the selected runs that can be performed. Leaves out runs of the source tree without `--source`, and runs
    /// without a shorter form with `--quick`. Returns an error if none is left.
    fn runs(&self) -> Result<Vec<Figures>, BenchError> {
        let is_run = |figures: &&Figures| match figures.command {
            Command::Bench(_) => figures.arguments(self.quick).is_some(),
            Command::Source(_) => self.source.is_some(),
        };
        check_any(&self.wanted().collect::<Vec<_>>(), "matches no run: --list shows their names and sections")?;
        let runs: Vec<Figures> = self.wanted().filter(is_run).copied().collect();
        check_any(&runs, "all of these runs need --source, or have no shorter form for --quick")?;
        Ok(runs)
    }

    /// Returns the names of the selected runs that are left out because they need the option `--source`.
    fn left_out(&self) -> Vec<&'static str> {
        let needs_source = |figures: &&Figures| matches!(figures.command, Command::Source(_)) && self.source.is_none();
        self.wanted().filter(needs_source).map(|figures| figures.name).collect()
    }
}

/// Returns an error about the option `--only`, with the text `message`, if the list of runs is empty.
fn check_any<T>(runs: &[T], message: &str) -> Result<(), BenchError> {
    if runs.is_empty() {
        return Err(BenchError::Option { option: "--only", message: message.to_owned() });
    }
    Ok(())
}

/// Runs everything that the options select, and returns a report about the runs.
pub fn run(options: &RegenerateOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let runs = options.runs()?;
    let program = match &options.program {
        // A run may have another working directory, so a relative path is made absolute. A name without a directory is
        // searched for on `PATH`.
        Some(program) if program.components().count() > 1 => {
            std::path::absolute(program).map_err(BenchError::files(program))?
        }
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(BenchError::files("the running command"))?,
    };
    fs::create_dir_all(&options.into).map_err(BenchError::files(&options.into))?;
    let mut report = Report::begin("report", &options.into);
    let mut all = Vec::new();
    let places = Places { program: &program, source: options.source.as_deref(), into: &options.into };
    for (number, figures) in runs.iter().enumerate() {
        let started = |command: &str| progress.step(&format!("{} of {}: {command}", number + 1, runs.len()));
        let done = places.run(figures, options.quick, started)?;
        progress.step(&format!("{}: {} after {:.0} s. {}", figures.name, done.outcome.name(), done.seconds, done.said));
        all.push(done);
        write_index(&options.into, &all, options.quick)?;
    }
    report.condition("directory", options.into.display().to_string());
    report.condition("page", options.into.join("index.html").display().to_string());
    describe(&mut report, &all, options.quick);
    let left_out = options.left_out();
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        report.notes.push(format!("left out, because they are programs of the source tree (--source): {names}"));
    }
    Ok(report.finish())
}

fn describe(report: &mut Report, all: &[Done], is_quick: bool) {
    let mut table = Table::new("runs");
    for Done { figures, command, seconds, outcome, said } in all {
        table.row(cells! {
            "run" => figures.name, "section" => figures.section, "command" => command.as_str(),
            "seconds" => *seconds, "outcome" => outcome.name(), "result" => said.as_str(),
        });
    }
    report.tables.push(table);
    let failed: Vec<&str> =
        all.iter().filter(|done| done.outcome == Outcome::Failed).map(|done| done.figures.name).collect();
    report.checks.push(Check {
        what: "runs with a result".to_owned(),
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

/// Writes the page with links to the reports. The caller does this after each run, so that the page exists even if a
/// later run is interrupted.
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
            is_good: matches!(done.outcome, Outcome::Met | Outcome::Done),
            said: done.said.clone(),
            links,
        }
    };
    let title = if is_quick {
        "Figures of short runs, which only show that they work"
    } else {
        "Figures of docs/performance.md and docs/tuning.md"
    };
    let page = index_page(title, &all.iter().map(entry).collect::<Vec<_>>());
    let path = dir.join("index.html");
    fs::write(&path, page).map_err(BenchError::files(path))
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
        let of_bench = ALL.iter().filter(|figures| matches!(figures.command, Command::Bench(_))).count();
        assert_eq!(options(&["--all"]).runs().unwrap().len(), of_bench);
        assert_eq!(options(&["--all", "--source", "."]).runs().unwrap().len(), ALL.len());
        assert_eq!(options(&["--all"]).left_out().len(), ALL.len() - of_bench);
        assert!(options(&["--all", "--source", "."]).left_out().is_empty());
        assert!(options(&["--only", "codec"]).runs().unwrap_err().to_string().contains("--source"));
        let list = options(&["--only", "codec", "--list"]).printed().unwrap().unwrap();
        assert!(list.ends_with("--example codec_cost  (--source)"), "{list}");
        let list = options(&["--only", "http,The log", "--list"]).printed().unwrap().unwrap();
        assert_eq!(list.lines().count(), 5, "{list}");
        assert!(list.contains("thalweg bench http --search 'p99<5ms' --mix put"), "{list}");
        let quick = options(&["--only", "http,cluster", "--quick"]).runs().unwrap();
        assert_eq!(quick.len(), 6, "three of HTTP; Redis clients, a snapshot and TLS of the cluster");
        assert!(options(&["--only", "nonsense"]).runs().unwrap_err().to_string().contains("--list"));
        assert!(options(&["--all"]).printed().unwrap().is_none());
    }

    /// Script in place of thalweg: runs of the engine suite write a report, and all other runs fail.
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
        for part in ["a check missed", "It was <fast>.", "failed", "no such disk", "3, without: groups", "engine-scale"]
        {
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
    #[test]
    fn programs_of_the_source_tree_are_lines_of_a_shell_in_its_root() {
        let scratch = Scratch::below(None).unwrap();
        let (source, into) = (scratch.path().join("source"), scratch.path().join("figures"));
        fs::create_dir_all(source.join("peers/nats")).unwrap();
        let script = source.join("peers/nats/run.sh");
        fs::write(&script, "#!/bin/sh\necho \"$THALWEG $*\"\necho 5 messages/s\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let options = RegenerateOptions {
            source: Some(source),
            into: into.clone(),
            program: Some("/the/program".into()),
            ..options(&["--only", "nats"])
        };
        let report = run(&options, &mut Quiet).unwrap();
        assert_eq!(report.verdict(), Verdict::Met, "{}", report.to_text());
        assert!(report.to_text().contains("5 messages/s"), "the last line of its output");
        let output = fs::read_to_string(into.join("nats.txt")).unwrap();
        assert_eq!(output, "/the/program -rounds 3 -json nats.json\n5 messages/s\n");
        fs::write(&script, "#!/bin/sh\necho no Go >&2\nexit 3\n").unwrap();
        let report = run(&options, &mut Quiet).unwrap();
        assert_eq!(report.verdict(), Verdict::Missed);
        assert!(report.to_text().contains("no Go"), "{}", report.to_text());
    }
}
