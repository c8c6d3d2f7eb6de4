//! Failures of commands. A failure has an exit code for scripts and a message for people.
//!
//! Every [`Failure`] states what happened. If the user can act on it, it also states what to do next.

use std::{borrow::Cow, fmt, io};

use serde_json::json;
use thalweg_types::{Action, Classified};

/// Exit codes of failed commands; success is 0. `thalweg --help` shows the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The node, its data, or the machine has a fault.
    Failed,
    /// The request is invalid and cannot succeed without a change.
    Usage,
    /// The key, stream, offset or directory does not exist.
    NotFound,
    /// A condition was not met; nothing was written.
    Conflict,
    /// The server is unreachable or overloaded, or another process uses the directory. A retry may succeed.
    Unavailable,
}

impl Exit {
    /// Returns the exit code of the process.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Unavailable => 5,
        }
    }

    fn action(self) -> Action {
        match self {
            Self::Failed => Action::Stop,
            Self::Usage | Self::NotFound | Self::Conflict => Action::Fix,
            Self::Unavailable => Action::Retry,
        }
    }
}

/// Error of a command.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Category of the failure, which determines the exit code of the process.
    pub exit: Exit,
    /// Stable error code for programs, the same as in the HTTP API.
    pub code: Cow<'static, str>,
    /// Description of the error.
    pub message: String,
    /// Advice on what the user can do next.
    pub next: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { exit, code: code.into(), message: message.into(), next: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// Creates the failure for a user's file that cannot be read or written.
    pub(crate) fn file(path: &std::path::Path, error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => Exit::Usage,
            _ => Exit::Failed,
        };
        Self::new(exit, "file", format!("{}: {error}", path.display()))
    }

    /// Creates a failure from a typed error, which has an error code and a recommended action.
    pub(crate) fn of(error: &(impl Classified + ?Sized)) -> Self {
        Self::new(exit_of(error.code(), error.action()), error.code(), error.to_string())
    }

    /// Adds advice on what the user can do next.
    #[must_use]
    pub(crate) fn then(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Formats the failure as one line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let body = json!({
            "code": self.code, "message": self.message, "retry": self.exit.action().name(),
            "next": self.next, "exit": self.exit.code(),
        });
        body.to_string()
    }
}

/// Returns the exit code category for an error of the engine or the API. If the error's code is known to be more
/// specific than its recommended action, the code decides; otherwise the action decides.
pub(crate) fn exit_of(code: &str, action: Action) -> Exit {
    let missing = ["not_found", "no_log", "missing_directory", "trimmed", "beyond_end", "compacted"];
    if code.starts_with("no_such") || missing.contains(&code) {
        return Exit::NotFound;
    }
    let settled = ["attempt_lapsed"];
    let producer = ["duplicate_too_old", "sequence_gap", "producer_fenced", "unknown_producer", "mixed_duplicates"];
    // These two errors mean that the counter's present value does not permit the addition.
    let counter = ["not_a_number", "overflow"];
    if code.contains("condition")
        || code.contains("conflict")
        || producer.contains(&code)
        || counter.contains(&code)
        || settled.contains(&code)
    {
        return Exit::Conflict;
    }
    match action {
        Action::Retry => Exit::Unavailable,
        Action::Fix => Exit::Usage,
        Action::Stop => Exit::Failed,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.next {
            Some(next) => write!(f, "\n  {next}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { "broken_pipe" } else { "io" };
        Self::new(Exit::Failed, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_more_than_actions() {
        assert_eq!(exit_of("no_such_stream", Action::Fix), Exit::NotFound);
        assert_eq!(exit_of("condition_failed", Action::Fix), Exit::Conflict);
        assert_eq!(exit_of("offset_conflict", Action::Fix), Exit::Conflict);
        assert_eq!(exit_of("key_too_long", Action::Fix), Exit::Usage);
        assert_eq!(exit_of("overloaded", Action::Retry), Exit::Unavailable);
        assert_eq!(exit_of("log_failed", Action::Stop), Exit::Failed);
    }

    #[test]
    fn a_directory_in_the_place_of_a_file_is_a_wrong_argument() {
        let dir = tempfile::tempdir().unwrap();
        let error = std::fs::read(dir.path()).unwrap_err();
        assert_eq!(Failure::file(dir.path(), &error).exit, Exit::Usage);
    }

    #[test]
    fn the_next_step_stands_on_a_line_of_its_own() {
        let failure = Failure::new(Exit::NotFound, "not_found", "no key \"a\"").then("look with `thalweg scan`");
        assert_eq!(failure.to_string(), "no key \"a\"\n  look with `thalweg scan`");
        assert_eq!(failure.exit.code(), 3);
    }
}
