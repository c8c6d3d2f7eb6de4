//! Removal of tables that a failed flush or compaction has left behind.
//!
//! Owns: [`PartialTables`]. Does not own: tables that are in use, or the tables that a killed process leaves behind,
//! which the LSM crate removes at open.
//!
//! The LSM crate does not remove the files of a flush or compaction that ends with an error. On a full disk, these
//! files would take the room that the next attempt needs.
//!
//! The crate makes a version current by renaming a file to `current`, and then syncs this file and the directory. If a
//! sync fails, the crate continues with the former version in memory, but a restart may find the new version and needs
//! its tables. So files are removed only after the error of a full disk, and only if `current` still names the version
//! in memory. Every other error is final: another attempt would write the new version's list again, and a crash during
//! this write would leave no valid list.
//!
//! Invariants: files are removed only while no flush or compaction runs. A file is removed only if its number is not
//! below the first number that a failed flush or compaction could have used, and if neither the version in memory nor
//! the version on the disk contains its table.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock},
};

use lsm_tree::{AbstractTree, Tree};

use super::manifest;
use crate::backend::BackendError;

/// Remover of the tables that failed flushes and compactions leave behind; see the [module](self).
#[derive(Debug)]
pub(super) struct PartialTables {
    dir: PathBuf,
    /// Locked for reading while a flush or compaction writes tables.
    writing: RwLock<()>,
    left: Mutex<LeftoverTables>,
}

/// Files that failed flushes and compactions may have left behind.
#[derive(Debug, Default)]
struct LeftoverTables {
    /// Lowest number of a table that may have been left behind; `None` if there is none.
    from: Option<u64>,
    /// True after an error that forbids all further removals. The next open removes the files.
    is_final: bool,
}

impl PartialTables {
    /// Creates the remover for the LSM crate's directory `dir`.
    pub(super) fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), writing: RwLock::new(()), left: Mutex::default() }
    }

    /// Calls `write`, which writes tables. If `write` finds the disk full, removes the tables that `write` has left
    /// behind. If another thread writes tables at this time, the next call of this function removes them instead.
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
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = &written {
            left.from = Some(left.from.unwrap_or(next).min(next));
            left.is_final |= !error.is_disk_full();
        }
        self.discard(tree, &mut left);
        match written {
            Err(full) if left.is_final && full.is_disk_full() => {
                Err(BackendError::io("make tables current", format!("{full}; a restart may find them current")))
            }
            written => written,
        }
    }

    fn discard(&self, tree: &Tree, left: &mut LeftoverTables) {
        let Some(first) = left.from.filter(|_| !left.is_final) else { return };
        // While another thread writes tables, the versions in memory and on the disk can differ temporarily.
        let Ok(_alone) = self.writing.try_write() else { return };
        let version = tree.current_version();
        if manifest::current_version(&self.dir) != Some(version.id()) {
            left.is_final = true;
            return;
        }
        let current: HashSet<u64> = version.iter_tables().map(lsm_tree::Table::id).collect();
        let Ok(files) = fs::read_dir(self.dir.join("tables")) else { return };
        for file in files.flatten() {
            let number = file.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if number.is_some_and(|number| number >= first && !current.contains(&number)) {
                // If the removal fails, the next open removes the file.
                let _ = fs::remove_file(file.path());
            }
        }
        left.from = None;
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::{AnyTree, Config, SequenceNumberCounter};

    use super::*;

    struct Dir(tempfile::TempDir, Tree, PartialTables);

    impl Dir {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let config = Config::new(dir.path(), SequenceNumberCounter::default(), SequenceNumberCounter::default());
            let AnyTree::Standard(tree) = config.open().unwrap() else { panic!("a tree without blobs") };
            let partial = PartialTables::in_dir(dir.path());
            Self(dir, tree, partial)
        }

        fn table(&self) -> PathBuf {
            // Number 1000 is far above the numbers that the crate has assigned.
            self.0.path().join("tables").join("1000")
        }

        /// Writes a table file and returns `error`, like a flush that fails before the LSM crate has added the table to
        /// its list.
        fn fail(&self, error: BackendError, and: impl FnOnce()) -> BackendError {
            let write = || {
                fs::write(self.table(), b"partial").unwrap();
                and();
                Err::<(), _>(error)
            };
            self.2.discard_on_error(&self.1, write).unwrap_err()
        }
    }

    fn full() -> BackendError {
        BackendError::DiskFull { operation: "test", message: String::new() }
    }

    #[test]
    fn what_a_full_disk_leaves_behind_is_removed() {
        let dir = Dir::new();
        assert!(dir.fail(full(), || {}).is_disk_full());
        assert!(!dir.table().exists());
    }

    #[test]
    fn after_another_error_nothing_is_removed_any_more() {
        let dir = Dir::new();
        assert!(!dir.fail(BackendError::io("test", "a sync failed"), || {}).is_disk_full());
        assert!(dir.table().exists());
        assert!(!dir.fail(full(), || {}).is_disk_full(), "the room of the first tables is not free");
        assert!(dir.table().exists());
        assert!(dir.2.discard_on_error(&dir.1, || Ok(())).is_ok());
        assert!(dir.table().exists());
    }

    #[test]
    fn tables_that_a_restart_would_find_current_are_kept() {
        let dir = Dir::new();
        let current = dir.0.path().join("current");
        let rename = || {
            let mut bytes = fs::read(&current).unwrap();
            bytes[0] += 1;
            fs::write(&current, bytes).unwrap();
        };
        let error = dir.fail(full(), rename);
        assert!(!error.is_disk_full(), "{error}");
        assert!(dir.table().exists());
    }
}
