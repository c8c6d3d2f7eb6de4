//! The checksum of the file that lists the tables.
//!
//! Owns: the check of that file before the LSM crate reads it, and the number of the version that a restart would find.
//! Does not own: the file, which the LSM crate writes.
//!
//! ```text
//! current:  number of the version u64 | XXH3-128 of the file `v` + number | kind of the checksum u8, 0      little-endian
//! ```
//! The crate writes the checksum and does not check it. A flipped bit in the list can leave out a table, or give it
//! another place: then the state differs from that of its log, and nothing says so.

use std::{fs, io, path::Path};

use xxhash_rust::xxh3::xxh3_128;

use crate::{backend::BackendError, files::io_error};

const CURRENT: &str = "current";
const CURRENT_BYTES: usize = 8 + 16 + 1;
/// Kind of the checksum; the crate knows no other one.
const XXH3: u8 = 0;

/// Reads a file; `None` if it is missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>, BackendError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read the list of tables")(error)),
    }
}

/// Returns the number of the version that the file `current` in `dir` names; `None` if it cannot be read.
pub(super) fn current_version(dir: &Path) -> Option<u64> {
    let current = fs::read(dir.join(CURRENT)).ok()?;
    Some(number_in(&<[u8; CURRENT_BYTES]>::try_from(current).ok()?))
}

fn number_in(current: &[u8; CURRENT_BYTES]) -> u64 {
    u64::from_le_bytes(*current.first_chunk().expect("the file begins with 8 bytes"))
}

/// Checks that the list of tables in `dir` is as it was written. A directory without one has no tables yet.
pub(super) fn check(dir: &Path) -> Result<(), BackendError> {
    let corrupt = |what: &str| Err(BackendError::corrupt(dir.display(), what));
    let Some(current) = read(&dir.join(CURRENT))? else { return Ok(()) };
    let Ok(current) = <[u8; CURRENT_BYTES]>::try_from(current) else {
        return corrupt("the file `current` has another length than it was written with");
    };
    let number = number_in(&current);
    let (sum, kind) = current[8..].split_at(16);
    let Some(list) = read(&dir.join(format!("v{number}")))? else {
        return corrupt("the list of tables that the file `current` names is missing");
    };
    if kind != [XXH3] || sum != xxh3_128(&list).to_le_bytes() {
        return corrupt("the list of tables does not match its checksum");
    }
    Ok(())
}
