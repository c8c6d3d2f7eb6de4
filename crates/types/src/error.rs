//! Errors tell the caller what to do: retry, fix the request, or stop.

use std::fmt;

/// What the caller of a failed operation should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The same call may succeed later: back off and try again.
    Retry,
    /// The call itself is wrong and will never succeed as it is.
    Fix,
    /// The node can't serve this any more: an operator must look.
    Stop,
}

impl Action {
    /// `retry`, `fix` or `stop`, as in JSON errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Fix => "fix",
            Self::Stop => "stop",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error with a stable code and an [`Action`]. Implemented by every operation's error enum.
pub trait Classified: std::error::Error {
    /// Stable snake_case code, for programs.
    fn code(&self) -> &'static str;
    /// What to do.
    fn action(&self) -> Action;
}
