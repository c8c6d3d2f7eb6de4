//! Parsing of query strings. A parameter may have any bytes and occurs at most once; unknown parameters are errors.
//!
//! Owns: the iterator over parameters, the parsers of their values, the macro that makes a type with a parser and a
//! description from a list of parameters, and the queries of keyspaces, streams and lists. Does not own: queries with a
//! module of their own (`events`, `push`, `snapshot`, `subjects`, `watch`), or percent-encoding (`percent`).
//!
//! [`query!`] declares the parameters of a request. The parser and the part of the OpenAPI document are made from it.
//!
//! This module splits the query at `&` and `=` itself: `form_urlencoded` decodes values as UTF-8 and replaces other
//! bytes, but a key may have any bytes. The crate `percent-encoding` decodes the parts.

use std::{borrow::Cow, ops::Bound};

use thalweg_types::{
    Offset, SpaceTime,
    command::{AppendConditions, ExpectedOffset, ProducerStamp},
};
use utoipa::openapi::{
    ObjectBuilder, RefOr, Required as Requirement, Schema,
    path::{Parameter, ParameterBuilder, ParameterIn},
};

use super::{ParseError, decode_query, parse_time, text};

/// Iterator over the parameters of a query string, in order. It decodes one parameter at a time.
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
pub(super) fn set_once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), ParseError> {
    if slot.replace(value).is_some() {
        return Err(ParseError::Repeated { name });
    }
    Ok(())
}

/// Returns the raw bytes of a parameter's value.
#[allow(clippy::unnecessary_wraps, reason = "the signature of the parsers in `query!`")]
pub(super) fn bytes(_: &'static str, value: Cow<'_, [u8]>) -> Result<Vec<u8>, ParseError> {
    Ok(value.into_owned())
}

/// Parses a parameter's value as a whole number.
pub(super) fn number(name: &'static str, value: impl AsRef<[u8]>) -> Result<u64, ParseError> {
    let value = value.as_ref();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let parsed = digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten();
    parsed.ok_or(ParseError::BadParameter { name, expected: "a whole number" })
}

/// Parses a parameter's value as a whole number that is not 0.
pub(super) fn positive(name: &'static str, value: impl AsRef<[u8]>) -> Result<u64, ParseError> {
    match number(name, value)? {
        0 => Err(ParseError::BadParameter { name, expected: "at least 1" }),
        number => Ok(number),
    }
}

/// Parses a parameter's value as a whole number that may be negative.
fn signed(name: &'static str, value: impl AsRef<[u8]>) -> Result<i64, ParseError> {
    let parsed = std::str::from_utf8(value.as_ref()).ok().and_then(|text| text.parse().ok());
    parsed.ok_or(ParseError::BadParameter { name, expected: "a whole number between -2^63 and 2^63-1" })
}

/// Parses a parameter's value as a boolean: an empty value, `1` and `true` are true; `0` and `false` are false.
fn flag(name: &'static str, value: impl AsRef<[u8]>) -> Result<bool, ParseError> {
    match value.as_ref() {
        b"" | b"1" | b"true" => Ok(true),
        b"0" | b"false" => Ok(false),
        _ => Err(ParseError::BadParameter { name, expected: "true or false" }),
    }
}

/// Cursor of a list. For clients it is text; for the server it is the number in this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor<C>(pub C);

impl<C> Scalar for Cursor<C> {
    fn schema() -> ObjectBuilder {
        String::schema()
    }
}

fn cursor_of<C: TryFrom<u64>>(name: &'static str, value: impl AsRef<[u8]>) -> Result<Cursor<C>, ParseError> {
    let cursor = number(name, value).ok().and_then(|cursor| C::try_from(cursor).ok());
    cursor.map(Cursor).ok_or(ParseError::BadParameter { name, expected: "a cursor from an earlier reply" })
}

fn lease_cursor(name: &'static str, value: impl AsRef<[u8]>) -> Result<u64, ParseError> {
    cursor_of(name, value).map(|Cursor(lease)| lease)
}

/// Type of parameter values that has a schema in the OpenAPI document.
pub(super) trait Scalar {
    /// True if every request must have the parameter.
    const REQUIRED: bool = false;
    /// Returns the OpenAPI schema of the values of this type.
    fn schema() -> ObjectBuilder;
}

/// Implements [`Scalar`] for types. Each row has the type in JSON, and the valid words if only some words are valid.
macro_rules! scalars {
    ($($type:ty: $json:ident $($words:expr)?;)+) => {$(
        impl $crate::parse::query::Scalar for $type {
            fn schema() -> utoipa::openapi::ObjectBuilder {
                utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::$json)
                    $(.enum_values(Some($words)))?
            }
        }
    )+};
}
pub(super) use scalars;

