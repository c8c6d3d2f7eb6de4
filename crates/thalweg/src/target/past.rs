//! Earlier values of keys in keyspaces with history, of a directory or a server.

use bytes::Bytes;
use serde_json::Value;
use thalweg_engine::{Keyspace, ScanRange};
use thalweg_server::{cursor_of, cursor_text, versions_json};
use thalweg_types::Revision;

use super::{
    Found, Pair, ScanQuery, VisitPairs,
    answer::of_api,
    http::Ask,
    local::{Local, of_read},
    remote::{self, Remote},
};
use crate::failure::Failure;

/// Maximum number of pairs, and of bytes, that a scan of an open database holds in memory.
const PAGE_ITEMS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;

/// Visits pairs of an open database page by page. Returns a cursor if the limit left out pairs; `range` allows one pair
/// more than requested.
pub(super) fn scan(
    keyspace: &Keyspace,
    range: &ScanRange,
    query: &ScanQuery,
    visit: VisitPairs<'_>,
) -> Result<Option<String>, Failure> {
    let mut iter = match (&query.cursor, query.revision) {
        (Some(text), revision) => {
            let cursor = cursor_of(text.as_bytes()).map_err(of_api)?;
            if revision.is_some() && revision != cursor.revision().map(Revision::get) {
                return Err(Failure::usage("--revision is not that of the cursor: leave it out"));
            }
            keyspace.resume(range.clone(), &cursor).map_err(of_read)?
        }
        (None, Some(revision)) => keyspace.iter_at(range.clone(), Revision(revision)).map_err(of_read)?,
        (None, None) => keyspace.iter(range.clone()),
    };
    let (mut left, mut last) = (query.limit.unwrap_or(u64::MAX), None);
    loop {
        let page = iter.next_page(PAGE_ITEMS, PAGE_BYTES).map_err(of_read)?;
        if page.is_empty() {
            return Ok(None);
        }
        for (key, entry) in page {
            if left == 0 {
                let cursor = last.map(|last: Bytes| iter.cursor(&last)).transpose().map_err(of_read)?;
                return Ok(cursor.as_ref().map(cursor_text));
            }
            left -= 1;
            let value = (!query.keys_only).then_some(&entry.value[..]);
            if visit(Pair { key: &key, value, revision: entry.revision.get() })?.is_break() {
                return Ok(None);
            }
            last = Some(key);
        }
    }
}

/// Requests about the past of a node. Versions are in the API's form.
pub trait PastTarget {
    /// Returns the value of a key at a revision; `None` if it had none.
    fn get_at(&self, keyspace: &str, key: &[u8], revision: u64) -> Result<Option<Found>, Failure>;
    /// Returns a page of a key's versions before a revision, newest first.
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
