//! Writing the file of a snapshot beside others who sync theirs.
//!
//! Owns: [`SnapshotFile`]: when what was written goes to the disk. Does not own: the file's name, or its content.
//!
//! A file that goes to the disk as a whole when it is synced holds up everybody else's syncs until the disk has taken
//! it: for 130 to 155 ms with 400 MB here, where a put waits 0.17 ms otherwise. So it goes there in small pieces, each
//! waited for. Syncing each piece would make the file system commit its journal each time, for which others wait, too
//! (of 8,400 syncs of a log beside 800 MB, 22 to 42 took 2 ms or longer; with [`write_out`], 3 to 9). If pieces follow one
//! another without a rest, a log's sync waits for many of them (25 to 60 ms); so between two of them the disk is left
//! to others for as long as the last one took. Chunks that come slower than that wait for nothing.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    thread,
    time::{Duration, Instant},
};

use thalweg_disk::write_out;

/// What goes to the disk at a time. With 4 MiB, a log's syncs took 3 times as long beside an uncompressed snapshot.
const PIECE_BYTES: u64 = 1024 * 1024;
/// The longest rest: where a piece costs a seek, resting as long again would halve the speed for nothing.
const MAX_REST: Duration = Duration::from_millis(5);

/// A file that takes a snapshot's chunks, and leaves the disk to others meanwhile.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    /// Where it stands.
    at: u64,
    /// Bytes before that which have not gone to the disk.
    pending_bytes: u64,
    /// Nothing goes there before.
    rests_until: Option<Instant>,
}

impl SnapshotFile {
    /// Writes from the file's beginning.
    pub fn new(mut file: File) -> io::Result<Self> {
        file.rewind()?;
        Ok(Self { file, at: 0, pending_bytes: 0, rests_until: None })
    }

    /// The file, to be read.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Forgets what comes after so many bytes, and goes on writing there.
    pub fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.at = self.file.seek(SeekFrom::Start(bytes))?;
        self.pending_bytes = 0;
        Ok(())
    }

    /// Syncs all of it.
    pub fn finish(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn write_out_piece(&mut self) -> io::Result<()> {
        if let Some(until) = self.rests_until {
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let begun = Instant::now();
        write_out(&self.file, self.at - self.pending_bytes, self.pending_bytes)?;
        let ended = Instant::now();
        self.rests_until = Some(ended + (ended - begun).min(MAX_REST));
        self.pending_bytes = 0;
        Ok(())
    }
}

impl Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = (PIECE_BYTES - self.pending_bytes) as usize;
        let written = self.file.write(&bytes[..bytes.len().min(room)])?;
        self.at += written as u64;
        self.pending_bytes += written as u64;
        if self.pending_bytes >= PIECE_BYTES {
            self.write_out_piece()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_written_in_any_pieces_and_cut_is_read_again() {
        let mut out = SnapshotFile::new(tempfile::tempfile().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        out.write_all(&bytes[..10]).unwrap();
        out.write_all(&bytes[10..2_500_000]).unwrap();
        out.cut(1_000_001).unwrap();
        out.write_all(&bytes[1_000_001..]).unwrap();
        out.finish().unwrap();
        let mut read = Vec::new();
        out.file().seek(SeekFrom::Start(0)).unwrap();
        out.file().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn it_rests_for_a_bounded_time() {
        let mut out = SnapshotFile::new(tempfile::tempfile().unwrap()).unwrap();
        out.write_all(&vec![1; PIECE_BYTES as usize - 1]).unwrap();
        assert!(out.rests_until.is_none(), "nothing went to the disk yet");
        out.write_all(&[1]).unwrap();
        assert!(out.rests_until.unwrap() <= Instant::now() + MAX_REST);
        assert_eq!(out.pending_bytes, 0);
    }
}
