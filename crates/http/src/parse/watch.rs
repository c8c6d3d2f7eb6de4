//! Query parameters of requests that watch keys for changes.

use std::ops::Bound;

use thalweg_engine::WatchKeys;
use thalweg_types::Revision;

use super::{
    ParseError,
    query::{bytes, described, number, query},
};

query! {
    /// Query parameters of `GET /v1/watch/{keyspace}`, as the client sent them.
    struct WatchParams {
        /// Key to watch. Excludes the other parameters that select keys.
        key: Option<Vec<u8>> = bytes,
        /// Prefix of the keys to watch; all keys if missing.
        prefix: Option<Vec<u8>> = bytes,
        /// Lowest key to watch, inclusive.
        start: Option<Vec<u8>> = bytes,
        /// Highest key to watch, exclusive.
        end: Option<Vec<u8>> = bytes,
        /// First revision to return; if missing, only new changes.
        from: Option<u64> = number,
        /// Number of changes after which the watch ends.
        limit: Option<u64> = number,
    }
}

/// Query parameters of `GET /v1/watch/{keyspace}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchQuery {
    /// Keys to watch; the default is all keys.
    pub keys: WatchKeys,
    /// First revision to return; `None` returns only new changes.
    pub from: Option<Revision>,
    /// Number of changes after which the watch ends.
    pub limit: Option<u64>,
}

impl WatchQuery {
    /// Parses the query string of a watch.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let WatchParams { key, prefix, start, end, from, limit } = WatchParams::parse(query)?;
        let keys = match (key, prefix, start, end) {
            (None, prefix, None, None) => WatchKeys::Prefix(prefix.unwrap_or_default()),
            (Some(key), None, None, None) => WatchKeys::Key(key),
            (None, None, start, end) => WatchKeys::Range(
                start.map_or(Bound::Unbounded, Bound::Included),
                end.map_or(Bound::Unbounded, Bound::Excluded),
            ),
            _ => {
                let expected = "given alone: one key, one prefix, or start and end";
                return Err(ParseError::BadParameter { name: "key", expected });
            }
        };
        Ok(Self { keys, from: from.map(Revision), limit })
    }
}

described!(WatchQuery as WatchParams);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_about_one_key_one_prefix_or_one_range() {
        let keys = |query| WatchQuery::parse(Some(query)).map(|query| query.keys);
        assert_eq!(keys(""), Ok(WatchKeys::Prefix(Vec::new())));
        assert_eq!(keys("prefix=a%2F"), Ok(WatchKeys::Prefix(b"a/".to_vec())));
        assert_eq!(keys("key=a"), Ok(WatchKeys::Key(b"a".to_vec())));
        let range = WatchKeys::Range(Bound::Included(b"a".to_vec()), Bound::Excluded(b"b".to_vec()));
        assert_eq!(keys("start=a&end=b"), Ok(range));
        assert_eq!(keys("end=b"), Ok(WatchKeys::Range(Bound::Unbounded, Bound::Excluded(b"b".to_vec()))));
        for bad in ["key=a&prefix=a", "key=a&start=a", "prefix=a&end=b", "key=a&key=b", "from=x", "form=1"] {
            assert!(keys(bad).is_err(), "{bad}");
        }
        let query = WatchQuery::parse(Some("from=7&limit=3")).unwrap();
        assert_eq!((query.from, query.limit), (Some(Revision(7)), Some(3)));
    }
}
