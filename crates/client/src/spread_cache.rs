//! Caches whose keys are spread over the members of a cluster: each key has its entry on one node.
//!
//! Owns: the choice of the member for each key, and the split of a request for several keys into one request to each
//! member. Does not own: the hash (`rendezvous`), the list of members (`directory`), the requests to a member (`cache`)
//! and the connections to it (`member_pools`).
//!
//! Invariant: the member that has a key depends only on the set of members, not on their health. If the keys of a
//! failed member moved to other members, that member could later return with entries that have been replaced or deleted
//! in the meantime.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::join_all;
use thalweg_wire::{CacheCreate, CacheExpect, CacheTtl};

use crate::{
    cache::{Cache, CacheValue},
    client::Client,
    error::Error,
    rendezvous::node_for,
};

/// A handle of a cache whose keys are spread over the members of the cluster, so that the cache can use the memory of
/// all of them. Cheap to clone. Each member has a [`Cache`] with this name. The entry of a key is in the cache of one
/// member, which rendezvous hashing chooses by the ids of the members. When a member joins or leaves, only its own keys
/// move.
///
/// # Behaviour
///
/// * **A member is away**: requests for its keys fail with [`Error::NodeAway`] (class *retry*). They fail at the latest
///   after the retries of [`Options::retries`](crate::Options::retries), which take a quarter of a second by default.
///   The first request to a member waits up to a second for the connection. The keys do not move to other members,
///   because the member could return with entries that are out of date. An application may treat the error of a read as
///   a missing entry. It must not treat a failed `put` or `delete` as done.
/// * **A member joins or leaves**: the keys of this member move, so their entries are missing on their new members.
///   Clients learn the members every [`Options::refresh`](crate::Options::refresh). Until then, two clients may choose
///   different members for a key. When a member joins and leaves again, its keys return to members that may still have
///   old entries. Give entries a time to live that bounds their age.
/// * **One server**: a server without a cluster has all keys.
///
/// All clients of the cache must use a spread handle. A plain handle, HTTP and Redis clients see only the part of the
/// cache on the node to which they are connected. All members must serve the native protocol. After the first request
/// for a key of a member, the client keeps [`Options::connections`](crate::Options::connections) connections to this
/// member.
#[derive(Clone, Debug)]
pub struct SpreadCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    name: String,
    create: CacheCreate,
    max_bytes: u64,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// Members of the cluster when the last request was sent.
    members: Arc<[u64]>,
    /// Cache handle for each member's id. The id 0 stands for a server without a cluster.
    caches: HashMap<u64, Cache>,
}

/// Id that stands for a server without a cluster.
const ALONE: u64 = 0;

impl Client {
    /// Returns a handle of the cache with this name whose keys are spread over the members of the cluster. The first
    /// request to a member creates the cache there if it is missing, with the server's default capacity.
    #[must_use]
    pub fn spread_cache(&self, name: impl Into<String>) -> SpreadCache {
        self.spread_cache_with(name, CacheCreate::IfMissing, 0)
    }

    /// Returns a handle of a spread cache, like [`spread_cache`](Self::spread_cache). `create` states if the first
    /// request to a member creates a missing cache there. `max_bytes` is the capacity in bytes of the cache on each
    /// member; 0 selects the server's default.
    #[must_use]
    pub fn spread_cache_with(&self, name: impl Into<String>, create: CacheCreate, max_bytes: u64) -> SpreadCache {
        let (client, name) = (self.clone(), name.into());
        SpreadCache(Arc::new(Inner { client, name, create, max_bytes, parts: Mutex::default() }))
    }
}

impl SpreadCache {
    /// Name of the cache.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the id of the member that has this key; `None` if the server has no cluster.
    pub async fn node_of(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        Ok(node_for(key, &self.members().await?))
    }

    /// Returns a handle of the cache on each member, with the member's id. Each of these caches has a part of the keys.
    /// Use the handles for operations such as listing keys or reading statistics. Without a cluster, there is one
    /// cache, with the id 0.
    pub async fn parts(&self) -> Result<Vec<(u64, Cache)>, Error> {
        let members = self.members().await?;
        let nodes = if members.is_empty() { &[ALONE][..] } else { &members[..] };
        nodes.iter().map(|node| Ok((*node, self.part(&members, *node)?))).collect()
    }

    /// Reads the entry of a key; `None` if the cache has no entry for it.
    pub async fn get(&self, key: &[u8]) -> Result<Option<CacheValue>, Error> {
        self.part_of(key).await?.get(key).await
    }

    /// Reads the entries of several keys, from all members at the same time. The result has the order of the keys. If a
    /// member is away, only the reads of its own keys fail.
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Result<Option<CacheValue>, Error>>, Error> {
        let members = &self.members().await?;
        let reads = divided(keys.iter().copied(), members).into_iter().map(|(node, places)| async move {
            let wanted: Vec<_> = places.iter().map(|place| keys[*place]).collect();
            let found = match self.part(members, node) {
                Ok(part) => part.get_many(&wanted).await,
                Err(error) => Err(error),
            };
            (places, found)
        });
        let mut values: Vec<_> = keys.iter().map(|_| Ok(None)).collect();
        for (places, found) in join_all(reads).await {
            match found {
                Ok(found) => places.into_iter().zip(found).for_each(|(place, value)| values[place] = Ok(value)),
                Err(error) => places.into_iter().for_each(|place| values[place] = Err(error.clone())),
            }
        }
        Ok(values)
    }

