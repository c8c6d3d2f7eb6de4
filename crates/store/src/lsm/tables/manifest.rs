//! Preparation of the files that name the current tables, before the LSM crate reads them.
//!
//! Owns: checking the list of tables, making the name of the list durable, removing unfinished files of a killed
//! process, and finding the number of the version that a restart would open. Does not own: the lists, which the LSM
//! crate writes, or the tables.
//!
//! ```text
//! current:  number of the version u64 | XXH3-128 of the file `v` + number | kind of the checksum u8, 0   little-endian
//! ```
//! The crate writes the checksum but does not check it. A flipped bit in the list can remove a table from it or move a
//! table to another level. The state then differs from the state of its log, without any error.
//!
//! The crate makes a list current by renaming a file to `current`, and syncs the directory afterwards. If the process
//! is killed in between, or if the sync fails, the next open reads the new list from the kernel's memory. The crate
//! then removes the former list and the tables that only the former list contains. A power loss could preserve this
//! removal but undo the rename; `current` would then name tables that are gone.
//!
//! Invariant: when the LSM crate opens a directory, the file `current` and its name are on disk. For this, the module
//! first writes the file anew: after a failed sync, a sync proves something only if the directory has changed since.

use std::{fs, io, path::Path};

use thalweg_disk::{Disk, is_out_of_space};
use xxhash_rust::xxh3::xxh3_128;

use super::private;
use crate::{backend::BackendError, files::io_error};

const CURRENT: &str = "current";
/// Prefix of the names of files that the LSM crate has not finished writing. The crate appends random characters.
const UNFINISHED: &str = ".tmp";
/// Temporary name of the new copy of the file `current`, which names the current list of tables.
const TEMPORARY: &str = ".tmp-current";
const CURRENT_BYTES: usize = 8 + 16 + 1;
/// Number that stands for XXH3-128 as the kind of the checksum in the file `current`. The LSM crate knows no other
/// kind.
const XXH3: u8 = 0;

/// Reads a file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>, BackendError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read the list of tables")(error)),
    }
}

/// Returns the version number in the file `current` of `dir`; `None` if the file cannot be read.
pub(super) fn current_version(dir: &Path) -> Option<u64> {
    let current = fs::read(dir.join(CURRENT)).ok()?;
    Some(number_in(&<[u8; CURRENT_BYTES]>::try_from(current).ok()?))
}

fn number_in(current: &[u8; CURRENT_BYTES]) -> u64 {
    u64::from_le_bytes(*current.first_chunk().expect("the file begins with 8 bytes"))
}

/// Prepares the directory `dir`, which is the root of `disk`, for the LSM crate: checks the current list of tables, and
/// makes the file `current` and its name durable. On a full disk, this is certain only if no earlier sync has failed.
pub(super) fn prepare(dir: &Path, disk: &dyn Disk) -> Result<(), BackendError> {
    let io = || io_error("make the list of tables durable");
    let content = check(dir)?;
    remove_unfinished(disk).map_err(io())?;
    let Some(content) = content else { return Ok(()) };
    let current = dir.join(CURRENT);
    let former = fs::metadata(&current).map_err(io())?;
    make_durable(disk, &content).map_err(io())?;
    private::give_to_owner_of(&former, &current).map_err(io())
}

/// Removes unfinished files of a killed process. They take disk space, and nothing refers to them.
fn remove_unfinished(disk: &dyn Disk) -> io::Result<()> {
    for name in disk.list("")?.iter().filter(|name| name.starts_with(UNFINISHED)) {
        disk.remove_if_there(name)?;
    }
    Ok(())
}

/// Writes the file `current` anew with the same content, and syncs the file and its name. If there is no room for a new
/// file, only syncs. That makes a killed process's rename durable, but not a rename that a failed sync has lost.
fn make_durable(disk: &dyn Disk, content: &[u8; CURRENT_BYTES]) -> io::Result<()> {
    match write_anew(disk, content) {
        Err(error) if is_out_of_space(error.kind()) => {
            disk.remove_if_there(TEMPORARY)?;
            disk.open(CURRENT)?.sync_all()?;
        }
        written => written?,
    }
    disk.sync_dir("")
}

fn write_anew(disk: &dyn Disk, content: &[u8; CURRENT_BYTES]) -> io::Result<()> {
    disk.remove_if_there(TEMPORARY)?;
    let file = disk.create(TEMPORARY)?;
    file.write_all_at(content, 0)?;
    file.sync_all()?;
    disk.rename(TEMPORARY, CURRENT)
}

