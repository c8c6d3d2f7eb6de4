//! A database that is a member of a cluster.
//!
//! Owns: the calls between the database and the crate that runs consensus for it. Does not own: consensus, membership,
//! links between nodes.

use std::sync::{PoisonError, atomic::Ordering};

use thalweg_types::{Index, Lsn};

use crate::{database::Database, error::WriteError, identity::Origin, inner::Inner};

impl Database {
    /// Keeps log from an entry on while it is within `history_bytes`, whatever its age, because a live follower still
    /// needs it. `None` keeps nothing for followers. A node alone has none.
    pub fn set_follower_floor(&self, floor: Option<Index>) {
        let floor = floor.unwrap_or(Index(u64::MAX));
        self.inner.follower_floor.store(floor.0, Ordering::Release);
    }

    /// Stops serving: writes fail with `StoppedServing` from now on, tails and watches end, and the health shows the
    /// reason. Callers that serve reads check [`stopped_serving`](Self::stopped_serving) first. Only opening the
    /// directory again ends this. Later calls have no effect.
    pub fn stop_serving(&self, reason: impl Into<String>) {
        if self.inner.stopped.set(reason.into()).is_ok() {
            self.inner.open.tails.close();
            self.inner.open.watches.close();
        }
    }

    /// Returns the reason why the database has [stopped serving](Self::stop_serving); `None` if it serves.
    #[must_use]
    pub fn stopped_serving(&self) -> Option<&str> {
        self.inner.stopped.get().map(String::as_str)
    }
}

impl Inner {
    /// Passes to the log from where on a live follower needs it. Marks lie at most some hundred records apart, so a
    /// little more is kept.
    pub(crate) fn keep_for_followers(&self) {
        let floor = Index(self.follower_floor.load(Ordering::Acquire));
        let from = (floor < Index::MAX).then(|| match self.open.machine.history_mark_before(floor) {
            Ok(Some(mark)) => mark.lsn,
            // Without a mark the position is unknown: keep as much as there is.
            Ok(None) | Err(_) => Lsn::ZERO,
        });
        self.open.log.keep_from(from);
    }

    /// Notes in the identity that the directory has received records, as soon as they survive a power loss.
    pub(crate) fn note_joined(&self) -> Result<(), WriteError> {
        let mut identity = self.open.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cluster) = identity.cluster.filter(|cluster| cluster.origin == Origin::Joining) else { return Ok(()) };
        if self.open.log.durable() == Lsn::ZERO {
            return Ok(());
        }
        let joined = identity.with_cluster(cluster.id, Origin::Joined);
        let failed = |error: std::io::Error| WriteError::StateFailed { reason: format!("IDENTITY: {error}") };
        joined.write(&self.open.disk).map_err(failed)?;
        *identity = joined;
        Ok(())
    }
}
