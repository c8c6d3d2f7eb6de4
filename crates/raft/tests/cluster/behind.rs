//! A cluster whose states are behind with their background work: writes get slower, and the leader stays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_replica::{Leadership, ProposeError};
use thalweg_store::{Applied, Backend, BackendError, BackendStats, View, WriteBatch, memory::MemoryBackend};

use crate::{
    commands::{put, run},
    node::{Cluster, Settings},
};

/// A backend that leaves a pause to its caller for each batch.
#[derive(Debug)]
pub struct Slow {
    inner: MemoryBackend,
    pause: Duration,
    owed_nanos: AtomicU64,
}

impl Slow {
    pub fn new(inner: MemoryBackend, pause: Duration) -> Self {
        Self { inner, pause, owed_nanos: AtomicU64::new(0) }
    }
}

impl Backend for Slow {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        self.owed_nanos.fetch_add(self.pause.as_nanos() as u64, Relaxed);
        self.inner.apply(batch, applied)
    }

    fn take_pause(&self) -> Duration {
        Duration::from_nanos(self.owed_nanos.swap(0, Relaxed))
    }

    fn applied(&self) -> Option<Applied> {
        self.inner.applied()
    }

    fn persisted(&self) -> Option<Applied> {
        self.inner.persisted()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.inner.get(key)
    }

    fn view(&self) -> Arc<dyn View> {
        self.inner.view()
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        self.inner.flush()
    }

    fn maintain(&self) -> Result<(), BackendError> {
        self.inner.maintain()
    }

    fn stats(&self) -> BackendStats {
        self.inner.stats()
    }

    fn name(&self) -> &'static str {
        "slow"
    }
}

#[test]
fn writes_wait_for_the_pauses_of_the_leader_which_leads_on() {
    run(async {
        // Longer than the time after which followers would elect another leader.
        let pause = Duration::from_millis(700);
        let cluster = Cluster::founded_with(3, Settings { pause, ..Settings::default() }).await;
        cluster.wait_all_follow().await;
        let leader = cluster.leader().await;
        let term = leader.member.leadership().term();
        let follower = cluster.nodes().into_iter().find(|node| node.id != leader.id).unwrap();
        let begun = Instant::now();
        for number in 0..3 {
            leader.propose(put(&format!("leader {number}"), b"v")).await.unwrap();
            follower.propose(put(&format!("follower {number}"), b"v")).await.unwrap();
        }
        assert!(begun.elapsed() > pause * 4, "{:?} for 6 writes", begun.elapsed());
        assert_eq!(leader.member.leadership(), Leadership::Leader { term });
    });
}

#[test]
fn a_forwarded_write_whose_deadline_passes_in_a_pause_is_refused_unwritten() {
    run(async {
        let pause = Duration::from_secs(2);
        let cluster = Cluster::founded_with(1, Settings { pause, ..Settings::default() }).await;
        let leader = cluster.leader().await;
        let payload = Bytes::copy_from_slice(put("k", b"v").bytes());
        let within = Duration::from_millis(50);
        let refused = leader.consensus.propose_forwarded(payload, Purpose::Data, within).await;
        assert!(matches!(refused, Err(ProposeError::Overloaded { .. })), "{refused:?}");
        leader.propose(put("other", b"v")).await.unwrap();
        assert_eq!(leader.get("k"), None);
    });
}
