//! Huge pages for the beginning of the heap.
//!
//! Owns: the advice to the kernel. Does not own: the allocator, which is built without huge pages, or the memory of
//! memtables, which has huge pages of its own.
//!
//! With huge pages, the processor keeps the addresses of a working set of this size in its own table: random reads of
//! cached tables were a fifth faster. The kernel clears a huge page at its first use, and may have to make one from small
//! pages. If clients make a server take gigabytes, these waits would add up to a pause for all of its clients. So the
//! rest of the heap has small pages. `docs/performance-notes.md` has the figures.

use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Maximum number of bytes at the beginning of the heap that may have huge pages.
const MAX_BYTES: usize = 256 << 20;
/// Minimum size in bytes of a memory mapping for it to count as the heap. The allocator reserves a gibibyte at a time.
const MIN_MAPPING_BYTES: usize = 64 << 20;

/// Permits huge pages for the first [`MAX_BYTES`] of the heap. Does nothing where the kernel has none, or where the
/// allocator has reserved its memory in small mappings.
pub(crate) fn permit_huge_pages() {
    let probe = Box::new(0_u8);
    let address = (&raw const *probe).addr();
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let Some(heap) = mapping_around(&maps, address).filter(|heap| heap.len() >= MIN_MAPPING_BYTES) else { return };
    let begin = std::ptr::with_exposed_provenance_mut(heap.start);
    // SAFETY: the range is within one mapping of this process, which the allocator never unmaps while `probe` is in it.
    // The advice changes no byte of the mapping.
    let _ = unsafe { madvise(begin, heap.len().min(MAX_BYTES), Advice::LinuxHugepage) };
}

/// Returns the addresses of the mapping around an address. `maps` is the content of `/proc/self/maps`.
fn mapping_around(maps: &str, address: usize) -> Option<Range<usize>> {
    let range = |line: &str| {
        let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(begin, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(range).find(|mapping| mapping.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_an_address_in_it() {
        let maps = "55d0c0000000-55d0c0021000 r-xp 00000000 fe:00 77 /usr/bin/thalweg\n\
            20000000000-20040000000 rw-p 00000000 00:00 0 \n\
            7ffd4a000000-7ffd4a021000 rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(mapping_around(maps, 0x200_0012_3456), Some(0x200_0000_0000..0x200_4000_0000));
        assert_eq!(mapping_around(maps, 0x200_4000_0000), None);
        assert_eq!(mapping_around("no addresses", 1), None);
    }

    #[test]
    fn the_mapping_of_this_process_contains_its_heap() {
        let probe = Box::new(7_u8);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(mapping_around(&maps, (&raw const *probe).addr()).is_some());
        permit_huge_pages();
        assert_eq!(*probe, 7);
    }
}
