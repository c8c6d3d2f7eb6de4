//! Digests of the state, by which replicas of a space are compared.
//!
//! Owns: asking for a view of the state at an entry of the log, computing its digest, and keeping the last result. Does not
//! own the digest itself: see `digest.rs` of the state.
//!
//! The command goes through the log like any other, so every replica has a view at the same index. Computing the digest
//! reads all rows of that view, on the caller's thread, while writes go on.
//!
//! Invariants: one view waits at most, that of the newest command; an older one that was not taken is superseded. One
//! result is kept.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{
    digest::{StateDigest, state_digest},
    machine::Machine,
};
use thalweg_store::View;
use thalweg_types::{
    Action, Classified, Durability, Lsn,
    command::{CommandError, encode_digest},
};

use crate::{
    async_database::AsyncDatabase,
    database::{Database, Inner},
    error::{ReadError, WriteError, refusal},
    priority::Priority,
};

/// What the database keeps of digests.
#[derive(Debug)]
pub(crate) struct Digests {
    /// Of the next command. It tells commands apart that are under way on this node; a view that an earlier run of the
    /// node has asked for is dropped at open.
    next_id: AtomicU64,
    last: Mutex<Option<Arc<DigestReport>>>,
}

impl Digests {
    pub(crate) fn new(applied: Lsn) -> Self {
        Self { next_id: AtomicU64::new(applied.0), last: Mutex::default() }
    }

    fn keep(&self, report: DigestReport) -> Arc<DigestReport> {
        let report = Arc::new(report);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Two may be computed at once, and the later entry's result stays.
        if last.as_ref().is_none_or(|last| last.state.applied.index <= report.state.applied.index) {
            *last = Some(Arc::clone(&report));
        }
        report
    }
}

/// A digest of the state, and what it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestReport {
    /// The id of the command that asked for it; `None` if none did.
    pub id: Option<u64>,
    /// The digest, and the position of the state. The running hash is `state.applied.running_hash`.
    pub state: StateDigest,
}

/// A digest could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The command was not carried out.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The view was given up before it was taken: a newer digest command came, or maintenance dropped it.
    #[error(
        "the view for this digest was given up, because another digest was asked for or nobody took it in time: ask again"
    )]
    Superseded,
    /// There was no thread for it.
    #[error("no thread could be started for the digest: {message}; ask again")]
    Thread {
        /// Said by the system.
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

/// The state at one entry of the log. Holding it keeps old data alive, in memory and on disk.
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
    /// Computes the digest and keeps it as the last one. Reads all of the state: blocks for long if that is large.
    /// `progress` is called now and then with the number of rows read so far.
    pub fn digest(self, progress: &mut dyn FnMut(u64)) -> Result<Arc<DigestReport>, DigestError> {
        let state = state_digest(&*self.view, progress).map_err(ReadError::from)?;
        Ok(self.inner.digests.keep(DigestReport { id: self.id, state }))
    }

    /// As [`digest`](Self::digest), on a thread of its own that takes less of the processors than others, and calls
    /// `done` with the result.
    ///
    /// # Errors
    /// [`DigestError::Thread`]; then `done` is not called.
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
    /// Computes the digest of the state as of an entry that is written for it. Blocks for as long as it takes to read all
    /// of the state; writes go on meanwhile.
    pub fn state_digest(&self) -> Result<Arc<DigestReport>, DigestError> {
        let id = self.next_digest_id();
        let level = self.durability().max(Durability::Os);
        let committed = self.inner.propose(level, Purpose::Reclaim, |out| ask(out, id))?;
        self.asked(committed, id)?.digest(&mut |_| {})
    }

    /// The newest state, without an entry that names it: for a directory that nobody else writes to.
    #[must_use]
    pub fn state_view(&self) -> StateView {
        StateView { inner: Arc::clone(&self.inner), id: None, view: self.machine().backend().view() }
    }

    /// The digest that was computed last since the database was opened.
    #[must_use]
    pub fn last_state_digest(&self) -> Option<Arc<DigestReport>> {
        self.inner.digests.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    /// The state as of an entry that is written for it. Compute its digest on a thread that may block.
    pub fn state_view(&self, level: Durability) -> impl Future<Output = Result<StateView, DigestError>> + Send + use<> {
        let db = self.blocking().clone();
        let id = db.next_digest_id();
        let proposed = self.propose(level.max(Durability::Os), Purpose::Reclaim, |out| ask(out, id));
        async move { db.asked(proposed?.await.map_err(WriteError::from)?, id) }
    }
}

fn ask(out: &mut Vec<u8>, id: u64) -> Result<(), CommandError> {
    encode_digest(out, id);
    Ok(())
}
