//! Trims the part of the WAL file that holds no committed data.
//!
//! Owns: [`trim`]. Does not own: the WAL itself, which SQLite writes and reads.
//!
//! A transaction that finds the disk full has extended the WAL until no space was left. SQLite rolls the transaction
//! back, but does not shorten the file. A checkpoint would let SQLite reuse the WAL from its start, but may itself need
//! free space for the database. So without trimming, neither the transaction nor the checkpoint could continue.
//!
//! ```text
//! wal     := header 32 bytes | frame*            frame := 24 bytes | page
//! shm     := index header 48 bytes | the same again | ..          last committed frame: u32 at byte 16, native order
//! ```
//! The format is that of <https://www.sqlite.org/walformat.html>.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::connection::NO_FOLLOW;

const HEADER_BYTES: u64 = 32;
const FRAME_HEADER_BYTES: u64 = 24;
const INDEX_HEADER_BYTES: usize = 48;
const LAST_FRAME_AT: usize = 16;

/// Truncates the WAL file after its last committed frame. The caller holds the only writing connection, and no write
/// transaction is open. Readers do not read beyond that frame.
pub(super) fn trim(wal: &Path, shm: &Path, page_bytes: u64) -> io::Result<()> {
    let mut index = [0; 2 * INDEX_HEADER_BYTES];
    File::options().read(true).custom_flags(NO_FOLLOW).open(shm)?.read_exact(&mut index)?;
    let (header, copy) = index.split_at(INDEX_HEADER_BYTES);
    let Some(last) = header[LAST_FRAME_AT..].first_chunk::<4>().filter(|_| header == copy) else { return Ok(()) };
    let frames = u64::from(u32::from_ne_bytes(*last));
    let committed = HEADER_BYTES + frames * (FRAME_HEADER_BYTES + page_bytes);
    let committed = if frames == 0 { 0 } else { committed };
    if fs::metadata(wal)?.len() > committed {
        File::options().write(true).custom_flags(NO_FOLLOW).open(wal)?.set_len(committed)?;
    }
    Ok(())
}
