//! The cache of a scripted node: one cache without a bound, deadlines or conditions.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use thalweg_wire::{
    CacheDone, CacheEntries, CacheEntry, CacheOpened, CacheStored, CacheValue, ClientFrame, List, RemainingBytes,
};

use crate::peer::Peer;

const CACHE: u32 = 1;
const NEVER: u64 = u64::MAX;

/// Entries of a cache by their keys. All have the version 1.
#[derive(Debug, Default)]
pub struct Cached(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Cached {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().unwrap()
    }

    /// Keys of all entries.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.lock().keys().cloned().collect()
    }

    /// Answers a request for the cache. Any other request fails the test.
    pub async fn answer(&self, peer: &mut Peer, id: u32, frame: &ClientFrame<'_>) {
        match frame {
            ClientFrame::OpenCache(_) => {
                peer.send(id, &CacheOpened { cache: CACHE, created: false, max_bytes: 1 << 20 }).await;
            }
            ClientFrame::CachePut(put) => {
                self.lock().insert(put.key.to_vec(), put.value.0.to_vec());
                peer.send(id, &CacheStored { version: 1 }).await;
            }
            ClientFrame::CacheMultiPut(put) => {
                put.pairs.iter().for_each(|pair| drop(self.lock().insert(pair.key.to_vec(), pair.value.to_vec())));
                peer.send(id, &CacheDone { existed: true }).await;
            }
            ClientFrame::CacheGet(get) => {
                let found = self.lock().get(get.key.0).cloned();
                let version = u64::from(found.is_some());
                let value = found.unwrap_or_default();
                peer.send(id, &CacheValue { version, remaining: NEVER, value: RemainingBytes(&value) }).await;
            }
            ClientFrame::CacheMultiGet(get) => {
                let found: Vec<_> = get.keys.iter().map(|key| self.lock().get(key).cloned()).collect();
                let entries: Vec<_> = found
                    .iter()
                    .map(|found| CacheEntry {
                        version: u64::from(found.is_some()),
                        remaining: NEVER,
                        value: found.as_deref().unwrap_or_default(),
                    })
                    .collect();
                peer.send(id, &CacheEntries { entries: List::Items(&entries) }).await;
            }
            ClientFrame::CacheClear(_) => {
                self.lock().clear();
                peer.send(id, &CacheDone { existed: true }).await;
            }
            other => panic!("{other:?}"),
        }
    }
}
