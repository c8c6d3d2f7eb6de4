//! What keys of keyspaces with history were, of a directory or a server.

use serde_json::Value;
use thalweg_server::versions_json;
use thalweg_types::Revision;

use super::{
    Found,
    http::Ask,
    local::{Local, of_read},
    remote::{self, Remote},
};
use crate::failure::Failure;

/// What of a node is about the past. Versions are shown as the API shows them.
pub trait PastTarget {
    /// The value that a key had at a revision; `None`: it had none.
    fn get_at(&self, keyspace: &str, key: &[u8], revision: u64) -> Result<Option<Found>, Failure>;
    /// A page of a key's versions, newest first: those before a revision.
    fn versions(&self, keyspace: &str, key: &[u8], before: Option<u64>, limit: u64) -> Result<Value, Failure>;
}

impl PastTarget for Local {
    fn get_at(&self, keyspace: &str, key: &[u8], revision: u64) -> Result<Option<Found>, Failure> {
        let keyspace = self.find_keyspace(keyspace)?;
        let entry = keyspace.get_at(key, Revision(revision)).map_err(of_read)?;
        Ok(entry.map(|entry| Found { value: entry.value.to_vec(), revision: entry.revision.get() }))
    }

    fn versions(&self, keyspace: &str, key: &[u8], before: Option<u64>, limit: u64) -> Result<Value, Failure> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = self.find_keyspace(keyspace)?.versions(key, before.map(Revision), limit);
        Ok(versions_json(key, &found.map_err(of_read)?))
    }
}

impl PastTarget for Remote {
    fn get_at(&self, keyspace: &str, key: &[u8], revision: u64) -> Result<Option<Found>, Failure> {
        let path = format!("{}?revision={revision}", remote::key_path(keyspace, key));
        let reply = match self.http().ask(Ask::get(path)) {
            Err(failure) if failure.code == "not_found" => return Ok(None),
            reply => reply?,
        };
        let revision = remote::revision(&reply.headers);
        let revision = revision.ok_or_else(|| self.http().not_ours("a value without a revision"))?;
        Ok(Some(Found { value: reply.body, revision }))
    }

    fn versions(&self, keyspace: &str, key: &[u8], before: Option<u64>, limit: u64) -> Result<Value, Failure> {
        let path = remote::key_path(keyspace, key).replacen("/v1/kv/", "/v1/versions/", 1);
        let before = before.map_or(String::new(), |before| format!("&before={before}"));
        self.http().json(Ask::get(format!("{path}?limit={limit}{before}")))
    }
}
