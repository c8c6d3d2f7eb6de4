//! Caches of a server. Directories have none, since caches exist only in memory.

use serde_json::{Value, json};
use thalweg_server::parse::encode;
use thalweg_types::command::Deadline;
use ureq::http::Method;

use super::http::{Ask, Http};
use crate::{failure::Failure, render::take_bytes};

/// Condition of a change to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Anything,
    Absent,
    Present,
    Version(u64),
}

/// An entry of a cache, as the server returned it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub value: Vec<u8>,
    pub version: u64,
    /// Remaining lifetime in seconds; `None` if it does not expire.
    pub ttl: Option<f64>,
}

/// The caches of a server.
pub struct Caches<'a>(pub &'a Http);

impl Caches<'_> {
    pub fn list(&self) -> Result<Vec<Value>, Failure> {
        let answer = self.0.json(Ask::get("/v1/caches"))?;
        answer["caches"].as_array().cloned().ok_or_else(|| self.0.not_ours("no list of caches"))
    }

    pub fn stats(&self, cache: &str) -> Result<Value, Failure> {
        self.0.json(Ask::get(path(cache, "")))
    }

    /// Creates a cache. Returns its description, and true if it was created by this call.
    pub fn create(&self, cache: &str, max_bytes: Option<u64>) -> Result<(Value, bool), Failure> {
        let body = max_bytes.map(|max| json!({ "max_bytes": max }).to_string()).unwrap_or_default();
        let ask = Ask::send(Method::PUT, path(cache, ""), body.as_bytes()).header("content-type", "application/json");
        let reply = self.0.ask(ask)?;
        let shown = serde_json::from_slice(&reply.body).map_err(|error| self.0.not_ours(&error.to_string()))?;
        Ok((shown, reply.status == 201))
    }

    pub fn drop_cache(&self, cache: &str) -> Result<(), Failure> {
        self.0.ask(Ask { method: Method::DELETE, ..Ask::get(path(cache, "")) }).map(drop)
    }

    pub fn clear(&self, cache: &str) -> Result<(), Failure> {
        self.0.ask(Ask::send(Method::POST, path(cache, "/clear"), b"")).map(drop)
    }

    /// Returns the entry; `None` if the entry or the cache does not exist.
    pub fn get(&self, cache: &str, key: &[u8]) -> Result<Option<Entry>, Failure> {
        let Some(reply) = self.0.ask_if_there(Ask::get(key_path(cache, key)))? else { return Ok(None) };
        let header = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let version = header("thalweg-version").and_then(|version| version.parse().ok());
        let version = version.ok_or_else(|| self.0.not_ours("no version of an entry"))?;
        let ttl = header("thalweg-ttl").and_then(|ttl| ttl.parse().ok());
        Ok(Some(Entry { ttl, version, value: reply.body }))
    }

    /// Puts an entry. Returns its new version.
    pub fn put(
        &self,
        cache: &str,
        key: &[u8],
        value: &[u8],
        ttl: Option<Deadline>,
        expected: Expected,
    ) -> Result<u64, Failure> {
        let ask = with_ttl(with_condition(Ask::send(Method::PUT, key_path(cache, key), value), expected), ttl);
        let reply = self.0.ask(ask)?;
        let version = reply.headers.get("thalweg-version").and_then(|value| value.to_str().ok()?.parse().ok());
        version.ok_or_else(|| self.0.not_ours("no version of what was put"))
    }

    pub fn delete(&self, cache: &str, key: &[u8], expected: Expected) -> Result<(), Failure> {
        let ask = Ask { method: Method::DELETE, ..Ask::get(key_path(cache, key)) };
        self.0.ask(with_condition(ask, expected)).map(drop)
    }

    pub fn touch(&self, cache: &str, key: &[u8], ttl: Deadline) -> Result<(), Failure> {
        self.0.ask(with_ttl(Ask::send(Method::PATCH, key_path(cache, key), b""), Some(ttl))).map(drop)
    }

    pub fn add(&self, cache: &str, key: &[u8], by: i64, ttl: Option<Deadline>) -> Result<i64, Failure> {
        let ask = Ask::send(Method::POST, format!("{}?add={by}", key_path(cache, key)), b"");
        let answer = self.0.json(with_ttl(ask, ttl))?;
        answer["value"].as_i64().ok_or_else(|| self.0.not_ours("no value of a counter"))
    }

    /// Returns a page of keys, and the cursor of the next page.
    pub fn keys(
        &self,
        cache: &str,
        limit: u64,
        cursor: Option<&str>,
    ) -> Result<(Vec<Vec<u8>>, Option<String>), Failure> {
        let mut path = path(cache, &format!("/keys?limit={limit}"));
        cursor.iter().for_each(|cursor| path.push_str(&format!("&cursor={cursor}")));
        let answer = self.0.json(Ask::get(path))?;
        let keys = answer["keys"].as_array().ok_or_else(|| self.0.not_ours("no list of keys"))?;
        let keys = keys.iter().filter_map(|key| take_bytes(key.as_object()?, "key")).collect();
        Ok((keys, answer["cursor"].as_str().map(str::to_owned)))
    }
}

fn path(cache: &str, rest: &str) -> String {
    format!("/v1/caches/{}{rest}", encode(cache.as_bytes()))
}

fn key_path(cache: &str, key: &[u8]) -> String {
    path(cache, &format!("/keys/{}", encode(key)))
}

fn with_condition(ask: Ask<'_>, expected: Expected) -> Ask<'_> {
    match expected {
        Expected::Anything => ask,
        Expected::Absent => ask.header("if-none-match", "*"),
        Expected::Present => ask.header("if-match", "*"),
        Expected::Version(version) => ask.header("if-match", format!("\"{version}\"")),
    }
}

fn with_ttl(ask: Ask<'_>, ttl: Option<Deadline>) -> Ask<'_> {
    let text = match ttl {
        None | Some(Deadline::Default | Deadline::At(_)) => return ask,
        Some(Deadline::Never) => "never".to_owned(),
        Some(Deadline::Keep) => "keep".to_owned(),
        Some(Deadline::After(span)) => span.as_secs_f64().to_string(),
    };
    ask.header("thalweg-ttl", text)
}
