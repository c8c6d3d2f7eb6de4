//! What can go wrong in a benchmark: never a figure, always a reason not to print one.

use std::{io, path::PathBuf};

use thalweg_types::{Action, Classified};

/// Why a suite gave no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option makes no sense.
    #[error("{option}: {message}")]
    Option {
        /// The option as it is typed.
        option: &'static str,
        /// What is wrong with it and what would be right.
        message: String,
    },
    /// A file or directory of the benchmark itself.
    #[error("{path}: {source}; choose another place with --dir")]
    Files {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is measured refused to work.
    #[error("{subject} failed while {doing}: {message}")]
    Subject {
        /// What is measured.
        subject: String,
        /// What was asked of it.
        doing: &'static str,
        /// What it answered.
        message: String,
    },
    /// What is measured answered something that was never written, so its speed means nothing.
    #[error("{subject} returned wrong data while {doing}: {message}; its figures are void")]
    WrongData {
        /// What is measured.
        subject: String,
        /// What was asked of it.
        doing: &'static str,
        /// Where, expected and got.
        message: String,
    },
    /// The server under test could not be reached or started.
    #[error("target {target}: {message}")]
    Target {
        /// Its address, or the command that should have started it.
        target: String,
        /// What happened, and what to try.
        message: String,
    },
}

impl BenchError {
    /// For `map_err` on what a subject answers.
    pub fn subject<E: std::fmt::Display>(subject: &str, doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Subject { subject: subject.to_owned(), doing, message: error.to_string() }
    }

    /// For `map_err` on the benchmark's own files.
    pub fn files(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Files { path: path.into(), source }
    }
}

impl Classified for BenchError {
    fn code(&self) -> &'static str {
        match self {
            Self::Option { .. } => "bad_option",
            Self::Files { .. } => "bench_files",
            Self::Subject { .. } => "subject_failed",
            Self::WrongData { .. } => "wrong_data",
            Self::Target { .. } => "target_unreachable",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Option { .. } | Self::Files { .. } => Action::Fix,
            Self::Subject { .. } | Self::Target { .. } => Action::Retry,
            Self::WrongData { .. } => Action::Stop,
        }
    }
}
