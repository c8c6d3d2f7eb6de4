//! File operations that all backends on a [`Disk`] share.

use std::io;

use thalweg_disk::Disk;

use crate::backend::BackendError;

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

/// Removes a file. Succeeds also if the file does not exist.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &str) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |error| BackendError::of_io(operation, &error)
}
