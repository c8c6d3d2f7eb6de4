//! Free space of a file system, compared with the reserve that a node keeps free and the segments that it prepares.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use serde::Serialize;

use crate::Findings;

/// Threshold for a finding about a file system with a fixed number of files: the doctor reports it if fewer files than
/// this can still be created. A node has one file for each segment and table: some hundreds for 100 GiB of data.
const FEW_FILES: u64 = 4096;

/// Space of the file system that contains a directory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Size of the file system in bytes.
    pub total_bytes: u64,
    /// Free bytes that this process may use. They exclude the bytes that are reserved for the superuser.
    pub available_bytes: u64,
    /// Number of files that can still be created; `None` if the file system has no fixed number.
    pub available_files: Option<u64>,
    /// Bytes of log segments that are already in the directory; 0 if no node has run there.
    pub log_bytes: u64,
}

/// Disk space that a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceNeeds {
    /// Free bytes below which a node rejects new data (`reserve_bytes`).
    pub reserve_bytes: u64,
    /// Bytes that a new node allocates before its first write: the segment in use and the prepared segments.
    pub segments_bytes: u64,
    /// Bytes of log that a node keeps as history (`history_bytes`).
    pub history_bytes: u64,
}

impl Space {
    /// Reads the space of the file system that contains `dir`.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist or cannot be reached.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Self {
            total_bytes: bytes(stat.f_blocks),
            available_bytes: bytes(stat.f_bavail),
            available_files: (stat.f_files > 0).then_some(stat.f_favail),
            log_bytes: log_bytes(dir),
        })
    }
}

/// Returns the bytes that the log files below `dir` take on the disk.
fn log_bytes(dir: &Path) -> u64 {
    let files = fs::read_dir(dir.join("log")).into_iter().flatten().flatten();
    // The kernel counts blocks of 512 bytes.
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
}

/// Adds a finding for each lack of free space or files.
pub(crate) fn judge(space: &Space, wanted: &SpaceNeeds, found: &mut Findings) {
    let SpaceNeeds { reserve_bytes, segments_bytes, history_bytes } = *wanted;
    let free = space.available_bytes;
    // If a node has run in this directory, its segments and some of its history already exist.
    let segments_left = segments_bytes.saturating_sub(space.log_bytes);
    let history_left = (segments_bytes + history_bytes).saturating_sub(space.log_bytes);
    let (with_segments, with_history) = (reserve_bytes + segments_left, reserve_bytes + history_left);
    if free < with_segments {
        found.problem(
            "no_room",
            format!(
                "{} are free; a node needs {} more for its segments and keeps {} in reserve",
                shown(free),
                shown(segments_left),
                shown(reserve_bytes)
            ),
            "below the reserve a node rejects new data, and accepts only deletes and trims",
            "free some space, use another disk, or lower `segment_bytes` and `reserve_bytes` (`thalweg serve --help`)",
        );
    } else if free < with_history {
        found.weakness(
            "little_room",
            format!(
                "{} are free; with its history a node needs {} beside the data itself",
                shown(free),
                shown(with_history)
            ),
            "when the disk is full, the node drops its history, so that watches and backups cannot resume",
            "free some space, or lower `history_bytes`",
        );
    }
    if let Some(files) = space.available_files.filter(|files| *files < FEW_FILES) {
        found.weakness(
            "few_files",
            format!("the file system has room for {files} more files"),
            "a node that cannot create a file stops accepting writes, although bytes are free",
            "remove files, or use a file system with more inodes",
        );
    }
}

/// Formats a number of bytes for people.
pub(crate) fn shown(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reserve_the_segments_and_the_history_are_bounds() {
        let wanted = SpaceNeeds { reserve_bytes: 256 * MIB, segments_bytes: 192 * MIB, history_bytes: 1024 * MIB };
        let with_log = |available_bytes: u64, available_files: Option<u64>, log_bytes: u64| {
            let mut found = Findings::default();
            let space = Space { total_bytes: 1 << 40, available_bytes, available_files, log_bytes };
            judge(&space, &wanted, &mut found);
            found.codes()
        };
        let codes = |available_bytes, available_files| with_log(available_bytes, available_files, 0);
        assert_eq!(codes(447 * MIB, None), ["no_room"]);
        assert_eq!(codes(448 * MIB, None), ["little_room"]);
        assert_eq!(codes(1472 * MIB, Some(1 << 20)), Vec::<&str>::new());
        assert_eq!(codes(1472 * MIB, Some(10)), ["few_files"]);
        // If a node has run in the directory, its segments and its history are already on the disk.
        assert_eq!(with_log(255 * MIB, None, 5000 * MIB), ["no_room"]);
        assert_eq!(with_log(256 * MIB, None, 192 * MIB), ["little_room"]);
        assert_eq!(with_log(256 * MIB, None, 1216 * MIB), Vec::<&str>::new());
    }

    #[test]
    fn the_log_of_a_directory_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Space::read(dir.path()).unwrap().log_bytes, 0);
        fs::create_dir(dir.path().join("log")).unwrap();
        let path = dir.path().join("log/00000001.seg");
        fs::write(&path, "x".repeat(100_000)).unwrap();
        // Some file systems allocate the blocks of a file only when they write it to the disk.
        fs::File::open(&path).unwrap().sync_all().unwrap();
        assert!(Space::read(dir.path()).unwrap().log_bytes > 0);
    }

    #[test]
    fn this_file_system_has_a_size() {
        let space = Space::read(Path::new(".")).unwrap();
        assert!(space.total_bytes >= space.available_bytes && space.total_bytes > 0, "{space:?}");
        assert!(Space::read(Path::new("/nonexistent/dir")).is_err());
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([0, 1023, 1536, 5 << 30].map(shown), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
    }
}
