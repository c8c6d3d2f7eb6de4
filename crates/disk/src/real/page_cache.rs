//! Asks the kernel how many pages of a file are in its memory (`cachestat`, Linux 6.5).

use std::{
    fs::File,
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, Ordering},
};

/// Number of the system call `cachestat`, for which `libc` and `rustix` have no name. The number is the same on all
/// processors for which this module uses the call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
const CACHESTAT: libc::c_long = 451;

/// True once the kernel has reported that it does not have the call `cachestat` or does not permit it.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// True once the kernel has reported at least one page of a file in memory. Until then, a count of zero is not
/// believed: overlay file systems, as in containers, keep the pages with another file, and always report zero.
static HAS_COUNTED: AtomicBool = AtomicBool::new(false);

/// Returns false only if the kernel reports that some of the `len` bytes at `offset` are not in its page cache. Returns
/// true if all of them are there, if the kernel is reading some of them, or if it does not report it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
pub(super) fn may_contain(file: &File, offset: u64, len: u64) -> bool {
    /// Range of bytes in a file, in the layout that the system call `cachestat` expects.
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    // A length of zero means the rest of the file.
    if len == 0 || IS_MISSING.load(Ordering::Relaxed) {
        return true;
    }
    let (range, mut counts) = (Range { offset, len }, Counts::default());
    let (range_at, counts_at) = (&raw const range, &raw mut counts);
    // SAFETY: the descriptor is open as long as the file is borrowed. Both structures have the kernel's layout and live
    // until the call returns.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range_at, counts_at, 0) };
    if result != 0 {
        IS_MISSING.store(true, Ordering::Relaxed);
        return true;
    }
    if counts.cached > 0 {
        HAS_COUNTED.store(true, Ordering::Relaxed);
    }
    let page = rustix::param::page_size() as u64;
    counts.cached > offset.saturating_add(len - 1) / page - offset / page || !HAS_COUNTED.load(Ordering::Relaxed)
}

/// Returns true: the number of the system call is not known on this processor, so the bytes may be in memory.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
pub(super) fn may_contain(_: &File, _: u64, _: u64) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn pages_in_memory_are_counted_and_dropped_ones_are_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        for (offset, len) in [(0, 1), (0, 0), (4095, 2), (5, 99_995), (50_000, 16 << 10)] {
            assert!(may_contain(&file, offset, len), "{len} bytes at {offset}");
        }
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // Some kernels report nothing, and the kernel may ignore the advice. Bytes beyond the end are never in memory.
        assert!(!may_contain(&file, 1 << 30, 10) || IS_MISSING.load(Ordering::Relaxed));
    }
}
