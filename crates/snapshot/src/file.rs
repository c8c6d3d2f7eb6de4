//! Writing a snapshot to a file without delaying the fsyncs of other writers.
//!
//! Owns: [`SnapshotFile`], and the decision when and how written bytes reach the disk (directly or through the page
//! cache). Does not own: the file's name or its contents.
//!
//! If a large file reaches the disk in one fsync, all other fsyncs wait until the disk has taken the whole file. On the
//! test machine, 400 MB delayed them by 130 to 155 ms, where a put otherwise waits 0.17 ms. So the file is written in
//! pieces of [`PIECE_BYTES`] that bypass the page cache. While such pieces were written at 650 MB/s, the log's fsyncs
//! had a p99 of 0.4 ms in every run. For comparison: while pieces were written through the cache at 170 MB/s, each
//! followed by a write-out, the p99 was 3 to 20 ms. After each piece the writer pauses for as long as the write took,
//! so that the disk is free for other writers. If chunks arrive more slowly than this, the writer never waits. On a
//! file system without direct writes, the pieces go through the cache, and each is then written out.
//!
//! Invariant: the bytes in `piece` begin at the file offset `at`, which is a multiple of [`DIRECT_BLOCK_BYTES`]. All
//! bytes before this offset are in the file.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt as _,
    thread,
    time::{Duration, Instant},
};

use thalweg_disk::{DIRECT_BLOCK_BYTES, set_direct, write_out};

/// Number of bytes that one write (a piece) adds to a snapshot's file. The writer pauses after each.
const PIECE_BYTES: usize = 128 * 1024;
/// Longest pause after a piece of the file was written. The writer normally pauses for as long as the write took. A
/// write can take long because the disk must seek; an equally long pause would then only halve the speed.
const MAX_REST: Duration = Duration::from_millis(5);

/// A file for a snapshot's chunks. It is written in pieces, with pauses between them in which other writers have the
/// disk.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    piece: Piece,
    at: u64,
    mode: Mode,
    /// Earliest time at which the next piece of the file may be written; `None` before the first piece.
    rests_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Writes go through the page cache for now. The next complete piece switches to direct writes.
    Cached,
    Direct,
    /// All further writes go through the page cache, because the file system does not support direct writes.
    CachedForGood,
}

impl SnapshotFile {
    /// Creates a writer of a snapshot, which begins at the start of `file`.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, piece: Piece::new(), at: 0, mode: Mode::Cached, rests_until: None }
    }

    /// Returns the file for reading. The file then contains all bytes written so far.
    pub fn file(&mut self) -> io::Result<&File> {
        self.settle()?;
        Ok(&self.file)
    }

    /// Truncates the file to `bytes` bytes, and continues to write at this new end.
    pub fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.settle()?;
        self.file.set_len(bytes)?;
        let within = bytes % DIRECT_BLOCK_BYTES as u64;
        self.at = bytes - within;
        self.file.read_exact_at(self.piece.refill(within as usize), self.at)
    }

    /// Writes all bytes that are still in memory, and fsyncs the file.
    pub fn finish(&mut self) -> io::Result<()> {
        self.settle()?;
        self.file.sync_all()
    }

    /// Writes the piece that is not full yet through the page cache. Keeps its bytes in memory, because more may be
    /// added.
    fn settle(&mut self) -> io::Result<()> {
        if self.mode == Mode::Direct {
            set_direct(&self.file, false)?;
            self.mode = Mode::Cached;
        }
        self.file.write_all_at(self.piece.bytes(), self.at)
    }

    fn write_piece(&mut self) -> io::Result<()> {
        if let Some(until) = self.rests_until {
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let begun = Instant::now();
        self.put_piece()?;
        let ended = Instant::now();
        self.rests_until = Some(ended + (ended - begun).min(MAX_REST));
        self.at += PIECE_BYTES as u64;
        self.piece.refill(0);
        Ok(())
    }

    fn put_piece(&mut self) -> io::Result<()> {
        if self.mode == Mode::Cached {
            self.mode = if set_direct(&self.file, true)? { Mode::Direct } else { Mode::CachedForGood };
        }
        if self.mode == Mode::Direct {
            match self.file.write_all_at(self.piece.bytes(), self.at) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    set_direct(&self.file, false)?;
                    self.mode = Mode::CachedForGood;
                }
                written => return written,
            }
        }
        self.file.write_all_at(self.piece.bytes(), self.at)?;
        write_out(&self.file, self.at, PIECE_BYTES as u64)
    }
}

