//! Reading a snapshot, and checking everything in it.
//!
//! Owns: [`Contents`], which visits the items of a snapshot in order, and three functions that inspect a snapshot
//! without restoring it. They use the contents of a chunk only after they have checked the checksum of the whole chunk.
//!
//! Memory: one chunk as stored (compressed), a part of its decompressed contents, and the largest row or log entry of
//! the snapshot. So even a short file that decompresses to very large contents needs little more memory than its
//! length.

use std::{convert::Infallible, io::Read};

use thalweg_log::crc32c;
use thalweg_state::{
    membership::AppliedMembership,
    portable::{self, Row},
};
use thalweg_types::{
    Lsn,
    codec::{Malformed, Reader},
};

use crate::{
    chunk::{self, Chunk, ChunkReader},
    error::SnapshotReadError,
    format::{Begin, ChunkKind, Item, PartKind, SnapshotInfo, Totals},
};

/// Number of decompressed bytes of a chunk that are in memory at a time. A larger row or log entry needs more.
const WINDOW_BYTES: usize = 1 << 20;
/// Maximum number of items (rows or log entries) that one call of the visiting callback receives.
const WINDOW_ITEMS: usize = 10_000;

/// Reader of the items (rows or log entries) in a snapshot.
pub struct Contents<R> {
    chunks: ChunkReader<R>,
    info: SnapshotInfo,
    membership: Option<AppliedMembership>,
    totals: Totals,
    order: Order,
}

/// Error while the items of a snapshot are visited. It comes from the snapshot, or from the callback that receives the
/// items.
pub enum VisitError<E> {
    /// The snapshot could not be read, or its bytes are not a valid snapshot.
    Read(SnapshotReadError),
    /// The callback has failed with the contained error.
    Visitor(E),
}

impl<E> From<SnapshotReadError> for VisitError<E> {
    fn from(error: SnapshotReadError) -> Self {
        Self::Read(error)
    }
}

impl<R: Read> Contents<R> {
    /// Opens a snapshot, and reads its first chunk.
    pub fn open(from: R) -> Result<Self, SnapshotReadError> {
        let mut chunks = ChunkReader::new(from);
        let Begin { info, membership } = chunk::begin(&mut chunks)?;
        Ok(Self { chunks, info, membership, totals: Totals::default(), order: Order::default() })
    }

    /// Opens a snapshot, and reads its first chunk from `from`, which must contain only this chunk.
    pub fn open_whole(from: R) -> Result<Self, SnapshotReadError> {
        let mut contents = Self::open(from)?;
        contents.chunks.check_nothing_follows()?;
        Ok(contents)
    }

    /// Description of the snapshot from its first chunk.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Members of the cluster at the time of the snapshot; `None` if the snapshot does not contain them.
    #[must_use]
    pub fn membership(&self) -> Option<&AppliedMembership> {
        self.membership.as_ref()
    }

