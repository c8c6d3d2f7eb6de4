//! Permissions of the tree's files: only their owner may read them.
//!
//! Owns: the modes of the directories and of the files in them, the owner of a replaced file, and the refusal of
//! symbolic links in place of files. The LSM crate creates directories and files with the process's default mode, which
//! usually lets all users read. A server restricts this default for its whole process, but a program that embeds the
//! database must keep its own default. Does not own: files that exist at open, because an operator may have chosen
//! their modes.
//!
//! A new file has the default mode until the crate has completed it. Until then, the mode of its directory protects it.

use std::{
    fs::{self, DirBuilder, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
};

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of the file's group and of all other users.
const OTHERS: u32 = 0o077;

/// Creates the directory of a tree and its directory of tables, if they are missing.
pub(super) fn create(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir.join("tables"))
}

/// Checks that no file of the tree is a symbolic link, because the LSM crate would follow it. The directory of tables
/// and the directories above it may be symbolic links.
pub(super) fn refuse_links(dir: &Path) -> io::Result<()> {
    let tables = dir.join("tables");
    for entry in fs::read_dir(dir)?.chain(fs::read_dir(&tables)?) {
        let entry = entry?;
        let path = entry.path();
        if path != tables && entry.file_type()?.is_symlink() {
            return Err(io::Error::other(format!("{} is a symbolic link, which is not followed", path.display())));
        }
    }
    Ok(())
}

/// Removes the permissions of all users except the owner from a file.
pub(super) fn restrict(path: &Path) -> io::Result<()> {
    match fs::set_permissions(path, Permissions::from_mode(FILE_MODE)) {
        // The crate has replaced the file in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Gives a file that has replaced another file to the owner of the replaced file. An administrator may run a command on
/// the directory of a stopped node; without this, the node's user could not open the new files.
pub(super) fn give_to_owner_of(former: &Metadata, path: &Path) -> io::Result<()> {
    let now = fs::metadata(path)?;
    if (now.uid(), now.gid()) != (former.uid(), former.gid()) {
        // Only the administrator may change the owner. For other users this fails, and the file stays usable for its
        // creator.
        let _ = chown(path, Some(former.uid()), Some(former.gid()));
    }
    Ok(())
}

/// Removes the permissions of all users except the owner from a tree's manifests, which are the files in its directory.
/// They are few, and each flush and each compaction writes a new one.
pub(super) fn restrict_manifests(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Links are not followed, because their target may be a file of another user.
        let metadata = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        if metadata.is_file() && metadata.permissions().mode() & OTHERS != 0 {
            restrict(&entry.path())?;
        }
    }
    Ok(())
}
