//! Reads of bytes that the kernel has in memory.

use std::{
    fs::File,
    io::{self, IoSliceMut},
};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Reads `len` bytes at `offset` if the kernel has them in its page cache. Returns `None` if the read would have to wait for
/// the disk, or if the file system cannot read without waiting. Does not begin to read the bytes from the disk.
///
/// # Errors
/// `UnexpectedEof` if the file ends within the bytes, and the kernel's other errors.
pub fn read_resident(file: &File, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let at = offset + filled as u64;
        match preadv2(file, &mut [IoSliceMut::new(&mut bytes[filled..])], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A short read ends where a page is missing, and the next attempt says so.
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn bytes_that_were_just_written_are_in_memory_and_the_end_of_the_file_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        file.write_all(&content).unwrap();
        // On a file system that does not support this query, the result is `None`, which is permitted.
        if let Some(bytes) = read_resident(&file, 50_000, 1_234).unwrap() {
            assert!(bytes == content[1_234..51_234]);
            let error = read_resident(&file, 10, 99_995).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!(read_resident(&file, 0, 10).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn a_page_that_the_kernel_has_dropped_is_not_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // A file system in memory drops nothing, and the kernel may ignore the advice.
        match read_resident(&file, 64 << 10, 0).unwrap() {
            None => {
                assert_eq!(read_resident(&file, 4 << 10, 60 << 10).unwrap(), None, "the attempt reads nothing ahead");
            }
            Some(bytes) => assert!(bytes == [7; 64 << 10]),
        }
    }
}
