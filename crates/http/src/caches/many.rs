//! Requests for several entries of a cache: reading, putting, listing, clearing. These requests are not atomic: other
//! clients may see some of the entries before the others.
//!
//! Owns: the handlers of these requests with their JSON, and the bound on the entries of one request. Does not own:
//! requests for one entry (`keys`), or the creation and the settings of a cache (`mod`).

use std::sync::Arc;

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use thalweg_broker::{Cache, CacheEntry, Expiry, Moment, ScanCursor};
use thalweg_serving::{
    admission::Account,
    app::App,
    aside,
    error::ApiError,
    limits::{DEFAULT_CACHE_KEYS, SCAN_PAGE_BYTES},
};
use thalweg_types::{
    Action, budget,
    limits::{MAX_CACHE_ENTRIES_AT_ONCE, MAX_CACHE_SCAN_KEYS, MAX_TRANSACTION_RESULT_BYTES},
    steps::ROW,
};
use utoipa::ToSchema;

use super::{
    find,
    keys::{expiry_of, seconds_left},
    name,
};
use crate::{
    body,
    call::{Answer, Call},
    describe::{CachePath, Done},
    json::{self, push_bytes, push_number, required_bytes},
    long_json::LongJson,
    parse::{CacheKeysQuery, Cursor, Media},
    reading, reply,
    shapes::{CacheEntries, CacheKeys, Put},
    ttl::JsonTtl,
};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CacheGet)]
struct JsonGet {
    keys: Vec<JsonKey>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = CacheKeyName)]
enum JsonKey {
    Text(String),
    Base64 { key_base64: String },
}

impl JsonKey {
    fn bytes(&self) -> Result<std::borrow::Cow<'_, [u8]>, ApiError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().into()),
            Self::Base64 { key_base64 } => required_bytes("key", None, Some(key_base64)),
        }
    }
}

fn too_many(entries: usize) -> Result<(), ApiError> {
    if entries <= MAX_CACHE_ENTRIES_AT_ONCE {
        return Ok(());
    }
    let message = format!("at most {MAX_CACHE_ENTRIES_AT_ONCE} entries per request, not {entries}: split it");
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_entries", Action::Fix, message))
}

/// Handles `POST /v1/caches/{cache}/get`: reads several entries of a cache.
#[utoipa::path(
    post, path = "/v1/caches/{cache}/get", params(CachePath), request_body = JsonGet,
    responses((status = 200, description = "The entries.", body = CacheEntries))
)]
pub(crate) async fn multi_get(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    call.require_json()?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let (sent, _body): (JsonGet, _) = body::parse(app, &call.account, body, json::parse).await?;
    too_many(sent.keys.len())?;
    let cache = find(app, &name(call, "/get")?)?.cache;
    let now = app.views.now();
    let shown = if sent.keys.len() > MAX_INLINE_GETS {
        let read = move || entries_json(&sent.keys, found(&cache, &sent.keys, now)?.0, now);
        reading::on_reader(app, &call.account, MAX_TRANSACTION_RESULT_BYTES, read).await??
    } else {
        let (entries, bytes) = found(&cache, &sent.keys, now)?;
        body::work(app, &call.account, bytes, move || entries_json(&sent.keys, entries, now)).await??
    };
    Ok(json_body(shown.into_body(app, call)?))
}

/// Maximum number of keys that a request may read on the thread of its connection, if the values are short. Other
/// requests run on a thread for long reads.
const MAX_INLINE_GETS: usize = 128;

/// Returns the cache's entry for each key (`None` if there is none), and the sum of the values' lengths in bytes.
/// Returns an error if the values are too long for one reply.
fn found(cache: &Cache, keys: &[JsonKey], now: Moment) -> Result<(Vec<Option<CacheEntry>>, usize), ApiError> {
    let (mut entries, mut bytes) = (Vec::with_capacity(keys.len()), 0);
    for key in keys {
        let entry = cache.get(now, &key.bytes()?);
        bytes += entry.as_ref().map_or(0, |entry| entry.value.len());
        if bytes > MAX_TRANSACTION_RESULT_BYTES {
            let message = format!("the values exceed {MAX_TRANSACTION_RESULT_BYTES} bytes: request fewer keys");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "result_too_large", Action::Fix, message));
        }
        entries.push(entry);
    }
    Ok((entries, bytes))
}

