//! Handlers of `/v1/caches/{cache}/keys/{key}`, which access one entry.
//!
//! Owns: these handlers, and the translation of headers and parameters to conditions and deadlines of entries. Does not
//! own: requests for several entries (`many`), or the creation and the settings of a cache (`mod`).
//!
//! Values are raw bodies. Every put raises the version of an entry, which is in `Thalweg-Version` and `ETag`.
//! `If-Match` and `If-None-Match` are conditions, as in the key-value store.

use std::{borrow::Cow, sync::Arc};

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use thalweg_broker::{CacheEntry, CacheError, Condition, Expiry, Moment, NamedCache, Version};
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_key},
};
use thalweg_types::{
    Revision,
    command::{Deadline, Expect},
};

use super::{PREFIX, find};
use crate::{
    body,
    call::{Answer, Call},
    describe::{
        BINARY, Binary, Done, EntryAdd, EntryHead, EntryPath, EntryPut, EntryReply, MatchCondition, ReadConditions,
        TimeToLive, WriteConditions,
    },
    parse::{Freshness, Media, Params, ParseError, decode, name_segment, read_freshness, write_condition},
    reply,
    shapes::EntryAdded,
    ttl::{TTL, TTL_EXPECTED, deadline_of},
};

/// HTTP header with the version of a cache entry.
const VERSION: HeaderName = HeaderName::from_static("thalweg-version");

/// Returns the cache's name and the key in the path of a request.
fn path(call: &Call) -> Result<(Cow<'_, str>, Cow<'_, [u8]>), ApiError> {
    let rest = call.path_after(PREFIX);
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let key = rest.strip_prefix("keys/").unwrap_or_default();
    Ok((name_segment(name)?, decode(key.as_bytes())?))
}

/// Parameters of a request for one cache entry: the query parameters, and the TTL from the query or the headers.
#[derive(Debug, Default)]
struct CacheKeyQuery {
    ttl: Option<Deadline>,
    add: Option<i64>,
}

impl CacheKeyQuery {
    fn of(call: &Call) -> Result<Self, ApiError> {
        let mut terms = Self::default();
        if let Some(given) = call.header(&TTL) {
            let bad = ParseError::BadHeader { name: "Thalweg-TTL", expected: TTL_EXPECTED };
            terms.ttl = Some(deadline_of(given).ok_or(bad)?);
        }
        for parameter in Params::new(call.head.uri.query()) {
            let (name, value) = parameter?;
            match &*name {
                "ttl" => {
                    let bad = ParseError::BadParameter { name: "ttl", expected: TTL_EXPECTED };
                    if terms.ttl.replace(deadline_of(&value).ok_or(bad)?).is_some() {
                        return Err(ParseError::Repeated { name: "ttl (or Thalweg-TTL)" }.into());
                    }
                }
                "add" => {
                    let delta = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                    let expected = "a whole number between -2^63 and 2^63-1";
                    let delta = delta.ok_or(ParseError::BadParameter { name: "add", expected })?;
                    if terms.add.replace(delta).is_some() {
                        return Err(ParseError::Repeated { name: "add" }.into());
                    }
                }
                other => return Err(ParseError::UnknownParameter { name: other.chars().take(64).collect() }.into()),
            }
        }
        Ok(terms)
    }

    /// Parses the parameters of a request that must not have `?add=`.
    fn without_add(call: &Call) -> Result<Self, ApiError> {
        let terms = Self::of(call)?;
        match terms.add {
            Some(_) => Err(ParseError::UnknownParameter { name: "add".to_owned() }.into()),
            None => Ok(terms),
        }
    }

    fn expiry(&self, now: Moment, otherwise: Expiry) -> Result<Expiry, ApiError> {
        self.ttl.map_or(Ok(otherwise), |ttl| expiry_of(ttl, now))
    }
}

/// Returns the expiry time of a cache entry that is put at `now` with this deadline.
pub(super) fn expiry_of(deadline: Deadline, now: Moment) -> Result<Expiry, ApiError> {
    Ok(match deadline.check()? {
        // Caches have no default TTL, and no request can state an absolute time. So these mean no expiry.
        Deadline::Default | Deadline::Never | Deadline::At(_) => Expiry::Never,
        Deadline::Keep => Expiry::Keep,
        Deadline::After(ttl) => Expiry::after(now, ttl),
    })
}

/// Returns the condition on the entry that a write request states.
fn condition(call: &Call) -> Result<Option<Condition<'static>>, ApiError> {
    let asked = write_condition(call.header(&header::IF_MATCH), call.header(&header::IF_NONE_MATCH))?;
    Ok(asked.and_then(|expect| match expect {
        Expect::Absent => Some(Condition::Absent),
        Expect::Present => Some(Condition::Present),
        Expect::Revision(Revision(version)) => Some(Condition::Version(Version(version))),
        // No header expresses these conditions.
        Expect::Any | Expect::Value(_) | Expect::Before(_) | Expect::After(_) | Expect::Unchanged(_) => None,
    }))
}

fn put_version<B>(response: &mut Response<B>, version: Version) {
    let headers = response.headers_mut();
    headers.insert(VERSION, HeaderValue::from(version.0));
    let tag = HeaderValue::try_from(format!("\"{}\"", version.0)).expect("digits in quotes");
    headers.insert(header::ETAG, tag);
}

