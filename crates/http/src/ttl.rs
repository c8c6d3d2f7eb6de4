//! Lifetime of values, as requests state it: `Thalweg-TTL` and `Thalweg-Lease`, `?ttl=` and `?lease=`, and the fields
//! `ttl_seconds` and `lease` of a put in a commit.
//!
//! Owns: parsing of all these into [`PutLifetime`], and `PATCH /v1/kv/...`, which changes only a deadline. Does not
//! own: leases (see [`crate::leases`]).

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use thalweg_engine::{Expiry, PutOptions, RowsOf};
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_key},
    fetched::fetch_rows,
};
use thalweg_types::{
    LeaseId,
    command::{Deadline, Expect},
};

use crate::{
    call::{Answer, Call},
    describe::{self, KeyPath, Level, MatchCondition, TimeToLive, Touched, described_as},
    parse::{Params, ParseError, kv_path, write_condition},
    read_gate, reply,
};

/// Header with the lifetime of a value in seconds.
pub(crate) const TTL: HeaderName = HeaderName::from_static("thalweg-ttl");
/// Header with the id of the lease to which a value is attached.
const LEASE: HeaderName = HeaderName::from_static("thalweg-lease");

pub(crate) const TTL_EXPECTED: &str = "seconds, as in 30 or 0.5, or never, default or keep";
const LEASE_EXPECTED: &str = "the number that the grant of the lease returned";

/// Lifetime of the value of a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PutLifetime {
    /// Deadline of the value itself. If the value has a lease, the lease has a separate deadline.
    pub deadline: Deadline,
    /// Lease to which the value is attached: the value ends with the lease, at the latest. `None` if it has no lease.
    pub lease: Option<LeaseId>,
}

impl PutLifetime {
    /// Parses the lifetime in the headers and the query of a request. The query must have no other parameters.
    pub(crate) fn of(call: &Call) -> Result<Self, ApiError> {
        let (mut ttl, mut lease) = (None, None);
        if let Some(given) = call.header(&TTL) {
            let bad = ParseError::BadHeader { name: "Thalweg-TTL", expected: TTL_EXPECTED };
            ttl = Some(deadline_of(given).ok_or(bad)?);
        }
        if let Some(given) = call.header(&LEASE) {
            let bad = ParseError::BadHeader { name: "Thalweg-Lease", expected: LEASE_EXPECTED };
            lease = Some(lease_of(given).ok_or(bad)?);
        }
        for parameter in Params::new(call.head.uri.query()) {
            let (name, value) = parameter?;
            match &*name {
                "ttl" => {
                    let bad = ParseError::BadParameter { name: "ttl", expected: TTL_EXPECTED };
                    set_once(&mut ttl, "ttl (or Thalweg-TTL)", deadline_of(&value).ok_or(bad)?)?;
                }
                "lease" => {
                    let bad = ParseError::BadParameter { name: "lease", expected: LEASE_EXPECTED };
                    set_once(&mut lease, "lease (or Thalweg-Lease)", lease_of(&value).ok_or(bad)?)?;
                }
                other => return Err(ParseError::UnknownParameter { name: other.chars().take(64).collect() }.into()),
            }
        }
        Ok(Self { deadline: ttl.unwrap_or_default().check()?, lease })
    }

    /// Returns true if the lifetime is the default. A put without options then has the same effect.
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Converts the lifetime to the options of the engine's put.
    pub(crate) fn options(self, expect: Option<Expect<'_>>) -> PutOptions<'_> {
        PutOptions { deadline: self.deadline, lease: self.lease, expect }
    }
}

fn set_once<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), ParseError> {
    if slot.replace(value).is_some() { Err(ParseError::Repeated { name }) } else { Ok(()) }
}

/// Parses a deadline from the text of a header, of a query parameter, or of a word in JSON.
pub(crate) fn deadline_of(text: &[u8]) -> Option<Deadline> {
    match text.trim_ascii() {
        b"never" => Some(Deadline::Never),
        b"default" => Some(Deadline::Default),
        b"keep" => Some(Deadline::Keep),
        seconds => {
            let seconds = std::str::from_utf8(seconds).ok()?.parse::<f64>().ok()?;
            Duration::try_from_secs_f64(seconds).ok().map(Deadline::After)
        }
    }
}

/// Parses the decimal id of a lease. The id 0 is invalid.
pub(crate) fn lease_of(text: &[u8]) -> Option<LeaseId> {
    let text = text.trim_ascii();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let id = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()?;
    (id != 0).then_some(LeaseId(id))
}

/// Field `ttl_seconds` of a put in JSON: a number or a word.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum JsonTtl {
    /// A number of seconds.
    Seconds(f64),
    /// The word `never`, `default` or `keep`.
    Word(String),
}

described_as! { JsonTtl: "Ttl", describe::ttl(); }

