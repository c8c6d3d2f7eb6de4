//! Requests for the caches of a server. A directory has no caches, because caches exist only in memory.

use serde_json::{Value, json};
use thalweg_server::parse::encode;
use thalweg_types::command::Deadline;
use ureq::http::Method;

use super::{Session, http::RequestBuilder, kv::Expected};
use crate::{failure::Failure, render::take_bytes};

/// An entry of a cache, as the server returned it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub value: Vec<u8>,
    pub version: u64,
    /// Remaining lifetime of the entry in seconds; `None` if the entry does not expire.
    pub ttl: Option<f64>,
}

impl Session {
    pub(crate) fn caches(&self) -> Result<Vec<Value>, Failure> {
        self.list("/v1/caches", "caches")
    }

    pub(crate) fn cache_stats(&self, cache: &str) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(path(cache, "")))
    }

    /// Creates a cache. Returns its description, and true if the cache did not exist before.
    pub(crate) fn create_cache(&self, cache: &str, max_bytes: Option<u64>) -> Result<(Value, bool), Failure> {
        let body = max_bytes.map(|max| json!({ "max_bytes": max }).to_string()).unwrap_or_default();
        let reply = self.http.ask(RequestBuilder::new(Method::PUT, path(cache, "")).json_text(body.as_bytes()))?;
        Ok((self.http.parse(&reply.body)?, reply.status == 201))
    }

    pub(crate) fn drop_cache(&self, cache: &str) -> Result<(), Failure> {
        self.http.ask(RequestBuilder::delete(path(cache, ""))).map(drop)
    }

    pub(crate) fn clear_cache(&self, cache: &str) -> Result<(), Failure> {
        self.http.ask(RequestBuilder::post(path(cache, "/clear"))).map(drop)
    }

    /// Returns an entry of a cache; `None` if the entry or the cache does not exist.
    pub(crate) fn entry(&self, cache: &str, key: &[u8]) -> Result<Option<Entry>, Failure> {
        let Some(reply) = self.http.send_or_none(RequestBuilder::get(key_path(cache, key)))? else { return Ok(None) };
        let version = self.http.required(reply.header("thalweg-version"), "version of the entry")?;
        Ok(Some(Entry { ttl: reply.header("thalweg-ttl"), version, value: reply.body }))
    }

    /// Puts an entry into a cache. Returns the new version of the entry.
    pub(crate) fn put_entry(
        &self,
        cache: &str,
        key: &[u8],
        value: &[u8],
        ttl: Option<Deadline>,
        expected: Expected<'_>,
    ) -> Result<u64, Failure> {
        let ask = RequestBuilder::new(Method::PUT, key_path(cache, key)).body(value).expect(expected);
        let reply = self.http.ask(ask.deadline(ttl.unwrap_or_default()))?;
        self.http.required(reply.header("thalweg-version"), "version of the entry")
    }

    pub(crate) fn delete_entry(&self, cache: &str, key: &[u8], expected: Expected<'_>) -> Result<(), Failure> {
        self.http.ask(RequestBuilder::delete(key_path(cache, key)).expect(expected)).map(drop)
    }

    pub(crate) fn touch_entry(&self, cache: &str, key: &[u8], ttl: Deadline) -> Result<(), Failure> {
        self.http.ask(RequestBuilder::new(Method::PATCH, key_path(cache, key)).body(b"").deadline(ttl)).map(drop)
    }

    pub(crate) fn add_to_entry(&self, cache: &str, key: &[u8], by: i64, ttl: Option<Deadline>) -> Result<i64, Failure> {
        let ask = RequestBuilder::post(format!("{}?add={by}", key_path(cache, key)));
        let answer: Value = self.http.json(ask.deadline(ttl.unwrap_or_default()))?;
        self.http.required(answer["value"].as_i64(), "value of the counter")
    }

    /// Returns a page of the keys of a cache, and the cursor of the next page; `None` if this page is the last.
    pub(crate) fn cache_keys(
        &self,
        cache: &str,
        limit: u64,
        cursor: Option<&str>,
    ) -> Result<(Vec<Vec<u8>>, Option<String>), Failure> {
        let mut path = path(cache, &format!("/keys?limit={limit}"));
        path.extend(cursor.map(|cursor| format!("&cursor={cursor}")));
        let answer: Value = self.http.json(RequestBuilder::get(path))?;
        let keys = self.http.required(answer["keys"].as_array(), "list of keys")?;
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
