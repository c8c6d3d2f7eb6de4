//! Files that get their final name only when they are complete.
//!
//! Owns: the temporary name, the lock that tells other processes that the file is still being written, and the removal
//! of files that killed processes left behind. Does not own: the contents.
//!
//! Invariants: a temporary file is new, has an unpredictable name, and only its owner can read it. So neither another
//! process that writes to the same path, nor a symbolic link of another user, can receive or replace its contents. A
//! file that another process is still writing is never removed, because that process holds its lock.

use std::{
    fs::{self, File, OpenOptions},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::private_dir;

const EXTENSION: &str = "partial";

/// A file with a temporary name. Dropping this value removes the file, unless the file has got its final name.
#[derive(Debug)]
pub(crate) struct UnfinishedFile {
    path: PathBuf,
    /// Handle of the file. The file is locked while this handle is open.
    file: File,
    is_finished: bool,
}

impl UnfinishedFile {
    /// Creates the file `STEM.RANDOM.partial` in a directory.
    pub(crate) fn create(dir: &Path, stem: &str) -> io::Result<Self> {
        loop {
            let path = dir.join(format!("{stem}.{:016x}.{EXTENSION}", RandomState::new().build_hasher().finish()));
            let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // Another process may have removed the file between its creation and the lock. In this case another file is
            // created.
            if try_lock(&file)? && file.metadata()?.nlink() > 0 {
                return Ok(Self { path, file, is_finished: false });
            }
        }
    }

    /// Returns the path of the file under its temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns another handle of the file, for reading and writing.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file its final name. On return the new name is durable. The contents are durable only if the caller
    /// has synced them.
    pub(crate) fn finish(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_finished = true;
        private_dir::sync_parent(path)
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // An unfinished file only uses disk space. If the removal fails, the next sweep removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the unfinished files with this stem that no process is writing any more. Returns their names. Keeps files
/// that cannot be opened or removed.
pub(crate) fn sweep(dir: &Path, stem: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_unfinished(name, stem) && remove_abandoned(&dir.join(name)).unwrap_or(false)).collect()
}

/// Returns true for the names that [`UnfinishedFile::create`] gives, and for the name that earlier versions gave.
fn is_unfinished(name: &str, stem: &str) -> bool {
    let middle = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(EXTENSION)?.strip_suffix('.'));
    middle.is_some_and(|middle| match middle.strip_prefix('.') {
        Some(random) => random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => middle.is_empty(),
    })
}

fn remove_abandoned(path: &Path) -> io::Result<bool> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).expect("flags of a system call");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_abandoned = file.metadata()?.is_file() && try_lock(&file)?;
    if is_abandoned {
        fs::remove_file(path)?;
    }
    Ok(is_abandoned)
}

/// Locks a file for this process. Returns false if another handle holds the lock.
fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_private_and_appears_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = UnfinishedFile::create(dir.path(), "a").unwrap();
        let other = UnfinishedFile::create(dir.path(), "a").unwrap();
        assert_ne!(unfinished.path(), other.path(), "two writers do not meet");
        assert_eq!(unfinished.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        unfinished.handle().unwrap().write_all(b"data").unwrap();
        unfinished.finish(&dir.path().join("a")).unwrap();
        drop(other);
        assert_eq!(names(dir.path()), ["a"]);
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"data");
    }

    #[test]
    fn only_files_that_nobody_writes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let alive = UnfinishedFile::create(dir.path(), "a").unwrap();
        let abandoned = "a.0123456789abcdef.partial";
        for name in ["a", "a.partial", abandoned, "b.partial", "a.b.partial", "a.0123.partial"] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), dir.path().join("a.fedcba9876543210.partial")).unwrap();
        let mut swept = sweep(dir.path(), "a");
        swept.sort();
        assert_eq!(swept, [abandoned, "a.partial"]);
        assert!(alive.path().exists() && outside.path().exists());
        assert!(names(dir.path()).contains(&"a.b.partial".to_owned()));
    }
}