    /// Sets the entry of a key without a deadline: it lives until the cache evicts it. Returns the entry's version.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        self.part_of(key).await?.put(key, value).await
    }

    /// Sets the entry of a key with a condition and a time to live. Returns the entry's version, or the error
    /// `condition_failed`. Versions of different members cannot be compared.
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: CacheTtl,
        expect: CacheExpect<'_>,
    ) -> Result<u64, Error> {
        self.part_of(key).await?.put_with(key, value, ttl, expect).await
    }

    /// Sets several entries, on all members at the same time. If a member fails, the call returns its error; the
    /// entries on the other members are set.
    pub async fn put_many(&self, pairs: &[(&[u8], &[u8])], ttl: CacheTtl) -> Result<(), Error> {
        let (members, ttl) = (&self.members().await?, &ttl);
        let keys = pairs.iter().map(|(key, _)| *key);
        let puts = divided(keys, members).into_iter().map(|(node, places)| async move {
            let pairs: Vec<_> = places.into_iter().map(|place| pairs[place]).collect();
            self.part(members, node)?.put_many(&pairs, ttl.clone()).await
        });
        join_all(puts).await.into_iter().collect()
    }

    /// Removes the entry of a key. Returns true if the cache had one.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.part_of(key).await?.delete(key).await
    }

    /// Removes the entry of a key if it meets the condition `expect`; otherwise returns the error `condition_failed`.
    /// Returns true if the cache had an entry.
    pub async fn delete_if(&self, key: &[u8], expect: CacheExpect<'_>) -> Result<bool, Error> {
        self.part_of(key).await?.delete_if(key, expect).await
    }

    /// Changes the time to live of a key's entry. Returns true if the cache has one.
    pub async fn touch(&self, key: &[u8], ttl: CacheTtl) -> Result<bool, Error> {
        self.part_of(key).await?.touch(key, ttl).await
    }

    /// Adds `delta` to a counter, which is an entry in decimal digits, and returns the counter's new value. A missing
    /// counter counts as 0.
    pub async fn add(&self, key: &[u8], delta: i64, ttl: CacheTtl) -> Result<i64, Error> {
        self.part_of(key).await?.add(key, delta, ttl).await
    }

    /// Removes all entries of the cache on all members. If a member fails, the call returns its error; the entries on
    /// the other members are removed.
    pub async fn clear(&self) -> Result<(), Error> {
        let parts = self.parts().await?;
        join_all(parts.iter().map(|(_, part)| part.clear())).await.into_iter().collect()
    }

    /// Drops the cache on all members. If a member fails, the call returns its error; the caches on the other members
    /// are dropped. The next use creates the cache again if this handle may create it.
    pub async fn drop_cache(&self) -> Result<(), Error> {
        let parts = self.parts().await?;
        join_all(parts.iter().map(|(_, part)| part.drop_cache())).await.into_iter().try_for_each(|part| part.map(drop))
    }

    async fn part_of(&self, key: &[u8]) -> Result<Cache, Error> {
        let members = self.members().await?;
        self.part(&members, node_for(key, &members).unwrap_or(ALONE))
    }

    /// Returns the ids of the members; an empty list if the server has no cluster.
    async fn members(&self) -> Result<Arc<[u64]>, Error> {
        let client = &self.0.client;
        let members = client.directory().member_ids();
        if !members.is_empty() || !client.server().is_some_and(|server| server.is_clustered) {
            return Ok(members);
        }
        // The node did not send its members when the client connected, because it was stopping. Ask now.
        client.directory().learn(&client.members().await?);
        Ok(client.directory().member_ids())
    }

    /// Returns the handle of the cache on the member `node`, which has a part of the keys.
    fn part(&self, members: &Arc<[u64]>, node: u64) -> Result<Cache, Error> {
        let Inner { client, name, create, max_bytes, parts } = &*self.0;
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&parts.members, members) {
            parts.caches.retain(|node, _| members.contains(node));
            client.keep_members(members);
            parts.members = members.clone();
        }
        if let Some(part) = parts.caches.get(&node) {
            return Ok(part.clone());
        }
        let at = if node == ALONE { client.clone() } else { client.at_member(node)? };
        let part = at.cache_with(name.clone(), *create, *max_bytes);
        parts.caches.insert(node, part.clone());
        Ok(part)
    }
}

/// Groups keys by the member that has them. Returns for each such member the indexes of its keys in `keys`.
fn divided<'k>(keys: impl Iterator<Item = &'k [u8]>, members: &[u64]) -> BTreeMap<u64, Vec<usize>> {
    let mut places = BTreeMap::<u64, Vec<usize>>::new();
    for (place, key) in keys.enumerate() {
        places.entry(node_for(key, members).unwrap_or(ALONE)).or_default().push(place);
    }
    places
}
