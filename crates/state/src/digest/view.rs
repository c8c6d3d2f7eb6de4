//! The view that a digest command asks for.
//!
//! Owns: keeping a view of the state as of the end of the entry that carries the command, so that the digest can be
//! computed while later entries are applied. Does not own the digest (`digest`).
//!
//! Invariant: at most one view is kept, that of the newest command. It holds old data of the backend in memory and on disk
//! for as long as it is here, so whoever asked for it takes it at once, and the rest is dropped
//! ([`Machine::drop_digest_view`]).

use std::sync::Arc;

use thalweg_store::View;
use thalweg_types::command::Outcome;

use crate::{
    digest::kept_view::DigestView,
    machine::{applying::Applying, state_machine::Machine},
    sync::lock,
};

/// Remembers that a view is wanted once the entry is applied. Of several in one entry the last counts.
pub(crate) fn ask(applying: &mut Applying<'_>, id: u64) -> Outcome {
    applying.applier.digest_wanted = Some(id);
    Outcome::Done
}

impl Machine {
    /// Keeps a view of all that is applied. Called by the applying thread, between two records.
    pub(crate) fn keep_digest_view(&self, id: u64) {
        let view = self.backend.view();
        let before = lock(&self.digest_view).replace(DigestView { id, view });
        // Dropping a view may take a backend a while; readers of this one need not wait for that.
        drop(before);
    }

    /// Takes the view that the digest command with this id asked for; `None` if a newer command has replaced it, or it has
    /// been taken or dropped.
    #[must_use]
    pub fn take_digest_view(&self, id: u64) -> Option<Arc<dyn View>> {
        lock(&self.digest_view).take_if(|kept| kept.id == id).map(|kept| kept.view)
    }

    /// The id of the view that is kept, if there is one.
    #[must_use]
    pub fn kept_digest_view(&self) -> Option<u64> {
        lock(&self.digest_view).as_ref().map(|kept| kept.id)
    }

    /// Drops the view that is kept, if there is one: nobody on this node has asked for it, as after a replay.
    pub fn drop_digest_view(&self) {
        let kept = lock(&self.digest_view).take();
        drop(kept);
    }
}
