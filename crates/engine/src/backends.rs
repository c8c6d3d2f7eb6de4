//! Opening the state with any of the backends (LSM, memory, redb, SQLite).
//!
//! Each backend has its own directories below `state/default/`, so a migration can fill the new backend's directory
//! while the identity file still names the old backend. See [`StateDir`] for their names.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use thalweg_disk::Disk;
#[cfg(feature = "redb")]
use thalweg_store::redb::{RedbBackend, RedbOptions};
#[cfg(feature = "sqlite")]
use thalweg_store::sqlite::{SqliteBackend, SqliteOptions};
use thalweg_store::{
    Backend, Background, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
};

use crate::{
    error::OpenError,
    options::{BackendKind, Options},
    state_dir::StateDir,
};

/// Path of the data directory, as error messages show it.
pub(crate) fn shown_path(disk: &Arc<dyn Disk>) -> PathBuf {
    disk.os_path().map_or_else(|| PathBuf::from("the simulated disk"), Path::to_owned)
}

/// Removes all state directories but that of the backend `kept` that is the current one. Such directories are the
/// remains of a migration or an install that was interrupted before or after its switch.
pub(crate) fn remove_all_but(disk: &Arc<dyn Disk>, kept: BackendKind, current: StateDir) -> io::Result<()> {
    let all = BackendKind::ALL.into_iter().flat_map(|kind| current.possible().map(move |dir| (kind, dir)));
    let others = all.filter(|other| *other != (kept, current)).map(|(kind, dir)| dir.path(kind));
    let there: Vec<_> = others.filter(|other| exists(disk, other)).collect();
    if !there.is_empty() {
        // A switch that a kill has interrupted may not be on disk yet, and must not be lost after the removal.
        disk.sync_dir("")?;
    }
    there.iter().try_for_each(|other| remove_dir(disk, other))
}

fn exists(disk: &Arc<dyn Disk>, dir: &str) -> bool {
    disk.os_path().map_or_else(|| disk.list(dir).is_ok(), |root| root.join(dir).exists())
}

/// Removes a directory and its contents. Succeeds if the directory does not exist.
pub(crate) fn remove_dir(disk: &Arc<dyn Disk>, dir: &str) -> io::Result<()> {
    let removed = match disk.os_path() {
        Some(root) => fs::remove_dir_all(root.join(dir)),
        None => {
            disk.list(dir).and_then(|files| files.iter().try_for_each(|file| disk.remove(&format!("{dir}/{file}"))))
        }
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames the state directory of a backend, so that the backend starts with an empty state. Keeps a directory that was
/// set aside before, because the present one is then only a part of a state.
pub(crate) fn set_aside(disk: &Arc<dyn Disk>, kind: BackendKind) -> io::Result<()> {
    let root = disk.os_path().ok_or(io::ErrorKind::Unsupported)?;
    let (state, aside) = (root.join(StateDir::FIRST.path(kind)), root.join(aside_dir(kind)));
    if aside.exists() {
        return remove_dir(disk, &StateDir::FIRST.path(kind));
    }
    match fs::rename(&state, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the state directory that [`set_aside`] has renamed.
pub(crate) fn remove_set_aside(disk: &Arc<dyn Disk>, kind: BackendKind) -> io::Result<()> {
    remove_dir(disk, &aside_dir(kind))
}

fn aside_dir(kind: BackendKind) -> String {
    format!("{}.old", StateDir::FIRST.path(kind))
}

/// Place in which a backend keeps the state, and the threads that do its background work.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    /// Directory in the operating system for backends that do their own I/O; `None` for the disk's own one.
    pub(crate) os_dir: Option<&'a Path>,
    pub(crate) background: Background,
}

/// Opens the state that a backend keeps in a state directory. The state is empty if the backend has none there yet.
pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    kind: BackendKind,
    dir: StateDir,
    barrier: Arc<dyn LogBarrier>,
    options: &Options,
) -> Result<Arc<dyn Backend>, OpenError> {
    open_in(Place { disk, os_dir: None, background: Background::Threads }, kind, dir, barrier, options)
}

/// Opens the state like [`open`], in a place.
pub(crate) fn open_in(
    place: Place<'_>,
    kind: BackendKind,
    dir: StateDir,
    barrier: Arc<dyn LogBarrier>,
    options: &Options,
) -> Result<Arc<dyn Backend>, OpenError> {
    let Place { disk, background, .. } = place;
    match kind {
        BackendKind::Memory => {
            let options = MemoryOptions { dir: dir.path(kind), ..MemoryOptions::default() };
            Ok(Arc::new(MemoryBackend::open(disk.clone(), options, barrier)?))
        }
        BackendKind::Lsm => {
            let options = LsmOptions {
                cache_bytes: options.cache_bytes,
                memtable_bytes: options.memtable_bytes,
                compaction: options.compaction,
                background,
                ..LsmOptions::new(place.os_dir(kind, dir)?)
            };
            Ok(Arc::new(LsmBackend::open(options, barrier)?))
        }
        #[cfg(feature = "redb")]
        BackendKind::Redb => {
            let options = RedbOptions {
                dir: dir.path(kind),
                cache_bytes: options.cache_bytes,
                buffer: buffer(options, background),
            };
            Ok(Arc::new(RedbBackend::open(disk, options, barrier)?))
        }
        #[cfg(feature = "sqlite")]
        BackendKind::Sqlite => {
            let options = SqliteOptions {
                cache_bytes: options.cache_bytes,
                buffer: buffer(options, background),
                ..SqliteOptions::new(place.os_dir(kind, dir)?)
            };
            Ok(Arc::new(SqliteBackend::open(options, barrier)?))
        }
        #[allow(unreachable_patterns, reason = "reachable in builds without all backends")]
        _ => Err(OpenError::NotBuilt { backend: kind.name() }),
    }
}

#[cfg(any(feature = "redb", feature = "sqlite"))]
fn buffer(options: &Options, background: Background) -> thalweg_store::BufferOptions {
    let memtable_bytes = options.memtable_bytes;
    thalweg_store::BufferOptions { memtable_bytes, background, ..thalweg_store::BufferOptions::default() }
}

impl Place<'_> {
    /// Path of a backend's directory in the operating system, for libraries that do their own I/O.
    fn os_dir(&self, kind: BackendKind, dir: StateDir) -> Result<PathBuf, OpenError> {
        let root = self.os_dir.or_else(|| self.disk.os_path());
        Ok(root.ok_or(OpenError::NoOsPath { backend: kind.name() })?.join(dir.path(kind)))
    }
}
