//! A directory of the operating system as a [`Disk`].
//!
//! Owns: the translation of relative paths into system calls below one root. Does not own: retries. A failed `fsync` is
//! returned immediately and never repeated: the kernel has already marked the pages clean, so a second call would
//! report success without writing them.

mod direct;
mod file;
mod locks;
mod mapping;
mod page_cache;
mod resident;
mod write_out;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::OFlags;

pub use self::{
    direct::{DIRECT_BLOCK_BYTES, set_direct},
    resident::{decode_resident, read_resident},
    write_out::{begin_write_out, write_out},
};
use self::{file::RealFile, locks::RealLock};
use crate::{Disk, File, LockGuard, path};

/// Permissions of new files: only their owner can read and write them.
const FILE_MODE: u32 = 0o600;
/// Permissions of new directories: only their owner can list and change them.
const DIR_MODE: u32 = 0o700;

/// A directory tree below a root in the file system.
///
/// Only the owner can use the files and directories that a `RealDisk` creates. Existing ones keep their permissions. A
/// symbolic link in the place of a file is an error: otherwise another user with write access to the root could
/// redirect a write to any file of this process's owner. A directory may be a symbolic link, for example to another
/// file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Opens `root`, and creates it with its missing ancestors. The directory entry is durable on return: the
    /// parent of each new directory is synced, and for an existing root its parent too.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        // The absolute path stays valid if the process changes its working directory.
        let root = std::path::absolute(root)?;
        create_durably(&root)?;
        if !root.is_dir() {
            let message = format!("{} is not a directory; name a directory to keep data in", root.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
        }
        Ok(Self { root })
    }

    fn file_path(&self, path: &str) -> io::Result<PathBuf> {
        path::check_file(path)?;
        Ok(self.root.join(path))
    }

    fn dir_path(&self, dir: &str) -> io::Result<PathBuf> {
        path::check_dir(dir)?;
        Ok(if dir.is_empty() { self.root.clone() } else { self.root.join(dir) })
    }
}

/// Creates `dir` and its missing ancestors, top down, and syncs the parent of each.
fn create_durably(dir: &Path) -> io::Result<()> {
    if dir.exists() {
        return sync_entry(dir);
    }
    let missing: Vec<&Path> = dir.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    for dir in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
            // Another process has created the directory first. Its parent is synced anyway, because that process may
            // not have synced it yet.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        if let Some(parent) = dir.parent() {
            sync_directory(parent)?;
        }
    }
    Ok(())
}

/// Makes the name of an existing directory durable by syncing its parent. This is needed because an earlier process may
/// have been killed between creating the directory and syncing the parent.
fn sync_entry(dir: &Path) -> io::Result<()> {
    let Some(parent) = dir.parent() else { return Ok(()) };
    if fs::metadata(dir)?.dev() != fs::metadata(parent)?.dev() {
        return Ok(()); // A mount point, which the administrator created.
    }
    match sync_directory(parent) {
        // This process cannot have created a directory in a parent that it may not read.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    let handle = fs::OpenOptions::new().read(true).open(dir)?;
    Ok(rustix::fs::fsync(handle)?)
}

/// Returns the options with which every file is opened.
fn file_options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of a system call");
    options.read(true).write(true).mode(FILE_MODE).custom_flags(no_follow);
    options
}

impl Disk for RealDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let file = file_options().open(self.file_path(path)?)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let file = file_options().create_new(true).open(self.file_path(path)?)?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.file_path(from)?, self.file_path(to)?);
        if fs::symlink_metadata(&from)?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        match fs::rename(from, to) {
            // If the target is a directory that contains the source file, the kernel returns this error first.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Err(io::ErrorKind::IsADirectory.into()),
            other => other,
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.file_path(path)?)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(self.dir_path(path)?)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.dir_path(dir)?)? {
            let entry = entry?;
            // A name that is not UTF-8 was created by another program: no path of this trait could have
            // created it.
            if let (false, Ok(name)) = (entry.file_type()?.is_dir(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let dir = self.dir_path(dir)?;
        if !fs::metadata(&dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        sync_directory(&dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        // Uses `f_bavail`, not `f_bfree`, because the difference is reserved for the superuser.
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.lock_within(path, Duration::ZERO)
    }

    fn lock_within(&self, path: &str, patience: Duration) -> io::Result<Box<dyn LockGuard>> {
        let file = file_options().create(true).truncate(false).open(self.file_path(path)?)?;
        Ok(Box::new(RealLock::take(file, patience)?))
    }

    fn os_path(&self) -> Option<&Path> {
        Some(&self.root)
    }
}