    /// Numbers of rows, log entries and bytes visited so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Number of the chunk that is read next.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.chunks.next_number()
    }

    /// Returns true once the last chunk was read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.chunks.has_ended()
    }

    /// Calls `each` with the items of each chunk, about 1 MiB of them at a time. Checks at the end that no item is
    /// missing. Returns the snapshot's totals.
    pub fn visit<E>(&mut self, each: &mut dyn FnMut(&[Item<'_>]) -> Result<(), E>) -> Result<Totals, VisitError<E>> {
        while let Some(chunk) = self.chunks.next()? {
            self.visit_read(chunk, each)?;
        }
        Ok(self.totals)
    }

    /// Reads the next chunk from `from`, which must contain only this chunk, and visits its items as
    /// [`visit`](Self::visit) does. If the chunk is damaged or does not follow the previous one, the reader still
    /// expects this chunk next.
    pub fn visit_next<E>(
        &mut self,
        from: R,
        each: &mut dyn FnMut(&[Item<'_>]) -> Result<(), E>,
    ) -> Result<(), VisitError<E>> {
        let Some(chunk) = self.chunks.next_from(from)? else { return Ok(()) };
        self.visit_read(chunk, each)
    }

    fn visit_read<E>(
        &mut self,
        chunk: Chunk,
        each: &mut dyn FnMut(&[Item<'_>]) -> Result<(), E>,
    ) -> Result<(), VisitError<E>> {
        if chunk.kind == ChunkKind::End {
            let promised = chunk::end(&mut self.chunks)?;
            if promised != self.totals {
                return Err(self.chunks.corrupt("its contents differ from the totals that it states").into());
            }
            return Ok(());
        }
        let mut order = std::mem::take(&mut self.order);
        let visited = self.visit_chunk(chunk, &mut order, each);
        self.order = order;
        visited
    }

    /// Passes the items (rows or log entries) of a chunk to the callback. Decompresses only a part of the chunk's
    /// contents at a time. This part grows only if an item does not fit.
    fn visit_chunk<E>(
        &mut self,
        chunk: Chunk,
        order: &mut Order,
        each: &mut dyn FnMut(&[Item<'_>]) -> Result<(), E>,
    ) -> Result<(), VisitError<E>> {
        let mut window = Vec::new();
        let (mut base, mut wanted, mut is_whole) = (0, WINDOW_BYTES, false);
        loop {
            if !is_whole && window.len() < wanted {
                let missing = wanted - window.len();
                is_whole = self.chunks.read(&mut window, missing)?;
            }
            if is_whole && window.is_empty() {
                return Ok(());
            }
            let mut items = Vec::new();
            let mut used = 0;
            wanted = WINDOW_BYTES;
            while items.len() < WINDOW_ITEMS {
                let rest = &window[used..];
                match Item::size(chunk.kind, rest).map_err(|what| self.corrupt(chunk, what))? {
                    Some(size) if size <= rest.len() => {
                        let item = item(chunk.kind, &rest[..size]);
                        let item = item.map_err(|bad| {
                            self.corrupt(chunk, &format!("no {} at {}", bad.expected, base + used + bad.at))
                        })?;
                        self.check(chunk, &item, order)?;
                        self.totals.add(&item);
                        items.push(item);
                        used += size;
                    }
                    // Requests one byte more than the item, so that the end of the chunk is noticed together with its
                    // last item.
                    Some(size) => {
                        wanted = wanted.max(size + 1);
                        break;
                    }
                    None => break,
                }
            }
            if items.is_empty() && is_whole {
                let what = format!("it ends within the row or entry at {}", base + used);
                return Err(self.corrupt(chunk, &what).into());
            }
            if !items.is_empty() {
                each(&items).map_err(VisitError::Visitor)?;
            }
            drop(items);
            window.drain(..used);
            base += used;
        }
    }

    fn check(&self, chunk: Chunk, item: &Item<'_>, order: &mut Order) -> Result<(), SnapshotReadError> {
        match (item, self.info.kind) {
            (Item::Row { key, value, bytes }, PartKind::Full) => {
                if *key <= order.key.as_slice() {
                    return Err(self.corrupt(chunk, "its keys are not in order"));
                }
                order.key.clear();
                order.key.extend_from_slice(key);
                check_row(key, value, *bytes).map_err(|what| self.corrupt(chunk, &what))
            }
            (Item::Entry(entry), PartKind::Increment) => {
                let within = entry.lsn >= self.info.since && entry.lsn < self.info.applied.lsn;
                if !within || order.lsn.is_some_and(|last| entry.lsn <= last) {
                    return Err(self.corrupt(chunk, "its entries are not in order"));
                }
                order.lsn = Some(entry.lsn);
                Ok(())
            }
            _ => Err(self.corrupt(chunk, "it has contents that this kind of snapshot cannot have")),
        }
    }

    fn corrupt(&self, chunk: Chunk, what: &str) -> SnapshotReadError {
        SnapshotReadError::Corrupt { chunk: chunk.number, at: self.chunks.whole_bytes(), what: what.to_owned() }
    }
}

/// Decodes one row or log entry, which takes all of `bytes`.
fn item(kind: ChunkKind, bytes: &[u8]) -> Result<Item<'_>, Malformed> {
    let mut reader = Reader::at(bytes, 0);
    match kind {
        ChunkKind::Rows => Item::decode_row(&mut reader),
        ChunkKind::Entries => Item::decode_entry(&mut reader),
        ChunkKind::Begin | ChunkKind::End => Err(Malformed { at: 0, expected: "rows or entries" }),
    }
}

/// Key of the last visited row and LSN of the last visited log entry, kept to check that keys and LSNs ascend.
#[derive(Default)]
struct Order {
    key: Vec<u8>,
    lsn: Option<Lsn>,
}

/// Checks that a row is of a kind that a snapshot may contain: rows that are valid only on one node are errors. If the
/// row points into the log, also checks that `bytes` are the bytes to which it points.
fn check_row(key: &[u8], value: &[u8], bytes: Option<&[u8]>) -> Result<(), String> {
    match (portable::sort(key, value), bytes) {
        (Err(error), _) => Err(error.to_string()),
        (Ok(Row::Plain), None) => Ok(()),
        (Ok(Row::Pointing(pointing)), Some(bytes)) => {
            let blob = pointing.blob;
            if blob.len as usize == bytes.len()
                && blob.crc == crc32c(bytes)
                && portable::without_position(&blob) == blob
            {
                Ok(())
            } else {
                Err("a row carries bytes other than those it points to".to_owned())
            }
        }
        (Ok(Row::Local), _) => Err("it has a row that is valid only on one node".to_owned()),
        (Ok(_), _) => Err("a row carries bytes that it does not point to, or lacks bytes that it points to".to_owned()),
    }
}

/// Reads the description of a snapshot from its first chunk.
pub fn info(from: impl Read) -> Result<SnapshotInfo, SnapshotReadError> {
    Ok(chunk::begin(&mut ChunkReader::new(from))?.info)
}

/// Result of verifying a snapshot from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Description of the snapshot from its first chunk.
    pub info: SnapshotInfo,
    /// Numbers of rows, log entries and bytes in the snapshot.
    pub totals: Totals,
    /// Number of chunks, including the first and the last.
    pub chunks: u64,
    /// Length of the snapshot in bytes, as stored.
    pub bytes: u64,
}

/// Reads a snapshot to its end, and checks everything in it.
pub fn verify(from: impl Read) -> Result<Verified, SnapshotReadError> {
    let mut contents = Contents::open(from)?;
    match contents.visit::<Infallible>(&mut |_| Ok(())) {
        Ok(totals) => {
            let (chunks, bytes) = (contents.chunks.next_number(), contents.chunks.whole_bytes());
            Ok(Verified { info: contents.info, totals, chunks, bytes })
        }
        Err(VisitError::Read(error)) => Err(error),
        Err(VisitError::Visitor(never)) => match never {},
    }
}

/// Complete part of a snapshot that may have been cut short, for example by an interrupted transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSnapshot {
    /// Description of the snapshot from its first chunk.
    pub info: SnapshotInfo,
    /// Number of complete chunks. This is also the number of the next chunk to transfer.
    pub chunks: u64,
    /// Total length in bytes of the complete chunks, as stored.
    pub bytes: u64,
    /// True if the snapshot is complete, including its last chunk.
    pub is_complete: bool,
}

/// Reads the chunks of a snapshot that may have been cut short, up to the first incomplete chunk. Damage before that
/// point is an error.
pub fn survey(from: impl Read) -> Result<PartialSnapshot, SnapshotReadError> {
    let mut chunks = ChunkReader::new(from);
    let Begin { info, .. } = chunk::begin(&mut chunks)?;
    let is_complete = loop {
        match chunks.next() {
            Ok(Some(_)) => chunks.skip()?,
            Ok(None) => break true,
            Err(SnapshotReadError::Truncated { .. }) => break false,
            Err(error) => return Err(error),
        }
    };
    Ok(PartialSnapshot { info, chunks: chunks.next_number(), bytes: chunks.whole_bytes(), is_complete })
}
