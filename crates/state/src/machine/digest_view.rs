//! Keeping the view of the state that a digest command has requested.
//!
//! Owns: a view of the state as of the end of the entry with the digest command, so that the digest can be computed
//! while later entries are applied. Does not own: the digest (`state_digest`).
//!
//! Invariant: at most one view is kept, that of the newest command. While it is kept, it retains old data of the
//! backend in memory and on disk. So the requester must take it immediately, and a view without a requester is
//! dropped ([`Machine::drop_digest_view`]).

use std::sync::Arc;

use thalweg_store::View;
use thalweg_types::command::Outcome;

use crate::{
    digest::kept_view::DigestView,
    machine::{applying::Applying, state_machine::Machine},
    sync::lock,
};

/// Requests that the machine keeps a view for digest `id` once the current log entry is applied. If an entry has
/// several requests, the last one counts.
pub(crate) fn ask(applying: &mut Applying<'_>, id: u64) -> Outcome {
    applying.applier.digest_wanted = Some(id);
    Outcome::Done
}

impl Machine {
    /// Keeps a view of all applied records for the digest `id`. The applying thread calls this between two records.
    pub(crate) fn keep_digest_view(&self, id: u64) {
        let view = self.backend.view();
        let before = lock(&self.digest_view).replace(DigestView { id, view });
        // A backend may take a while to drop a view. Readers of the new view need not wait for it, because the lock is
        // free.
        drop(before);
    }

    /// Takes the view kept for the digest command with this id. Returns `None` if a newer command's view has replaced
    /// it, or if it was already taken or dropped.
    #[must_use]
    pub fn take_digest_view(&self, id: u64) -> Option<Arc<dyn View>> {
        lock(&self.digest_view).take_if(|kept| kept.id == id).map(|kept| kept.view)
    }

    /// Returns the id of the digest command whose view is kept; `None` if no view is kept.
    #[must_use]
    pub fn kept_digest_view(&self) -> Option<u64> {
        lock(&self.digest_view).as_ref().map(|kept| kept.id)
    }

    /// Drops the view kept for a digest, if there is one. Used if no caller on this node requested the digest, for
    /// example after a replay.
    pub fn drop_digest_view(&self) {
        let kept = lock(&self.digest_view).take();
        drop(kept);
    }
}
