//! Removal of tables that a failed flush or compaction has left behind.
//!
//! Owns: [`PartialTables`]. Does not own: tables that are in use, or the tables that a killed process leaves behind,
//! which the LSM crate removes at open.
//!
//! The LSM crate does not remove the files of a flush or compaction that ends with an error. On a full disk these files
//! would take the room that the next attempt needs.
//!
//! Invariant: a file is removed only while no flush and no compaction runs, and only if its number was assigned since
//! the first failure whose files are still there, and the current version does not contain the table.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock},
};

use lsm_tree::{AbstractTree, Tree};

use crate::backend::BackendError;

/// Remover of the tables that failed flushes and compactions leave behind; see the [module](self).
#[derive(Debug)]
pub(super) struct PartialTables {
    tables: PathBuf,
    /// Locked for reading while a flush or compaction writes tables.
    writing: RwLock<()>,
    /// Number of the first table that a failed flush or compaction may have left behind; `None` if there is none.
    from: Mutex<Option<u64>>,
}

impl PartialTables {
    /// Creates the remover for the LSM crate's directory `dir`.
    pub(super) fn in_dir(dir: &Path) -> Self {
        Self { tables: dir.join("tables"), writing: RwLock::new(()), from: Mutex::new(None) }
    }

    /// Calls `write`, which writes tables. If it fails, removes the tables that it has left behind, or marks them for
    /// the next call if another thread writes tables at the same time.
    pub(super) fn discard_on_error<T>(
        &self,
        tree: &Tree,
        write: impl FnOnce() -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let next = tree.get_next_table_id();
        let written = {
            let _writing = self.writing.read().unwrap_or_else(PoisonError::into_inner);
            write()
        };
        if written.is_err() {
            let mut from = self.from();
            *from = Some(from.unwrap_or(next).min(next));
        }
        self.discard(tree);
        written
    }

    fn from(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
        self.from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn discard(&self, tree: &Tree) {
        let mut from = self.from();
        let Some(first) = *from else { return };
        let Ok(_alone) = self.writing.try_write() else { return };
        let current: HashSet<u64> = tree.current_version().iter_tables().map(lsm_tree::Table::id).collect();
        let Ok(files) = fs::read_dir(&self.tables) else { return };
        for file in files.flatten() {
            let number = file.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if number.is_some_and(|number| number >= first && !current.contains(&number)) {
                // A file that stays is removed at the next open.
                let _ = fs::remove_file(file.path());
            }
        }
        *from = None;
    }
}
