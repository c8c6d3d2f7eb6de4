//! Digests of the whole state, by which the members of a cluster check that their states are equal.
//!
//! Owns: requesting a view of the state at an entry of the log, computing its digest, and keeping the last result. Does
//! not own: the digest function (`thalweg_state::digest`).
//!
//! The digest command goes through the log like any other command, so every replica keeps a view of the state at the
//! same index. Computing the digest reads all rows of that view, on the caller's thread, while writes go on.
//!
//! If no caller takes the view for some rounds of maintenance, another member has requested the digest. Maintenance
//! then computes it, so that the members can compare their digests.
//!
//! A digest that is computed in the background ends with an error once the last handle of the database is dropped, so
//! that the directory can be opened again at once.
//!
//! Invariants: at most one view waits for a caller, that of the newest digest command; an older one is dropped. The
//! last few results are kept.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
    thread,
};

use thalweg_disk::Priority;
use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{
    digest::{StateDigest, state_digest, state_digest_while},
    machine::Machine,
};
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
    open_parts::Mode,
};

/// Error returned when a digest cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The digest command was not carried out.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The view of the state was dropped before the caller took it, because of a newer digest command or because it was
    /// not taken in time.
    #[error(
        "the view for this digest was dropped, because of a newer request or because it was not used in time: retry"
    )]
    Superseded,
    /// The operating system could not start a thread for computing the digest.
    #[error("no thread could be started for the digest: {message}; retry")]
    Thread {
        /// Message of the operating system about the thread that it could not start.
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
    /// Number of installed snapshots that had replaced the state before the view was taken.
    replacements: u64,
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
        Ok(self.keep(state))
    }

    /// Computes the digest like [`digest`](Self::digest), but on a thread of its own with a low priority. Calls `done`
    /// with the result. If the last handle of the database is dropped, the computation ends with the error `closed`,
    /// and the database is released before `done` is called.
    ///
    /// # Errors
    /// [`DigestError::Thread`]; `done` is not called in that case.
    pub fn digest_in_background(
        self,
        done: impl FnOnce(Result<Arc<DigestReport>, DigestError>) + Send + 'static,
    ) -> Result<(), DigestError> {
        let work = move || {
            Priority::Low.take();
            done(self.digest_while_used());
        };
        let spawned = thread::Builder::new().name("thalweg-digest".to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| DigestError::Thread { message: error.to_string() })
    }

    /// Computes the digest like [`digest`](Self::digest), but ends with the error `closed` once the last handle of the
    /// database is dropped.
    fn digest_while_used(self) -> Result<Arc<DigestReport>, DigestError> {
        let inner = &self.inner;
        let mut proceed =
            |_| if inner.has_handles() { ControlFlow::Continue(()) } else { ControlFlow::Break(WriteError::Closed) };
        let state = match state_digest_while(&*self.view, &mut proceed).map_err(ReadError::from)? {
            ControlFlow::Continue(state) => state,
            ControlFlow::Break(error) => return Err(error.into()),
        };
        Ok(self.keep(state))
    }

    /// Keeps the digest for comparison with other members, unless an installed snapshot has replaced the state since
    /// the view was taken.
    fn keep(&self, state: StateDigest) -> Arc<DigestReport> {
        let report = DigestReport { id: self.id, state };
        self.inner.digests.keep(report, || self.inner.open.machine.replacements() == self.replacements)
    }
}

impl Database {
    /// Writes a digest command to the log, and computes the digest of the state as of this command. Blocks until the
    /// whole state is read; writes continue concurrently.
    pub fn state_digest(&self) -> Result<Arc<DigestReport>, DigestError> {
        let id = self.next_digest_id();
        let level = self.durability().max(Durability::Os);
        let committed = self.inner.propose(level, Purpose::Reclaim, |out| ask(out, id))?;
        self.asked(committed, id)?.digest(&mut |_| {})
    }

    /// Returns a view of the newest state, without writing a digest command. Meant for a directory without writers.
    #[must_use]
    pub fn state_view(&self) -> StateView {
        let replacements = self.machine().replacements();
        StateView { inner: Arc::clone(&self.inner), id: None, view: self.machine().backend().view(), replacements }
    }

