//! Writes that go to the disk without a stop in the page cache.

use std::{fs::File, io};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

/// What offset, length and memory of a direct write must be multiples of, whatever the disk's blocks are.
pub const DIRECT_BLOCK_BYTES: usize = 4096;

/// From now on the file's writes (and reads) pass by the page cache, or do not; says whether they do: not every file
/// system can. Those that say so only when written to answer the first write with `InvalidInput`.
pub fn set_direct(file: &File, direct: bool) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    match fcntl_setfl(file, wanted) {
        Ok(()) => Ok(direct),
        Err(Errno::INVAL) if direct => Ok(false),
        Err(error) => Err(error.into()),
    }
}
