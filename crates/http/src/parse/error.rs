//! What goes wrong with the parts of a request.

use axum::http::StatusCode;
use thalweg_serving::error::ApiError;
use thalweg_types::{Action, Classified};

/// Something in a path, query or header that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// `%` without two hexadecimal digits after it.
    #[error("bad percent-encoding at byte {at}: write a literal % as %25")]
    BadEscape {
        /// Byte offset in the text as sent.
        at: usize,
    },
    /// Text was expected.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which part.
        what: &'static str,
    },
    /// No such query parameter here: a typo must not silently change what a request means.
    #[error("unknown query parameter {name:?}: see /openapi.json")]
    UnknownParameter {
        /// As sent, shortened.
        name: String,
    },
    /// A query parameter that may be given once was given twice.
    #[error("query parameter {name} is given more than once")]
    Repeated {
        /// Its name.
        name: &'static str,
    },
    /// A query parameter whose value cannot be used.
    #[error("query parameter {name} must be {expected}")]
    BadParameter {
        /// Its name.
        name: &'static str,
        /// What would do.
        expected: &'static str,
    },
    /// A query parameter that is needed is missing or empty.
    #[error("query parameter {name} is missing or empty")]
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// A request header whose value cannot be used.
    #[error("header {name} must be {expected}")]
    BadHeader {
        /// Its name.
        name: &'static str,
        /// What would do.
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
