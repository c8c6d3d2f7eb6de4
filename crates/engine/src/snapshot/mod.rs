//! Snapshots of an open database: taking and installing them, and creating a directory from a backup.
//!
//! Owns: beginning a snapshot of the database ([`Database::snapshot`]), creating a directory from a backup
//! ([`restore`]), and installing a snapshot into a running database ([`Install`]). Does not own: the reading and
//! writing of a snapshot's bytes (crate `thalweg-snapshot`), files, directories of backups, or sockets.
//!
//! Invariant: the next open recognises a half-filled directory or state, and never takes it for a complete one
//! (`restore`, `install`).

mod error;
pub(crate) mod install;
mod plan;
mod restore;

use thalweg_snapshot::Origin;

use crate::database::Database;

pub use crate::install_error::InstallError;
pub use error::RestoreError;
pub use install::{Install, InstallProgress, Installed};
pub use plan::{Part, RestoreTo, chain};
pub use restore::{RestoreProgress, Restored, restore, restore_on};
pub use thalweg_snapshot::{
    Compression, EntryId, PartKind, PartialSnapshot, Snapshot, SnapshotError, SnapshotFile, SnapshotInfo,
    SnapshotOptions, SnapshotReadError, SnapshotStats, Totals, Verified, survey, verify,
};

impl Database {
    /// Begins a snapshot of the present applied state, or of the changes since an LSN. Writes continue concurrently. A
    /// member that has stopped serving returns an error, so that no node gets its state.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<Snapshot, SnapshotError> {
        let (inner, open) = (&self.inner, &self.inner.open);
        if let Some(reason) = self.stopped_serving() {
            return Err(SnapshotError::StoppedServing { reason });
        }
        let origin = Origin {
            node: open.report.node,
            log: &open.log,
            backend: &open.backend,
            machine: &open.machine,
            background: open.mode.background(),
            pins: &inner.snapshots,
            counters: &inner.snapshot_counters,
        };
        origin.snapshot(options)
    }
}