impl Write for SnapshotFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.piece.take(bytes);
        if self.piece.is_full() {
            self.write_piece()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.settle()
    }
}

/// Buffer for one piece of the file (the bytes of one write). It has the alignment that direct writes require.
#[derive(Debug)]
struct Piece {
    memory: Vec<u8>,
    /// Offset in `memory` at which the aligned part begins.
    begin: usize,
    filled: usize,
}

impl Piece {
    fn new() -> Self {
        let memory = vec![0; PIECE_BYTES + DIRECT_BLOCK_BYTES];
        let begin = memory.as_ptr().align_offset(DIRECT_BLOCK_BYTES);
        Self { memory, begin, filled: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.filled]
    }

    fn is_full(&self) -> bool {
        self.filled == PIECE_BYTES
    }

    /// Copies as many of the bytes into the buffer as fit, and returns their number.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(PIECE_BYTES - self.filled);
        let to = self.begin + self.filled;
        self.memory[to..to + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        taken
    }

    /// Sets the number of filled bytes in the buffer, and returns these bytes for the caller to overwrite.
    fn refill(&mut self, bytes: usize) -> &mut [u8] {
        self.filled = bytes;
        &mut self.memory[self.begin..self.begin + bytes]
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom};

    use super::*;

    fn numbered(count: u32) -> Vec<u8> {
        (0..count).map(|at| (at % 251) as u8).collect()
    }

    fn read_all(out: &mut SnapshotFile) -> Vec<u8> {
        let mut read = Vec::new();
        let mut file = out.file().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut read).unwrap();
        read
    }

    /// Creates a file in a directory where direct writes probably work. The system's temporary directory may be in
    /// memory, where they do not.
    fn file_beside_the_build() -> File {
        tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).or_else(|_| tempfile::tempfile()).unwrap()
    }

    #[test]
    fn what_is_written_in_any_pieces_and_cut_is_read_again() {
        for file in [file_beside_the_build(), tempfile::tempfile().unwrap()] {
            let mut out = SnapshotFile::new(file);
            let bytes = numbered(3_000_000);
            out.write_all(&bytes[..10]).unwrap();
            out.write_all(&bytes[10..2_500_000]).unwrap();
            assert!(read_all(&mut out) == bytes[..2_500_000]);
            for cut in [2_400_000, 1_048_576, 1_000_001, 5, 0] {
                out.cut(cut as u64).unwrap();
                assert!(read_all(&mut out) == bytes[..cut]);
                out.write_all(&bytes[cut..]).unwrap();
                out.finish().unwrap();
                assert!(read_all(&mut out) == bytes);
            }
        }
    }

    #[test]
    fn a_file_system_without_direct_writes_gets_the_same_bytes() {
        let mut out = SnapshotFile::new(file_beside_the_build());
        out.mode = Mode::CachedForGood;
        let bytes = numbered(1_000_000);
        out.write_all(&bytes).unwrap();
        assert_eq!(out.mode, Mode::CachedForGood);
        assert!(read_all(&mut out) == bytes);
    }

    #[test]
    fn it_rests_for_a_bounded_time() {
        let mut out = SnapshotFile::new(file_beside_the_build());
        out.write_all(&vec![1; PIECE_BYTES - 1]).unwrap();
        assert!(out.rests_until.is_none(), "no piece was written yet");
        out.write_all(&[1]).unwrap();
        assert!(out.rests_until.unwrap() <= Instant::now() + MAX_REST);
        assert_eq!((out.at, out.piece.filled), (PIECE_BYTES as u64, 0));
    }
}
