//! Parsing of query strings. Parameters may hold any bytes, may be given once at most, and unknown ones are errors.

use std::{borrow::Cow, ops::Bound};

use thalweg_types::{
    Offset, SpaceTime,
    command::{AppendTerms, ExpectedOffset, ProducerStamp},
};

use super::{ParseError, decode_query, parse_time, text};

/// Iterator over the parameters of a query string, in order; decodes one at a time.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    rest: Option<&'a str>,
}

impl<'a> Params<'a> {
    /// Creates an iterator over the part of a URI after `?`.
    #[must_use]
    pub fn new(query: Option<&'a str>) -> Self {
        Self { rest: query }
    }
}

impl<'a> Iterator for Params<'a> {
    type Item = Result<(Cow<'a, str>, Cow<'a, [u8]>), ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest?;
            let pair = match rest.split_once('&') {
                Some((pair, rest)) => {
                    self.rest = Some(rest);
                    pair
                }
                None => {
                    self.rest = None;
                    rest
                }
            };
            if !pair.is_empty() {
                return Some(decode_pair(pair));
            }
        }
    }
}

fn decode_pair(pair: &str) -> Result<(Cow<'_, str>, Cow<'_, [u8]>), ParseError> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    Ok((text(decode_query(name.as_bytes())?, "a query parameter's name")?, decode_query(value.as_bytes())?))
}

pub(super) fn unknown<T>(name: &str) -> Result<T, ParseError> {
    Err(ParseError::UnknownParameter { name: name.chars().take(64).collect() })
}

/// Stores a parameter's value. Returns an error if the parameter was given before.
pub(super) fn once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), ParseError> {
    if slot.replace(value).is_some() {
        return Err(ParseError::Repeated { name });
    }
    Ok(())
}

pub(super) fn number(name: &'static str, value: &[u8]) -> Result<u64, ParseError> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let parsed = digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten();
    parsed.ok_or(ParseError::BadParameter { name, expected: "a whole number" })
}

/// Parses a boolean: an empty value, `1` and `true` are true; `0` and `false` are false.
fn flag(name: &'static str, value: &[u8]) -> Result<bool, ParseError> {
    match value {
        b"" | b"1" | b"true" => Ok(true),
        b"0" | b"false" => Ok(false),
        _ => Err(ParseError::BadParameter { name, expected: "true or false" }),
    }
}

/// Query parameters of `GET /v1/kv/{keyspace}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanQuery {
    /// Prefix of the keys to return.
    pub prefix: Vec<u8>,
    /// Lowest key, inclusive.
    pub start: Option<Vec<u8>>,
    /// Highest key, exclusive.
    pub end: Option<Vec<u8>>,
    /// Maximum number of pairs; `None`: no limit.
    pub limit: Option<u64>,
    /// True for descending order.
    pub reverse: bool,
    /// True if the reply omits values.
    pub keys_only: bool,
    /// Revision to read at; `None`: the current state.
    pub revision: Option<u64>,
    /// Cursor from the last line of an earlier scan, as received; not validated yet.
    pub cursor: Option<Vec<u8>>,
}

impl ScanQuery {
    /// Parses a query string.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut prefix, mut start, mut end, mut limit) = (None, None, None, None);
        let (mut reverse, mut keys_only, mut cursor, mut revision) = (None, None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "prefix" => once(&mut prefix, "prefix", value.into_owned())?,
                "start" => once(&mut start, "start", value.into_owned())?,
                "end" => once(&mut end, "end", value.into_owned())?,
                "limit" => once(&mut limit, "limit", number("limit", &value)?)?,
                "reverse" => once(&mut reverse, "reverse", flag("reverse", &value)?)?,
                "keys_only" => once(&mut keys_only, "keys_only", flag("keys_only", &value)?)?,
                "revision" => once(&mut revision, "revision", number("revision", &value)?)?,
                "cursor" => once(&mut cursor, "cursor", value.into_owned())?,
                other => return unknown(other),
            }
        }
        Ok(Self {
            prefix: prefix.unwrap_or_default(),
            start,
            end,
            limit,
            reverse: reverse.unwrap_or_default(),
            keys_only: keys_only.unwrap_or_default(),
            revision,
            cursor,
        })
    }

    /// Returns the bounds of the keys.
    #[must_use]
    pub fn bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let start = self.start.clone().map_or(Bound::Unbounded, Bound::Included);
        let end = self.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        (start, end)
    }
}

