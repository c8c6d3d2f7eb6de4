//! A shared, writable memory mapping of a file's beginning.
//!
//! The mapping is written only through raw pointers. No Rust reference into the mapped memory exists, so
//! other handles and other processes can change the file without breaking an aliasing rule.

use std::{fs, io, ptr::NonNull};

use rustix::mm::{MapFlags, ProtFlags};

use crate::Mapping;

/// A memory mapping of a file's beginning. Invariant: `start..start + len` is mapped, shared and writable until drop.
#[derive(Debug)]
pub(super) struct RealMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide memory without thread affinity, and `write` takes `&mut self`.
unsafe impl Send for RealMapping {}

impl RealMapping {
    pub(super) fn new(file: &fs::File, len: u64) -> io::Result<Self> {
        if len == 0 || file.metadata()?.len() < len {
            let message = format!("can't map {len} bytes: a mapping is not empty and lies within the file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a null hint lets the kernel choose the address, so no existing mapping is replaced. The
        // mapping is not populated, because that would dirty every page of a segment immediately.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Mapping for RealMapping {
    fn write(&mut self, data: &[u8], offset: u64) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = offset.checked_add(data.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "write of {} bytes at {offset} passes the mapping's {} bytes",
            data.len(),
            self.len
        );
        // SAFETY: the destination is within the mapping (checked above), which lives as long as `self`;
        // `data` is a Rust slice and can't overlap memory that no reference points into. The page can be
        // missing if the medium fails or another process has truncated the file. The kernel then ends the
        // process with SIGBUS. That is a crash like any other: bytes written here are acknowledged as durable
        // only after a successful sync.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.start.as_ptr().add(offset), data.len()) }
    }
}

impl Drop for RealMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length and unmapped only here. `munmap` fails only for arguments that
        // `mmap` would not have returned.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}
