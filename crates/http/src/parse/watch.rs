//! Query parameters of a watch.

use std::ops::Bound;

use thalweg_engine::WatchKeys;
use thalweg_types::Revision;

use super::{
    ParseError,
    query::{Params, number, once, unknown},
};

/// Query parameters of `GET /v1/watch/{keyspace}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchQuery {
    /// Keys to watch; the default is all keys.
    pub keys: WatchKeys,
    /// First revision to return; `None`: only changes from now on.
    pub from: Option<Revision>,
    /// Number of changes after which the watch ends.
    pub limit: Option<u64>,
}

impl WatchQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut key, mut prefix, mut start, mut end, mut from, mut limit) = (None, None, None, None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "key" => once(&mut key, "key", value.into_owned())?,
                "prefix" => once(&mut prefix, "prefix", value.into_owned())?,
                "start" => once(&mut start, "start", value.into_owned())?,
                "end" => once(&mut end, "end", value.into_owned())?,
                "from" => once(&mut from, "from", Revision(number("from", &value)?))?,
                "limit" => once(&mut limit, "limit", number("limit", &value)?)?,
                other => return unknown(other),
            }
        }
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
        Ok(Self { keys, from, limit })
    }
}

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
