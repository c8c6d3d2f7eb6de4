//! Opening the state with any of the backends (LSM, memory, redb, SQLite).
//!
//! Owns: the options and the location with which each backend is opened, and removing or setting aside state
//! directories. Does not own: the names of the directories (`state_dir`), the record of the current backend
//! (`identity`), or the steps of a migration (`migrate`).
//!
//! Each backend has its own directories below `state/default/`, so a migration can fill the new backend's directory
//! while the identity file still names the old backend. See [`StateDir`] for their names.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use thalweg_disk::{Disk, Pacer, is_out_of_space};
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
    identity::Identity,
    options::{BackendKind, Options},
    state_dir::{PARENT, StateDir},
};

/// Minimum size of a table of the LSM backend in bytes; `MAX_TABLE_BYTES` is the maximum. Between these limits, tables
/// are as large as memtables. Levels 0 and 1 are full at four tables, so a compaction of level 0 rewrites about as much
/// of level 1 as it adds. Smaller tables would mean many files.
const MIN_TABLE_BYTES: u64 = 16 << 20;
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// Path of the data directory, as error messages show it.
pub(crate) fn shown_path(disk: &Arc<dyn Disk>) -> PathBuf {
    disk.os_path().map_or_else(|| PathBuf::from("the simulated disk"), Path::to_owned)
}

