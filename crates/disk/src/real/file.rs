//! One open file of the operating system.
//!
//! Reads and writes that a signal interrupts go on; short ones are completed. A sync is one system
//! call: whatever it answers is final.

use std::{fs, io, os::unix::fs::FileExt};

use rustix::io::Errno;

use super::mapping::RealMapping;
use crate::{File, Mapping};

/// Parts the kernel accepts in one vectored write (`IOV_MAX`).
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

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut remaining = parts;
        let mut offset = offset;
        while !remaining.is_empty() {
            let batch = &remaining[..remaining.len().min(MAX_PARTS)];
            let written = match rustix::io::pwritev(&self.file, batch, offset) {
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            offset += written as u64;
            let (whole, within) = parts_covered(batch, written);
            remaining = &remaining[whole..];
            if let (Some(first), true) = (remaining.first(), whole < batch.len()) {
                // A short write ended here. Finish the part it broke off in; a kernel that can take no
                // more says so now, as an error or as `WriteZero`.
                self.file.write_all_at(&first[within..], offset)?;
                offset += (first.len() - within) as u64;
                remaining = &remaining[1..];
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // Not even EINTR is retried: the kernel may have consumed a write-back error in the same call
        // and reported the interruption instead, and a second call would then succeed.
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.file)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        Ok(Box::new(RealMapping::new(&self.file, len)?))
    }
}

/// How many leading parts `written` bytes complete, and how far they reach into the next.
fn parts_covered(parts: &[io::IoSlice<'_>], written: usize) -> (usize, usize) {
    let mut left = written;
    for (index, part) in parts.iter().enumerate() {
        if left < part.len() {
            return (index, left);
        }
        left -= part.len();
    }
    (parts.len(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_vectored_writes_resume_at_the_right_byte() {
        let parts = [b"abc".as_slice(), b"", b"de"].map(io::IoSlice::new);
        let resumed: Vec<_> = (0..=5).map(|written| parts_covered(&parts, written)).collect();
        assert_eq!(resumed, [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0)]);
    }
}