fn entries_json(keys: &[JsonKey], entries: Vec<Option<CacheEntry>>, now: Moment) -> Result<LongJson, ApiError> {
    let mut out = LongJson::new(b"{\"entries\":[");
    for (at, (key, entry)) in keys.iter().zip(entries).enumerate() {
        out.json().extend_from_slice(if at == 0 { b"{" } else { b",{" });
        out.push("key", &key.bytes()?);
        let Some(entry) = entry else {
            out.json().extend_from_slice(b",\"found\":false}");
            continue;
        };
        out.json().extend_from_slice(b",\"found\":true,");
        let left = seconds_left(&entry, now);
        out.push_shared("value", &Bytes::from_owner(entry.value));
        out.json().push(b',');
        push_number(out.json(), "version", entry.version.0);
        if let Some(seconds) = left {
            out.json().extend_from_slice(format!(",\"ttl_seconds\":{seconds:.6}").as_bytes());
        }
        out.json().push(b'}');
    }
    out.json().extend_from_slice(b"]}\n");
    Ok(out)
}

fn json_body(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Media::Json.name()));
    response
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CachePut)]
struct JsonPut {
    items: Vec<JsonItem>,
    ttl_seconds: Option<JsonTtl>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CacheItem)]
struct JsonItem {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

/// Handles `POST /v1/caches/{cache}/put`. Creates the cache if it does not exist. If one item is too large for the
/// cache, none is put.
#[utoipa::path(
    post, path = "/v1/caches/{cache}/put", params(CachePath), request_body = JsonPut,
    responses((status = 200, description = "The number of stored entries.", body = Put))
)]
pub(crate) async fn multi_put(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    call.require_json()?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let (sent, body): (JsonPut, _) = body::parse(app, &call.account, body, json::parse).await?;
    too_many(sent.items.len())?;
    let (shared, account, name) = (Arc::clone(app), Arc::clone(&call.account), name(call, "/put")?.into_owned());
    let put = move || put_all(&shared, &account, &name, &sent);
    let count = body::work(app, &call.account, body.len(), put).await??;
    Ok(reply::json(StatusCode::OK, &json!({ "put": count })))
}

/// Puts the items of a request into a cache, and returns their number.
fn put_all(app: &App, account: &Arc<Account>, name: &str, sent: &JsonPut) -> Result<usize, ApiError> {
    let mut pairs = Vec::with_capacity(sent.items.len());
    for item in &sent.items {
        let key = required_bytes("key", item.key.as_ref(), item.key_base64.as_ref())?;
        pairs.push((key, required_bytes("value", item.value.as_ref(), item.value_base64.as_ref())?));
    }
    let (named, _) = app.views.cache(account, name, None)?;
    let now = app.views.now();
    let ttl = sent.ttl_seconds.as_ref().map(JsonTtl::deadline).transpose()?;
    let expiry = ttl.map_or(Ok(Expiry::Never), |ttl| expiry_of(ttl, now))?;
    named.cache.put_many(now, pairs.iter().map(|(key, value)| (&**key, &**value)), expiry)?;
    Ok(pairs.len())
}

/// Handles `GET /v1/caches/{cache}/keys`: lists keys of a cache.
#[utoipa::path(
    get, path = "/v1/caches/{cache}/keys", params(CachePath, CacheKeysQuery),
    responses((status = 200, description = "A page of keys.", body = CacheKeys))
)]
pub(crate) fn scan(app: &Arc<App>, call: &Call) -> Answer {
    let query = CacheKeysQuery::parse(call.head.uri.query())?;
    let count = query.limit.unwrap_or(DEFAULT_CACHE_KEYS).min(MAX_CACHE_SCAN_KEYS as u64) as usize;
    let cache = find(app, &name(call, "/keys")?)?.cache;
    if budget::charge(cache.scan_steps() + ROW * count as u64 / 2).is_break() {
        // This reply is dropped: the budget is spent, and the readers repeat the request.
        return Ok(reply::empty(StatusCode::SERVICE_UNAVAILABLE));
    }
    let page =
        cache.scan(app.views.now(), query.cursor.map(|Cursor(cursor)| ScanCursor(cursor)), count, SCAN_PAGE_BYTES);
    let mut out = b"{\"keys\":[".to_vec();
    for (at, key) in page.keys.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"{" } else { b",{" });
        push_bytes(&mut out, "key", key);
        out.push(b'}');
    }
    out.push(b']');
    if let Some(ScanCursor(next)) = page.next {
        out.extend_from_slice(format!(",\"cursor\":\"{next}\"").as_bytes());
    }
    out.extend_from_slice(b"}\n");
    Ok(json_body(out.into()))
}

/// Handles `POST /v1/caches/{cache}/clear`. The counters of the cache stay.
#[utoipa::path(post, path = "/v1/caches/{cache}/clear", params(CachePath), responses(Done))]
pub(crate) fn clear(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    aside::free(find(app, &name(call, "/clear")?)?.cache.clear());
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
