//! The view of the state that a digest command keeps, so that its digest can be computed later.

use std::sync::Arc;

use thalweg_store::View;

/// A view of the state kept for a digest, with the id of the digest command.
pub(crate) struct DigestView {
    pub(crate) id: u64,
    pub(crate) view: Arc<dyn View>,
}

impl std::fmt::Debug for DigestView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DigestView").field("id", &self.id).field("applied", &self.view.applied()).finish()
    }
}
