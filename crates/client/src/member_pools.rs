//! Connections to single members of the cluster, for requests that only one of them can answer.
//!
//! Owns: one pool for each member that requests were addressed to. Does not own: connections (`pool`), nor the
//! knowledge of the members (`directory`). Bound: the number of members. The pools of nodes that are no longer members
//! are dropped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    directory::Directory,
    options::Options,
    pool::{Pool, PoolRole},
};

/// Connections to one member of the cluster.
pub(crate) struct MemberPool {
    /// Id of the member to which the connections lead.
    pub node: u64,
    pub pool: Pool,
}

#[derive(Default)]
pub(crate) struct MemberPools(Mutex<PoolTable>);

#[derive(Default)]
struct PoolTable {
    pools: HashMap<u64, Arc<MemberPool>>,
    is_closed: bool,
}

impl MemberPools {
    fn lock(&self) -> MutexGuard<'_, PoolTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pool of a member. If the member has no pool yet, creates one, which opens its connections in the
    /// background. Returns `None` after [`close`](Self::close).
    pub(crate) fn get(&self, node: u64, directory: &Arc<Directory>, options: &Arc<Options>) -> Option<Arc<MemberPool>> {
        let mut kept = self.lock();
        if kept.is_closed {
            return None;
        }
        let begin = || {
            let (pool, _) = Pool::begin(directory, PoolRole::Member(node), options.clone());
            Arc::new(MemberPool { node, pool })
        };
        Some(kept.pools.entry(node).or_insert_with(begin).clone())
    }

    /// Drops the pools of all nodes that are not in `members`.
    pub(crate) fn retain(&self, members: &[u64]) {
        self.lock().pools.retain(|node, _| members.contains(node));
    }

    /// Begins to close all connections, and returns their pools. After this call no new pool is created.
    pub(crate) fn close(&self) -> Vec<Arc<MemberPool>> {
        let mut kept = self.lock();
        kept.is_closed = true;
        let pools: Vec<_> = kept.pools.drain().map(|(_, pool)| pool).collect();
        pools.iter().for_each(|member| member.pool.close());
        pools
    }
}
