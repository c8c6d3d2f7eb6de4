//! Incremental writeback of tables while they are written.
//!
//! Owns: [`WritebackTracker`], the set of tables being written, and [`Writeback`], with which a flush or compaction
//! makes the kernel write its output to the disk, one piece at a time. Does not own: writing and syncing the tables,
//! which the LSM crate does.
//!
//! The LSM crate syncs a table once, when the table is complete. While a disk writes 64 MiB in one piece, all other
//! syncs wait for this write: syncs of the log took up to 66 ms. So tables are written in pieces. While clients write,
//! the pieces are small, and a pause follows each piece, usually as long as the piece took, unless the work is urgent
//! or late (see `throttle`).
//!
//! If the tables are larger than the kernel's memory for pages of files, each piece leaves that memory as soon as it is
//! on the disk. Otherwise the kernel has to look for pages to evict, in the thread that needs a page: with 512 MiB, the
//! compaction thread spent 8 % of its time on that (`docs/performance-notes.md`).
//!
//! The crate does not report which file it writes. But it numbers files consecutively, so a file with the next number
//! is a table being written; the first thread that sees the file handles it. This is a guess, but correctness does not
//! depend on it: the crate's final sync still writes everything and reports every failure.

use std::{
    fs::File,
    io,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use rustix::fs::{Advice, fadvise};
use thalweg_disk::{begin_write_out, write_out};

use super::throttle::{Throttle, WorkKind, WorkThrottle};

/// Size in bytes of a piece of written data that is sent to the disk while no client writes, or if the work is urgent.
/// The disk then writes one piece while the thread fills the next one.
const PIECE_BYTES: u64 = 1 << 20;
/// Size in bytes of a piece of written data that is sent to the disk while clients write.
const SMALL_PIECE_BYTES: u64 = 128 << 10;
/// Maximum gap in the numbers of table files; tables that turn out to be empty leave such gaps.
const MAX_MISSING: u64 = 16;

/// Tracker of the table files that are being written in a directory.
#[derive(Clone, Debug)]
pub(super) struct WritebackTracker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    tables: PathBuf,
    pace: Arc<Throttle>,
    /// Function that returns the free bytes of the disk with the tables.
    free_bytes: fn(&Path) -> io::Result<u64>,
    /// Number of the next table file to be written. Files with lower numbers are complete or already handled by a
    /// thread.
    next: AtomicU64,
    /// Number of bytes passed to the LSM crate by all flushes and compactions, rounded down to pieces.
    written_bytes: AtomicU64,
    /// True if newly written pages should stay in the kernel's memory.
    keeps_pages: AtomicBool,
}

impl WritebackTracker {
    /// Creates a tracker of the tables in the LSM crate's directory `dir`.
    pub(super) fn of(dir: &Path, pace: &Arc<Throttle>) -> Self {
        let next = AtomicU64::new(u64::MAX);
        let (tables, pace, written_bytes) = (dir.join("tables"), Arc::clone(pace), AtomicU64::new(0));
        let keeps_pages = AtomicBool::new(true);
        Self(Arc::new(Shared { tables, pace, free_bytes, next, written_bytes, keeps_pages }))
    }

    /// Sets if the pages that flushes and compactions write from now on stay in the kernel's memory.
    pub(super) fn keep_pages(&self, keep: bool) {
        self.0.keeps_pages.store(keep, Ordering::Relaxed);
    }

    /// Starts the tracking of new table files. `next` is the number that the LSM crate will give to its next table.
    pub(super) fn begin(&self, next: u64) {
        self.0.next.store(next, Ordering::Relaxed);
    }

    /// Returns the number of bytes that a compaction may write now.
    pub(super) fn room(&self) -> u64 {
        let free = (self.0.free_bytes)(&self.0.tables).unwrap_or(u64::MAX);
        free.saturating_sub(self.0.pace.kept_free_bytes())
    }

    /// Returns the number of bytes that flushes and compactions have written, including those in progress.
    pub(super) fn written_bytes(&self) -> u64 {
        self.0.written_bytes.load(Ordering::Relaxed)
    }

    /// Creates the handle with which one flush or compaction writes its tables to the disk in pieces.
    pub(super) fn watch(&self, chore: WorkKind) -> Writeback {
        let (shared, stint) = (Arc::clone(&self.0), self.0.pace.begin_work(chore));
        Writeback { shared, stint, bytes: 0, small_bytes: 0, files: Vec::new() }
    }
}

/// Handle of one flush or compaction that writes its table files to the disk in pieces; see [`WritebackTracker`].
#[derive(Debug)]
pub(super) struct Writeback {
    shared: Arc<Shared>,
    stint: WorkThrottle,
    /// Number of bytes passed to the LSM crate since the last search for new files.
    bytes: u64,
    /// Number of bytes passed to the LSM crate since the last writeback.
    small_bytes: u64,
    files: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    file: File,
    /// Length of the table file in bytes at the last check.
    len: u64,
    /// Number of bytes from the start of the file that are on the disk.
    written_out: u64,
    /// Number of bytes from the start of the file that are on the disk or being written to it.
    begun: u64,
}

