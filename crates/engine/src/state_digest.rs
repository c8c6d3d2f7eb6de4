//! Digests of the state, for comparing the replicas of a space.
//!
//! Owns: requesting a view of the state at an entry of the log, computing its digest, and keeping the last result.
//! Does not own the digest itself: see `thalweg_state::digest`.
//!
//! The digest command goes through the log like any other command, so every replica keeps a view of the state at the
//! same index. Computing the digest reads all rows of that view, on the caller's thread, while writes go on.
//!
//! On a member of a cluster, maintenance takes a view that no caller has taken for some rounds: another member has
//! requested it, to compare the digests of all members.
//!
//! Invariants: at most one view is kept until a caller takes it, that of the newest digest command; an older view that
//! was not taken is dropped. The last few results are kept.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    thread,
};

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{digest::state_digest, machine::Machine};
use thalweg_store::View;
use thalweg_types::{
    Action, Classified, Durability, Index,
    command::{CommandError, encode_digest},
};

use crate::{
    async_database::AsyncDatabase,
    database::Database,
    digests::{DigestReport, HashMark},
    error::{ReadError, WriteError, refusal},
    inner::Inner,
    open::Mode,
    priority::Priority,
};

/// Error returned when a digest cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The digest command was not carried out.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The view of the state was dropped before the caller took it, because of a newer digest command or by
    /// maintenance.
    #[error(
        "the view for this digest was dropped, because of a newer request or because it was not used in time: retry"
    )]
    Superseded,
    /// The operating system could not start a thread for computing the digest.
    #[error("no thread could be started for the digest: {message}; retry")]
    Thread {
        /// Message of the operating system.
        message: String,
    },
    /// The state could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Classified for DigestError {
    fn code(&self) -> &'static str {
        match self {
            Self::Write(error) => error.code(),
            Self::Superseded => "digest_superseded",
            Self::Thread { .. } => "no_thread",
            Self::Read(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Write(error) => error.action(),
            Self::Superseded | Self::Thread { .. } => Action::Retry,
            Self::Read(error) => error.action(),
        }
    }
}

/// A view of the state as of one log entry, from which a digest can be computed. Holding the view keeps old data
/// alive, in memory and on disk.
pub struct StateView {
    inner: Arc<Inner>,
    id: Option<u64>,
    view: Arc<dyn View>,
}

impl fmt::Debug for StateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateView").field("id", &self.id).field("applied", &self.view.applied()).finish_non_exhaustive()
    }
}

impl StateView {
    /// Computes the digest of the state, and keeps it as the database's last digest. Reads the whole state, which
    /// blocks for a long time if the state is large. Calls `progress` from time to time with the number of rows read
    /// so far.
    pub fn digest(self, progress: &mut dyn FnMut(u64)) -> Result<Arc<DigestReport>, DigestError> {
        let state = state_digest(&*self.view, progress).map_err(ReadError::from)?;
        Ok(self.inner.digests.keep(DigestReport { id: self.id, state }))
    }

    /// Computes the digest like [`digest`](Self::digest), but on a thread of its own with a low priority. Calls `done`
    /// with the result.
    ///
    /// # Errors
    /// [`DigestError::Thread`]; `done` is not called in that case.
    pub fn digest_in_background(
        self,
        done: impl FnOnce(Result<Arc<DigestReport>, DigestError>) + Send + 'static,
    ) -> Result<(), DigestError> {
        let work = move || {
            Priority::Low.take();
            done(self.digest(&mut |_| {}));
        };
        let spawned = thread::Builder::new().name("thalweg-digest".to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| DigestError::Thread { message: error.to_string() })
    }
}

impl Database {
    /// Writes a digest command to the log, and computes the digest of the state as of this command. Blocks until the
    /// whole state is read; writes go on concurrently.
    pub fn state_digest(&self) -> Result<Arc<DigestReport>, DigestError> {
        let id = self.next_digest_id();
        let level = self.durability().max(Durability::Os);
        let committed = self.inner.propose(level, Purpose::Reclaim, |out| ask(out, id))?;
        self.asked(committed, id)?.digest(&mut |_| {})
    }

