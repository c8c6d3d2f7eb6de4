//! The checkpoint file of the memory backend.
//!
//! Owns: the bytes of the file, and the steps by which a new checkpoint replaces the old one atomically. Does not own:
//! the decision when to write a checkpoint, or the log barrier that must come first.
//!
//! ```text
//! checkpoint := header frame* end
//! header     := "THWGMEM2" | lsn u64 | term u64 | index u64 | revision u64 | time u64 | running_hash u64
//!             | 0 u32 | crc u32
//! frame      := len u32 | number u32 | crc u32 | len bytes          1 <= len <= FRAME_PAYLOAD_BYTES
//! end        := u32::MAX | number u32 | crc u32 | pairs u64 | payload_bytes u64
//! payload    := all frames' bytes in order := pair*                  a pair may span frames
//! pair       := key_len u32 | value_len u32 | key | value            ascending keys, no duplicates
//! ```
//! Little-endian. The header's crc covers the 60 bytes before it; a frame's covers `len`, `number` and the bytes
//! after the crc. Frames are numbered from 0, including the end. No bytes follow the end.
//!
//! A checkpoint is written to `checkpoint.tmp`, synced, renamed to `checkpoint`, and the directory is synced. A
//! crash before the rename leaves a `.tmp` that the next open removes. A crash after it, but before the sync of the
//! directory, leaves the old or the new file, and both are complete. So a `checkpoint` that fails verification was
//! damaged later, and is corruption. The next open syncs the directory before it reads the file.

use std::{io, ops::ControlFlow};

use bytes::Bytes;
use thalweg_disk::{Disk, File};

use crate::{
    backend::{Applied, BackendError, VerifiedRows},
    checksum::crc32c,
    files::io_error,
};

const FILE: &str = "checkpoint";
const TMP_FILE: &str = "checkpoint.tmp";
const MAGIC: [u8; 8] = *b"THWGMEM2";
/// First eight bytes of a checkpoint file without a running hash (format version 1).
const MAGIC_V1: [u8; 8] = *b"THWGMEM1";
const HEADER_BYTES: usize = 64;
/// Number of bytes of the header that the header's checksum covers.
const CHECKED_BYTES: usize = 60;
const FRAME_HEADER_BYTES: usize = 12;
/// Maximum size of a frame's payload in bytes. A full frame with its header is written as one piece of 64 KiB.
const FRAME_PAYLOAD_BYTES: usize = 64 * 1024 - FRAME_HEADER_BYTES;
const PAIR_HEADER_BYTES: usize = 8;
const END_MARK: u32 = u32::MAX;
const END_PAYLOAD_BYTES: usize = 16;

const _: () = assert!(MAGIC.len() + 6 * 8 + 4 == CHECKED_BYTES && CHECKED_BYTES + 4 == HEADER_BYTES);
const _: () = assert!((FRAME_PAYLOAD_BYTES as u32) < END_MARK);

/// Applied position and size of a checkpoint that was loaded. The pairs themselves go to the caller's function.
pub(super) struct Loaded {
    pub applied: Applied,
    pub file_bytes: u64,
}

/// Writes a new checkpoint that replaces the one in `dir`. Returns the number of bytes written.
pub(super) fn write<'a>(
    disk: &dyn Disk,
    dir: &str,
    applied: Applied,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<u64, BackendError> {
    let write_file = || {
        let tmp = path(dir, TMP_FILE);
        disk.remove_if_there(&tmp)?;
        let file = disk.create(&tmp)?;
        let mut writer = FrameWriter::new(&*file);
        writer.header(applied)?;
        for (key, value) in pairs {
            writer.pair(key, value)?;
        }
        let bytes = writer.end()?;
        file.sync_all()?;
        disk.rename(&tmp, &path(dir, FILE))?;
        disk.sync_dir(dir)?;
        Ok(bytes)
    };
    write_file().map_err(|error| {
        // On an error, free disk space is worth more than an unfinished checkpoint.
        let _ = disk.remove_if_there(&path(dir, TMP_FILE));
        io_error("checkpoint")(error)
    })
}