impl JsonTtl {
    /// Returns the deadline that the JSON field states.
    pub(crate) fn deadline(&self) -> Result<Deadline, ApiError> {
        let bad = || ApiError::bad_request("bad_json", format!("ttl_seconds is {TTL_EXPECTED}"));
        let deadline = match self {
            Self::Seconds(seconds) => Duration::try_from_secs_f64(*seconds).ok().map(Deadline::After),
            Self::Word(word) => deadline_of(word.as_bytes()).filter(|deadline| !matches!(deadline, Deadline::After(_))),
        };
        Ok(deadline.ok_or_else(bad)?.check()?)
    }
}

/// Returns the lifetime that a put in JSON states.
pub(crate) fn json_terms(ttl: Option<&JsonTtl>, lease: Option<u64>) -> Result<PutLifetime, ApiError> {
    let deadline = ttl.map_or(Ok(Deadline::Default), JsonTtl::deadline)?;
    if lease == Some(0) {
        return Err(ApiError::bad_request("bad_lease_id", "a lease id is never 0"));
    }
    Ok(PutLifetime { deadline, lease: lease.map(LeaseId) })
}

/// Adds headers with the remaining lifetime in seconds, if the value has a deadline, and with its lease, if it has one.
pub(crate) fn put_remaining<B>(app: &App, response: &mut Response<B>, expiry: &Expiry) -> Result<(), ApiError> {
    if let Some(left) = app.db.blocking().remaining(expiry)? {
        let seconds = HeaderValue::try_from(format!("{:.6}", left.as_secs_f64())).expect("digits and a dot");
        response.headers_mut().insert(TTL, seconds);
    }
    if let Some(lease) = expiry.lease {
        response.headers_mut().insert(LEASE, HeaderValue::from(lease.0));
    }
    Ok(())
}

/// Handles `PATCH /v1/kv/{keyspace}/{key}?ttl=30`. Changes the deadline; value, revision and lease stay.
#[utoipa::path(
    patch,
    path = "/v1/kv/{keyspace}/{key}",
    params(KeyPath, TimeToLive, Level, MatchCondition),
    responses(Touched)
)]
pub(crate) async fn touch(app: &Arc<App>, call: &mut Call) -> Answer {
    let level = call.level(app)?;
    let terms = PutLifetime::of(call)?;
    if terms.lease.is_some() {
        return Err(ApiError::bad_request("bad_parameter", "a touch cannot change the lease: PUT the value again"));
    }
    if terms.deadline == Deadline::Keep || (terms.is_plain() && !has_ttl(call)) {
        return Err(ParseError::BadParameter { name: "ttl", expected: "given: seconds, never or default" }.into());
    }
    let (if_match, if_none_match) = (call.header(&header::IF_MATCH), call.header(&header::IF_NONE_MATCH));
    let expect = write_condition(if_match, if_none_match)?.unwrap_or(Expect::Present);
    if expect == Expect::Absent {
        return Err(
            ParseError::BadHeader { name: "If-None-Match", expected: "left out: a touch requires a value" }.into()
        );
    }
    let (name, key) = kv_path(call.path_after("/v1/kv/"))?;
    let keyspace = read_gate::look_up(app, call, || app.find_keyspace(&name)).await?;
    let (key, db) = (key.unwrap_or_default(), call.db(app)?);
    fetch_rows(app, &call.account, &db, RowsOf::Key(keyspace.id(), &key)).await;
    let touched = db.touch(&keyspace, &key, terms.deadline, expect, level);
    let ack = touched.await?.ok_or_else(no_such_key)?;
    // The reply has no revision. The key's revision did not change, and clients would mistake the commit's revision for
    // the key's.
    let mut response = reply::empty(StatusCode::NO_CONTENT);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(ack.durability));
    Ok(response)
}

/// Returns true if the request states a TTL. The parsed lifetime does not show this, because an explicit `default` is
/// the same as a missing TTL.
fn has_ttl(call: &Call) -> bool {
    call.header(&TTL).is_some() || call.head.uri.query().is_some_and(|query| !query.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_words() {
        let after = |micros| Some(Deadline::After(Duration::from_micros(micros)));
        assert_eq!(deadline_of(b"30"), after(30_000_000));
        assert_eq!(deadline_of(b" 0.5 "), after(500_000));
        assert_eq!(deadline_of(b"never"), Some(Deadline::Never));
        assert_eq!(deadline_of(b"default"), Some(Deadline::Default));
        assert_eq!(deadline_of(b"keep"), Some(Deadline::Keep));
        for bad in [b"".as_slice(), b"-1", b"1s", b"nan", b"inf", b"1e300", b"\xff", b"Never"] {
            assert_eq!(deadline_of(bad), None, "{bad:?}");
        }
        assert!(JsonTtl::Word("30".into()).deadline().is_err() && JsonTtl::Seconds(0.0).deadline().is_err());
    }

    #[test]
    fn leases_are_numbers_but_0() {
        assert_eq!(lease_of(b"7"), Some(LeaseId(7)));
        assert_eq!(lease_of(b"18446744073709551615"), Some(LeaseId(u64::MAX)));
        for bad in [b"".as_slice(), b"0", b"+7", b"-7", b"0x7", b"18446744073709551616", b"\xff"] {
            assert_eq!(lease_of(bad), None, "{bad:?}");
        }
    }
}
