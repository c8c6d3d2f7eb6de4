//! Owners of the files in a data directory. The rules find a frequent accident: a command that ran once as root left
//! files that the node's own user cannot open.
//!
//! Does not own: the permissions of the directory, which `thalweg serve` checks too.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::Findings;

/// Maximum number of files that are examined. A data directory of 100 GiB has fewer than 4,000.
const MAX_FILES: usize = 20_000;
/// Maximum depth below the data directory. Its deepest files are `state/default/BACKEND/FILE`.
const MAX_DEPTH: usize = 4;

/// Owners of a directory and of its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owners {
    /// User id of the directory's owner.
    pub directory: u32,
    /// User id under which this process runs.
    pub own: u32,
    /// True if this process may create files in the directory.
    pub writable: bool,
    /// Number of files in the directory that were examined.
    pub files: usize,
    /// Number of files whose owner is not the owner of the directory.
    pub foreign_files: usize,
    /// Name of one file whose owner is not the owner of the directory.
    pub foreign_example: Option<String>,
    /// True if a process has the data directory open; `None` if the kernel does not tell.
    pub in_use: Option<bool>,
}

impl Owners {
    /// Reads the owners of the directory and of the files in it.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist or cannot be reached.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let directory = fs::metadata(dir)?.uid();
        let mut owners = Self {
            directory,
            own: rustix::process::geteuid().as_raw(),
            writable: access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
            files: 0,
            foreign_files: 0,
            foreign_example: None,
            in_use: is_locked(&dir.join("LOCK")),
        };
        owners.walk(dir, 0);
        Ok(owners)
    }

    fn walk(&mut self, dir: &Path, depth: usize) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            // This reads the owner of a symbolic link itself, and does not follow the link.
            let Ok(metadata) = entry.metadata() else { continue };
            if self.files == MAX_FILES {
                return;
            }
            self.files += 1;
            if metadata.uid() != self.directory {
                self.foreign_files += 1;
                self.foreign_example.get_or_insert_with(|| entry.path().display().to_string());
            }
            if metadata.is_dir() && depth < MAX_DEPTH {
                self.walk(&entry.path(), depth + 1);
            }
        }
    }
}

/// Returns true if a process holds the lock on a file, according to the kernel's list of locks. This function does not
/// try to take the lock, because a node that starts at this moment would fail.
fn is_locked(path: &Path) -> Option<bool> {
    let Ok(metadata) = fs::metadata(path) else { return Some(false) };
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    Some(locks.lines().any(|line| line.split_whitespace().any(|word| word == id)))
}

/// Adds a finding for each problem with the owners.
pub(crate) fn judge(owners: &Owners, found: &mut Findings) {
    let Owners { directory, own, .. } = owners;
    if !owners.writable {
        found.problem(
            "not_writable",
            format!("this user (id {own}) cannot create files in the directory, which belongs to user {directory}"),
            "a node of this user cannot start here, and syncs were not measured",
            "run this as the user of the node, or give the directory to that user with `chown`",
        );
    }
    if let Some(example) = &owners.foreign_example {
        found.problem(
            "foreign_files",
            format!(
                "{} of {} files do not belong to the owner of the directory (id {directory}), such as {}",
                owners.foreign_files, owners.files, example
            ),
            "the node cannot open files of another user; a command that ran as root leaves such files",
            "give them back: `chown -R` with the user of the node and this directory, while the node is stopped",
        );
    }
    if owners.in_use == Some(true) {
        found.note(
            "in_use",
            "a process has the directory open".to_owned(),
            "the times of syncs include its load",
            "stop the node and run this again for the times of the disk alone",
        );
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::{Disk as _, RealDisk};

    use super::*;

    fn codes(owners: &Owners) -> Vec<&'static str> {
        let mut found = Findings::default();
        judge(owners, &mut found);
        found.codes()
    }

    #[test]
    fn a_directory_that_is_in_use_is_seen_without_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        assert_eq!(Owners::read(dir.path()).unwrap().in_use, Some(false));
        let lock = disk.lock("LOCK").unwrap();
        let owners = Owners::read(dir.path()).unwrap();
        assert!(owners.writable && owners.files == 1 && owners.foreign_files == 0, "{owners:?}");
        // In some sandboxes the kernel's list of locks is empty.
        if std::fs::read_to_string("/proc/locks").is_ok_and(|text| !text.is_empty()) {
            assert_eq!(owners.in_use, Some(true));
            assert_eq!(codes(&owners), ["in_use"]);
        }
        drop(lock);
        assert_eq!(Owners::read(dir.path()).unwrap().in_use, Some(false));
    }

    #[test]
    fn files_of_others_and_a_directory_without_permission_are_problems() {
        let good = Owners {
            directory: 5,
            own: 5,
            writable: true,
            files: 3,
            foreign_files: 0,
            foreign_example: None,
            in_use: None,
        };
        assert_eq!(codes(&good), Vec::<&str>::new());
        let foreign = Owners { foreign_files: 1, foreign_example: Some("/d/log/1".into()), ..good.clone() };
        assert_eq!(codes(&foreign), ["foreign_files"]);
        assert_eq!(codes(&Owners { writable: false, ..good }), ["not_writable"]);
    }
}