/// Returns the size in bytes of a checkpoint file with `pairs` pairs, whose keys and values have `pair_bytes` bytes in
/// total.
pub(super) fn file_bytes(pairs: u64, pair_bytes: u64) -> u64 {
    let payload = pair_bytes + pairs * PAIR_HEADER_BYTES as u64;
    let frames = payload.div_ceil(FRAME_PAYLOAD_BYTES as u64) + 1;
    payload + frames * FRAME_HEADER_BYTES as u64 + (HEADER_BYTES + END_PAYLOAD_BYTES) as u64
}

/// Removes an unfinished checkpoint file. If a finished checkpoint exists, makes its name durable, reads it, and passes
/// each pair of key and value to `pair`.
pub(super) fn load(
    disk: &dyn Disk,
    dir: &str,
    mut pair: impl FnMut(Bytes, Bytes),
) -> Result<Option<Loaded>, BackendError> {
    disk.remove_if_there(&path(dir, TMP_FILE)).map_err(io_error("remove unfinished checkpoint"))?;
    // A killed process may have renamed a checkpoint without syncing the directory. The log is freed up to this
    // checkpoint, so a power loss must not bring back the checkpoint before it.
    //
    // If the killed process did sync the directory, but the sync failed, this sync proves nothing: some kernels then
    // report success although the name is not on the disk.
    disk.sync_dir(dir).map_err(io_error("sync the name of the checkpoint"))?;
    let loaded = read(disk, dir, &mut pair, &mut |_| ControlFlow::Continue(()))?;
    Ok(match loaded {
        ControlFlow::Continue(loaded) => loaded,
        ControlFlow::Break(()) => None,
    })
}

