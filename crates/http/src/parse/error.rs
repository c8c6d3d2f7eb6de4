//! Errors in the path, query or headers of a request.

use http::StatusCode;
use thalweg_serving::error::ApiError;
use thalweg_types::{Action, Classified};

/// A malformed part of a path, query or header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A `%` is not followed by two hexadecimal digits.
    #[error("bad percent-encoding at byte {at}: write a literal % as %25")]
    BadEscape {
        /// Byte offset of the `%` in the text as received.
        at: usize,
    },
    /// A part of the request that must be text is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Name of that part of the request.
        what: &'static str,
    },
    /// The route has no such query parameter. Unknown parameters are errors, because a typo must not silently change
    /// the meaning of a request.
    #[error("unknown query parameter {name:?}: see /openapi.json")]
    UnknownParameter {
        /// Parameter name as received, truncated.
        name: String,
    },
    /// The client gave a query parameter more than once.
    #[error("query parameter {name} is given more than once")]
    Repeated {
        /// Name of the repeated parameter.
        name: &'static str,
    },
    /// The value of a query parameter is invalid.
    #[error("query parameter {name} must be {expected}")]
    BadParameter {
        /// Name of the invalid parameter.
        name: &'static str,
        /// Description of the values that the parameter may have.
        expected: &'static str,
    },
    /// A required query parameter is missing or empty.
    #[error("query parameter {name} is missing or empty")]
    Missing {
        /// Name of the missing parameter.
        name: &'static str,
    },
    /// The value of a request header is invalid.
    #[error("header {name} must be {expected}")]
    BadHeader {
        /// Name of the invalid header.
        name: &'static str,
        /// Description of the values that the header may have.
        expected: &'static str,
    },
}

impl Classified for ParseError {
    fn code(&self) -> &'static str {
        match self {
            Self::BadEscape { .. } | Self::NotUtf8 { .. } => "bad_encoding",
            Self::UnknownParameter { .. } => "unknown_parameter",
            Self::Repeated { .. } | Self::BadParameter { .. } => "bad_parameter",
            Self::Missing { .. } => "missing_parameter",
            Self::BadHeader { .. } => "bad_header",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

impl From<ParseError> for ApiError {
    fn from(error: ParseError) -> Self {
        Self::classified(StatusCode::BAD_REQUEST, &error)
    }
}
