//! File operations that the backends share.

use std::{io, path::Path};

use thalweg_disk::{Disk, RealDisk};

use crate::backend::BackendError;

/// Number of directories between the data directory and a backend's files, as in `state/default/BACKEND`.
const STATE_DEPTH: usize = 3;
/// Number of bytes that [`write_again`] reads and writes at a time.
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// Creates a directory and its parent directories, and syncs each of them.
pub(crate) fn create_dir(disk: &dyn Disk, dir: &str) -> Result<(), BackendError> {
    let make = || {
        disk.create_dir(dir)?;
        let mut rest = dir;
        while let Some((above, _)) = rest.rsplit_once('/') {
            rest = above;
            disk.sync_dir(rest)?;
        }
        disk.sync_dir("")
    };
    make().map_err(io_error("create directory"))
}

/// Opens a directory of the operating system for a library that does its own I/O. Creates the directory if it is
/// missing. On return, the names of the directory and of its parents, up to the data directory, are on disk.
pub(crate) fn open_os_dir(dir: &Path) -> Result<RealDisk, BackendError> {
    open_os_dir_by(dir, |dir| RealDisk::open(dir)).map_err(io_error("create directory"))
}

/// Opens a directory with `open`, which also makes the directory's own name durable, and then opens its parents in the
/// same way. Existing directories are not skipped, because a killed process may have created them without a sync.
fn open_os_dir_by<T>(dir: &Path, open: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let dir = std::path::absolute(dir)?;
    let opened = open(&dir)?;
    dir.ancestors().take(STATE_DEPTH).skip(1).try_for_each(|above| open(above).map(drop))?;
    Ok(opened)
}

/// Writes a file again with the same bytes, and syncs it. After a failed sync, the kernel regards the file's pages as
/// written, so another sync alone would not write them.
///
/// The rewriting itself can find the disk full: on a copy-on-write file system, or if the file has holes. This function
/// then stops rewriting and syncs. That makes the writes of a killed process durable, but not always writes that a
/// failed sync has lost.
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub(crate) fn write_again(file: &dyn thalweg_disk::File) -> io::Result<()> {
    let (mut at, len) = (0, file.len()?);
    while at < len {
        let piece = file.read_new_at((len - at).min(PIECE_BYTES) as usize, at)?;
        match file.write_all_at(&piece, at) {
            Err(error) if thalweg_disk::is_out_of_space(error.kind()) => break,
            written => written?,
        }
        at += piece.len() as u64;
    }
    file.sync_all()
}

pub(crate) fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |error| BackendError::of_io(operation, &error)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Tests that each directory is opened; `RealDisk::open` syncs the directory above the opened one.
    #[test]
    fn the_names_of_all_directories_down_from_the_data_directory_are_made_durable() {
        let opened = RefCell::new(Vec::new());
        let note = |dir: &Path| {
            opened.borrow_mut().push(dir.to_owned());
            Ok(())
        };
        open_os_dir_by(Path::new("/data/state/default/lsm"), note).unwrap();
        assert_eq!(*opened.borrow(), ["/data/state/default/lsm", "/data/state/default", "/data/state"].map(Path::new));
        let failing = |dir: &Path| if dir.ends_with("state") { Err(io::ErrorKind::Other.into()) } else { Ok(()) };
        assert!(open_os_dir_by(Path::new("/data/state/default/lsm"), failing).is_err());

        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state/default/lsm");
        for _ in 0..2 {
            assert_eq!(open_os_dir(&dir).unwrap().os_path(), Some(dir.as_path()));
            assert!(dir.is_dir());
        }
    }
}