/// Query parameters of `GET /v1/kv/{keyspace}/{key}`: the revision to read at, or `None` for the current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RevisionQuery(pub Option<u64>);

impl RevisionQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut revision = None;
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "revision" => once(&mut revision, "revision", number("revision", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(Self(revision))
    }
}

/// Query parameters of `GET /v1/versions/{keyspace}/{key}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionsQuery {
    /// Exclusive upper bound of the revisions to return.
    pub before: Option<u64>,
    /// Maximum number of versions.
    pub limit: Option<u64>,
}

impl VersionsQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "before" => once(&mut parsed.before, "before", number("before", &value)?)?,
                "limit" => once(&mut parsed.limit, "limit", number("limit", &value)?)?,
                other => return unknown(other),
            }
        }
        if parsed.limit == Some(0) {
            return Err(ParseError::BadParameter { name: "limit", expected: "at least 1" });
        }
        Ok(parsed)
    }
}

/// Position at which a read of a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The log start offset.
    Start,
    /// The log end offset: only records that are appended later.
    End,
    /// A given offset.
    Offset(Offset),
    /// The first record at or after a time.
    Time(SpaceTime),
    /// A number of offsets before the log end offset.
    Last(u64),
}

/// Query parameters of `GET /v1/streams/{stream}/records`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsQuery {
    /// Position at which to begin; `None`: the request states none.
    pub from: Option<Since>,
    /// Maximum number of records.
    pub limit: Option<u64>,
    /// Maximum size of the records in bytes, approximately; the reply has at least one record.
    pub max_bytes: Option<u64>,
}

impl RecordsQuery {
    /// Parses a query string.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "from" => once(&mut parsed.from, "from", from(&value)?)?,
                "since" => once(&mut parsed.from, "since (or from)", since(&value)?)?,
                "last" => once(&mut parsed.from, "last (or from)", Since::Last(number("last", &value)?))?,
                "limit" => once(&mut parsed.limit, "limit", number("limit", &value)?)?,
                "max_bytes" => once(&mut parsed.max_bytes, "max_bytes", number("max_bytes", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(parsed)
    }
}

fn from(value: &[u8]) -> Result<Since, ParseError> {
    match value {
        b"start" => Ok(Since::Start),
        b"end" => Ok(Since::End),
        offset => number("from", offset)
            .map(|offset| Since::Offset(Offset(offset)))
            .map_err(|_| ParseError::BadParameter { name: "from", expected: "an offset, start or end" }),
    }
}

fn since(value: &[u8]) -> Result<Since, ParseError> {
    std::str::from_utf8(value).ok().and_then(parse_time).map(Since::Time).ok_or(ParseError::BadParameter {
        name: "since",
        expected: "microseconds since 1970 or a time such as 2026-11-20T10:00:00Z",
    })
}

/// Query of a request that names one key: `?id=` of `/v0/entity`, or `?key=` of `/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub Option<Vec<u8>>);

impl Key {
    /// Parses a query string that may hold only the parameter `name`.
    pub fn parse(query: Option<&str>, name: &'static str) -> Result<Self, ParseError> {
        let mut key = None;
        for pair in Params::new(query) {
            let (given, value) = pair?;
            if given != name {
                return unknown(&given);
            }
            once(&mut key, name, value.into_owned())?;
        }
        Ok(Self(key))
    }

    /// Returns the key. A missing or empty key is an error.
    pub fn required(self, name: &'static str) -> Result<Vec<u8>, ParseError> {
        self.0.filter(|key| !key.is_empty()).ok_or(ParseError::Missing { name })
    }
}

/// Query parameters of `POST /v1/streams/{stream}/records`: `?expected=`, `?producer=&epoch=&sequence=` and, for a raw
/// payload, `?key=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendQuery {
    /// Expected next offset of the stream; the append fails if it differs.
    pub expected: ExpectedOffset,
    /// Key of the record.
    pub key: Option<Vec<u8>>,
    producer: Option<String>,
    epoch: u32,
    sequence: u64,
}

