//! Pure parsing of paths, queries and headers of requests.
//!
//! Owns: percent-decoding of binary keys, query parameters, preconditions, media types, times. Does not own: sockets,
//! statuses, or any part of the engine. Every function depends only on its arguments, so a fuzz target calls them
//! directly. Invariant: no input causes a panic. Unknown or malformed input returns a typed [`ParseError`], and is
//! never ignored.

mod error;
mod events;
mod headers;
mod path;
mod percent;
mod push;
mod query;
mod snapshot;
mod subjects;
mod watch;

pub use error::ParseError;
pub(crate) use events::EventsQuery;
pub(crate) use headers::is_form;
pub use headers::{Freshness, Media, negotiate, read_freshness, request_media, write_condition};
pub use path::{KvPath, kv_path, name_segment};
pub(crate) use percent::text;
pub use percent::{decode, decode_query, encode};
pub(crate) use push::PushQuery;
pub(crate) use query::{
    AddQuery, CacheKeysQuery, Cursor, LeaseQuery, LeasesQuery, ListQuery, PrefixQuery, ReadyQuery, Required,
    RevisionQuery, SpaceQuery, VersionsQuery, parameter,
};
pub use query::{AppendQuery, Key, PairRange, Params, RecordsQuery, ScanQuery, StartPosition, pair_range};
pub(crate) use snapshot::SnapshotQuery;
pub(crate) use subjects::{PublishQuery, SubscribeQuery};
pub use thalweg_serving::time::{parse_time, rfc3339};
pub(crate) use watch::WatchQuery;

#[cfg(test)]
mod tests;
