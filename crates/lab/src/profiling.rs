//! Profiles of the measured server: one more run of a load while the server's process is recorded.
//!
//! Owns: the option `--profile`, and the plots, tables and sentences of profiles in a report. Does not own: recording
//! ([`profile`](crate::profile)), or the load, which a suite passes in as a function.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    BenchError, Progress, Report,
    profile::{Profile, ProfileKind, Recording, Stacks},
    report::{Table, cells, number, plots, table},
};

/// Maximum duration of a benchmark run under a profile. It is enough for thousands of samples.
pub const LONGEST_PROFILE: Duration = Duration::from_secs(10);
/// Number of functions in the table of a profile.
const FUNCTIONS: usize = 15;
/// Share of samples without function names, from 0 to 1, above which a report explains why the names are missing.
const MANY_NAMELESS: f64 = 0.3;

/// Options for profiles of the server.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProfileOptions {
    /// Also run the load once more for each of these kinds while the server's process is recorded, by perf or, for
    /// alloc, by its own allocator, and add flame graphs to the report. --html also writes them as SVG files beside the
    /// page. With --search the load runs at the highest rate that was found, and at half of it.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub profile: Vec<ProfileKind>,
}

/// Records profiles of one server's process during extra runs of a load.
#[derive(Debug)]
pub struct Profiler {
    kinds: Vec<ProfileKind>,
    process: u32,
    dir: PathBuf,
}

impl ProfileOptions {
    /// Returns the profiler of a server's process, after a check that the process can be recorded; `None` if the
    /// options request no profile. Temporary files of the recordings are in `dir`.
    pub fn profiler(&self, process: Option<u32>, dir: &Path) -> Result<Option<Profiler>, BenchError> {
        if self.profile.is_empty() {
            return Ok(None);
        }
        let process = process.ok_or_else(|| BenchError::Profile {
            message: "the server's process is not known, or not on this machine: leave --target out".to_owned(),
        })?;
        let kinds = self.kinds();
        kinds.iter().try_for_each(|kind| Recording::check(*kind, process, dir))?;
        Ok(Some(Profiler { kinds, process, dir: dir.to_owned() }))
    }

