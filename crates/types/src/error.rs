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

/// An error with a stable code and an [`Action`], the caller's next step. The error enum of every operation implements
/// this trait.
pub trait Classified: std::error::Error {
    /// Returns the stable snake_case code of the error, by which programs recognise it.
    fn code(&self) -> &'static str;
    /// Returns the next step for the caller: retry, fix the request, or stop.
    fn action(&self) -> Action;
}

/// Implements [`Classified`] for an error type from a table with one row for each variant: the variant, its code, and
/// the caller's next step.
///
/// ```
/// use thalweg_types::{Action, Classified, classified};
///
/// #[derive(Debug, thiserror::Error)]
/// enum FetchError {
///     #[error("the queue is full: try again later")]
///     Full,
///     #[error(transparent)]
///     Read(ReadError),
/// }
///
/// classified!(FetchError {
///     Self::Full => "queue_full", Retry;
///     Self::Read(error) => error.code(), error.action();
/// });
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("the file is damaged")]
/// struct ReadError;
///
/// classified!(ReadError { _ => "damaged", Stop; });
///
/// assert_eq!((FetchError::Full.code(), FetchError::Full.action()), ("queue_full", Action::Retry));
/// assert_eq!((FetchError::Read(ReadError).code(), ReadError.action()), ("damaged", Action::Stop));
/// ```
#[macro_export]
macro_rules! classified {
    ($(#[$meta:meta])* $error:ident { $($variant:pat => $code:expr, $action:expr;)+ }) => {
        $(#[$meta])*
        #[allow(unused_imports, unused_variables, clippy::match_same_arms, clippy::match_single_binding)]
        impl $crate::Classified for $error {
            fn code(&self) -> &'static str {
                use $crate::Classified as _;
                match self {
                    $($variant => $code,)+
                }
            }

            fn action(&self) -> $crate::Action {
                use $crate::{Action::{Fix, Retry, Stop}, Classified as _};
                match self {
                    $($variant => $action,)+
                }
            }
        }
    };
}