/// Reads the finished checkpoint, if there is one, and verifies it; see [`Backend::verify`](crate::Backend::verify).
pub(super) fn verify(
    disk: &dyn Disk,
    dir: &str,
    step: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<VerifiedRows, BackendError> {
    let mut verified = VerifiedRows::default();
    let mut bytes = 0;
    let read = read(disk, dir, &mut |_, _| verified.rows += 1, &mut |read| {
        bytes += read;
        step(read)
    })?;
    Ok(VerifiedRows { bytes, is_complete: read.is_continue(), ..verified })
}

/// Reads a finished checkpoint and passes each pair of key and value to `pair`. Calls `step` after each frame with the
/// frame's bytes, and stops early if it returns `Break`.
fn read(
    disk: &dyn Disk,
    dir: &str,
    pair: &mut dyn FnMut(Bytes, Bytes),
    step: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ControlFlow<(), Option<Loaded>>, BackendError> {
    let file_path = path(dir, FILE);
    let file = match disk.open(&file_path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ControlFlow::Continue(None)),
        Err(error) => return Err(io_error("open checkpoint")(error)),
    };
    let file_bytes = file.len().map_err(io_error("read checkpoint"))?;
    let mut reader = FrameReader { file: &*file, path: &file_path, at: 0, end: file_bytes, number: 0 };
    let applied = reader.header()?;
    let mut pairs = PairReader::default();
    let mut payload = Vec::new();
    loop {
        match reader.frame(&mut payload)? {
            Frame::Payload => {
                pairs.take(&payload, pair).map_err(|message| reader.corrupt(message))?;
                if step((FRAME_HEADER_BYTES + payload.len()) as u64).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Frame::End { pairs: count, payload_bytes } => {
                pairs.finish(count, payload_bytes).map_err(|message| reader.corrupt(message))?;
                return Ok(ControlFlow::Continue(Some(Loaded { applied, file_bytes })));
            }
        }
    }
}

/// Writer that splits pairs of key and value into frames. The writer has one frame in memory.
struct FrameWriter<'a> {
    file: &'a dyn File,
    /// Bytes of the frame in progress, which begin with space for the frame's header.
    frame: Vec<u8>,
    at: u64,
    number: u32,
    pairs: u64,
    payload_bytes: u64,
}

impl<'a> FrameWriter<'a> {
    fn new(file: &'a dyn File) -> Self {
        let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES);
        frame.resize(FRAME_HEADER_BYTES, 0);
        Self { file, frame, at: 0, number: 0, pairs: 0, payload_bytes: 0 }
    }

    fn header(&mut self, applied: Applied) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        for (slot, field) in header[MAGIC.len()..].chunks_exact_mut(8).zip(applied.fields()) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c(&[&header[..CHECKED_BYTES]]);
        header[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&header, 0)?;
        self.at = HEADER_BYTES as u64;
        Ok(())
    }

    fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput);
        self.payload(&len(key)?.to_le_bytes())?;
        self.payload(&len(value)?.to_le_bytes())?;
        self.payload(key)?;
        self.payload(value)?;
        self.pairs += 1;
        Ok(())
    }

    fn payload(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.payload_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES - self.frame.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.frame.extend_from_slice(now);
            bytes = later;
            if self.frame.len() == FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES {
                self.frame((self.frame.len() - FRAME_HEADER_BYTES) as u32)?;
            }
        }
        Ok(())
    }

    /// Writes the frame in progress to the file, with the given length field.
    fn frame(&mut self, len: u32) -> io::Result<()> {
        self.frame[..4].copy_from_slice(&len.to_le_bytes());
        self.frame[4..8].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c(&[&self.frame[..8], &self.frame[FRAME_HEADER_BYTES..]]);
        self.frame[8..FRAME_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&self.frame, self.at)?;
        self.at += self.frame.len() as u64;
        self.number += 1;
        self.frame.truncate(FRAME_HEADER_BYTES);
        Ok(())
    }

    fn end(mut self) -> io::Result<u64> {
        if self.frame.len() > FRAME_HEADER_BYTES {
            self.frame((self.frame.len() - FRAME_HEADER_BYTES) as u32)?;
        }
        self.frame.extend_from_slice(&self.pairs.to_le_bytes());
        self.frame.extend_from_slice(&self.payload_bytes.to_le_bytes());
        self.frame(END_MARK)?;
        Ok(self.at)
    }
}

enum Frame {
    Payload,
    End { pairs: u64, payload_bytes: u64 },
}

/// Reader that reads and verifies the frames of a checkpoint in order.
struct FrameReader<'a> {
    file: &'a dyn File,
    path: &'a str,
    at: u64,
    /// Length of the file in bytes; no read extends past this offset.
    end: u64,
    number: u32,
}

