//! Pure parsing of what clients send in paths, queries and headers.
//!
//! Owns: percent-decoding of binary keys, query parameters, preconditions, media types, times.
//! Does not own: sockets, statuses, anything of the engine; every function is a function of its
//! arguments, so a fuzz target calls them directly.
//! Invariant: no input panics; whatever is not understood is a typed [`ParseError`], never ignored.

mod error;
mod headers;
mod path;
mod percent;
mod push;
mod query;
mod snapshot;
mod subjects;
mod watch;

pub use error::ParseError;
pub use headers::{Freshness, Media, negotiate, read_freshness, request_media, write_condition};
pub use path::{KvPath, kv_path, name_segment};
pub(crate) use percent::text;
pub use percent::{decode, decode_query, encode};
pub use push::PushQuery;
pub use query::{
    AppendQuery, Key, ListQuery, PairRange, Params, RecordsQuery, RevisionQuery, ScanQuery, Since, VersionsQuery,
    pair_range,
};
pub use snapshot::SnapshotQuery;
pub use subjects::{PublishQuery, SubscribeQuery};
pub use watch::WatchQuery;

pub use thalweg_serving::time::{parse_time, rfc3339};

#[cfg(test)]
mod tests;
