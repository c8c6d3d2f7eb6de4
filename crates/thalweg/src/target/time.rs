//! Expiry of keys, and leases, of a directory or a server.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_engine::{LeaseGrant, PutOptions, WriteError};
use thalweg_server::{lease_json, lease_json_with_keys};
use thalweg_types::{
    LeaseId,
    command::{Deadline, Expect},
};
use ureq::http::Method;

use super::{
    Written,
    http::Ask,
    local::{self, Local, of_read, of_write},
    remote::{self, Remote},
};
use crate::failure::Failure;

/// Number of leases requested per page.
const PAGE_LEASES: usize = 1000;
/// Maximum number of a lease's keys to show.
pub const SHOWN_KEYS: usize = 1000;

/// Terms of a put with a deadline, a lease or a condition.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutTerms<'a> {
    pub expect: Option<Expect<'a>>,
    pub deadline: Deadline,
    pub lease: Option<LeaseId>,
}

/// Revision, remaining lifetime and lease of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyLife {
    pub revision: u64,
    /// Time until the earlier of the key's deadline and its lease's; `None` if it does not expire.
    pub remaining: Option<Duration>,
    pub lease: Option<LeaseId>,
}

/// Requests about deadlines and leases of a node. Leases are in the API's form.
pub trait TimeTarget {
    fn put_until(&self, keyspace: &str, key: &[u8], value: &[u8], terms: &PutTerms<'_>) -> Result<Written, Failure>;
    /// Returns the lifetime of a key; `None` if it does not exist.
    fn lifetime(&self, keyspace: &str, key: &[u8]) -> Result<Option<KeyLife>, Failure>;
    /// Changes the deadline of a key. Returns true if the key exists.
    fn touch(&self, keyspace: &str, key: &[u8], deadline: Deadline) -> Result<bool, Failure>;
    fn grant_lease(&self, id: Option<LeaseId>, ttl: Duration) -> Result<Value, Failure>;
    fn leases(&self) -> Result<Vec<Value>, Failure>;
    /// Returns a lease with its keys.
    fn lease(&self, id: LeaseId) -> Result<Value, Failure>;
    fn keep_lease(&self, id: LeaseId) -> Result<Value, Failure>;
    fn revoke_lease(&self, id: LeaseId) -> Result<Written, Failure>;
}

impl TimeTarget for Local {
    fn put_until(&self, keyspace: &str, key: &[u8], value: &[u8], terms: &PutTerms<'_>) -> Result<Written, Failure> {
        let keyspace = self.database().keyspace(keyspace).map_err(of_write)?;
        let PutTerms { expect, deadline, lease } = *terms;
        local::written(keyspace.put_with(key, value, &PutOptions { deadline, lease, expect }))
    }

    fn lifetime(&self, keyspace: &str, key: &[u8]) -> Result<Option<KeyLife>, Failure> {
        let Some(keyspace) = self.database().find_keyspace(keyspace) else { return Ok(None) };
        let found = keyspace.lifetime(key).map_err(of_read)?;
        Ok(found.map(|life| KeyLife { revision: life.revision.0, remaining: life.remaining, lease: life.lease }))
    }

    fn touch(&self, keyspace: &str, key: &[u8], deadline: Deadline) -> Result<bool, Failure> {
        let Some(keyspace) = self.database().find_keyspace(keyspace) else { return Ok(false) };
        Ok(keyspace.touch(key, deadline).map_err(of_write)?.is_some())
    }

    fn grant_lease(&self, id: Option<LeaseId>, ttl: Duration) -> Result<Value, Failure> {
        let leases = self.database().leases();
        let granted = match id {
            Some(id) => leases.grant_as(id, ttl),
            None => leases.grant(ttl),
        };
        Ok(grant_json(&granted.map_err(of_write)?))
    }

    fn leases(&self) -> Result<Vec<Value>, Failure> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = self.database().leases().list(after, PAGE_LEASES).map_err(of_read)?;
            rows.extend(page.iter().map(lease_json));
            match page.last() {
                Some(last) if page.len() == PAGE_LEASES => after = Some(last.id),
                _ => return Ok(rows),
            }
        }
    }

    fn lease(&self, id: LeaseId) -> Result<Value, Failure> {
        let leases = self.database().leases();
        let found = leases.get(id).map_err(of_read)?.zip(leases.keys(id, SHOWN_KEYS + 1).map_err(of_read)?);
        let (info, keys) = found.ok_or_else(|| of_write(WriteError::NoSuchLease(id)))?;
        Ok(lease_json_with_keys(&info, keys, SHOWN_KEYS))
    }

    fn keep_lease(&self, id: LeaseId) -> Result<Value, Failure> {
        Ok(grant_json(&self.database().leases().keep_alive(id).map_err(of_write)?))
    }

    fn revoke_lease(&self, id: LeaseId) -> Result<Written, Failure> {
        local::written(self.database().leases().revoke(id))
    }
}

