//! Handlers of `/v1/caches`: bounded maps in memory, which are never logged.
//!
//! Owns: creating, dropping, listing and describing caches. [`keys`] has the operations on one key, [`many`] those on
//! several. The first put creates a cache with the configured bound, or a `PUT` creates it with a bound of its own.
//! After a restart a cache and its content are gone.

mod keys;
mod many;

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_broker::{CacheStats, NamedCache};
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_cache},
};

pub(crate) use self::{
    keys::{add, delete, get, head, put, touch},
    many::{clear, multi_get, multi_put, scan},
};
use crate::{
    body,
    call::{Answer, Call},
    json,
    parse::name_segment,
    reply,
};

const PREFIX: &str = "/v1/caches/";

/// Returns the cache's name in a path below `/v1/caches/` that ends with `suffix`.
fn name<'a>(call: &'a Call, suffix: &str) -> Result<std::borrow::Cow<'a, str>, ApiError> {
    let segment = call.path_after(PREFIX);
    Ok(name_segment(segment.strip_suffix(suffix).unwrap_or(segment))?)
}

fn find(app: &App, name: &str) -> Result<NamedCache, ApiError> {
    app.views.caches.get(name).ok_or_else(|| no_such_cache(name))
}

/// Returns a cache and its figures as JSON.
fn shown(named: &NamedCache) -> Value {
    let stats = named.cache.stats();
    let CacheStats { entries, bytes, max_bytes: _, hits, misses, puts, deletes, evictions, expired } = stats;
    json!({
        "name": &*named.name, "id": named.id.0, "max_bytes": named.max_bytes, "entries": entries, "bytes": bytes,
        "hits": hits, "misses": misses, "hit_ratio": stats.hit_ratio(), "puts": puts, "deletes": deletes,
        "evictions": evictions, "expirations": expired,
    })
}

/// Handles `GET /v1/caches`: lists caches with their figures.
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let all: Vec<_> = app.views.caches.list().iter().map(shown).collect();
    Ok(reply::json(StatusCode::OK, &json!({ "caches": all })))
}

/// Handles `GET /v1/caches/{cache}`: returns the figures of a cache.
pub(crate) fn stat(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json(StatusCode::OK, &shown(&find(app, &name(call, "")?)?)))
}

/// A cache's configuration in JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonConfig {
    max_bytes: Option<u64>,
}

/// Handles `PUT /v1/caches/{cache}`: creates a cache.
pub(crate) async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let body = body::read(app, call.body.get_mut()).await?;
    let config = if body.is_empty() {
        JsonConfig::default()
    } else {
        call.require_json()?;
        json::parse(&body)?
    };
    let (named, created) = app.views.cache(&name(call, "")?, config.max_bytes)?;
    Ok(reply::json(if created { StatusCode::CREATED } else { StatusCode::OK }, &shown(&named)))
}

/// Handles `DELETE /v1/caches/{cache}`: drops a cache.
pub(crate) fn drop_cache(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let name = name(call, "")?;
    app.views.caches.remove(&name).map(|_| reply::empty(StatusCode::NO_CONTENT)).ok_or_else(|| no_such_cache(&name))
}
