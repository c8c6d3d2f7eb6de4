//! Permissions of the tree's files: only their owner may read them.
//!
//! Owns: the modes of the directories and of the files in them, the owner of a file that is replaced, and the refusal
//! of symbolic links in place of files. The LSM crate
//! creates directories and files with the default mode of the process, which usually lets all users read. A server
//! narrows that default for its whole process, but an embedding program must not have its own changed. Does not own:
//! files that exist at open, whose modes an operator may have chosen.
//!
//! A new file has the default mode until the crate has written it completely. The directory protects it in that time.

use std::{
    fs::{self, DirBuilder, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
};

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of the owner's group and of all others.
const OTHERS: u32 = 0o077;

/// Creates the directory of a tree and the one of its tables, if they are missing.
pub(super) fn create(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir.join("tables"))
}

/// Checks that no file of the tree is a symbolic link, which the LSM crate would follow. The directory of the tables
/// may be one, like each directory above it.
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

/// Lets only the owner use a file.
pub(super) fn restrict(path: &Path) -> io::Result<()> {
    match fs::set_permissions(path, Permissions::from_mode(FILE_MODE)) {
        // The crate has replaced the file in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Gives a file that has replaced another one to the owner of the former file. So a command that the administrator runs
/// on the directory of a stopped node does not lock out the user of the node.
pub(super) fn give_to_owner_of(former: &Metadata, path: &Path) -> io::Result<()> {
    let now = fs::metadata(path)?;
    if (now.uid(), now.gid()) != (former.uid(), former.gid()) {
        // Another user than the administrator may not do this. The file stays usable for that user.
        let _ = chown(path, Some(former.uid()), Some(former.gid()));
    }
    Ok(())
}

/// Lets only the owner use the manifests of a tree, which are the files in its directory. There are few of them, and
/// each flush and each compaction writes a new one.
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
