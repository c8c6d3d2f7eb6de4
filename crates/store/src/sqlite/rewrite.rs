//! Rewriting of the WAL when a database is opened.
//!
//! Owns: [`rewrite`]. Does not own: the WAL itself, which SQLite writes and reads.
//!
//! If the sync of a commit fails, the kernel keeps the WAL frames of the commit in its memory and regards them as
//! written. SQLite itself does not use these frames. But after a kill, the next open finds them in the file and takes
//! the commit for durable. The log is then freed up to this commit, and a checkpoint copies the frames to the database.
//! A power loss during this copy leaves a part of the commit in the database, and no frames on disk to complete it. A
//! sync at the open does not prevent this, because the kernel regards the frames as written.
//!
//! So the file is written again with the same bytes and synced before SQLite reads it. This takes at most as long as
//! the checkpoint that follows. A node that was closed cleanly has no WAL.

use std::io;

use thalweg_disk::Disk;

use crate::files::write_again;

/// Writes the WAL with this name again and syncs it; does nothing if there is no WAL. On a full disk, it may only be
/// able to sync (see [`write_again`]).
pub(super) fn rewrite(disk: &dyn Disk, wal: &str) -> io::Result<()> {
    match disk.open(wal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => write_again(&*opened?),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::{
        SimDisk,
        sim::{Errno, Fault, Operation},
    };

    use super::*;
    use crate::files::PIECE_BYTES;

    const WAL: &str = "wal";

    /// Returns a disk with a WAL whose last frames are only in the memory of the kernel, because their sync has failed.
    fn with_lost_frames() -> SimDisk {
        let disk = SimDisk::new(1);
        let wal = disk.create(WAL).unwrap();
        let synced = vec![1; 2 * PIECE_BYTES as usize + 5];
        wal.write_all_at(&synced, 0).unwrap();
        wal.sync_all().unwrap();
        disk.sync_dir("").unwrap();
        wal.write_all_at(&[2; 100_000], synced.len() as u64).unwrap();
        disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
        wal.sync_data().unwrap_err();
        disk.kill_process()
    }

    #[test]
    fn frames_whose_sync_has_failed_are_on_disk_before_they_are_read() {
        let disk = with_lost_frames();
        let found = disk.cached_bytes(WAL).unwrap();
        disk.open(WAL).unwrap().sync_all().unwrap();
        assert!(disk.durable_bytes(WAL).unwrap() != found, "a sync alone writes nothing");
        rewrite(&disk, WAL).unwrap();
        assert!(disk.durable_bytes(WAL).unwrap() == found, "another sync after the same writes does");
        assert!(disk.cached_bytes(WAL).unwrap() == found);
    }

    #[test]
    fn an_error_is_returned_and_a_missing_file_is_none() {
        let disk = with_lost_frames();
        for operation in [Operation::Read, Operation::Write, Operation::Sync] {
            disk.fail(Fault::new(operation, 1, Errno::Io));
            assert!(rewrite(&disk, WAL).is_err(), "{operation:?}");
        }
        disk.fail(Fault::new(Operation::Write, 1, Errno::NoSpace));
        rewrite(&disk, WAL).unwrap();
        rewrite(&disk, "missing").unwrap();
    }
}
