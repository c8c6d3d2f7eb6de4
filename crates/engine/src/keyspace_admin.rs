//! Administration of keyspaces: creating with a configuration, configuring, dropping, and size.
//!
//! Owns: these operations in their blocking and async form, and exact or estimated sizes (`KeyspaceStats`). Does not
//! own: operations on keys (`keyspace`), reads of former values (`key_history`), or the removal of a dropped keyspace's
//! rows (maintenance).

use std::ops::ControlFlow;

use thalweg_log::Purpose;
use thalweg_state::keyspaces::{Fetch, Item, ReadView, ScanRange};
use thalweg_store::Direction;
pub use thalweg_types::info::KeyspaceCounts;
use thalweg_types::{
    Durability, KeyspaceId, Revision,
    command::{
        CommandError, KeyspaceConfig, Outcome, encode_configure_keyspace, encode_create_keyspace, encode_drop_keyspace,
    },
};

use crate::{
    ack::{Ack, ack, unexpected},
    async_database::AsyncDatabase,
    database::Database,
    error::{ReadError, WriteError, refusal},
    keyspace::{Keyspace, KeyspaceInfo, described},
};

/// Default for the maximum number of keys that [`Keyspace::stats`] reads; it estimates the others.
pub const DEFAULT_STATS_KEYS: usize = 100_000;

impl Database {
    /// Returns the keyspace with this name, and creates it with `config` if it is missing. The flag is true if this
    /// call created the keyspace. An existing keyspace keeps its configuration.
    pub fn create_keyspace(&self, name: &str, config: &KeyspaceConfig) -> Result<(Keyspace, bool), WriteError> {
        let level = self.durability().max(Durability::Os);
        let committed = self.inner.propose(level, Purpose::Data, |out| encode_create_keyspace(out, name, config))?;
        self.created(committed)
    }

    pub(crate) fn created(&self, committed: thalweg_replica::Committed) -> Result<(Keyspace, bool), WriteError> {
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Keyspace { id, created }) => Ok((Keyspace::new(self.clone(), id), created)),
            other => Err(unexpected(other.as_ref())),
        }
    }
}

/// Information about large deletes (by prefix, of all keys, or of a keyspace). Such a delete hides its rows at once,
/// and they are removed later in the background. Each method takes a few microseconds at most.
impl Database {
    /// Returns the part of [`MAX_PENDING_CLEARS`](thalweg_types::limits::MAX_PENDING_CLEARS) that is in use by large
    /// deletes whose rows are not all removed yet, in the unit of that limit.
    #[must_use]
    pub fn waiting_delete_units(&self) -> usize {
        self.inner.open.machine.clear_units()
    }

    /// Returns true if rows of the keyspace that a large delete has hidden are not all removed yet.
    #[must_use]
    pub fn has_waiting_deletes(&self, keyspace: KeyspaceId) -> bool {
        self.inner.open.machine.has_clears_of(keyspace)
    }

    /// Returns true if rows of the keyspace that the delete with this revision has hidden are not all removed yet. The
    /// keyspace may have been dropped.
    #[must_use]
    pub fn is_delete_waiting(&self, keyspace: KeyspaceId, revision: Revision) -> bool {
        self.inner.open.machine.has_clear_at(keyspace, revision)
    }

    /// Returns the revision of the last delete of all keys of the keyspace; `None` if all its hidden rows are removed.
    #[must_use]
    pub fn emptied_at(&self, keyspace: KeyspaceId) -> Option<Revision> {
        self.inner.open.machine.emptied_at(keyspace)
    }
}

impl AsyncDatabase {
    /// Creates a keyspace like [`Database::create_keyspace`], as a future.
    pub fn create_keyspace(
        &self,
        name: &str,
        config: &KeyspaceConfig,
    ) -> impl Future<Output = Result<(Keyspace, bool), WriteError>> + Send + use<> {
        let db = self.blocking().clone();
        let level = db.durability().max(Durability::Os);
        let proposed = self.propose(level, Purpose::Data, |out| encode_create_keyspace(out, name, config));
        async move { db.created(proposed?.await?) }
    }

    /// Replaces a keyspace's configuration.
    pub fn configure_keyspace(
        &self,
        keyspace: KeyspaceId,
        config: &KeyspaceConfig,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed =
            self.propose(self.level(), Purpose::Reclaim, |out| encode_configure_keyspace(out, keyspace, config));
        async move { ack(proposed?.await?) }
    }

    /// Drops a keyspace and everything in it, as a future; see [`Keyspace::drop_all`].
    pub fn drop_keyspace(&self, keyspace: KeyspaceId) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose(self.level(), Purpose::Reclaim, |out| {
            encode_drop_keyspace(out, keyspace);
            Ok::<_, CommandError>(())
        });
        async move { ack(proposed?.await?) }
    }

    /// Returns the database's default durability level, but at least `os`, because at `none` the outcome would be
    /// unknown.
    fn level(&self) -> Durability {
        self.blocking().durability().max(Durability::Os)
    }
}