scalars! {
    bool: Boolean;
    i64: Integer;
    u32: Integer;
    u64: Integer;
    String: String;
    Vec<u8>: String;
}

impl<T: Scalar> Scalar for Option<T> {
    fn schema() -> ObjectBuilder {
        T::schema()
    }
}

/// A parameter that a request must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Required<T>(pub T);

impl<T: Scalar> Scalar for Required<T> {
    const REQUIRED: bool = true;

    fn schema() -> ObjectBuilder {
        T::schema()
    }
}

/// Type of a field of a parsed query. It decides what a missing parameter means: an error, `None` or a default value.
pub(super) trait Field<T>: Sized {
    /// Returns the field's value; `given` is `None` if the request does not have the parameter `name`.
    fn of(name: &'static str, given: Option<T>) -> Result<Self, ParseError>;
}

impl<T> Field<T> for Option<T> {
    fn of(_: &'static str, given: Self) -> Result<Self, ParseError> {
        Ok(given)
    }
}

impl<T> Field<T> for Required<T> {
    fn of(name: &'static str, given: Option<T>) -> Result<Self, ParseError> {
        given.map(Self).ok_or(ParseError::Missing { name })
    }
}

impl Field<bool> for bool {
    fn of(_: &'static str, given: Option<bool>) -> Result<Self, ParseError> {
        Ok(given.unwrap_or_default())
    }
}

impl Field<Vec<u8>> for Vec<u8> {
    fn of(_: &'static str, given: Option<Self>) -> Result<Self, ParseError> {
        Ok(given.unwrap_or_default())
    }
}

/// Describes one request parameter for the OpenAPI document.
pub(crate) fn parameter(
    place: ParameterIn,
    name: &str,
    text: &str,
    required: bool,
    schema: impl Into<RefOr<Schema>>,
) -> Parameter {
    let required = if required { Requirement::True } else { Requirement::False };
    let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(required);
    parameter.description(Some(text.trim())).schema(Some(schema)).build()
}

/// Declares the query parameters of a request: a struct, its parser, and the parameters in the OpenAPI document. Each
/// parameter names the function that parses its value.
macro_rules! query {
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $query:ident {
            $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $parser:expr,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $visibility struct $query {
            $($(#[doc = $doc])+ $visibility $name: $type,)+
        }

        impl $query {
            /// Parses a query string.
            $visibility fn parse(query: Option<&str>) -> Result<Self, $crate::parse::ParseError> {
                use $crate::parse::query::{Field, Params, set_once, unknown};
                $(let mut $name = None;)+
                for pair in Params::new(query) {
                    let (name, value) = pair?;
                    match &*name {
                        $(stringify!($name) => {
                            set_once(&mut $name, stringify!($name), $parser(stringify!($name), value)?)?;
                        })+
                        other => return unknown(other),
                    }
                }
                Ok(Self { $($name: Field::of(stringify!($name), $name)?,)+ })
            }
        }

        impl utoipa::IntoParams for $query {
            fn into_params(
                _: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>,
            ) -> Vec<utoipa::openapi::path::Parameter> {
                use $crate::parse::query::{Scalar, parameter};
                vec![$(parameter(
                    utoipa::openapi::path::ParameterIn::Query,
                    stringify!($name),
                    concat!($($doc),+),
                    <$type as Scalar>::REQUIRED,
                    <$type as Scalar>::schema(),
                ),)+]
            }
        }
    )+};
}
pub(super) use query;

/// Describes the query parameters of a type in the OpenAPI document. Used for types that are converted from a second
/// type, which has the parameters as the client sent them. The description is taken from this second type.
macro_rules! described {
    ($query:ty as $sent:ty) => {
        impl utoipa::IntoParams for $query {
            fn into_params(
                place: impl Fn() -> Option<utoipa::openapi::path::ParameterIn>,
            ) -> Vec<utoipa::openapi::path::Parameter> {
                <$sent as utoipa::IntoParams>::into_params(place)
            }
        }
    };
}
pub(super) use described;

query! {
    /// Query parameters of `GET /v1/kv/{keyspace}`.
    #[derive(Default)]
    pub struct ScanQuery {
        /// Prefix of the keys to return.
        prefix: Vec<u8> = bytes,
        /// Lowest key to return, inclusive.
        start: Option<Vec<u8>> = bytes,
        /// Highest key, exclusive.
        end: Option<Vec<u8>> = bytes,
        /// Maximum number of pairs to return; no limit if missing.
        limit: Option<u64> = number,
        /// True for descending order.
        reverse: bool = flag,
        /// True if the reply omits values.
        keys_only: bool = flag,
        /// Revision to read at, in keyspaces with history; the current state if missing. The error `compacted` states
        /// the oldest revision that is kept.
        revision: Option<u64> = number,
        /// Cursor from the last line of an earlier scan with the same parameters. The scan resumes there: in keyspaces
        /// with history at the revision of the earlier scan, otherwise with the current state. A cursor that does not
        /// fit the parameters gets the error `bad_cursor`.
        cursor: Option<Vec<u8>> = bytes,
    }

    /// Query parameters of `GET /ready`.
    #[derive(Copy)]
    pub(crate) struct ReadyQuery {
        /// True to include the warnings about the server's configuration in the reply.
        verbose: bool = flag,
    }

    /// Query parameters of `GET /v1/space`, the report on the disk space of the data directory.
    #[derive(Copy)]
    pub(crate) struct SpaceQuery {
        /// True to count the bytes that users have stored (the payload), however long that takes. Otherwise they are
        /// counted only if the state has at most 1 GiB.
        count: bool = flag,
    }

    /// Query parameters of `GET /v1/kv/{keyspace}/{key}`.
    #[derive(Copy)]
    pub(crate) struct RevisionQuery {
        /// Revision to read at, in keyspaces with history; the current value if missing. The error `compacted` states
        /// the oldest revision that is kept.
        revision: Option<u64> = number,
    }

    /// Query parameters of `GET /v1/versions/{keyspace}/{key}`.
    #[derive(Copy)]
    pub(crate) struct VersionsQuery {
        /// Exclusive upper bound of the revisions to return: the value of `next` in an earlier reply.
        before: Option<u64> = number,
        /// Maximum number of versions; 10 if missing, 1,000 at most. A reply also ends after about 4 MiB of values.
        limit: Option<u64> = positive,
    }

    /// Query parameters of `POST /v1/kv/{keyspace}/{key}`.
    #[derive(Copy)]
    pub(crate) struct AddQuery {
        /// Number to add; may be negative.
        add: Required<i64> = signed,
    }

    /// Query parameters of `DELETE /v1/kv/{keyspace}`.
    pub(crate) struct PrefixQuery {
        /// Prefix of the keys to remove; empty for all keys.
        prefix: Required<Vec<u8>> = bytes,
    }

    /// Query parameters `start`, `end`, `limit` of the simple range requests.
    #[derive(Default)]
    pub struct PairRange {
        /// Lowest key to return, inclusive.
        start: Option<Vec<u8>> = bytes,
        /// Highest key, exclusive.
        end: Option<Vec<u8>> = bytes,
        /// Maximum number of pairs to return.
        limit: Option<u64> = number,
    }

    /// Query parameters of a list of streams or groups.
    #[derive(Copy)]
    pub(crate) struct ListQuery {
        /// Maximum number of items; 1,000 if missing, 10,000 at most.
        limit: Option<u64> = number,
        /// Cursor from an earlier reply; the page begins after it.
        cursor: Option<Cursor<u32>> = cursor_of,
    }

    /// Query parameters of `GET /v1/leases`.
    #[derive(Copy)]
    pub(crate) struct LeasesQuery {
        /// Maximum number of leases; 1,000 if missing, 10,000 at most.
        limit: Option<u64> = number,
        /// Id of the last lease of an earlier reply; the page begins after it.
        cursor: Option<u64> = lease_cursor,
    }

    /// Query parameters of `GET /v1/caches/{cache}/keys`.
    #[derive(Copy)]
    pub(crate) struct CacheKeysQuery {
        /// Maximum number of keys; 1,000 if missing, 10,000 at most.
        limit: Option<u64> = number,
        /// Cursor from an earlier reply; the page begins after it.
        cursor: Option<Cursor<u64>> = cursor_of,
    }

    /// Query parameters of `GET /v1/leases/{lease}`.
    #[derive(Copy)]
    pub(crate) struct LeaseQuery {
        /// Maximum number of keys; 100 if missing, 1,000 at most.
        limit: Option<u64> = number,
    }
}

impl ScanQuery {
    /// Returns the bounds of the keys to list, made from `start` (inclusive) and `end` (exclusive).
    #[must_use]
    pub fn bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let start = self.start.clone().map_or(Bound::Unbounded, Bound::Included);
        let end = self.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        (start, end)
    }
}

/// Position in a stream at which a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPosition {
    /// The log start offset: the oldest record that the stream still has.
    Start,
    /// The log end offset: only records that are appended later.
    End,
    /// The record with this offset.
    Offset(Offset),
    /// The first record at or after a time.
    Time(SpaceTime),
    /// The position that lies this number of offsets before the log end offset.
    Last(u64),
}