impl FrameReader<'_> {
    fn header(&mut self) -> Result<Applied, BackendError> {
        let header: [u8; HEADER_BYTES] = self.read()?;
        if header[..8] == MAGIC_V1 {
            return Err(BackendError::Format { found: 1, supported: Applied::VERSION });
        }
        if header[..8] != MAGIC {
            return Err(self.corrupt(format!("not a checkpoint of this version: begins with {:02x?}", &header[..8])));
        }
        self.check(u32_at(&header, CHECKED_BYTES), crc32c(&[&header[..CHECKED_BYTES]]))?;
        Ok(Applied::of_fields(std::array::from_fn(|number| u64_at(&header, 8 + 8 * number))))
    }

    fn frame(&mut self, payload: &mut Vec<u8>) -> Result<Frame, BackendError> {
        let header: [u8; FRAME_HEADER_BYTES] = self.read()?;
        let (len, number) = (u32_at(&header, 0), u32_at(&header, 4));
        let payload_len = match len {
            END_MARK => END_PAYLOAD_BYTES,
            1.. if len as usize <= FRAME_PAYLOAD_BYTES => len as usize,
            _ => return Err(self.corrupt(format!("frame {} has the length {len}", self.number))),
        };
        self.fill(payload, payload_len)?;
        self.check(u32_at(&header, 8), crc32c(&[&header[..8], payload]))?;
        if number != self.number {
            return Err(self.corrupt(format!("frame {number} instead of frame {}", self.number)));
        }
        self.number += 1;
        if len != END_MARK {
            return Ok(Frame::Payload);
        }
        if self.at != self.end {
            return Err(self.corrupt(format!("{} bytes follow the end", self.end - self.at)));
        }
        Ok(Frame::End { pairs: u64_at(payload, 0), payload_bytes: u64_at(payload, 8) })
    }

    fn read<const N: usize>(&mut self) -> Result<[u8; N], BackendError> {
        let mut bytes = Vec::new();
        self.fill(&mut bytes, N)?;
        let mut out = [0; N];
        out.copy_from_slice(&bytes);
        Ok(out)
    }

    fn fill(&mut self, out: &mut Vec<u8>, len: usize) -> Result<(), BackendError> {
        if self.end - self.at < len as u64 {
            return Err(self.corrupt(format!("the file ends {len} bytes too early")));
        }
        out.resize(len, 0);
        self.file.read_exact_at(out, self.at).map_err(io_error("read checkpoint"))?;
        self.at += len as u64;
        Ok(())
    }

    fn check(&self, stored: u32, computed: u32) -> Result<(), BackendError> {
        if stored == computed {
            return Ok(());
        }
        Err(self.corrupt(format!("checksum {stored:08x}, expected {computed:08x}")))
    }

    fn corrupt(&self, message: impl std::fmt::Display) -> BackendError {
        BackendError::corrupt(self.path, format_args!("{message} (before byte {})", self.at))
    }
}

/// Assembles pairs of key and value from frames. Has at most one pair and one frame in memory.
#[derive(Default)]
struct PairReader {
    /// Bytes of a pair that began in an earlier frame and continues in a later one.
    pending: Vec<u8>,
    last_key: Option<Bytes>,
    pairs: u64,
    payload_bytes: u64,
}

impl PairReader {
    fn take(&mut self, payload: &[u8], pair: &mut dyn FnMut(Bytes, Bytes)) -> Result<(), String> {
        self.payload_bytes += payload.len() as u64;
        self.pending.extend_from_slice(payload);
        let mut at = 0;
        while let Some((key, value, next)) = parse_pair(&self.pending, at) {
            if self.last_key.as_ref().is_some_and(|last| last[..] >= *key) {
                return Err(format!("pair {} is out of order", self.pairs));
            }
            let key = Bytes::copy_from_slice(key);
            self.last_key = Some(key.clone());
            pair(key, Bytes::copy_from_slice(value));
            self.pairs += 1;
            at = next;
        }
        self.pending.drain(..at);
        Ok(())
    }

    fn finish(&self, pairs: u64, payload_bytes: u64) -> Result<(), String> {
        if !self.pending.is_empty() {
            return Err("the last pair is incomplete".to_owned());
        }
        if (pairs, payload_bytes) != (self.pairs, self.payload_bytes) {
            let (got, got_bytes) = (self.pairs, self.payload_bytes);
            return Err(format!("{got} pairs in {got_bytes} bytes, expected {pairs} in {payload_bytes}"));
        }
        Ok(())
    }
}

/// Parses the pair of key and value at byte `at`. Returns the pair with the position of the next pair, or `None` if
/// `bytes` does not contain the whole pair.
fn parse_pair(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8], usize)> {
    let rest = &bytes[at..];
    let body = rest.get(PAIR_HEADER_BYTES..)?;
    let (key_len, value_len) = (u32_at(rest, 0) as usize, u32_at(rest, 4) as usize);
    let body = body.get(..key_len.checked_add(value_len)?)?;
    let (key, value) = body.split_at(key_len);
    Some((key, value, at + PAIR_HEADER_BYTES + body.len()))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn path(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}
