//! Sending what was written to a file on its way to the disk, before anybody syncs it.

use std::{fs::File, io, os::fd::AsRawFd as _};

/// Hands what was written to a part of the file to the disk, and waits until it has taken it. That is not a sync: the
/// file's length and the places of its blocks are not on disk, nor has the disk emptied its cache. It leaves less to do
/// to a later sync, and unlike one it needs nothing of the file system's journal, so that it holds up nobody who
/// changes other files. Where the kernel can't do it nothing happens.
pub fn write_out(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (offset, len) = (range(offset)?, range(len)?);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open as long as the file is borrowed; the call takes no pointers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A pipe, a device, a file system that knows better.
        Some(libc::ESPIPE | libc::EINVAL | libc::ENOSYS) => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    #[test]
    fn what_was_written_out_is_still_there() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        write_out(&file, 0, 100_000).unwrap();
        write_out(&file, 50_000, 1 << 40).unwrap();
        let mut read = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut read).unwrap();
        assert!(read == [7; 100_000]);
    }

    #[test]
    fn what_is_no_file_is_left_alone_and_what_is_no_range_refused() {
        let (reader, writer) = io::pipe().unwrap();
        for end in [File::from(std::os::fd::OwnedFd::from(reader)), File::from(std::os::fd::OwnedFd::from(writer))] {
            write_out(&end, 0, 10).unwrap();
            assert!(write_out(&end, u64::MAX, 1).is_err());
        }
    }
}
