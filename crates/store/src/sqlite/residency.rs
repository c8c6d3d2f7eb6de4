//! Estimates if a read of SQLite's database would wait for the disk.
//!
//! SQLite cannot cancel a read that would wait: an I/O error ends the reader's transaction, and with it the view. So
//! the pages of a single read are not checked. [`Residency`] samples pages of the whole file instead. A thread that
//! must not wait reads only if many samples in a row were in memory.
//!
//! Each check takes at least one sample. If a share `p` of the file is not in memory, `n` samples in a row are in
//! memory with the probability `(1-p)^n`; then a read waits with the probability `p`. With 256 samples, less than two
//! of a thousand reads wait in the worst case.
//!
//! The write-ahead log is not sampled. It was written only a moment ago, because it is copied to the database after
//! each commit.

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use thalweg_disk::read_resident;

use super::connection::{NO_FOLLOW, PAGE_BYTES};

/// Number of consecutive samples that must have been in memory before reads are expected not to wait. For a file with
/// fewer pages, it is the number of pages.
const NEEDED: u64 = 256;
/// Maximum number of samples that one check takes; each takes less than a microsecond.
const MAX_SAMPLES: u64 = 8;
/// Number of samples after which the size of the sampled database file is read again.
const MEASURE_EVERY: u64 = 64;
/// Odd multiplier, near the golden ratio of 2^64, that spreads consecutive numbers evenly over the file.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Estimates from sampled pages if the database file is in memory; see the [module](self).
#[derive(Debug)]
pub(super) struct Residency {
    file: File,
    /// Number of pages of the file at the last measurement.
    pages: AtomicU64,
    /// Number of pages of the database file that were sampled since the file was opened.
    taken: AtomicU64,
    /// Number of consecutive samples that were in memory, up to the latest sample.
    run: AtomicU64,
}

impl Residency {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).custom_flags(NO_FOLLOW).open(path)?;
        let zero = AtomicU64::default;
        Ok(Self { file, pages: zero(), taken: zero(), run: zero() })
    }

    /// Returns true if, according to the samples, the pages of the file are in memory. Takes further samples. Threads
    /// that call this at the same time take different samples.
    pub(super) fn is_resident(&self) -> bool {
        for _ in 0..MAX_SAMPLES {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number.is_multiple_of(MEASURE_EVERY) {
                let len = self.file.metadata().map_or(0, |metadata| metadata.len());
                self.pages.store(len / u64::from(PAGE_BYTES), Ordering::Relaxed);
            }
            let pages = self.pages.load(Ordering::Relaxed);
            if !self.sample(number, pages) {
                self.run.store(0, Ordering::Relaxed);
                return false;
            }
            // A small file is read in order, so that each of its pages is a sample.
            if self.run.fetch_add(1, Ordering::Relaxed) + 1 >= pages.min(NEEDED) {
                return true;
            }
        }
        false
    }

    /// Returns true if the page of sample `number` is in memory, or cannot be read because the file has become shorter.
    fn sample(&self, number: u64, pages: u64) -> bool {
        if pages == 0 {
            return true;
        }
        let page = if pages <= NEEDED {
            number % pages
        } else {
            let place = u128::from(number.wrapping_mul(SPREAD)) * u128::from(pages);
            u64::try_from(place >> 64).unwrap_or(0)
        };
        match read_resident(&self.file, 1, page * u64::from(PAGE_BYTES)) {
            Ok(byte) => byte.is_some(),
            // The file has become shorter or is damaged; the read itself will report the error.
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Advice, fadvise};

    use super::*;

    /// Creates a file of `pages` pages, all in the page cache.
    fn file_of(dir: &Path, pages: u64) -> std::path::PathBuf {
        let path = dir.join(format!("{pages} pages"));
        std::fs::write(&path, vec![7; (pages * u64::from(PAGE_BYTES)) as usize]).unwrap();
        path
    }

    /// Drops the pages of a file from memory. Returns false if the file system keeps them.
    fn dropped(path: &Path) -> bool {
        let file = File::options().write(true).read(true).open(path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        read_resident(&file, 1, 0).unwrap().is_none()
    }

    #[test]
    fn a_file_in_memory_is_resident_after_enough_samples_and_a_small_one_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let judged = |pages: u64| {
            let path = file_of(dir.path(), pages);
            let file = Residency::open(&path).unwrap();
            if read_resident(&file.file, 1, 0).is_ok_and(|byte| byte.is_none() && pages > 0) {
                return None;
            }
            Some((1..=1000).find(|_| file.is_resident()).unwrap_or(u64::MAX))
        };
        assert_eq!(judged(0), Some(1));
        for (pages, judgements) in [(1, 1), (8, 1), (9, 2), (256, 32), (1000, 32)] {
            // On a file system that does not report residency, each check fails, and another thread does the read.
            assert!(judged(pages).is_none_or(|taken| taken == judgements), "{pages} pages: {:?}", judged(pages));
        }
    }

    #[test]
    fn a_file_that_is_not_in_memory_is_not_resident_until_it_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_of(dir.path(), 1000);
        let file = Residency::open(&path).unwrap();
        let tells = read_resident(&file.file, 1, 0).unwrap().is_some();
        assert_eq!((0..100).any(|_| file.is_resident()), tells);
        // A file system in memory drops no pages, and some file systems do not report residency.
        if !tells || !dropped(&path) {
            return;
        }
        assert!(!(0..1000).any(|_| file.is_resident()));
        // The kernel may need the memory of a page that was just read, so there are several attempts.
        let is_resident = (0..20).any(|_| {
            assert_eq!(std::fs::read(&path).unwrap().len(), 1000 * PAGE_BYTES as usize);
            (0..100).any(|_| file.is_resident())
        });
        assert!(is_resident);
    }

    #[test]
    fn samples_of_a_large_file_reach_all_parts_of_it() {
        let pages = 10_000_u64;
        let mut tenths = [0; 10];
        for number in 0..1000_u64 {
            let page = (u128::from(number.wrapping_mul(SPREAD)) * u128::from(pages)) >> 64;
            tenths[(page / 1000) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (90..=110).contains(count)), "{tenths:?}");
    }
}
