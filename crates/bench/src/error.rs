//! Errors of benchmarks. An error is a reason not to print a figure.

use std::{io, path::PathBuf};

use thalweg_types::{Action, Classified};

/// Error that ends a suite without a report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option makes no sense.
    #[error("{option}: {message}")]
    Option {
        /// The option as it is typed.
        option: &'static str,
        /// The problem, and what would be right.
        message: String,
    },
    /// A file or directory of the benchmark itself.
    #[error("{path}: {source}; choose another place with --dir")]
    Files {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The measured subject failed.
    #[error("{subject} failed while {doing}: {message}")]
    Subject {
        /// The measured subject.
        subject: String,
        /// The operation.
        doing: &'static str,
        /// The subject's answer.
        message: String,
    },
    /// The measured subject answered something that was never written, so its speed means nothing.
    #[error("{subject} returned wrong data while {doing}: {message}; its figures are void")]
    WrongData {
        /// The measured subject.
        subject: String,
        /// The operation.
        doing: &'static str,
        /// Location, expected and received data.
        message: String,
    },
    /// The server under test could not be reached or started.
    #[error("target {target}: {message}")]
    Target {
        /// Its address, or the command that should have started it.
        target: String,
        /// The problem, and what to try.
        message: String,
    },
}

impl BenchError {
    /// Makes an error of wrong data that a subject returned.
    pub fn wrong(subject: &str, doing: &'static str, message: impl Into<String>) -> Self {
        Self::WrongData { subject: subject.to_owned(), doing, message: message.into() }
    }

    /// Makes an error of a server that cannot be reached or started, for `map_err`.
    pub fn target<E: std::fmt::Display>(target: impl std::fmt::Display) -> impl Fn(E) -> Self {
        move |error| Self::Target { target: target.to_string(), message: error.to_string() }
    }

    /// Makes an error of whatever a subject answers, for `map_err`.
    pub fn subject<E: std::fmt::Display>(subject: &str, doing: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Subject { subject: subject.to_owned(), doing, message: error.to_string() }
    }

    /// Makes an error of the benchmark's own files, for `map_err`.
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