impl Keyspace {
    /// Returns the description of the keyspace; `None` if it has been dropped.
    #[must_use]
    pub fn info(&self) -> Option<KeyspaceInfo> {
        let row = self.database().inner.open.machine.keyspace(self.id())?;
        Some(described(self.id(), &row))
    }

    /// Replaces the keyspace's configuration.
    pub fn configure(&self, config: &KeyspaceConfig) -> Result<Ack, WriteError> {
        let db = self.database();
        db.inner.propose_for_ack(db.durability().max(Durability::Os), Purpose::Reclaim, |out| {
            encode_configure_keyspace(out, self.id(), config)
        })
    }

    /// Drops the keyspace and everything in it. Its name is free immediately, its id is never used again, and its
    /// contents are removed in the background.
    pub fn drop_all(&self) -> Result<Ack, WriteError> {
        let db = self.database();
        db.inner.propose_for_ack(db.durability().max(Durability::Os), Purpose::Reclaim, |out| {
            encode_drop_keyspace(out, self.id());
            Ok::<_, CommandError>(())
        })
    }

    /// Returns the number of keys and bytes in the keyspace. The result is exact if the keyspace keeps exact counts, or
    /// if it has at most `max_keys` keys; those are read one by one. Otherwise the first `max_keys` keys are read, and
    /// the others are estimated from the share of the key range that the read keys cover. The estimate is good for
    /// evenly spread keys, and a guess for others.
    pub fn stats(&self, max_keys: usize) -> Result<KeyspaceCounts, ReadError> {
        let machine = &self.database().inner.open.machine;
        let sweeping = machine.has_clears_of(self.id());
        if let Some(counts) = machine.keyspace_counts(self.id()).filter(|_| !sweeping) {
            return Ok(KeyspaceCounts { keys: counts.keys, bytes: counts.bytes, exact: true, sweeping });
        }
        let snapshot = machine.read_view();
        let mut seen = CountedRange::default();
        let range = ScanRange { limit: max_keys.max(1).saturating_add(1), ..ScanRange::default() };
        snapshot.scan(self.id(), &range, |item| {
            if seen.keys as usize == max_keys.max(1) {
                seen.more = true;
                return ControlFlow::Break(());
            }
            seen.add(&item);
            ControlFlow::Continue(())
        })?;
        if !seen.more {
            return Ok(KeyspaceCounts { keys: seen.keys, bytes: seen.bytes, exact: true, sweeping });
        }
        let end = last_key(&snapshot, self.id())?;
        let factor = 1.0 / share_scanned(&seen.first, &seen.last, &end);
        let (keys, bytes) = (seen.keys as f64 * factor, seen.bytes as f64 * factor);
        Ok(KeyspaceCounts {
            keys: (keys as u64).max(seen.keys + 1),
            bytes: (bytes as u64).max(seen.bytes),
            exact: false,
            sweeping,
        })
    }
}

#[derive(Default)]
struct CountedRange {
    keys: u64,
    bytes: u64,
    first: Vec<u8>,
    last: Vec<u8>,
    more: bool,
}

impl CountedRange {
    fn add(&mut self, item: &Item<'_>) {
        if self.keys == 0 {
            self.first = item.key.to_vec();
        }
        self.last.clear();
        self.last.extend_from_slice(item.key);
        self.keys += 1;
        let value = item.value.map_or(0, |value| value.value_len() as u64);
        self.bytes += item.key.len() as u64 + value;
    }
}

fn last_key(snapshot: &ReadView, keyspace: KeyspaceId) -> Result<Vec<u8>, ReadError> {
    let mut last = Vec::new();
    let range = ScanRange { direction: Direction::Reverse, limit: 1, fetch: Fetch::KeysOnly, ..ScanRange::default() };
    snapshot.scan(keyspace, &range, |item| {
        last = item.key.to_vec();
        ControlFlow::Break(())
    })?;
    Ok(last)
}

/// Returns the share of the key range from `first` to `end` that lies before `last`: above 0, at most 1. Keys are
/// interpreted as fractions in base 256, beginning with the first byte in which `first` and `end` differ.
fn share_scanned(first: &[u8], last: &[u8], end: &[u8]) -> f64 {
    const DIGITS: usize = 6;
    let common = first.iter().zip(end).take_while(|(a, b)| a == b).count();
    let fraction = |key: &[u8]| {
        (0..DIGITS).fold(0.0, |sum, digit| sum * 256.0 + f64::from(key.get(common + digit).copied().unwrap_or(0)))
    };
    let (first, last, end) = (fraction(first), fraction(last), fraction(end));
    let part = (last - first) / (end - first);
    // Two keys may share all digits; the result is then meaningless.
    if part.is_finite() { part.clamp(1e-6, 1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_behind_is_a_fraction() {
        let close = |a: f64, b: f64| (a - b).abs() < 0.01;
        assert!(close(share_scanned(b"key-\0", b"key-\x40", b"key-\x80"), 0.5));
        assert!(close(share_scanned(b"", b"\x10", b"\xff"), 16.0 / 255.0));
        assert!(close(share_scanned(b"a", b"a", b"a"), 1.0));
        assert!(share_scanned(b"a", b"a", b"b") > 0.0);
    }
}