impl Writeback {
    /// Counts `bytes` that the LSM crate is about to write, and writes a piece back to the disk when it is complete.
    /// Returns true if a piece was complete.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.small_bytes += bytes as u64;
        let is_complete = self.small_bytes >= SMALL_PIECE_BYTES || self.bytes >= PIECE_BYTES;
        if is_complete {
            let bytes = std::mem::take(&mut self.small_bytes);
            self.shared.written_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.stint.add_done(bytes);
            self.write_back();
        }
        is_complete
    }

    /// Returns the error of a full disk if the free space is so small that flushes might find no room. A compaction can
    /// be repeated later, but without flushes the log cannot be freed, so they come first.
    #[cold]
    fn check_room(&self) -> io::Result<()> {
        let kept = self.shared.pace.kept_free_bytes();
        // A disk that cannot report its free space is not checked; a write to it fails when it is full.
        let free = (self.shared.free_bytes)(&self.shared.tables).unwrap_or(u64::MAX);
        if free >= kept {
            return Ok(());
        }
        let message = format!("a compaction stops at {free} free bytes, because flushes may need {kept}");
        Err(io::Error::new(io::ErrorKind::StorageFull, message))
    }

    #[cold]
    fn write_back(&mut self) {
        let is_considerate = self.stint.should_throttle(Instant::now());
        if self.bytes >= PIECE_BYTES {
            self.bytes = 0;
            self.find_new();
            self.files.retain_mut(Table::has_grown);
        }
        let keeps_pages = self.shared.keeps_pages.load(Ordering::Relaxed);
        if is_considerate {
            let stint = &self.stint;
            self.files.retain_mut(|table| table.write_out(stint, keeps_pages).is_ok());
        } else {
            self.files.retain_mut(|table| table.write_out_beside(keeps_pages).is_ok());
        }
    }

    fn find_new(&mut self) {
        let next = self.shared.next.load(Ordering::Relaxed);
        for number in next..next.saturating_add(MAX_MISSING) {
            let Ok(file) = File::open(self.shared.tables.join(number.to_string())) else { continue };
            if self.shared.next.fetch_max(number + 1, Ordering::Relaxed) <= number {
                self.files.push(Table { file, len: 0, written_out: 0, begun: 0 });
            }
        }
    }
}

/// Returns the number of bytes that are free on the disk with this directory.
fn free_bytes(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

impl Table {
    /// Returns true if the table file is empty or has grown since the last call. Otherwise this thread stops handling
    /// it: the table is complete, or it is the output of another thread.
    fn has_grown(&mut self) -> bool {
        let Ok(metadata) = self.file.metadata() else { return false };
        let has_grown = metadata.len() > self.len || metadata.len() == 0;
        self.len = metadata.len();
        has_grown
    }

    /// Writes the file to the disk in small pieces (`SMALL_PIECE_BYTES`), and pauses after each. Leaves an incomplete
    /// last piece for later.
    fn write_out(&mut self, stint: &WorkThrottle, keeps_pages: bool) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        while self.written_out + SMALL_PIECE_BYTES <= len {
            let piece = stint.begin_piece();
            self.finish(self.written_out + SMALL_PIECE_BYTES, keeps_pages)?;
            stint.pause_after(piece, SMALL_PIECE_BYTES);
        }
        Ok(())
    }

    /// Starts to write the file to the disk in pieces of `PIECE_BYTES`, without pauses. Waits for all pieces except the
    /// last, so that the disk writes this piece while the thread fills the next one. Leaves an incomplete last piece
    /// for later.
    fn write_out_beside(&mut self, keeps_pages: bool) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        while self.begun + PIECE_BYTES <= len {
            begin_write_out(&self.file, self.begun, PIECE_BYTES)?;
            let before = self.begun;
            self.begun += PIECE_BYTES;
            if before > self.written_out {
                self.finish(before, keeps_pages)?;
            }
        }
        Ok(())
    }

    /// Writes the file to the disk up to the offset `end`, and waits until it is there. Then gives the memory of the
    /// written pages back to the kernel unless `keeps_pages`.
    fn finish(&mut self, end: u64, keeps_pages: bool) -> io::Result<()> {
        let (at, len) = (self.written_out, end - self.written_out);
        write_out(&self.file, at, len)?;
        self.written_out = end;
        self.begun = self.begun.max(end);
        if !keeps_pages {
            // If the kernel ignores the advice, it evicts these pages itself when it needs their memory.
            let _ = fadvise(&self.file, at, NonZeroU64::new(len), Advice::DontNeed);
        }
        Ok(())
    }
}

