//! Classification of errors by the caller's next step: retry, fix the request, or stop.

use std::fmt;

/// Next step for the caller of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The same call may succeed later: back off and try again.
    Retry,
    /// The call itself is wrong and will never succeed unchanged.
    Fix,
    /// The node can no longer serve this call: an operator must look at it.
    Stop,
}

impl Action {
    /// Returns `retry`, `fix` or `stop`, as used in JSON errors.
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

/// An error with a stable code and an [`Action`]. The error enum of every operation implements it.
pub trait Classified: std::error::Error {
    /// Stable snake_case code, for programs.
    fn code(&self) -> &'static str;
    /// Next step for the caller.
    fn action(&self) -> Action;
}