/// Removes all state directories except the current directory of the identity's backend. The others are left from a
/// migration, or from the install of a snapshot, that was interrupted.
///
/// First writes `IDENTITY` and `INSTALLED`, which name the current state, again. After a kill or a failed sync, the
/// switch to this state may exist only in the page cache. A power loss must not undo the switch once the former state
/// is gone. Syncing the directory is not enough: after a failed sync, the next one succeeds without writing names.
pub(crate) fn remove_all_but(place: BackendLocation<'_>, identity: &Identity, current: StateDir) -> io::Result<()> {
    let all = BackendKind::ALL.into_iter().flat_map(|kind| current.possible().map(move |dir| (kind, dir)));
    let others = all.filter(|other| *other != (identity.backend, current));
    let there = others.filter(|(kind, dir)| place.has(&dir.path(*kind)));
    // Directories of an install that has not switched. The file on disk names the current directory or an earlier one.
    let (unfinished, former): (Vec<_>, Vec<_>) =
        there.partition(|(kind, dir)| *kind == identity.backend && *dir > current);
    unfinished.into_iter().try_for_each(|(kind, dir)| place.remove(&dir.path(kind)))?;
    if former.is_empty() {
        return Ok(());
    }
    match current.write_again(place.disk).and_then(|()| identity.write(place.disk)) {
        // A directory on a full disk must open, so the former state stays. A later open removes it.
        Err(error) if is_out_of_space(error.kind()) => return place.disk.sync_dir(""),
        written => written?,
    }
    former.into_iter().try_for_each(|(kind, dir)| place.remove(&dir.path(kind)))
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

/// Renames the state directory of a backend, so that the backend starts with an empty state. If a renamed directory
/// exists already, keeps that one and removes the present directory, which then holds only an incomplete state.
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

/// Removes the old state that an interrupted rebuild has set aside, after an open has completed the new state. First
/// persists the new state. If that fails, for example on a full disk, the old state stays until a later open.
pub(crate) fn finish_rebuild(disk: &Arc<dyn Disk>, state: &dyn Backend) {
    // A rebuild only happens on a real disk.
    if disk.os_path().is_none() {
        return;
    }
    let place = BackendLocation::on(disk);
    // A migration may have followed the rebuild, so the directories of all backends are checked.
    let kinds: Vec<_> = BackendKind::ALL.into_iter().filter(|kind| place.has(&aside_dir(*kind))).collect();
    if !kinds.is_empty() && state.flush().is_ok() {
        // If the removal fails, the directory only takes space.
        kinds.into_iter().for_each(|kind| _ = remove_set_aside(disk, kind));
    }
}

fn aside_dir(kind: BackendKind) -> String {
    format!("{}.old", StateDir::FIRST.path(kind))
}

/// Location at which a backend keeps the state, and the threads and the pacer of its background work.
#[derive(Clone, Copy)]
pub(crate) struct BackendLocation<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    /// Data directory for backends that do their own I/O, not through a `Disk`; `None` for the path of the `Disk`.
    pub(crate) os_dir: Option<&'a Path>,
    pub(crate) background: Background,
    /// Scheduler of background work on the disk, shared with the log; `None` for a backend without a log.
    pub(crate) pacer: Option<&'a Arc<Pacer>>,
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

/// Opens the state like [`open`], at the location `place`. The state is empty if nothing is there yet.
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
                compression: options.table_compression,
                compaction: options.compaction,
                background,
                pacer: place.pacer.cloned(),
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
        Self { disk, os_dir: None, background: Background::Threads, pacer: None }
    }

    /// Returns true if a state directory exists. Empty directories do not count on a simulated disk, which cannot
    /// remove them.
    pub(crate) fn has(&self, dir: &str) -> bool {
        match self.os_dir.or_else(|| self.disk.os_path()) {
            Some(root) if root.join(dir).exists() => true,
            _ => self.disk.os_path().is_none() && self.disk.list(dir).is_ok_and(|files| !files.is_empty()),
        }
    }

    /// Returns the newest state directory if it must come from a completed install: its number is 2 or higher, or it is
    /// 1 and directory 0 is gone. Called when the file that names the current directory is missing. `None` on a
    /// simulated disk, which cannot list directories.
    pub(crate) fn installed(&self, kind: BackendKind) -> io::Result<Option<StateDir>> {
        let Some(root) = self.os_dir.or_else(|| self.disk.os_path()) else { return Ok(None) };
        let names = match fs::read_dir(root.join(PARENT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            names => names?,
        };
        let mut newest: Option<StateDir> = None;
        for name in names {
            newest = newest.max(name?.file_name().to_str().and_then(|name| StateDir::of_name(kind, name)));
        }
        // A rebuild of the state sets directory 0 aside.
        let has_first = || self.has(&StateDir::FIRST.path(kind)) || self.has(&aside_dir(kind));
        let second = StateDir::FIRST.next();
        Ok(newest.filter(|newest| *newest > second || *newest == second && !has_first()))
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
    use thalweg_disk::{
        SimDisk,
        sim::{Errno, Fault, Operation, PowerLoss},
    };
    use thalweg_types::NodeId;

    use super::*;
    use crate::state_dir::SwitchError;

    const FORMER: Identity = Identity { node: NodeId(1), backend: BackendKind::Memory, cluster: None };

    fn as_disk(disk: &SimDisk) -> Arc<dyn Disk> {
        Arc::new(disk.clone())
    }

    fn file(kind: BackendKind, dir: StateDir) -> String {
        format!("{}/state", dir.path(kind))
    }

    /// Creates a disk with two state directories, and an identity file that names the backend of the first one.
    fn disk_with(states: [(BackendKind, StateDir); 2]) -> SimDisk {
        let disk = SimDisk::new(1);
        for (kind, number) in states {
            let dir = number.path(kind);
            disk.create_dir(&dir).unwrap();
            disk.create(&file(kind, number)).unwrap().sync_all().unwrap();
            [&*dir, "state/default", "state", ""].iter().for_each(|dir| disk.sync_dir(dir).unwrap());
        }
        FORMER.write(&as_disk(&disk)).unwrap();
        disk
    }

    /// Removes the state directories that are not in use, as opening the database does.
    fn sweep(disk: &SimDisk) -> io::Result<()> {
        let disk = as_disk(disk);
        let (identity, current) = (Identity::read(&disk)?.expect("written"), StateDir::read(&disk)?);
        remove_all_but(BackendLocation::on(&disk), &identity, current)
    }

    /// Checks that the state directory named by `IDENTITY` and `INSTALLED` exists. Returns its backend and number.
    fn check(disk: &SimDisk, context: &str) -> (BackendKind, StateDir) {
        let disk = as_disk(disk);
        let (kind, current) = (Identity::read(&disk).unwrap().unwrap().backend, StateDir::read(&disk).unwrap());
        assert!(disk.open(&file(kind, current)).is_ok(), "{context}: {kind:?} {current:?} is gone");
        (kind, current)
    }

    /// Power loss after a kill between the rename of `INSTALLED` and its sync: it can undo the switch to the new state.
    #[test]
    fn the_removal_of_the_former_state_does_not_outlive_the_switch_to_the_new_one() {
        let new = StateDir::FIRST.next();
        let disk = disk_with([(FORMER.backend, StateDir::FIRST), (FORMER.backend, new)]);
        new.prepare(&as_disk(&disk)).unwrap();
        disk.rename("INSTALLED.tmp", "INSTALLED").unwrap();
        let killed = disk.kill_process();
        let (mut undone, mut swept) = (0, false);
        for after in 0..20 {
            let opened = killed.kill_process();
            opened.power_off_after(after);
            swept = sweep(&opened).is_ok();
            for draw in 0..50 {
                let (_, current) = check(&opened.power_loss(draw), &format!("after {after}, draw {draw}"));
                undone += u64::from(current == StateDir::FIRST);
            }
        }
        assert!(undone > 0 && swept, "no power loss has undone the switch");
    }

    /// After a failed sync, the next one succeeds without writing names. So the open writes `INSTALLED` again.
    #[test]
    fn a_switch_whose_sync_failed_is_on_disk_before_the_former_state_is_removed() {
        let new = StateDir::FIRST.next();
        let installed = disk_with([(FORMER.backend, StateDir::FIRST), (FORMER.backend, new)]);
        new.prepare(&as_disk(&installed)).unwrap();
        installed.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
        assert!(matches!(new.switch_to_prepared(&as_disk(&installed)), Err(SwitchError::Unknown(_))));
        let migrated = disk_with([(FORMER.backend, StateDir::FIRST), (BackendKind::Redb, StateDir::FIRST)]);
        migrated.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
        Identity { backend: BackendKind::Redb, ..FORMER }.write(&as_disk(&migrated)).unwrap_err();
        let losses = (0..20).map(PowerLoss::AnySubset);
        for loss in losses.chain([PowerLoss::KeepUnsynced, PowerLoss::LoseUnsynced]) {
            for (disk, place) in
                [(&installed, (FORMER.backend, new)), (&migrated, (BackendKind::Redb, StateDir::FIRST))]
            {
                let opened = disk.kill_process();
                sweep(&opened).unwrap();
                let found = check(&opened.after_power_loss_with(loss), &format!("{place:?} {loss:?}"));
                assert_eq!(found, place, "{loss:?}");
            }
        }
    }

    #[test]
    fn on_a_full_disk_only_an_unfinished_install_is_removed() {
        let next = StateDir::FIRST.next();
        let states = [(FORMER.backend, StateDir::FIRST), (FORMER.backend, next)];
        let unfinished = disk_with(states);
        unfinished.set_capacity(0);
        sweep(&unfinished).unwrap();
        assert!(as_disk(&unfinished).open(&file(FORMER.backend, next)).is_err());
        let switched = disk_with(states);
        next.make_current(&as_disk(&switched)).unwrap();
        switched.set_capacity(0);
        sweep(&switched).unwrap();
        let former = file(FORMER.backend, StateDir::FIRST);
        assert!(as_disk(&switched).open(&former).is_ok(), "the switch could not be written again");
        switched.set_capacity(1 << 20);
        sweep(&switched).unwrap();
        assert!(as_disk(&switched).open(&former).is_err());
        check(&switched, "with room");
    }
}
