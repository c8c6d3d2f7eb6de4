//! A small file that stores how far the database's clock has advanced, so that it never goes back after a restart.
//!
//! Owns: the file `CLOCK`, and the check of the wall clock at an open. Does not own: the clock itself
//! (`thalweg_replica::SpaceClock`), which decides when a time is written.
//!
//! ```text
//! CLOCK := "THWGCLK1" | time u64 | crc u32        little-endian; the CRC-32C covers the bytes before it
//! ```
//! Log entries carry the time of this clock, but reads leave no entry. The file therefore holds a time that is at least
//! that of every read. So a key or lease that a reader found expired stays expired if the process is killed and the
//! wall clock is set back. The file is written in place, within one sector, and not synced each time: it survives a
//! kill, but a power loss can lose the times that were written since maintenance last removed expired keys.
//!
//! The file also shows when the directory was last in use. A wall clock far ahead of that time is more often wrong than
//! right, and the database's clock never goes back. So the open fails until an operator has decided.

use std::{io, sync::Arc, time::Duration};

use thalweg_disk::{Disk, File};
use thalweg_log::crc32c;
use thalweg_replica::TimeKeeper;
use thalweg_types::SpaceTime;

const PATH: &str = "CLOCK";
const MAGIC: &[u8; 8] = b"THWGCLK1";
const ENCODED_BYTES: usize = 20;

#[derive(Debug)]
pub(crate) struct ClockFile {
    file: Arc<dyn File>,
    /// Time that the file `CLOCK` contained when it was opened; `None` if there was no file, or a damaged one.
    found: Option<SpaceTime>,
}

impl ClockFile {
    /// Opens the file `CLOCK`, or creates it.
    pub(crate) fn open(disk: &Arc<dyn Disk>) -> io::Result<Self> {
        match disk.open(PATH) {
            Ok(file) => {
                let mut bytes = [0; ENCODED_BYTES];
                let found = match file.read_exact_at(&mut bytes, 0) {
                    Ok(()) => decode(&bytes),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                    Err(error) => return Err(error),
                };
                Ok(Self { file, found })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { file: disk.create(PATH)?, found: None }),
            Err(error) => Err(error),
        }
    }

    /// Returns the time that the file `CLOCK` contained when it was opened; `None` if it contained none.
    pub(crate) fn found(&self) -> Option<SpaceTime> {
        self.found
    }

    /// Writes a time to the file `CLOCK`, and makes it durable.
    pub(crate) fn save(&self, disk: &Arc<dyn Disk>, time: SpaceTime) -> io::Result<()> {
        self.file.write_all_at(&encode(time), 0)?;
        self.file.sync_all()?;
        disk.sync_dir("")
    }
}

impl TimeKeeper for ClockFile {
    fn note(&self, time: SpaceTime) {
        // An error is ignored: at worst the time goes back, and only if the wall clock is set back too.
        let _ = self.file.write_all_at(&encode(time), 0);
    }
}

fn encode(time: SpaceTime) -> [u8; ENCODED_BYTES] {
    let mut bytes = [0; ENCODED_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&time.0.to_le_bytes());
    let crc = crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; ENCODED_BYTES]) -> Option<SpaceTime> {
    let (checked, crc) = bytes.split_last_chunk::<4>()?;
    let time = checked.strip_prefix(MAGIC)?;
    let time = SpaceTime(u64::from_le_bytes(time.try_into().ok()?));
    (*crc == crc32c(checked).to_le_bytes()).then_some(time)
}

/// Returns how far the wall clock is ahead of `last`, the last use of the directory; `None` if it is at most `max`.
pub(crate) fn jump(wall: SpaceTime, last: SpaceTime, max: Duration) -> Option<Duration> {
    let jump = Duration::from_micros(wall.0.saturating_sub(last.0));
    (!max.is_zero() && jump > max).then_some(jump)
}

/// Formats a span of at least hours for a message: in whole days, rounded up, or in hours below two days.
pub(crate) fn shown_span(span: Duration) -> String {
    const HOUR: u64 = 3600;
    let hours = span.as_secs().div_ceil(HOUR);
    if hours < 48 { format!("{hours}h") } else { format!("{}d", hours.div_ceil(24)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_and_damage_is_no_time() {
        let bytes = encode(SpaceTime(0x0102_0304));
        assert_eq!(bytes[..16], *b"THWGCLK1\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(decode(&bytes), Some(SpaceTime(0x0102_0304)));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn only_a_jump_beyond_the_bound_counts() {
        let day = Duration::from_secs(86_400);
        let (last, later) = (SpaceTime(5), SpaceTime(5).plus(day * 2));
        assert_eq!(jump(later, last, day * 2), None);
        assert_eq!(jump(later, last, day), Some(day * 2));
        assert_eq!(jump(later, last, Duration::ZERO), None, "zero disables the check");
        assert_eq!(jump(last, later, day), None, "a clock that went back is not a jump ahead");
        assert_eq!([day, day * 2, day * 3 + Duration::from_secs(1)].map(shown_span), ["24h", "2d", "4d"]);
    }
}