impl AppendQuery {
    /// Parses a query string.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut expected, mut key) = (None, None);
        let (mut producer, mut epoch, mut sequence) = (None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "expected" => once(&mut expected, "expected", expected_offset(&value)?)?,
                "key" => once(&mut key, "key", value.into_owned())?,
                "producer" => once(&mut producer, "producer", text(value, "the producer's id")?.into_owned())?,
                "epoch" => once(&mut epoch, "epoch", producer_epoch(number("epoch", &value)?)?)?,
                "sequence" => once(&mut sequence, "sequence", number("sequence", &value)?)?,
                other => return unknown(other),
            }
        }
        if producer.is_none() && (epoch.is_some() || sequence.is_some()) {
            return Err(ParseError::Missing { name: "producer" });
        }
        if producer.is_some() && sequence.is_none() {
            return Err(ParseError::Missing { name: "sequence" });
        }
        let (epoch, sequence) = (epoch.unwrap_or_default(), sequence.unwrap_or_default());
        Ok(Self { expected: expected.unwrap_or_default(), key, producer, epoch, sequence })
    }

    /// Returns the append's expected offset and producer stamp.
    #[must_use]
    pub fn terms(&self) -> AppendTerms<'_> {
        let stamp = |id| ProducerStamp { id, epoch: self.epoch, sequence: self.sequence };
        AppendTerms { expected: self.expected, producer: self.producer.as_deref().map(stamp) }
    }
}

fn expected_offset(value: &[u8]) -> Result<ExpectedOffset, ParseError> {
    std::str::from_utf8(value)
        .ok()
        .and_then(ExpectedOffset::parse)
        .ok_or(ParseError::BadParameter { name: "expected", expected: "an offset, none or any" })
}

/// Converts a producer's epoch, which has 32 bits.
fn producer_epoch(epoch: u64) -> Result<u32, ParseError> {
    u32::try_from(epoch).map_err(|_| ParseError::BadParameter { name: "epoch", expected: "a number below 2^32" })
}

/// Query parameters of a page of a list (`GET /v1/streams`, `GET /v1/caches/{cache}/keys`). Cursors are numbers of type
/// `C`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListQuery<C = u32> {
    /// Maximum number of items.
    pub limit: Option<u64>,
    /// Cursor from the previous page; the page begins after it.
    pub cursor: Option<C>,
}

impl<C: Default + TryFrom<u64>> ListQuery<C> {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "limit" => once(&mut parsed.limit, "limit", number("limit", &value)?)?,
                "cursor" => {
                    let cursor = number("cursor", &value).ok().and_then(|cursor| C::try_from(cursor).ok());
                    let expected = "a cursor as an earlier reply gave it";
                    let cursor = cursor.ok_or(ParseError::BadParameter { name: "cursor", expected })?;
                    once(&mut parsed.cursor, "cursor", cursor)?;
                }
                other => return unknown(other),
            }
        }
        Ok(parsed)
    }
}

/// Query parameters `start`, `end`, `limit` of the simple range requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairRange {
    /// Lowest key, inclusive.
    pub start: Option<Vec<u8>>,
    /// Highest key, exclusive.
    pub end: Option<Vec<u8>>,
    /// Maximum number of pairs.
    pub limit: Option<u64>,
}

/// Parses the query string of a simple range request.
pub fn pair_range(query: Option<&str>) -> Result<PairRange, ParseError> {
    let mut range = PairRange::default();
    for pair in Params::new(query) {
        let (name, value) = pair?;
        match &*name {
            "start" => once(&mut range.start, "start", value.into_owned())?,
            "end" => once(&mut range.end, "end", value.into_owned())?,
            "limit" => once(&mut range.limit, "limit", number("limit", &value)?)?,
            other => return unknown(other),
        }
    }
    Ok(range)
}