/// Checks that the list of tables in `dir` is undamaged, and returns the content of the file `current` that names the
/// list. Returns `None` if the file is missing: the directory has no tables yet.
fn check(dir: &Path) -> Result<Option<[u8; CURRENT_BYTES]>, BackendError> {
    let corrupt = |what: &str| Err(BackendError::corrupt(dir.display(), what));
    let Some(current) = read(&dir.join(CURRENT))? else { return Ok(None) };
    let Ok(current) = <[u8; CURRENT_BYTES]>::try_from(current) else {
        return corrupt("the file `current` has another length than it was written with");
    };
    let number = number_in(&current);
    let (sum, kind) = current[8..].split_at(16);
    let Some(list) = read(&dir.join(format!("v{number}")))? else {
        return corrupt("the list of tables that the file `current` names is missing");
    };
    if kind != [XXH3] || sum != xxh3_128(&list).to_le_bytes() {
        return corrupt("the list of tables does not match its checksum");
    }
    Ok(Some(current))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use thalweg_disk::{
        SimDisk,
        sim::{Errno, Fault, Operation},
    };

    use super::{
        super::store::{TableOptions, TableStore},
        *,
    };
    use crate::lsm::TableCompression;

    fn content(number: u64) -> [u8; CURRENT_BYTES] {
        let mut content = [0; CURRENT_BYTES];
        content[..8].copy_from_slice(&number.to_le_bytes());
        content
    }

    fn put(disk: &SimDisk, name: &str, bytes: &[u8]) {
        let file = disk.create(name).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
    }

    /// Returns a directory in which the LSM crate has made the second list current by a rename. The crate has not
    /// synced the directory yet, or its sync has failed.
    fn half_switched(has_sync_failed: bool) -> SimDisk {
        let disk = SimDisk::new(1);
        put(&disk, "v1", b"list");
        put(&disk, CURRENT, &content(1));
        put(&disk, "v2", b"list");
        disk.sync_dir("").unwrap();
        put(&disk, ".tmpAbC123", &content(2));
        disk.rename(".tmpAbC123", CURRENT).unwrap();
        if has_sync_failed {
            disk.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
            disk.sync_dir("").unwrap_err();
        }
        disk.kill_process()
    }

    #[test]
    fn the_removal_of_the_former_list_does_not_outlive_the_switch_to_the_new_one() {
        let mut undone = 0;
        for has_sync_failed in [false, true] {
            let killed = half_switched(has_sync_failed);
            for after in 0..12 {
                let opened = killed.kill_process();
                opened.power_off_after(after);
                let is_durable = make_durable(&opened, &content(2)).is_ok();
                if is_durable {
                    // This is what the LSM crate does next.
                    let _ = opened.remove("v1");
                }
                for draw in 0..50 {
                    let lost = opened.power_loss(draw);
                    let number = number_in(&lost.cached_bytes(CURRENT).unwrap().try_into().unwrap());
                    let what = format!("failed sync: {has_sync_failed}, after {after}, draw {draw}: {number}");
                    assert!(lost.open(&format!("v{number}")).is_ok(), "{what}");
                    assert!(number == 2 || !is_durable, "{what}");
                    undone += u64::from(number == 1);
                }
            }
        }
        assert!(undone > 0, "no power loss has undone the switch");
    }

    #[test]
    fn a_full_disk_can_be_opened_and_the_switch_of_a_killed_process_is_durable() {
        let disk = half_switched(false);
        disk.set_capacity(0);
        make_durable(&disk, &content(2)).unwrap();
        assert_eq!(disk.paths(), [CURRENT, "v1", "v2"], "no unfinished file is left");
        for draw in 0..20 {
            assert_eq!(disk.power_loss(draw).cached_bytes(CURRENT).unwrap(), content(2));
        }
        for operation in [Operation::Sync, Operation::SyncDir] {
            disk.fail(Fault::new(operation, 1, Errno::Io));
            assert!(make_durable(&disk, &content(2)).is_err(), "{operation:?}");
        }
    }

    #[test]
    fn files_that_a_kill_has_left_unfinished_are_removed() {
        let disk = SimDisk::new(1);
        for name in [CURRENT, "v1", ".tmpAbC123", TEMPORARY] {
            put(&disk, name, b"");
        }
        remove_unfinished(&disk).unwrap();
        assert_eq!(disk.paths(), [CURRENT, "v1"]);
    }

    #[test]
    fn an_open_makes_the_list_durable_before_it_removes_any_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            TableStore::open(
                dir.path(),
                TableOptions {
                    cache_bytes: 1 << 20,
                    table_bytes: 64 << 20,
                    page_cache_bytes: u64::MAX,
                    compression: TableCompression::None,
                },
                Default::default(),
            )
        };
        drop(open().unwrap());
        let path = |name: &str| dir.path().join(name);
        let inode = || fs::metadata(path(CURRENT)).unwrap().ino();
        let others = ["v1000000", "tables/1000000", ".tmpAbC123"].map(path);
        others.iter().for_each(|file| fs::write(file, b"").unwrap());
        let (before, former) = (fs::read(path(CURRENT)).unwrap(), inode());

        // A directory in place of the file makes the writing fail.
        fs::create_dir(path(TEMPORARY)).unwrap();
        assert!(open().is_err());
        assert!(others[..2].iter().all(|file| file.exists()), "removed although the list may not be durable");
        assert_eq!(inode(), former);

        fs::remove_dir(path(TEMPORARY)).unwrap();
        drop(open().unwrap());
        assert!(!others.iter().any(|file| file.exists()), "{others:?}");
        assert_ne!(inode(), former, "the file is written anew");
        assert_eq!(fs::read(path(CURRENT)).unwrap(), before);
    }
}