/// Query parameters of `GET /v1/streams/{stream}/records`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsQuery {
    /// Position at which the read begins; `None` if the request states none.
    pub from: Option<StartPosition>,
    /// Maximum number of records to return.
    pub limit: Option<u64>,
    /// Approximate maximum size of the records in bytes. The reply has at least one record, if there is one.
    pub max_bytes: Option<u64>,
}

impl RecordsQuery {
    /// Parses the query string of a read of records.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "from" => set_once(&mut parsed.from, "from", from(&value)?)?,
                "since" => set_once(&mut parsed.from, "since (or from)", since(&value)?)?,
                "last" => set_once(&mut parsed.from, "last (or from)", StartPosition::Last(number("last", &value)?))?,
                "limit" => set_once(&mut parsed.limit, "limit", number("limit", &value)?)?,
                "max_bytes" => set_once(&mut parsed.max_bytes, "max_bytes", number("max_bytes", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(parsed)
    }
}

fn from(value: &[u8]) -> Result<StartPosition, ParseError> {
    match value {
        b"start" => Ok(StartPosition::Start),
        b"end" => Ok(StartPosition::End),
        offset => number("from", offset)
            .map(|offset| StartPosition::Offset(Offset(offset)))
            .map_err(|_| ParseError::BadParameter { name: "from", expected: "an offset, start or end" }),
    }
}

fn since(value: &[u8]) -> Result<StartPosition, ParseError> {
    std::str::from_utf8(value).ok().and_then(parse_time).map(StartPosition::Time).ok_or(ParseError::BadParameter {
        name: "since",
        expected: "microseconds since 1970 or a time such as 2026-11-20T10:00:00Z",
    })
}

/// Query of a request that names one key: `?id=` of `/v0/entity`, or `?key=` of `/keys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub Option<Vec<u8>>);

impl Key {
    /// Parses a query string that may contain only the parameter `name`.
    pub fn parse(query: Option<&str>, name: &'static str) -> Result<Self, ParseError> {
        let mut key = None;
        for pair in Params::new(query) {
            let (given, value) = pair?;
            if given != name {
                return unknown(&given);
            }
            set_once(&mut key, name, value.into_owned())?;
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
    /// Offset that the stream must assign next; otherwise the append fails.
    pub expected: ExpectedOffset,
    /// Key of the appended record.
    pub key: Option<Vec<u8>>,
    producer: Option<String>,
    epoch: u32,
    sequence: u64,
}

impl AppendQuery {
    /// Parses the query string of an append.
    pub fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut expected, mut key) = (None, None);
        let (mut producer, mut epoch, mut sequence) = (None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "expected" => set_once(&mut expected, "expected", expected_offset(&value)?)?,
                "key" => set_once(&mut key, "key", value.into_owned())?,
                "producer" => set_once(&mut producer, "producer", text(value, "the producer's id")?.into_owned())?,
                "epoch" => set_once(&mut epoch, "epoch", producer_epoch(number("epoch", &value)?)?)?,
                "sequence" => set_once(&mut sequence, "sequence", number("sequence", &value)?)?,
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

    /// Returns the offset that the append expects, and the producer's id, epoch and sequence number.
    #[must_use]
    pub fn terms(&self) -> AppendConditions<'_> {
        let stamp = |id| ProducerStamp { id, epoch: self.epoch, sequence: self.sequence };
        AppendConditions { expected: self.expected, producer: self.producer.as_deref().map(stamp) }
    }
}

fn expected_offset(value: &[u8]) -> Result<ExpectedOffset, ParseError> {
    std::str::from_utf8(value)
        .ok()
        .and_then(ExpectedOffset::parse)
        .ok_or(ParseError::BadParameter { name: "expected", expected: "an offset, none or any" })
}

/// Converts a producer's epoch to 32 bits. A larger number is an error.
fn producer_epoch(epoch: u64) -> Result<u32, ParseError> {
    u32::try_from(epoch).map_err(|_| ParseError::BadParameter { name: "epoch", expected: "a number below 2^32" })
}

/// Parses the query string of a simple range request.
pub fn pair_range(query: Option<&str>) -> Result<PairRange, ParseError> {
    PairRange::parse(query)
}