    /// Returns the requested kinds of profiles, each once. A second profile of a kind would replace the files of the
    /// first.
    fn kinds(&self) -> Vec<ProfileKind> {
        let mut kinds = Vec::new();
        for kind in &self.profile {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        kinds
    }
}

impl Profiler {
    /// Runs a load once for each requested kind of profile, and adds the profiles to the report. `load` runs the load
    /// and returns its operations per second. `label` describes the load in titles. `place` becomes part of the names
    /// of the plots' files, which must differ between the loads of a report.
    pub fn run(
        &self,
        (label, place): (&str, &str),
        report: &mut Report,
        progress: &mut dyn Progress,
        mut load: impl FnMut() -> Result<f64, BenchError>,
    ) -> Result<(), BenchError> {
        for kind in &self.kinds {
            progress.step(&format!("{label}: one more run for the {} profile", kind.name()));
            let recording = Recording::begin(*kind, self.process, &self.dir)?;
            let rate = load()?;
            progress.step("reading the profile");
            let profile = recording.end()?;
            add(&profile, (label, place), rate, report);
        }
        Ok(())
    }
}

fn add(profile: &Profile, (label, place): (&str, &str), rate: f64, report: &mut Report) {
    let (kind, stacks) = (profile.kind, &profile.stacks);
    let (all, unit, words) = (stacks.root().weight, stacks.unit(), kind.in_words());
    let title = format!("{} profile: {label}", kind.name());
    if all <= 0.0 {
        report.summary.push(format!("{title}: no {words} was seen in {} samples.", profile.samples));
        return;
    }
    let functions = stacks.functions(FUNCTIONS);
    let (first, own, _) = &functions[0];
    report.summary.push(format!(
        "{title}: {} {unit} of {words} in the server ({} samples, at {} per second); {} % of it {} {first}.",
        number(all),
        profile.samples,
        number(rate),
        number(100.0 * own / all),
        if kind == ProfileKind::Cpu { "directly in" } else { "ends in" }
    ));
    report.plots.push(plots::flame(&format!("flame-{}{place}", kind.name()), &title, &caption(kind), stacks));
    report.tables.push(function_table(&title, &functions, all));
    report.tables.push(thread_table(&title, stacks));
    if profile.nameless > MANY_NAMELESS {
        report.notes.push(format!(
            "{} % of the samples of this profile have no names of functions: the server's program has no symbols. Start one \
             that has them with --server-binary, for example one built with cargo build --release",
            number(100.0 * profile.nameless)
        ));
    }
}

fn caption(kind: ProfileKind) -> String {
    let weight = match kind {
        ProfileKind::Cpu => "its share of the processor time",
        ProfileKind::Alloc => "its share of the bytes that were allocated, whether they were freed soon or not",
        ProfileKind::Offcpu => "its share of the time in which threads did not run, idle threads included",
        ProfileKind::Lock => "its share of the time in which threads waited for a lock that another one held",
    };
    format!(
        "Each box is a function, and its width is {weight}. It was called by the box below; the lowest boxes are threads. Blue: \
         Thalweg; orange: the kernel; green: other Rust code; grey: other code. Recording slows the server down, so the \
         figures of the report are those of other runs."
    )
}

fn function_table(title: &str, functions: &[(String, f64, f64)], all: f64) -> Table {
    table! {
        format!("{title}: functions"); (name, own, whole) in functions;
        "function" => name.as_str(), "alone %" => 100.0 * own / all, "with callees %" => 100.0 * whole / all,
    }
}

fn thread_table(title: &str, stacks: &Stacks) -> Table {
    let all = stacks.root().weight;
    let unit = if stacks.unit() == "s" { "seconds" } else { stacks.unit() };
    let mut table = Table::new(format!("{title}: threads, by name"));
    for (name, weight) in stacks.threads() {
        table.row(cells! { "thread" => name, unit => weight, "%" => 100.0 * weight / all });
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    fn profile(kind: ProfileKind, stacks: Stacks, nameless: f64) -> Profile {
        Profile { kind, stacks, samples: 7, nameless }
    }

    #[test]
    fn a_profile_becomes_a_sentence_a_plot_and_tables() {
        let scratch = Scratch::below(None).unwrap();
        let mut report = Report::begin("http", scratch.path());
        let mut stacks = Stacks::default();
        stacks.add(["commit", "thalweg_log::lead", "fdatasync"], 3.0);
        stacks.add(["worker", "thalweg_log::lead"], 1.0);
        add(&profile(ProfileKind::Offcpu, stacks, 0.5), ("put, disk", "-knee"), 5000.0, &mut report);
        let said = report.summary.pop().unwrap();
        assert!(said.contains("4.00 s of waiting time") && said.contains("75.0 % of it ends in fdatasync"), "{said}");
        assert_eq!(report.plots[0].name, "flame-offcpu-knee");
        assert_eq!((report.tables[0].rows.len(), report.tables[1].rows.len()), (2, 2));
        assert!(report.notes.iter().any(|note| note.contains("no symbols")), "{:?}", report.notes);
        add(&profile(ProfileKind::Lock, Stacks::default(), 0.0), ("put", ""), 1.0, &mut report);
        assert!(report.summary.pop().unwrap().contains("no waiting time for locks"));
        assert_eq!(report.plots.len(), 1);
        let page = scratch.path().join("page.html");
        report.save_html(&page).unwrap();
        let svg = std::fs::read_to_string(scratch.path().join("page-flame-offcpu-knee.svg")).unwrap();
        assert!(svg.contains("lead</text>"), "{svg}");
        assert!(std::fs::read_to_string(page).unwrap().contains("offcpu profile: put, disk"));
    }

    #[test]
    fn each_kind_of_profile_is_recorded_once() {
        let options = ProfileOptions { profile: vec![ProfileKind::Cpu, ProfileKind::Lock, ProfileKind::Cpu] };
        assert_eq!(options.kinds(), [ProfileKind::Cpu, ProfileKind::Lock]);
    }

    #[test]
    fn a_profile_needs_a_process_on_this_machine() {
        let scratch = Scratch::below(None).unwrap();
        let options = ProfileOptions { profile: vec![ProfileKind::Cpu] };
        let error = options.profiler(None, scratch.path()).unwrap_err().to_string();
        assert!(error.contains("--profile") && error.contains("--target"), "{error}");
        assert!(ProfileOptions::default().profiler(None, scratch.path()).unwrap().is_none());
    }
}
