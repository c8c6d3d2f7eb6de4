//! Direct writes: from memory to the disk, bypassing the page cache.

use std::{fs::File, io};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

/// Alignment of direct writes in bytes: their offset, length and memory address must be multiples of this number, for
/// every block size of the disk.
pub const DIRECT_BLOCK_BYTES: usize = 4096;

/// Turns direct I/O of the file on or off, for writes and reads. Returns true if it is on; not every file
/// system supports it. Some file systems accept the flag but fail the first write with `InvalidInput`.
pub fn set_direct(file: &File, direct: bool) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    match fcntl_setfl(file, wanted) {
        Ok(()) => Ok(direct),
        Err(Errno::INVAL) if direct => Ok(false),
        Err(error) => Err(error.into()),
    }
}
