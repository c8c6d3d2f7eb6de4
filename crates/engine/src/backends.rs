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

/// Minimum and maximum size of tables. In between, tables are as large as memtables: levels 0 and 1 are full at four of
/// them, so a compaction of level 0 rewrites about as much of level 1 as it adds. With smaller tables, large states
/// need many files.
const MIN_TABLE_BYTES: u64 = 16 << 20;
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// Path of the data directory, as error messages show it.
pub(crate) fn shown_path(disk: &Arc<dyn Disk>) -> PathBuf {
    disk.os_path().map_or_else(|| PathBuf::from("the simulated disk"), Path::to_owned)
}

/// Removes all state directories except the current directory of the backend `kept`. Such directories are the remains
/// of a migration or an install that was interrupted before or after its switch.
pub(crate) fn remove_all_but(place: BackendLocation<'_>, kept: BackendKind, current: StateDir) -> io::Result<()> {
    let all = BackendKind::ALL.into_iter().flat_map(|kind| current.possible().map(move |dir| (kind, dir)));
    let others = all.filter(|other| *other != (kept, current)).map(|(kind, dir)| dir.path(kind));
    let there: Vec<_> = others.filter(|other| place.has(other)).collect();
    if !there.is_empty() {
        // A switch that a kill has interrupted may not be on disk yet, and must not be lost after the removal.
        place.disk.sync_dir("")?;
    }
    there.iter().try_for_each(|other| place.remove(other))
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

/// Location at which a backend keeps the state, and the threads that do its background work.
#[derive(Clone, Copy)]
pub(crate) struct BackendLocation<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    /// Directory in the operating system for backends that do their own I/O; `None` for the directory of the disk.
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
    open_in(BackendLocation::on(disk), kind, dir, barrier, options)
}

/// Opens the state like [`open`], at the location `place`.
pub(crate) fn open_in(
    place: BackendLocation<'_>,
    kind: BackendKind,
    dir: StateDir,
    barrier: Arc<dyn LogBarrier>,
    options: &Options,
) -> Result<Arc<dyn Backend>, OpenError> {
    let BackendLocation { disk, background, .. } = place;
    match kind {
        BackendKind::Memory => {
            let options = MemoryOptions { dir: dir.path(kind), ..MemoryOptions::default() };
            Ok(Arc::new(MemoryBackend::open(disk.clone(), options, barrier)?))
        }
        BackendKind::Lsm => {
            let options = LsmOptions {
                cache_bytes: options.cache_bytes,
                page_cache_bytes: options.page_cache_bytes,
                memtable_bytes: options.memtable_bytes,
                table_bytes: (options.memtable_bytes as u64).clamp(MIN_TABLE_BYTES, MAX_TABLE_BYTES),
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

impl<'a> BackendLocation<'a> {
    /// Creates the location on a disk for a backend with its own threads.
    pub(crate) fn on(disk: &'a Arc<dyn Disk>) -> Self {
        Self { disk, os_dir: None, background: Background::Threads }
    }

    fn has(&self, dir: &str) -> bool {
        match self.os_dir.or_else(|| self.disk.os_path()) {
            Some(root) if root.join(dir).exists() => true,
            _ => self.disk.os_path().is_none() && self.disk.list(dir).is_ok(),
        }
    }

    /// Removes a state directory and its contents. Succeeds if the directory does not exist.
    pub(crate) fn remove(&self, dir: &str) -> io::Result<()> {
        remove_dir(self.disk, dir)?;
        match self.os_dir.map(|root| fs::remove_dir_all(root.join(dir))) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Path of a backend's directory in the operating system, for libraries that do their own I/O.
    fn os_dir(&self, kind: BackendKind, dir: StateDir) -> Result<PathBuf, OpenError> {
        let root = self.os_dir.or_else(|| self.disk.os_path());
        Ok(root.ok_or(OpenError::NoOsPath { backend: kind.name() })?.join(dir.path(kind)))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::SimDisk;

    use super::*;

    /// A kill between the rename of `INSTALLED` and its sync leaves a switch that a power loss can still undo.
    #[test]
    fn the_removal_of_the_former_state_does_not_outlive_the_switch_to_the_new_one() {
        let kind = BackendKind::Memory;
        let file = |number: u64| {
            let dir = (0..number).fold(StateDir::FIRST, |dir, _| dir.next());
            format!("{}/checkpoint", dir.path(kind))
        };
        let disk = SimDisk::new(1);
        for number in 0..2 {
            let dir = file(number).rsplit_once('/').unwrap().0.to_owned();
            disk.create_dir(&dir).unwrap();
            disk.create(&file(number)).unwrap().sync_all().unwrap();
            [&dir, "state/default", "state", ""].iter().for_each(|dir| disk.sync_dir(dir).unwrap());
        }
        let written = disk.create("INSTALLED.tmp").unwrap();
        written.write_all_at(b"thalweg state 1\ndirectory 1\n", 0).unwrap();
        written.sync_all().unwrap();
        disk.rename("INSTALLED.tmp", "INSTALLED").unwrap();
        let killed = disk.kill_process();
        let mut undone = 0;
        for after in 0..10 {
            let opened = killed.kill_process();
            let as_disk: Arc<dyn Disk> = Arc::new(opened.clone());
            let current = StateDir::read(&as_disk).unwrap();
            opened.power_off_after(after);
            let _ = remove_all_but(BackendLocation::on(&as_disk), kind, current);
            for draw in 0..50 {
                let lost: Arc<dyn Disk> = Arc::new(opened.power_loss(draw));
                let current = StateDir::read(&lost).unwrap();
                undone += u64::from(current == StateDir::FIRST);
                let state = format!("{}/checkpoint", current.path(kind));
                assert!(lost.open(&state).is_ok(), "after {after}, draw {draw}: {current:?} is gone");
            }
        }
        assert!(undone > 0, "no power loss has undone the switch");
    }
}
