//! Digests and running hashes (hashes over all applied log entries) of this node's state, for comparison with other
//! nodes.

use std::time::Duration;

use thalweg_engine::Database;
use thalweg_types::Index;
use tokio::time::{Instant, sleep};

/// Interval at which this node checks if a requested digest is computed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Access to the digests and running hashes of this node's state, which nodes compare with each other.
#[derive(Clone, Debug)]
pub(crate) struct Data(pub Database);

impl Data {
    /// Waits until this node has computed the digest of its state after the log entry `index`, at most for `within`.
    /// Returns the digest in hexadecimal; `None` if it was not computed in time. The entry is a request for a digest,
    /// and each node computes the digest when it applies the entry.
    pub(crate) async fn digest(&self, index: Index, within: Duration) -> Option<String> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(report) = self.0.digest_at(index) {
                return Some(report.state.digest.to_string());
            }
            if Instant::now() >= deadline {
                return None;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns the running hashes (hashes over all applied log entries) that this node keeps, each with the entry after
    /// which it was taken.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (Index, u64)> {
        self.0.hash_marks().into_iter().map(|mark| (mark.index, mark.running_hash))
    }
}