fn grant_json(grant: &LeaseGrant) -> Value {
    json!({
        "id": grant.id.0,
        "ttl_seconds": grant.ttl.as_secs_f64(),
        "deadline_micros": grant.deadline.0,
        "durability": grant.durability.name(),
    })
}

impl TimeTarget for Remote {
    fn put_until(&self, keyspace: &str, key: &[u8], value: &[u8], terms: &PutTerms<'_>) -> Result<Written, Failure> {
        let PutTerms { expect, deadline, lease } = *terms;
        if let Some(expect) = expect.filter(|expect| !remote::fits_headers(*expect)) {
            let mut write = remote::write_json("put", keyspace, key, Some(value));
            write["ttl_seconds"] = match deadline {
                Deadline::After(ttl) => json!(ttl.as_secs_f64()),
                other => json!(ttl_text(other)),
            };
            if let Some(lease) = lease {
                write["lease"] = json!(lease.0);
            }
            return self.commit_if(keyspace, key, expect, write);
        }
        let mut ask = Ask::send(Method::PUT, remote::key_path(keyspace, key), value);
        if deadline != Deadline::Default {
            ask = ask.header("thalweg-ttl", ttl_text(deadline));
        }
        if let Some(lease) = lease {
            ask = ask.header("thalweg-lease", lease.to_string());
        }
        self.written(&self.write(ask, expect)?)
    }

    fn lifetime(&self, keyspace: &str, key: &[u8]) -> Result<Option<KeyLife>, Failure> {
        let ask = Ask { method: Method::HEAD, ..Ask::get(remote::key_path(keyspace, key)) };
        let Some(reply) = self.http().ask_if_there(ask)? else { return Ok(None) };
        let text = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let remaining = text("thalweg-ttl").and_then(|seconds| seconds.parse().ok());
        let revision = remote::revision(&reply.headers);
        Ok(Some(KeyLife {
            revision: revision.ok_or_else(|| self.http().not_ours("a value without a revision"))?,
            remaining: remaining.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            lease: text("thalweg-lease").and_then(|id| id.parse().ok()).map(LeaseId),
        }))
    }

    fn touch(&self, keyspace: &str, key: &[u8], deadline: Deadline) -> Result<bool, Failure> {
        let path = format!("{}?ttl={}", remote::key_path(keyspace, key), ttl_text(deadline));
        match self.write(Ask::send(Method::PATCH, path, b""), None) {
            Err(failure) if matches!(&*failure.code, "not_found" | "no_such_keyspace") => Ok(false),
            reply => reply.map(|_| true),
        }
    }

    fn grant_lease(&self, id: Option<LeaseId>, ttl: Duration) -> Result<Value, Failure> {
        let mut body = json!({ "ttl_seconds": ttl.as_secs_f64() });
        if let Some(id) = id {
            body["id"] = json!(id.0);
        }
        let body = body.to_string();
        let ask = Ask::send(Method::POST, "/v1/leases", body.as_bytes()).header("content-type", "application/json");
        self.json_of(&self.write(ask, None)?)
    }

    fn leases(&self) -> Result<Vec<Value>, Failure> {
        let (mut rows, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut list = self.http().json(Ask::get(format!("/v1/leases?limit={PAGE_LEASES}{cursor}")))?;
            match list["leases"].take() {
                Value::Array(page) => rows.extend(page),
                _ => return Err(self.http().not_ours("no list of leases")),
            }
            match list["cursor"].as_u64() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(rows),
            }
        }
    }

    fn lease(&self, id: LeaseId) -> Result<Value, Failure> {
        self.http().json(Ask::get(format!("/v1/leases/{id}?limit={SHOWN_KEYS}")))
    }

    fn keep_lease(&self, id: LeaseId) -> Result<Value, Failure> {
        self.json_of(&self.write(Ask::send(Method::POST, format!("/v1/leases/{id}/keep-alive"), b""), None)?)
    }

    fn revoke_lease(&self, id: LeaseId) -> Result<Written, Failure> {
        let ask = Ask { method: Method::DELETE, ..Ask::get(format!("/v1/leases/{id}")) };
        self.written(&self.write(ask, None)?)
    }
}

/// Formats a deadline for the API.
fn ttl_text(deadline: Deadline) -> String {
    match deadline {
        Deadline::After(ttl) => ttl.as_secs_f64().to_string(),
        Deadline::Never => "never".to_owned(),
        Deadline::Keep => "keep".to_owned(),
        Deadline::Default | Deadline::At(_) => "default".to_owned(),
    }
}