/// Returns the remaining lifetime of an entry in seconds; `None` if it never expires.
pub(super) fn seconds_left(entry: &CacheEntry, now: Moment) -> Option<f64> {
    (entry.deadline != Moment::NEVER).then(|| entry.deadline.after(now).as_secs_f64())
}

/// Handles `GET /v1/caches/{cache}/keys/{key}`: returns an entry of a cache.
#[utoipa::path(get, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, ReadConditions), responses(EntryReply))]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    read(app, call, |value| Body::from(Bytes::copy_from_slice(value)))
}

/// Handles `HEAD /v1/caches/{cache}/keys/{key}`: returns the version and size of an entry of a cache.
#[utoipa::path(head, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, ReadConditions), responses(EntryHead))]
pub(crate) fn head(app: &Arc<App>, call: &Call) -> Answer {
    read(app, call, |_| Body::empty())
}

fn read(app: &Arc<App>, call: &Call, body: impl FnOnce(&[u8]) -> Body) -> Answer {
    call.no_query()?;
    let (name, key) = path(call)?;
    let now = app.views.now();
    let entry = find(app, &name)?.cache.get(now, &key).ok_or_else(no_such_key)?;
    let (if_match, if_none_match) = (call.header(&header::IF_MATCH), call.header(&header::IF_NONE_MATCH));
    match read_freshness(if_match, if_none_match, Revision(entry.version.0)) {
        Freshness::Send => {}
        Freshness::NotModified => {
            let mut response = reply::empty(StatusCode::NOT_MODIFIED);
            put_version(&mut response, entry.version);
            return Ok(response);
        }
        Freshness::Failed => return Err(CacheError::ConditionFailed { version: Some(entry.version) }.into()),
    }
    let mut response = Response::new(body(&entry.value));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Media::Binary.name()));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.value.len()));
    if let Some(seconds) = seconds_left(&entry, now) {
        headers.insert(TTL, HeaderValue::try_from(format!("{seconds:.6}")).expect("digits and a dot"));
    }
    put_version(&mut response, entry.version);
    Ok(response)
}

/// Handles `PUT /v1/caches/{cache}/keys/{key}`. Creates the cache if it does not exist.
#[utoipa::path(
    put, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, TimeToLive, WriteConditions),
    request_body(content = Binary, content_type = BINARY), responses(EntryPut)
)]
pub(crate) async fn put(app: &Arc<App>, call: &mut Call) -> Answer {
    let (terms, condition) = (CacheKeyQuery::without_add(call)?, condition(call)?);
    let value = body::read(app, &call.account, call.body.get_mut()).await?;
    let (name, key) = path(call)?;
    let (NamedCache { cache, .. }, _) = app.views.cache(&call.account, &name, None)?;
    let now = app.views.now();
    let expiry = terms.expiry(now, Expiry::Never)?;
    let version = match condition {
        None => cache.put(now, &key, &value, expiry)?,
        Some(condition) => cache.put_if(now, &key, &value, expiry, condition)?,
    };
    let mut response = reply::empty(StatusCode::NO_CONTENT);
    put_version(&mut response, version);
    Ok(response)
}

/// Handles `DELETE /v1/caches/{cache}/keys/{key}`. Returns 204 even if the entry did not exist.
#[utoipa::path(delete, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, MatchCondition), responses(Done))]
pub(crate) fn delete(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let condition = condition(call)?;
    let (name, key) = path(call)?;
    let cache = find(app, &name)?.cache;
    match condition {
        None => _ = cache.delete(app.views.now(), &key),
        Some(condition) => cache.delete_if(app.views.now(), &key, condition)?,
    }
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// Handles `PATCH /v1/caches/{cache}/keys/{key}?ttl=30`. Changes the deadline; value and version stay.
#[utoipa::path(patch, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, TimeToLive), responses(Done))]
pub(crate) fn touch(app: &Arc<App>, call: &Call) -> Answer {
    let terms = CacheKeyQuery::without_add(call)?;
    let (name, key) = path(call)?;
    let now = app.views.now();
    if matches!(terms.ttl, None | Some(Deadline::Keep)) {
        return Err(ParseError::BadParameter { name: "ttl", expected: "given: seconds or never" }.into());
    }
    let expiry = terms.expiry(now, Expiry::Never)?;
    let cache = find(app, &name)?.cache;
    if cache.touch(now, &key, expiry) { Ok(reply::empty(StatusCode::NO_CONTENT)) } else { Err(no_such_key()) }
}

/// Handles `POST /v1/caches/{cache}/keys/{key}?add=5`. Creates the cache if it does not exist. An existing entry keeps
/// its deadline unless the request states another.
#[utoipa::path(
    post, path = "/v1/caches/{cache}/keys/{key}", params(EntryPath, EntryAdd, TimeToLive),
    responses((status = 200, description = "The new value.", body = EntryAdded))
)]
pub(crate) fn add(app: &Arc<App>, call: &Call) -> Answer {
    let terms = CacheKeyQuery::of(call)?;
    let delta = terms.add.ok_or(ParseError::Missing { name: "add" })?;
    let (name, key) = path(call)?;
    let (NamedCache { cache, .. }, _) = app.views.cache(&call.account, &name, None)?;
    let now = app.views.now();
    let value = cache.add(now, &key, delta, terms.expiry(now, Expiry::Keep)?)?;
    Ok(reply::json(StatusCode::OK, &json!({ "value": value })))
}
