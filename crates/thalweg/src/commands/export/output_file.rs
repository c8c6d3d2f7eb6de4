//! The output file of `--output`.
//!
//! A regular file is written under a temporary name. It replaces an existing file when the export is complete, so a
//! failed export leaves the existing file unchanged. A device or a pipe is written directly. A symbolic link is
//! rejected, because another user may have placed it so that the export overwrites its target.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use crate::{
    failure::Failure,
    unfinished_file::{self, UnfinishedFile},
};

const LINK: &str = "it is a symbolic link: name the file that it points to, or omit --output to write to stdout";

/// Destination of an export in the file system.
pub(super) enum OutputFile {
    /// A regular file. It gets its final name when it is complete.
    New { unfinished: UnfinishedFile, path: PathBuf },
    /// A device or a pipe, which is written directly.
    Special { file: File, path: PathBuf },
}

impl OutputFile {
    /// Opens the destination with this path.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        Self::open(path).map_err(|error| Failure::file(path, &error))
    }

    fn open(path: &Path) -> io::Result<Self> {
        let owned = path.to_owned();
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if found.is_symlink() => return Err(io::Error::other(LINK)),
            Ok(found) if !found.is_file() => {
                let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("flags of a system call");
                let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
                return Ok(Self::Special { file, path: owned });
            }
            _ => {}
        }
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::IsADirectory.into()) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let stem = name.to_string_lossy();
        // Removes unfinished files of earlier exports that were killed.
        unfinished_file::sweep(parent, &stem);
        let unfinished = UnfinishedFile::create(parent, &stem)?;
        Ok(Self::New { unfinished, path: owned })
    }

    /// Returns a handle through which the export writes to the file.
    pub(super) fn writer(&self) -> Result<File, Failure> {
        match self {
            Self::New { unfinished, path } => unfinished.handle().map_err(|error| Failure::file(path, &error)),
            Self::Special { file, path } => file.try_clone().map_err(|error| Failure::file(path, &error)),
        }
    }

    /// Gives a regular file its final name. On return the contents and the name are durable.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self::New { unfinished, path } = self else { return Ok(()) };
        let synced = unfinished.handle().and_then(|file| file.sync_all());
        synced.and_then(|()| unfinished.finish(&path)).map_err(|error| Failure::file(&path, &error))
    }
}
