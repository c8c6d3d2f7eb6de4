//! The files of a data directory, and the blocks that they take on the disk.

use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// Size in bytes of the unit in which the operating system counts the blocks of a file.
const BLOCK_BYTES: u64 = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundFile {
    /// Path relative to the data directory; empty for this directory itself.
    pub(super) path: String,
    pub(super) is_dir: bool,
    /// Size in bytes of the disk blocks that the file takes. For a file with holes this is less than its length.
    pub(super) allocated_bytes: u64,
}

/// Lists all files and directories below `root`, and `root` itself. Follows no links. A file with several names counts
/// once. A file that is removed during the listing may be missing.
pub(super) fn list(root: &Path) -> io::Result<Vec<FoundFile>> {
    let mut list = List::default();
    list.add(String::new(), &fs::metadata(root)?);
    list.add_contents(root, "")?;
    Ok(list.found)
}

#[derive(Default)]
struct List {
    found: Vec<FoundFile>,
    /// Device and inode number of each file with several names that was listed.
    linked: HashSet<(u64, u64)>,
}

impl List {
    fn add(&mut self, path: String, metadata: &Metadata) {
        let is_dir = metadata.is_dir();
        if !is_dir && metadata.nlink() > 1 && !self.linked.insert((metadata.dev(), metadata.ino())) {
            return;
        }
        self.found.push(FoundFile { path, is_dir, allocated_bytes: metadata.blocks() * BLOCK_BYTES });
    }

    fn add_contents(&mut self, dir: &Path, shown: &str) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let name = entry.file_name();
            let separator = if shown.is_empty() { "" } else { "/" };
            let path = format!("{shown}{separator}{}", name.to_string_lossy());
            self.add(path.clone(), &metadata);
            if metadata.is_dir() {
                match self.add_contents(&entry.path(), &path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    added => added?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_take_no_blocks_and_links_count_once() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/full"), vec![1; 64 << 10]).unwrap();
        fs::File::create(root.path().join("sparse")).unwrap().set_len(1 << 30).unwrap();
        fs::hard_link(root.path().join("a/full"), root.path().join("z")).unwrap();
        std::os::unix::fs::symlink("a/full", root.path().join("link")).unwrap();
        let found = list(root.path()).unwrap();
        let mut names: Vec<_> = found.iter().map(|file| file.path.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names.len(), 5, "the root, a, one of a/full and z, link, sparse: {names:?}");
        let bytes = |name: &str| found.iter().find(|file| file.path == name).map(|file| file.allocated_bytes);
        assert!(bytes("a/full").or_else(|| bytes("z")).unwrap() >= 64 << 10);
        assert!(bytes("sparse").unwrap() < 1 << 20);
        assert!(list(&root.path().join("none")).is_err());
    }
}
