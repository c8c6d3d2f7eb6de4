//! Reads of bytes that are in the kernel's page cache.

use std::{
    cell::Cell,
    fs::File,
    io::{self, IoSliceMut},
};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::page_cache;

/// Size in bytes of the buffer that each thread keeps for reads from the page cache. It holds a block of a table.
const BUFFER_BYTES: usize = 32 << 10;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads `len` bytes at `offset` if the kernel has them in its page cache. Returns `None` if the read would have to
/// wait for the disk, or if the file system cannot read without waiting. Does not begin to read the bytes from the
/// disk.
///
/// # Errors
/// `UnexpectedEof` if the file ends within the bytes, and the kernel's other errors.
pub fn read_resident(file: &File, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
    with_buffer(|buffer| {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let piece = &mut buffer[..BUFFER_BYTES.min(len - bytes.len())];
            if !fill(file, piece, offset + bytes.len() as u64)? {
                return Ok(None);
            }
            // Nothing is allocated before the first bytes turn out to be in memory.
            bytes.reserve_exact(len - bytes.len());
            bytes.extend_from_slice(piece);
        }
        Ok(Some(bytes))
    })
}

/// Reads bytes like [`read_resident`], and returns the result of `decode` for them. Usually `decode` gets a buffer that
/// the thread reuses, so that the read neither allocates nor zeroes memory.
///
/// # Errors
/// Same errors as [`read_resident`].
pub fn decode_resident<T>(
    file: &File,
    len: usize,
    offset: u64,
    decode: impl FnOnce(&[u8]) -> T,
) -> io::Result<Option<T>> {
    if len > BUFFER_BYTES {
        return Ok(read_resident(file, len, offset)?.map(|bytes| decode(&bytes)));
    }
    with_buffer(|buffer| Ok(fill(file, &mut buffer[..len], offset)?.then(|| decode(&buffer[..len]))))
}

/// Calls `read` with the buffer that the calling thread keeps for reads from the page cache.
fn with_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = BUFFER.take();
    buffer.resize(BUFFER_BYTES, 0);
    let result = read(&mut buffer);
    BUFFER.set(buffer);
    result
}

/// Fills `bytes` from the file at `offset`. Returns false if the page cache does not have all of them.
///
/// `preadv2` alone would return the right result, but it is slow if pages are missing: it first allocates memory and
/// begins to read from the disk. This takes longer than all other work of reading a key. In a control group at its
/// memory limit, the call also waits until the kernel has freed other pages.
fn fill(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    if !page_cache::may_contain(file, offset, bytes.len() as u64) {
        return Ok(false);
    }
    let mut filled = 0;
    while filled < bytes.len() {
        let at = offset + filled as u64;
        match preadv2(file, &mut [IoSliceMut::new(&mut bytes[filled..])], at, ReadWriteFlags::NOWAIT) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A short read ends at a missing page. The next attempt then returns an error for this page.
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
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
            for len in [0, 1, 16 << 10, BUFFER_BYTES, BUFFER_BYTES + 1, 60_000] {
                let is_same = |bytes: &[u8]| *bytes == content[777..777 + len];
                assert_eq!(decode_resident(&file, len, 777, is_same).unwrap(), Some(true), "{len} bytes");
            }
            let error = decode_resident(&file, 10, 99_995, <[u8]>::len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
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
        // The kernel may keep some pages that it is working on, so the test tries several times to drop all of them.
        let mut partly = 0;
        for _ in 0..100 {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            match read_resident(&file, 64 << 10, 0).unwrap() {
                None => {
                    let begin = decode_resident(&file, 16 << 10, 0, <[u8]>::len).unwrap();
                    let end = read_resident(&file, 4 << 10, 60 << 10).unwrap();
                    if begin.is_none() && end.is_none() {
                        return;
                    }
                    partly += 1;
                }
                Some(bytes) => assert!(bytes == [7; 64 << 10]),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // A file system in memory drops no pages, and the kernel may ignore the advice.
        assert_eq!(partly, 0, "the attempts read pages ahead");
    }
}