    /// Returns a view of the newest state, without writing a digest command. Use it for a directory without writers.
    #[must_use]
    pub fn state_view(&self) -> StateView {
        StateView { inner: Arc::clone(&self.inner), id: None, view: self.machine().backend().view() }
    }

    /// Returns the last digest computed since the database was opened; `None` if there is none.
    #[must_use]
    pub fn last_state_digest(&self) -> Option<Arc<DigestReport>> {
        self.inner.digests.last()
    }

    /// Returns the digest of the state after the entry with this index, if it is one of the last few that were
    /// computed since the database was opened. Members whose states are equal have equal digests at an index.
    #[must_use]
    pub fn digest_at(&self, index: Index) -> Option<Arc<DigestReport>> {
        self.inner.digests.at(index)
    }

    /// Returns the last few digests computed since the database was opened, in the order of their entries.
    #[must_use]
    pub fn state_digests(&self) -> Vec<Arc<DigestReport>> {
        self.inner.digests.all()
    }

    /// Returns the running hashes that this member keeps for comparison, of every 1024th entry, in order. The hashes of
    /// two members at the same entry are equal, unless one has applied an entry differently. A node alone keeps none.
    #[must_use]
    pub fn hash_marks(&self) -> Vec<HashMark> {
        self.inner.open.hashes.all()
    }

    fn machine(&self) -> &Machine {
        &self.inner.open.machine
    }

    fn next_digest_id(&self) -> u64 {
        self.inner.digests.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn asked(&self, committed: Committed, id: u64) -> Result<StateView, DigestError> {
        committed.outcome.map(refusal).transpose()?;
        let view = self.machine().take_digest_view(id).ok_or(DigestError::Superseded)?;
        Ok(StateView { inner: Arc::clone(&self.inner), id: Some(id), view })
    }
}

impl AsyncDatabase {
    /// Writes a digest command to the log, without computing a digest for the caller. Every member of the cluster
    /// computes the digest of its state as of this command in the background; see [`Database::digest_at`].
    pub fn request_digest(&self) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
        let id = self.blocking().next_digest_id();
        let proposed = self.propose(Durability::Os, Purpose::Reclaim, |out| ask(out, id));
        async move { proposed?.await?.outcome.map(refusal).transpose().map(drop) }
    }

    /// Writes a digest command to the log, and returns a view of the state as of this command. Compute its digest on a
    /// thread that may block.
    pub fn state_view(&self, level: Durability) -> impl Future<Output = Result<StateView, DigestError>> + Send + use<> {
        let db = self.blocking().clone();
        let id = db.next_digest_id();
        let proposed = self.propose(level.max(Durability::Os), Purpose::Reclaim, |out| ask(out, id));
        async move { db.asked(proposed?.await.map_err(WriteError::from)?, id) }
    }
}

impl Inner {
    /// Computes the digest of the view that the command `id` has kept, for comparison with other members. One such
    /// digest is computed at a time.
    pub(crate) fn compute_requested_digest(self: &Arc<Self>, id: u64) -> Result<(), DigestError> {
        if self.digests.is_computing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let done = {
            let inner = Arc::clone(self);
            move |_: Result<Arc<DigestReport>, DigestError>| inner.digests.is_computing.store(false, Ordering::Release)
        };
        let Some(view) = self.open.machine.take_digest_view(id) else {
            self.digests.is_computing.store(false, Ordering::Release);
            return Ok(());
        };
        let view = StateView { inner: Arc::clone(self), id: Some(id), view };
        if self.open.mode == Mode::Stepped {
            done(view.digest(&mut |_| {}));
            return Ok(());
        }
        let started = view.digest_in_background(done);
        if started.is_err() {
            self.digests.is_computing.store(false, Ordering::Release);
        }
        started
    }
}

fn ask(out: &mut Vec<u8>, id: u64) -> Result<(), CommandError> {
    encode_digest(out, id);
    Ok(())
}
