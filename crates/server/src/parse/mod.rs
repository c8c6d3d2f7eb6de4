//! Pure parsing of what clients send in paths, queries and headers.
//!
//! Owns: percent-decoding of binary keys, query parameters, preconditions, media types, times.
//! Does not own: sockets, statuses, anything of the engine; every function is a function of its
//! arguments, so a fuzz target calls them directly.
//! Invariant: no input panics; whatever is not understood is a typed [`ParseError`], never ignored.

mod headers;
mod percent;
mod push;
mod query;
mod snapshot;
mod subjects;
mod time;
mod watch;

use std::borrow::Cow;

use thalweg_types::{Action, Classified};

pub use headers::{Freshness, Media, negotiate, read_freshness, request_media, write_condition};
pub use percent::{decode, decode_query, encode};
pub use push::PushQuery;
pub use query::{
    AppendQuery, Key, ListQuery, PairRange, Params, RecordsQuery, RevisionQuery, ScanQuery, Since, VersionsQuery,
    pair_range,
};
pub use snapshot::SnapshotQuery;
pub use subjects::{PublishQuery, SubscribeQuery};
pub use time::{parse_time, rfc3339};
pub use watch::WatchQuery;

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

/// Keyspace name and key.
pub type KvPath<'a> = (Cow<'a, str>, Option<Cow<'a, [u8]>>);

/// The two parts of a key-value path below `/v1/kv/`: keyspace name and key. A `/` in a key may be
/// written as it is or as `%2F`; `None` for the key means that there is no `/` after the name.
pub fn kv_path(rest: &str) -> Result<KvPath<'_>, ParseError> {
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(decode(key.as_bytes())?)),
        None => (rest, None),
    };
    Ok((name_segment(name)?, key))
}

/// One path segment that holds a name.
pub fn name_segment(segment: &str) -> Result<Cow<'_, str>, ParseError> {
    text(decode(segment.as_bytes())?, "name")
}

/// Bytes that must be text.
pub(crate) fn text<'a>(bytes: Cow<'a, [u8]>, what: &'static str) -> Result<Cow<'a, str>, ParseError> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| ParseError::NotUtf8 { what }),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| ParseError::NotUtf8 { what }),
    }
}

#[cfg(test)]
mod tests;