/// Creates the compaction filter that the LSM crate calls for each item of a compaction. The filter keeps all items,
/// and only counts the bytes that the compaction writes.
impl Factory for WritebackTracker {
    fn name(&self) -> &'static str {
        "write out"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(self.watch(WorkKind::Compaction))
    }
}

impl CompactionFilter for Writeback {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        if self.add(item.key().len() + item.value()?.len()) {
            self.check_room()?;
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::{super::throttle::Backlog, *};

    const PIECE: usize = PIECE_BYTES as usize;

    fn tables(growing: &Writeback) -> Vec<(u64, u64)> {
        growing.files.iter().map(|table| (table.len, table.written_out)).collect()
    }

    #[test]
    fn whole_pieces_of_new_tables_are_handed_over_until_they_grow_no_more() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        let create = |number: u64| File::create(dir.path().join("tables").join(number.to_string())).unwrap();
        let growth = WritebackTracker::of(dir.path(), &Arc::default());
        create(6);
        growth.begin(7);
        let (mut one, mut other) = (growth.watch(WorkKind::Flush), growth.watch(WorkKind::Compaction));
        let mut table = create(7);
        table.write_all(&vec![1; PIECE * 2 + 5]).unwrap();
        one.add(PIECE - 1);
        assert_eq!(tables(&one), [], "no search before a piece is complete");
        one.add(1);
        assert_eq!(tables(&one), [(2 * PIECE_BYTES + 5, PIECE_BYTES)], "the disk still writes the second piece");
        other.add(PIECE);
        assert_eq!(tables(&other), [], "another thread handles it");
        let mut next = create(9);
        next.write_all(&[1; 10]).unwrap();
        table.write_all(&vec![1; PIECE]).unwrap();
        one.add(PIECE);
        assert_eq!(tables(&one), [(3 * PIECE_BYTES + 5, 2 * PIECE_BYTES), (10, 0)]);
        next.write_all(&[1; 10]).unwrap();
        one.add(PIECE);
        assert_eq!(tables(&one), [(20, 0)], "the first is complete");
    }

    #[test]
    fn pages_leave_the_memory_of_the_kernel_if_the_tables_are_larger() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        let growth = WritebackTracker::of(dir.path(), &Arc::default());
        growth.begin(1);
        let mut growing = growth.watch(WorkKind::Flush);
        let path = dir.path().join("tables/1");
        let mut table = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        // A read that may not wait for the disk succeeds only if the page is in the kernel's memory.
        let is_there = |at: u64| {
            let file = File::open(&path).unwrap();
            thalweg_disk::read_resident(&file, 4096, at).unwrap().is_some()
        };
        for keeps in [true, false] {
            growth.keep_pages(keeps);
            for _ in 0..2 {
                table.write_all(&[1; PIECE]).unwrap();
                growing.add(PIECE);
            }
            assert!(is_there(0));
        }
        // These pieces are written after the choice. The kernel may keep a page that it works on.
        let is_dropped = (4..24).any(|pieces: u64| {
            table.write_all(&[1; PIECE]).unwrap();
            growing.add(PIECE);
            assert_eq!(growing.files[0].written_out, pieces * PIECE_BYTES);
            !is_there((pieces - 1) * PIECE_BYTES)
        });
        assert!(is_dropped, "they stay in memory");
    }

    #[test]
    fn beside_writers_pieces_are_small_and_urgent_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        let calm = Backlog { is_awaited: false, sealed: 1, level_0_runs: 0, flush_bytes: 0, room: Default::default() };
        let pace = Arc::new(Throttle::default());
        let growth = WritebackTracker::of(dir.path(), &pace);
        growth.begin(1);
        let mut growing = growth.watch(WorkKind::Flush);
        let mut table = File::create(dir.path().join("tables/1")).unwrap();
        let mut grow = |bytes: u64, backlog| {
            table.write_all(&vec![1; bytes as usize]).unwrap();
            pace.report(backlog);
            pace.count_write(1);
            growing.add(bytes as usize);
            growing.files[0].written_out
        };
        let piece = SMALL_PIECE_BYTES;
        assert_eq!(grow(PIECE_BYTES + 5, calm), PIECE_BYTES);
        assert_eq!(grow(piece, calm), PIECE_BYTES + piece);
        assert_eq!(grow(piece - 6, calm), PIECE_BYTES + piece, "no whole piece");
        assert_eq!(grow(1, calm), PIECE_BYTES + piece, "not looked at yet");
        assert_eq!(grow(piece, calm), PIECE_BYTES + 3 * piece);
        let urgent = Backlog { is_awaited: true, ..calm };
        assert_eq!(grow(PIECE_BYTES - 1, urgent), PIECE_BYTES + 3 * piece);
        assert_eq!(grow(piece, urgent), PIECE_BYTES + 3 * piece, "the disk still writes the piece");
        assert_eq!(grow(PIECE_BYTES, urgent), 2 * PIECE_BYTES + 3 * piece);
    }
}
