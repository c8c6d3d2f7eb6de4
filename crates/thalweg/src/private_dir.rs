//! Directories that only their owner can read, and that survive a power loss.
//!
//! Owns: the creation of such directories. Does not own: the files in them.

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

/// Creates a directory and its missing ancestors. Succeeds if the directory exists. On return the names of all these
/// directories are durable.
pub(crate) fn create(dir: &Path) -> io::Result<()> {
    create_with(dir, &mut sync_parent)
}

fn create_with(dir: &Path, sync_parent: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let missing: Vec<_> = dir.ancestors().take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if missing.is_empty() {
        // The directory exists, but an earlier process may have been killed before it made the name durable. An error
        // is ignored: the directory is probably old, and its parent may not be readable for this process.
        let _ = sync_parent(dir);
    }
    // The topmost directory comes first, because a name is durable only if the names of its ancestors are.
    missing.into_iter().rev().try_for_each(sync_parent)
}

/// Makes the name of a file or directory durable, by an fsync of its parent directory.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    #[test]
    fn the_name_of_each_created_directory_is_synced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b/c/");
        let create = |dir: &Path| {
            let mut synced: Vec<PathBuf> = Vec::new();
            create_with(dir, &mut |created| {
                assert!(created.is_dir(), "{}", created.display());
                synced.push(created.to_owned());
                sync_parent(created)
            })
            .unwrap();
            synced
        };
        let expected = ["a", "a/b", "a/b/c"].map(|name| root.path().join(name));
        assert_eq!(create(&dir), expected);
        assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(create(&dir), [root.path().join("a/b/c")], "the process that created it may have been killed");
        assert_eq!(create(&root.path().join("a/b/d")), [root.path().join("a/b/d")]);
        let failed = create_with(&root.path().join("e"), &mut |_| Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err(), "a backup in it would not be safe");
        create_with(&root.path().join("e"), &mut |_| Err(io::ErrorKind::PermissionDenied.into())).unwrap();
    }
}
