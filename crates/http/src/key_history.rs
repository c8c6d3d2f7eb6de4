//! Handlers for keyspaces with history: values at a revision, and `/v1/versions`.

use std::sync::Arc;

use axum_core::body::Body;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use thalweg_engine::{KeyVersion, KeyVersions, Keyspace, ScanCursor, VersionEnd, VersionLifetime};
use thalweg_serving::{admission::Resource, app::App, error::ApiError};
use thalweg_types::{Revision, limits::MAX_CURSOR_BYTES};

use crate::{
    call::{Answer, Call},
    describe::KeyPath,
    json::push_bytes,
    parse::{Media, ParseError, VersionsQuery, kv_path},
    reply,
    shapes::Versions,
};

/// Number of versions in a reply if the request states no limit.
const DEFAULT_VERSIONS: usize = 10;

/// Returns the value that a key had at a revision.
pub(crate) fn get(app: &App, keyspace: &Keyspace, key: &[u8], revision: Revision, body: WithValue) -> Answer {
    let entry = keyspace.get_at(key, revision)?;
    let level = app.db.blocking().visible_durability();
    let entry = entry.ok_or_else(|| ApiError {
        shown: Some(level),
        ..ApiError::not_found("not_found", format!("the key had no value at revision {revision}"))
    })?;
    let len = entry.value.len();
    let value = if body == WithValue::Yes { Body::from(entry.value) } else { Body::empty() };
    let mut response = reply::shown(Media::Binary, value, level);
    reply::put_revision(response.headers_mut(), entry.revision);
    if body == WithValue::No {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    }
    Ok(response)
}

/// Choice between a reply with the value and one without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithValue {
    /// The reply has the value as its body.
    Yes,
    /// The reply has no body, because the request is a HEAD.
    No,
}

/// Handles `GET /v1/versions/{keyspace}/{key}`: lists past versions of a key.
#[utoipa::path(
    get, path = "/v1/versions/{keyspace}/{key}", params(KeyPath, VersionsQuery),
    responses((status = 200,
            description = "Versions of the key, newest first. All versions from the revision `oldest` on are kept.",
            body = Versions))
)]
pub(crate) fn versions(app: &Arc<App>, call: &Call) -> Answer {
    let query = VersionsQuery::parse(call.head.uri.query())?;
    let (name, key) = kv_path(call.path_after("/v1/versions/"))?;
    let keyspace = app.find_keyspace(&name)?;
    let key = key.unwrap_or_default();
    // The request costs as much work and memory as a page of a scan, so it counts as a scan.
    let held = call.account.take(Resource::Scans, 1);
    let _held = held.ok_or_else(|| ApiError::overloaded("too many scans: retry later"))?;
    let limit = query.limit.map_or(DEFAULT_VERSIONS, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let found = keyspace.versions(&key, query.before.map(Revision), limit)?;
    let level = app.db.blocking().visible_durability();
    let mut answer = versions_json(&key, &found);
    answer["durability"] = level.name().into();
    Ok(reply::json(StatusCode::OK, &answer))
}

/// Returns the versions of a key as JSON.
fn versions_json(key: &[u8], found: &KeyVersions) -> Value {
    let mut answer = Value::Object(bytes_object("key", key));
    answer["versions"] = found.versions.iter().map(version_json).collect();
    answer["oldest"] = found.oldest.0.into();
    if let Some(next) = found.next {
        answer["next"] = next.0.into();
    }
    answer
}

fn version_json(version: &KeyVersion) -> Value {
    let mut object = bytes_object("value", &version.entry.value);
    object.insert("revision".into(), version.entry.revision.0.into());
    let state = match version.lifetime {
        VersionLifetime::Current => "current",
        VersionLifetime::Ended => "ended",
        VersionLifetime::Until { ending: VersionEnd::Overwritten, .. } => "overwritten",
        VersionLifetime::Until { ending: VersionEnd::Deleted, .. } => "deleted",
        VersionLifetime::Until { ending: VersionEnd::Expired, .. } => "expired",
    };
    object.insert("state".into(), state.into());
    if let VersionLifetime::Until { revision, time, .. } = version.lifetime {
        object.insert("until".into(), revision.0.into());
        object.insert("until_micros".into(), json!(time.map(|time| time.0)));
    }
    Value::Object(object)
}

/// Returns a JSON object with one field: the bytes as text, or as base64 in the field with the suffix `_base64`.
fn bytes_object(name: &'static str, bytes: &[u8]) -> Map<String, Value> {
    let mut out = vec![b'{'];
    push_bytes(&mut out, name, bytes);
    out.push(b'}');
    serde_json::from_slice(&out).expect("one field of an object")
}

/// Encodes the cursor of a scan as text for a reply.
pub(crate) fn cursor_text(cursor: &ScanCursor) -> String {
    URL_SAFE_NO_PAD.encode(cursor.encode())
}

/// Decodes a cursor that [`cursor_text`] encoded.
pub(crate) fn cursor_of(text: &[u8]) -> Result<ScanCursor, ApiError> {
    let bad = || ParseError::BadParameter { name: "cursor", expected: "a cursor from an earlier reply" };
    if text.len() > MAX_CURSOR_BYTES * 2 {
        return Err(bad().into());
    }
    Ok(ScanCursor::decode(&URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?)?)
}
