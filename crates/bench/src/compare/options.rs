//! Options of `thalweg bench compare`.

use std::path::{Path, PathBuf};

use thalweg_types::Durability;

use crate::{
    BenchError,
    http::HttpLoad,
    options::{require, within},
};
use thalweg_lab::comparison::MIN_PAIRS;

/// Options of a comparison of two servers, programs or stored reports.
#[derive(Clone, Debug, clap::Args)]
pub struct CompareOptions {
    /// The first side: a program to start as `A serve` (a path or a name on the search path), the address of a running server (http://host:port), or a report
    /// that `thalweg bench http` wrote with `--output FILE.json` or `--html FILE.html`.
    pub a: String,
    /// The second side, in the same forms. Its figures are compared with those of A. A report can only be compared with
    /// a report.
    pub b: String,
    /// Number of pairs of runs, one of A and one of B each.
    #[arg(long, default_value_t = 12)]
    pub pairs: u32,
    /// Additional arguments for the server that A starts.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub arg_a: Vec<String>,
    /// Additional arguments for the server that B starts.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub arg_b: Vec<String>,
    /// Durability level that puts to B request, if it differs from that of A. Requires --across-durabilities.
    #[arg(long, value_name = "DURABILITY")]
    pub durability_b: Option<Durability>,
    /// Compare even if the writes of A and B have different durability levels. The titles then state both.
    #[arg(long)]
    pub across_durabilities: bool,
    /// Exit with code 4 if B is worse in the figure that decides.
    #[arg(long)]
    pub fail_if_worse: bool,
    /// Directory below which started servers keep their data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Load of each run.
    #[command(flatten)]
    pub load: HttpLoad,
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// A stored report.
    Stored(PathBuf),
    /// A program that is started as a server.
    Program(PathBuf),
    /// A server that runs already.
    Running(String),
}

impl Side {
    /// Finds out which kind of side a text names. A file whose name ends in `.json` or `.html` is a report, another file is a
    /// program, and everything else must be an address.
    pub fn of(text: &str) -> Result<Self, BenchError> {
        let path = Path::new(text);
        let fail = BenchError::target(text);
        if path.extension().is_some_and(|extension| extension == "json" || extension == "html") {
            return if path.is_file() { Ok(Self::Stored(path.into())) } else { Err(fail("there is no such report")) };
        }
        if let Some(program) = program(text) {
            return Ok(Self::Program(program));
        }
        let is_address = text.starts_with("http://") || (text.contains(':') && !text.contains('/'));
        if is_address {
            return Ok(Self::Running(text.to_owned()));
        }
        Err(fail("is neither a program, nor a report (.json, .html), nor an address (http://host:port)"))
    }
}

/// Returns the absolute path of a program, which is named by a path or is on the search path of commands.
fn program(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    if path.is_file() {
        return std::path::absolute(path).ok();
    }
    let is_name = !text.is_empty() && !text.contains(['/', ':']);
    let dirs = std::env::var_os("PATH").filter(|_| is_name)?;
    std::env::split_paths(&dirs).map(|dir| dir.join(text)).find(|path| path.is_file())
}

impl CompareOptions {
    /// Returns both sides of the comparison; an error if options contradict each other or the sides.
    pub(super) fn sides(&self) -> Result<[Side; 2], BenchError> {
        self.load.check()?;
        within("--pairs", self.pairs as usize, 10_000)?;
        require(self.pairs as usize >= MIN_PAIRS, "--pairs", format!("must be at least {MIN_PAIRS} for an interval"))?;
        let sides = [Side::of(&self.a)?, Side::of(&self.b)?];
        let stored = sides.iter().filter(|side| matches!(side, Side::Stored(_))).count();
        require(stored != 1, "A, B", "a stored report can only be compared with a stored report")?;
        for (side, arguments, option) in [(&sides[0], &self.arg_a, "--arg-a"), (&sides[1], &self.arg_b, "--arg-b")] {
            let starts = matches!(side, Side::Program(_));
            require(starts || arguments.is_empty(), option, "is for a side that is a program, which it starts")?;
        }
        if stored == 2 {
            let usual = HttpLoad::of_arguments(&[]).is_ok_and(|usual| usual == self.load);
            require(usual && self.durability_b.is_none(), "A, B", "stored reports have their own load: give none")?;
        }
        Ok(sides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: CompareOptions,
    }

    fn sides(arguments: &[&str]) -> Result<[Side; 2], String> {
        let cli = <Cli as clap::Parser>::parse_from(["compare"].iter().chain(arguments));
        cli.options.sides().map_err(|error| error.to_string())
    }

    #[test]
    fn sides_are_told_apart() {
        let scratch = Scratch::below(None).unwrap();
        let [report, program] = ["a.json", "program"].map(|name| {
            let path = scratch.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.to_str().unwrap().to_owned()
        });
        let both = sides(&[&program, "127.0.0.1:7070"]).unwrap();
        assert_eq!(both, [Side::Program(program.clone().into()), Side::Running("127.0.0.1:7070".into())]);
        assert!(
            matches!(Side::of("sh").unwrap(), Side::Program(path) if path.is_absolute()),
            "found on the search path"
        );
        assert!(matches!(sides(&[&report, &report]).unwrap(), [Side::Stored(_), Side::Stored(_)]));
        for (arguments, part) in [
            (vec![&*report, "http://h:1"], "only be compared with a stored report"),
            (vec![&report, &report, "--rate", "5"], "their own load"),
            (vec!["nothing.json", &report], "no such report"),
            (vec!["nothing", "h:1"], "neither a program"),
            (vec!["h:1", "h:2", "--pairs", "3"], "--pairs"),
            (vec!["h:1", "h:2", "--arg-b", "--backend"], "--arg-b"),
            (vec!["h:1", "h:2", "--keys", "0"], "--keys"),
        ] {
            let error = sides(&arguments).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
