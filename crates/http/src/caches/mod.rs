//! Handlers of `/v1/caches`: bounded maps in memory, which are never logged.
//!
//! Owns: creating, dropping, listing and describing caches. [`keys`] has the operations on one key, [`many`] those on
//! several. The first put into a missing cache creates it with the configured capacity in bytes. A `PUT` of the cache
//! creates it too, and can state another capacity. After a restart, all caches are gone.

pub(crate) mod keys;
pub(crate) mod many;

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_broker::{CacheCounts, NamedCache};
use thalweg_serving::{
    app::App,
    aside,
    error::{ApiError, no_such_cache},
};
use utoipa::ToSchema;

use crate::{
    call::{Answer, Call},
    describe::{CachePath, Done},
    json_body,
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

/// A cache with its statistics, in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = Cache)]
struct CacheShown {
    name: String,
    id: u32,
    max_bytes: u64,
    entries: u64,
    bytes: u64,
    hits: u64,
    misses: u64,
    /// Fraction of reads that found an entry, from 0 to 1; null before the first read.
    hit_ratio: Option<f64>,
    puts: u64,
    deletes: u64,
    evictions: u64,
    expirations: u64,
}

/// All caches in JSON.
#[derive(Serialize, ToSchema)]
struct CacheList {
    caches: Vec<CacheShown>,
}

/// Returns a cache and its statistics for a JSON reply.
fn shown(named: &NamedCache) -> CacheShown {
    let stats = named.cache.stats();
    let CacheCounts { entries, bytes, max_bytes: _, hits, misses, puts, deletes, evictions, expired } = stats;
    CacheShown {
        name: named.name.to_string(),
        id: named.id.0,
        max_bytes: named.max_bytes,
        entries,
        bytes,
        hits,
        misses,
        hit_ratio: stats.hit_ratio(),
        puts,
        deletes,
        evictions,
        expirations: expired,
    }
}

/// Handles `GET /v1/caches`: lists caches with their statistics.
#[utoipa::path(
    get, path = "/v1/caches", responses((status = 200, description = "The caches by name.", body = CacheList))
)]
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let caches = app.views.caches.list().iter().map(shown).collect();
    Ok(reply::json(StatusCode::OK, &json!(CacheList { caches })))
}

/// Handles `GET /v1/caches/{cache}`: returns the statistics of a cache.
#[utoipa::path(
    get, path = "/v1/caches/{cache}", params(CachePath),
    responses((status = 200, description = "The cache.", body = CacheShown))
)]
pub(crate) fn stat(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    Ok(reply::json(StatusCode::OK, &json!(shown(&find(app, &name(call, "")?)?))))
}

/// A cache's configuration in JSON.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CacheConfig)]
struct JsonConfig {
    max_bytes: Option<u64>,
}

/// Handles `PUT /v1/caches/{cache}`: creates a cache.
#[utoipa::path(
    put, path = "/v1/caches/{cache}", params(CachePath), request_body = Option<JsonConfig>,
    responses((status = 201, description = "The cache is created.", body = CacheShown),
        (status = 200, description = "The cache exists and is unchanged.", body = CacheShown))
)]
pub(crate) async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let config: JsonConfig = json_body::or_default(app, call).await?;
    let (named, created) = app.views.cache(&call.account, &name(call, "")?, config.max_bytes)?;
    Ok(reply::json(if created { StatusCode::CREATED } else { StatusCode::OK }, &json!(shown(&named))))
}

/// Handles `DELETE /v1/caches/{cache}`: drops a cache.
#[utoipa::path(delete, path = "/v1/caches/{cache}", params(CachePath), responses(Done))]
pub(crate) fn drop_cache(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let name = name(call, "")?;
    let removed = app.views.caches.remove(&name).ok_or_else(|| no_such_cache(&name))?;
    aside::free(removed.cache.clear());
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