    /// Returns the last digest computed since the database was opened; `None` if there is none.
    #[must_use]
    pub fn last_state_digest(&self) -> Option<Arc<DigestReport>> {
        self.inner.digests.last()
    }

    /// Returns the digest of the state after the log entry with this index, if it is among the last few computed
    /// digests since the open. Members whose states are equal have equal digests at an index.
    #[must_use]
    pub fn digest_at(&self, index: Index) -> Option<Arc<DigestReport>> {
        self.inner.digests.at(index)
    }

    /// Returns the last few digests computed since the database was opened, in the order of their log entries.
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
        let replacements = self.machine().replacements();
        let view = self.machine().take_digest_view(id).ok_or(DigestError::Superseded)?;
        Ok(StateView { inner: Arc::clone(&self.inner), id: Some(id), view, replacements })
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

    /// Writes a digest command to the log, and returns a view of the state as of this command. The caller computes the
    /// digest on a thread that may block.
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
        let replacements = self.open.machine.replacements();
        let Some(view) = self.open.machine.take_digest_view(id) else {
            self.digests.is_computing.store(false, Ordering::Release);
            return Ok(());
        };
        let view = StateView { inner: Arc::clone(self), id: Some(id), view, replacements };
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

#[cfg(test)]
mod tests {
    use std::{
        ops::Bound,
        sync::{
            Mutex,
            mpsc::{Receiver, Sender, channel},
        },
        time::Duration,
    };

    use thalweg_disk::{Disk, SimDisk};
    use thalweg_store::{Applied, BackendError, Direction, Visit};
    use thalweg_types::ManualClock;

    use super::*;
    use crate::options::{BackendKind, Options};

    const BOUND: Duration = Duration::from_secs(120);

    /// A view whose reads wait until the test lets them continue.
    struct Waiting {
        view: Arc<dyn View>,
        walks: Mutex<Sender<()>>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl View for Waiting {
        fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, BackendError> {
            self.view.get(key)
        }
        fn scan(
            &self,
            lower: Bound<&[u8]>,
            upper: Bound<&[u8]>,
            direction: Direction,
            visit: &mut Visit<'_>,
        ) -> Result<(), BackendError> {
            self.walks.lock().unwrap().send(()).unwrap();
            self.goes_on.lock().unwrap().recv_timeout(BOUND).unwrap();
            self.view.scan(lower, upper, direction, visit)
        }
        fn applied(&self) -> Applied {
            self.view.applied()
        }
    }

    #[test]
    fn a_digest_in_the_background_ends_with_the_last_handle() {
        let disk = SimDisk::new(1);
        let options = Options { backend: Some(BackendKind::Memory), reserve_bytes: 0, ..Options::default() };
        for is_dropped in [false, true] {
            let clock = Arc::new(ManualClock::default());
            let db = Database::open_on(Arc::new(disk.clone()), clock, 5, options.clone()).unwrap();
            db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
            let ((walks, walked), (go_on, goes_on), (send, done)) = (channel(), channel(), channel());
            let view = db.inner.open.backend.view();
            let view = Arc::new(Waiting { view, walks: Mutex::new(walks), goes_on: Mutex::new(goes_on) });
            let view = StateView { inner: Arc::clone(&db.inner), id: None, view, replacements: 0 };
            view.digest_in_background(move |digest| send.send(digest).unwrap()).unwrap();
            walked.recv_timeout(BOUND).unwrap();
            let kept = (!is_dropped).then_some(db);
            go_on.send(()).unwrap();
            match (done.recv_timeout(BOUND).unwrap(), kept) {
                (Ok(report), Some(db)) => assert_eq!(db.last_state_digest(), Some(report)),
                (Err(error), None) => assert_eq!(error.code(), "closed"),
                (other, _) => panic!("dropped: {is_dropped}, {other:?}"),
            }
            // The locks are free at once.
            drop((disk.lock("LOCK").unwrap(), disk.lock("log/LOCK").unwrap()));
        }
    }
}
