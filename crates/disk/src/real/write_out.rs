//! Early write-out of written data to the disk, before a sync.

use std::{fs::File, io, os::fd::AsRawFd as _};

/// Writes the dirty pages of a range of the file to the disk and waits until the disk has received them. This
/// is not a sync: the file's length and block locations may not be on disk, and the disk's cache is not
/// flushed. A later sync has less to do. Unlike a sync, this does not use the file system's journal, so it
/// does not delay changes of other files. Does nothing where the kernel does not support it.
pub fn write_out(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, offset, len, flags)
}

/// Starts to write the dirty pages of a range of the file to the disk, like [`write_out`], but does not wait until the
/// disk has received them. The call still waits if the disk's queue is full.
pub fn begin_write_out(file: &File, offset: u64, len: u64) -> io::Result<()> {
    sync_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_range(file: &File, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
    let range = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (offset, len) = (range(offset)?, range(len)?);
    // SAFETY: the descriptor is open as long as the file is borrowed; the call takes no pointers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The file is a pipe or a device, or the file system does not support the call.
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
        begin_write_out(&file, 0, 50_000).unwrap();
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
