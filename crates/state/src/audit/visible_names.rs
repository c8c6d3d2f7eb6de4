//! Tables that the checks of all areas of an audit need.

use thalweg_store::View;
use thalweg_types::Revision;

use crate::{
    clears::table::ClearTable,
    error::MachineError,
    keyspaces::catalog::{KeyspaceTable, Meta},
};

/// Catalog of keyspaces, deleted prefixes and last revision of the view that an audit reads.
pub(crate) struct Names {
    pub(crate) meta: Meta,
    pub(crate) keyspaces: KeyspaceTable,
    pub(crate) clears: ClearTable,
    /// Last revision that the commands applied in the audited view have used.
    pub(crate) revision: Revision,
}

impl Names {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let meta = Meta::load(view)?.unwrap_or_default();
        let (keyspaces, clears) = (KeyspaceTable::load(view, &meta)?, ClearTable::load(view)?);
        Ok(Self { meta, keyspaces, clears, revision: view.applied().revision })
    }
}
