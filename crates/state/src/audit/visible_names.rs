//! Tables that all checks of an audit need: keyspaces, deleted prefixes, and the next ids.

use thalweg_store::View;
use thalweg_types::Revision;

use crate::{
    clears::table::ClearTable,
    error::MachineError,
    keyspaces::catalog::{KeyspaceTable, Meta},
};

/// Keyspaces, deleted prefixes, next ids and last revision of the view that an audit reads.
pub(crate) struct Names {
    pub(crate) meta: Meta,
    pub(crate) keyspaces: KeyspaceTable,
    pub(crate) clears: ClearTable,
    /// Last revision that a command had used when the audited view was taken.
    pub(crate) revision: Revision,
}

impl Names {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let meta = Meta::load(view)?.unwrap_or_default();
        let (keyspaces, clears) = (KeyspaceTable::load(view, &meta)?, ClearTable::load(view)?);
        Ok(Self { meta, keyspaces, clears, revision: view.applied().revision })
    }
}
