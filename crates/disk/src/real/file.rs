//! One open file of the operating system.
//!
//! Interrupted reads and writes are resumed, and short ones are completed. A sync is one system call, and its
//! result is final.

use std::{
    fs, io,
    num::NonZeroU64,
    os::unix::fs::{FileExt, MetadataExt},
};

use rustix::{
    buffer::spare_capacity,
    fs::{Advice, FallocateFlags, fadvise, fallocate},
    io::Errno,
};

use super::{mapping::RealMapping, resident::read_resident, write_out::write_out};
use crate::{File, Mapping, is_out_of_space};

/// Maximum number of buffers that the kernel accepts in one vectored write (`IOV_MAX`).
const MAX_PARTS: usize = 1024;

#[derive(Debug)]
pub(super) struct RealFile {
    file: fs::File,
}

impl RealFile {
    pub(super) fn new(file: fs::File) -> Self {
        Self { file }
    }
}

impl File for RealFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn read_new_at(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The allocator can return more capacity than requested.
        bytes.truncate(len);
        Ok(bytes)
    }

    fn read_resident_at(&self, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
        read_resident(&self.file, len, offset)
    }

    fn read_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        fadvise(&self.file, offset, NonZeroU64::new(len), Advice::WillNeed).map_err(io::Error::from)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        write_parts(parts, offset, |parts, offset| rustix::io::pwritev(&self.file, parts, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        // Not even EINTR is retried: the kernel may have consumed a write-back error in the same call
        // and reported the interruption instead, and a second call would then succeed.
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.file)?)
    }

    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        write_out(&self.file, offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        // The system counts in units of 512 bytes, whatever the block size.
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<bool> {
        loop {
            match fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => {
                    let error = io::Error::from(error);
                    return if is_out_of_space(error.kind()) { Err(error) } else { Ok(false) };
                }
            }
        }
    }

    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        Ok(Box::new(RealMapping::new(&self.file, len)?))
    }
}

/// Writes all buffers by repeated calls of `write_some`, which can be interrupted or can write less than requested.
fn write_parts(
    parts: &[io::IoSlice<'_>],
    mut offset: u64,
    mut write_some: impl FnMut(&[io::IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    // Position of the next byte to write: byte `within` of part `next`.
    let (mut next, mut within) = (0, 0);
    loop {
        while next < parts.len() && within == parts[next].len() {
            (next, within) = (next + 1, 0);
        }
        if next == parts.len() {
            return Ok(());
        }
        let attempt = if within == 0 {
            write_some(&parts[next..parts.len().min(next + MAX_PARTS)], offset)
        } else {
            write_some(&[io::IoSlice::new(&parts[next][within..])], offset)
        };
        let mut written = match attempt {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        while written > 0 {
            let step = written.min(parts[next].len() - within);
            written -= step;
            within += step;
            if written > 0 {
                (next, within) = (next + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes three buffers with a test call that accepts at most `most` bytes and is interrupted every other time.
    /// Returns the written bytes.
    fn written_in_steps_of(most: usize) -> Vec<u8> {
        let parts = [b"abc".as_slice(), b"", b"de", b"", b"fghij", b""].map(io::IoSlice::new);
        let mut file = vec![];
        let mut interrupted = false;
        let result = write_parts(&parts, 7, |parts, offset| {
            interrupted = !interrupted;
            if interrupted {
                return Err(Errno::INTR);
            }
            assert_eq!(offset, 7 + file.len() as u64);
            let given: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let taken = given.len().min(most);
            file.extend_from_slice(&given[..taken]);
            Ok(taken)
        });
        result.unwrap();
        file
    }

    #[test]
    fn short_and_interrupted_vectored_writes_are_completed() {
        for most in 1..=12 {
            assert_eq!(written_in_steps_of(most), b"abcdefghij", "at most {most} bytes a call");
        }
    }

    #[test]
    fn a_vectored_write_ends_at_the_first_error_or_empty_write() {
        let parts = [b"abc".as_slice(), b"de"].map(io::IoSlice::new);
        let mut answers = vec![Err(Errno::NOSPC), Ok(4)];
        let error = write_parts(&parts, 0, |_, _| answers.pop().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(answers.is_empty());
        let error = write_parts(&parts, 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
