//! What a command ends with when it does not succeed: an exit code for scripts, words for people.
//!
//! Every [`Failure`] says what happened and, where there is something to do, what to do next.

use std::{borrow::Cow, fmt, io};

use serde_json::json;
use thalweg_types::{Action, Classified};

use crate::render;

/// Exit codes; 0 is success. The table in `thalweg --help` says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Something is wrong with the node, its data, or the machine.
    Failed,
    /// The request itself is wrong and will never succeed as it is.
    Usage,
    /// The key, stream, offset or directory is not there.
    NotFound,
    /// A condition did not hold; nothing was written.
    Conflict,
    /// Not now: unreachable, overloaded, in use by another process. The same command may succeed later.
    Unavailable,
}

impl Exit {
    /// The number a shell sees.
    pub fn code(self) -> u8 {
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

/// Why a command failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// Stable code for programs, as the API's.
    pub code: Cow<'static, str>,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub next: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { exit, code: code.into(), message: message.into(), next: None }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// A file of the user's that cannot be read or written.
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
        Self::new(exit, "file", format!("{}: {error}", path.display()))
    }

    /// An operation's own error, which knows its code and what to do.
    pub fn of(error: &(impl Classified + ?Sized)) -> Self {
        Self::new(exit_of(error.code(), error.action()), error.code(), error.to_string())
    }

    /// Adds what to do next.
    #[must_use]
    pub fn then(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Says it on stderr: one line of JSON, or words.
    pub fn report(&self, json: bool) {
        if json {
            let body = json!({
                "code": self.code, "message": self.message, "retry": self.exit.action().name(),
                "next": self.next, "exit": self.exit.code(),
            });
            eprintln!("{body}");
        } else {
            eprintln!("{} {self}", render::error_label());
        }
    }
}

/// The exit for an error of the engine or the API, by its code where that says more than the action.
pub fn exit_of(code: &str, action: Action) -> Exit {
    let missing = ["not_found", "no_log", "missing_directory", "trimmed", "beyond_end", "compacted"];
    if code.starts_with("no_such") || missing.contains(&code) {
        return Exit::NotFound;
    }
    let settled = ["attempt_lapsed"];
    let producer = ["duplicate_too_old", "sequence_gap", "producer_fenced", "unknown_producer", "mixed_duplicates"];
    // What a counter holds now is not what adding to it expects.
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
    fn the_next_step_stands_on_a_line_of_its_own() {
        let failure = Failure::new(Exit::NotFound, "not_found", "no key \"a\"").then("look with `thalweg scan`");
        assert_eq!(failure.to_string(), "no key \"a\"\n  look with `thalweg scan`");
        assert_eq!(failure.exit.code(), 3);
    }
}
