//! Errors of benchmarks. A benchmark that fails with an error prints no figures.

use std::{io, path::PathBuf};

use thalweg_types::{Action, Classified};

/// Error that ends a benchmark suite without a report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option of the benchmark has an invalid value.
    #[error("{option}: {message}")]
    Option {
        /// Name of the option as it is typed on the command line.
        option: &'static str,
        /// Description of the problem, and of the values that the option accepts.
        message: String,
    },
    /// The benchmark failed to read or write a file or directory of its own.
    #[error("{path}: {source}; choose another place with --dir")]
    Files {
        /// Path of the file or directory that failed.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The measured server or store returned an error.
    #[error("{subject} failed while {doing}: {message}")]
    Subject {
        /// Name of the measured server or store.
        subject: String,
        /// Operation of the server or store that failed.
        doing: &'static str,
        /// Error message of the measured server or store.
        message: String,
    },
    /// The measured server or store returned data that was never written, so its speed means nothing.
    #[error("{subject} returned wrong data while {doing}: {message}; its figures are void")]
    WrongData {
        /// Name of the measured server or store.
        subject: String,
        /// Operation that returned the wrong data.
        doing: &'static str,
        /// Position of the wrong data, the expected data and the received data.
        message: String,
    },
    /// The server's process could not be profiled.
    #[error("--profile: {message}")]
    Profile {
        /// Description of the problem, and software or settings that solve it.
        message: String,
    },
    /// The server under test could not be reached or started.
    #[error("target {target}: {message}")]
    Target {
        /// Address of the server, or the command that should have started the server.
        target: String,
        /// Description of the problem, and a suggestion for the user.
        message: String,
    },
}

impl BenchError {
    /// Creates the error for wrong data that the measured store `subject` returned.
    pub fn wrong(subject: &str, doing: &'static str, message: impl Into<String>) -> Self {
        Self::WrongData { subject: subject.to_owned(), doing, message: message.into() }
    }

    /// Returns a function, for `map_err`, that makes the error for a server that cannot be reached or started.
    pub fn target<E: std::fmt::Display>(target: impl std::fmt::Display) -> impl Fn(E) -> Self {
        move |error| Self::Target { target: target.to_string(), message: error.to_string() }
    }

    /// Returns a function, for `map_err`, that wraps an error of the measured store `subject`.
    pub fn subject<E: std::fmt::Display>(subject: &str, doing: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Subject { subject: subject.to_owned(), doing, message: error.to_string() }
    }

    /// Returns a function, for `map_err`, that wraps an I/O error of the benchmark's own file at `path`.
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
            Self::Profile { .. } => "profile_failed",
            Self::Target { .. } => "target_unreachable",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Option { .. } | Self::Files { .. } | Self::Profile { .. } => Action::Fix,
            Self::Subject { .. } | Self::Target { .. } => Action::Retry,
            Self::WrongData { .. } => Action::Stop,
        }
    }
}
