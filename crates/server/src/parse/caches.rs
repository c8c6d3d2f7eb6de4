//! The query of a cache's scan.

use super::{
    ParseError,
    query::{Params, number, once, unknown},
};

/// `GET /v1/caches/{cache}/keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheScanQuery {
    /// At most so many keys.
    pub limit: Option<u64>,
    /// Where to go on, as an earlier page said.
    pub cursor: Option<u64>,
}

impl CacheScanQuery {
    /// Reads the parameters.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "limit" => once(&mut parsed.limit, "limit", number("limit", &value)?)?,
                "cursor" => once(&mut parsed.cursor, "cursor", number("cursor", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(parsed)
    }
}
