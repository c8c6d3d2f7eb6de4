//! Requests for the lifetime of keys, and for leases. Leases have the JSON format of the API.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_types::{LeaseId, command::Deadline};
use ureq::http::Method;

use super::{
    Session,
    http::RequestBuilder,
    kv::{Written, key_path, ttl_text},
};
use crate::failure::Failure;

/// Maximum number of leases in a page of leases, and of keys in the description of one lease.
const PAGE: usize = 1000;

/// Revision, remaining lifetime and lease of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KeyLifetime {
    pub revision: u64,
    /// Time until the key expires, by its own deadline or by the end of its lease, whichever comes first; `None` if the
    /// key does not expire.
    pub remaining: Option<Duration>,
    pub lease: Option<LeaseId>,
}

impl Session {
    /// Returns the lifetime of a key; `None` if the key does not exist. A missing keyspace is a failure.
    pub(crate) fn lifetime(&self, keyspace: &str, key: &[u8]) -> Result<Option<KeyLifetime>, Failure> {
        let ask = RequestBuilder::new(Method::HEAD, key_path(keyspace, key));
        let Some(reply) = self.http.send_or_none(ask)? else {
            // The reply to HEAD has no body. Only the reply to GET shows if the keyspace or only the key is missing.
            self.get(keyspace, key)?;
            return Ok(None);
        };
        Ok(Some(KeyLifetime {
            revision: self.http.required(reply.revision(), "revision of the value")?,
            remaining: reply.header("thalweg-ttl").and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            lease: reply.header("thalweg-lease").map(LeaseId),
        }))
    }

    /// Changes the deadline of a key. Returns true if the key exists. A missing keyspace is a failure.
    pub(crate) fn touch(&self, keyspace: &str, key: &[u8], deadline: Deadline) -> Result<bool, Failure> {
        let path = format!("{}?ttl={}", key_path(keyspace, key), ttl_text(deadline));
        match self.write(RequestBuilder::new(Method::PATCH, path).body(b"")) {
            Err(failure) if failure.code == "not_found" => Ok(false),
            reply => reply.map(|_| true),
        }
    }

    pub(crate) fn grant_lease(&self, id: Option<LeaseId>, ttl: Duration) -> Result<Value, Failure> {
        let mut body = json!({ "ttl_seconds": ttl.as_secs_f64() });
        if let Some(id) = id {
            body["id"] = json!(id.0);
        }
        self.write_json(RequestBuilder::post("/v1/leases").json(&body))
    }

    pub(crate) fn leases(&self) -> Result<Vec<Value>, Failure> {
        self.list(&format!("/v1/leases?limit={PAGE}"), "leases")
    }

    /// Returns the description of a lease with its keys, as JSON of the HTTP API.
    pub(crate) fn lease(&self, id: LeaseId) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(format!("/v1/leases/{id}?limit={PAGE}")))
    }

    pub(crate) fn keep_lease(&self, id: LeaseId) -> Result<Value, Failure> {
        self.write_json(RequestBuilder::post(format!("/v1/leases/{id}/keep-alive")))
    }

    pub(crate) fn revoke_lease(&self, id: LeaseId) -> Result<Written, Failure> {
        self.written(&self.write(RequestBuilder::delete(format!("/v1/leases/{id}")))?)
    }
}
