//! The directory that holds the state. A node that installs a snapshot fills a new directory and switches to it.
//!
//! Owns: the names of state directories, and the file `INSTALLED`, which names the current one. Does not own: the
//! contents of the directories.
//!
//! ```text
//! thalweg state 1
//! directory 3            the state is in state/default/BACKEND.3
//! crc 57d206f6           see `text_file`
//! ```
//! Without the file, the state is in `state/default/BACKEND`, which counts as directory 0. The file is replaced
//! atomically. Invariant: it names a directory whose state is complete and on disk. At most the directories before and
//! after the current one exist in addition to it: the former state, and an unfinished install.
//!
//! A lost file must be told apart from one that was never written. Otherwise the open would take the state of the last
//! install for that of an unfinished install, and remove it. If the file was never written, directory 0 exists, and at
//! most directory 1 of an unfinished install. So directory 1 alone, or a later one, shows that the file was lost
//! (`open::read_state_dir`).

use std::{io, sync::Arc};

use thalweg_disk::Disk;

use crate::{options::BackendKind, text_file::TextFile};

/// Name of the file that names the current state directory.
pub(crate) const FILE: &str = "INSTALLED";
const TEXT: TextFile = TextFile { path: FILE, temporary: "INSTALLED.tmp", max_bytes: 4096 };
/// Directory, within the data directory, that contains all state directories.
pub(crate) const PARENT: &str = "state/default";

/// Number of a state directory: 0 for a node's first one, and one more for each installed snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StateDir(u64);

/// Error of a switch to another state directory.
#[derive(Debug)]
pub(crate) enum SwitchError {
    /// The file `INSTALLED` could not be replaced, and still names the old directory. The switch can be repeated.
    NotSwitched(io::Error),
    /// The switch may or may not be on disk. Both directories must be kept until the next open.
    Unknown(io::Error),
}

impl StateDir {
    /// The state directory of a node that has never installed a snapshot.
    pub(crate) const FIRST: Self = Self(0);

    /// Returns the directory that the next installed snapshot uses.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the path of the directory, within the data directory.
    pub(crate) fn path(self, kind: BackendKind) -> String {
        match self.0 {
            0 => format!("{PARENT}/{}", kind.name()),
            number => format!("{PARENT}/{}.{number}", kind.name()),
        }
    }

    /// Returns the state directory with this name within [`PARENT`]; `None` if no state directory can have this name.
    pub(crate) fn of_name(kind: BackendKind, name: &str) -> Option<Self> {
        let number: u64 = name.strip_prefix(kind.name())?.strip_prefix('.')?.parse().ok()?;
        Some(Self(number)).filter(|dir| number > 0 && dir.path(kind) == format!("{PARENT}/{name}"))
    }

    /// Makes the name of this directory durable before an install creates the next one. Otherwise a power loss could
    /// leave directory 1 alone, which shows that an install has ended. Does nothing for a numbered directory, and on a
    /// simulated disk.
    pub(crate) fn sync_name(self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        if self != Self::FIRST || disk.os_path().is_none() {
            return Ok(());
        }
        [PARENT, "state", ""].iter().try_for_each(|dir| disk.sync_dir(dir))
    }

    /// Iterates over all state directories that can exist while this one is the current one.
    pub(crate) fn possible(self) -> impl Iterator<Item = Self> {
        (self.0.saturating_sub(1)..=self.0 + 1).map(Self)
    }

    /// Reads which state directory is the current one. Returns `InvalidData` for a damaged file. Does not check that
    /// the directory exists.
    pub(crate) fn read(disk: &Arc<dyn Disk>) -> io::Result<Self> {
        Ok(TEXT.read(&**disk, Self::decode)?.unwrap_or(Self::FIRST))
    }

    /// Adds the missing checksum line to a file `INSTALLED` that an early development build has written.
    pub(crate) fn add_checksum(disk: &Arc<dyn Disk>) -> io::Result<()> {
        TEXT.add_checksum(&**disk, |text| Self::decode(text).map(Self::encode))
    }

    /// Writes the file that names this directory again, with the same contents. It is on disk when the call returns,
    /// even if an earlier sync of it has failed. Does nothing for the first directory, which has no file.
    pub(crate) fn write_again(self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        if self == Self::FIRST { Ok(()) } else { TEXT.replace(&**disk, &self.encode()) }
    }

    /// Makes this directory the current one, durably. The state in the directory must be on disk.
    #[cfg(test)]
    pub(crate) fn make_current(self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        self.prepare(disk)?;
        self.switch_to_prepared(disk).map_err(|(SwitchError::NotSwitched(error) | SwitchError::Unknown(error))| error)
    }

    /// Makes this directory the current one, durably, by renaming the file that [`prepare`](Self::prepare) has written.
    pub(crate) fn switch_to_prepared(self, disk: &Arc<dyn Disk>) -> Result<(), SwitchError> {
        if let Err(error) = disk.rename(TEXT.temporary, TEXT.path) {
            match Self::read(disk) {
                Ok(found) if found != self => return Err(SwitchError::NotSwitched(error)),
                Ok(_) => {}
                Err(_) => return Err(SwitchError::Unknown(error)),
            }
        }
        // A failed fsync is not repeated, because the next one can succeed although the rename is not on disk.
        disk.sync_dir("").map_err(SwitchError::Unknown)
    }

    /// Cancels a prepared switch by removing its file. Ignores an error, because a leftover file has no effect.
    pub(crate) fn forget_prepared(disk: &Arc<dyn Disk>) {
        let _ = disk.remove(TEXT.temporary);
    }

    /// Writes the file that will name this directory, so that the later switch to it needs no disk space.
    pub(crate) fn prepare(self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        // In a simulation, a backend that does its own I/O has its directories elsewhere, so `state` may not exist yet.
        disk.create_dir(PARENT)?;
        // Makes the names of the new directory and of the default space durable. The sync of the switch covers `state`.
        disk.sync_dir(PARENT)?;
        disk.sync_dir("state")?;
        TEXT.prepare(&**disk, &self.encode())
    }

    fn encode(self) -> String {
        format!("thalweg state 1\ndirectory {}\n", self.0)
    }

    fn decode(text: &str) -> Option<Self> {
        let number = text.strip_prefix("thalweg state 1\ndirectory ")?.strip_suffix('\n')?;
        let number: u64 = number.parse().ok().filter(|number| (1..u64::MAX).contains(number))?;
        (Self(number).encode() == text).then_some(Self(number))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::{
        SimDisk,
        sim::{Errno, Fault, Operation},
    };

    use super::*;
    use crate::text_file::tests::{each_flipped_bit_is_found, is_documented, put};

    #[test]
    fn comes_back_and_refuses_anything_else() {
        assert_eq!(StateDir(3).encode(), "thalweg state 1\ndirectory 3\n");
        assert_eq!(StateDir::decode("thalweg state 1\ndirectory 3\n"), Some(StateDir(3)));
        for bad in
            ["", "thalweg state 2\ndirectory 3\n", "thalweg state 1\ndirectory 0\n", "thalweg state 1\ndirectory"]
        {
            assert_eq!(StateDir::decode(bad), None, "{bad:?}");
        }
        for number in ["-1", "+3", "03", "3 ", "18446744073709551615", "3\n\n"] {
            assert_eq!(StateDir::decode(&format!("thalweg state 1\ndirectory {number}\n")), None, "{number:?}");
        }
    }

    #[test]
    fn only_numbered_directories_have_a_number() {
        let number = |name| StateDir::of_name(BackendKind::Lsm, name);
        assert_eq!([number("lsm.1"), number("lsm.12")], [Some(StateDir(1)), Some(StateDir(12))]);
        for other in ["lsm", "lsm.0", "lsm.01", "lsm.+1", "lsm.old", "lsm.", "redb.1", "lsm1", "lsm.1.2"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    /// A flipped bit could make the file name an earlier directory, and the open would remove the present one.
    #[test]
    fn each_flipped_bit_of_the_file_is_found_and_the_file_of_an_early_build_is_read() {
        assert!(is_documented(&StateDir(3).encode()));
        let sim = SimDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        put(&sim, FILE, "thalweg state 1\ndirectory 3\n");
        assert_eq!(StateDir::read(&disk).unwrap(), StateDir(3));
        StateDir::add_checksum(&disk).unwrap();
        assert_eq!(StateDir::read(&disk).unwrap(), StateDir(3));
        each_flipped_bit_is_found(&sim, FILE, &|flipped| {
            let read = StateDir::read(&(Arc::new(flipped.clone()) as _));
            read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
        });
    }

    #[test]
    fn a_failed_rename_changes_nothing_and_can_be_repeated() {
        let sim = SimDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        disk.create_dir(PARENT).unwrap();
        StateDir(1).make_current(&disk).unwrap();
        StateDir(2).prepare(&disk).unwrap();
        sim.fail(Fault::new(Operation::Rename, 1, Errno::Io));
        assert!(matches!(StateDir(2).switch_to_prepared(&disk), Err(SwitchError::NotSwitched(_))));
        assert_eq!(StateDir::read(&disk).unwrap(), StateDir(1));
        StateDir(2).switch_to_prepared(&disk).unwrap();
        assert_eq!(StateDir::read(&disk).unwrap(), StateDir(2));
        StateDir(3).prepare(&disk).unwrap();
        sim.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
        assert!(matches!(StateDir(3).switch_to_prepared(&disk), Err(SwitchError::Unknown(_))));
    }

    #[test]
    fn the_names_of_all_directories_are_on_disk_after_a_switch() {
        let sim = SimDisk::new(1);
        StateDir(1).make_current(&(Arc::new(sim.clone()) as _)).unwrap();
        for draw in 0..20 {
            assert!(sim.power_loss(draw).list(PARENT).is_ok(), "draw {draw}");
        }
    }

    #[test]
    fn a_power_loss_leaves_the_former_directory_or_the_new_one_as_the_current_one() {
        let write = |disk: &SimDisk| {
            let disk: Arc<dyn Disk> = Arc::new(disk.clone());
            disk.create_dir(PARENT)?;
            StateDir(1).make_current(&disk)?;
            StateDir(2).make_current(&disk)
        };
        let rehearsal = SimDisk::new(1);
        write(&rehearsal).unwrap();
        for after in 0..=rehearsal.operations() {
            let disk = SimDisk::new(1);
            disk.power_off_after(after);
            let written = write(&disk);
            for draw in 0..20 {
                let found = StateDir::read(&(Arc::new(disk.power_loss(draw)) as _)).unwrap();
                assert!(found <= StateDir(2));
                assert!(written.is_err() || found == StateDir(2), "{after} {draw}");
            }
        }
    }
}
