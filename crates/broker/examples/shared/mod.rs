//! Helpers of the examples: seeded random numbers, CPU time, a counting allocator.

#![allow(dead_code, reason = "each example uses some of it")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Seeded random numbers (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// CPU time that the whole process has used since `start`. Other load on the machine changes this time less than
/// wall-clock time.
pub struct Cpu(u64);

impl Cpu {
    pub fn start() -> Self {
        Self(cpu_nanos())
    }

    pub fn nanos(&self) -> u64 {
        cpu_nanos() - self.0
    }

    /// Returns the CPU time per operation in nanoseconds, if `count` operations were done since `start`.
    pub fn each(&self, count: usize) -> f64 {
        self.nanos() as f64 / count as f64
    }
}

fn cpu_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static COUNTS: AtomicUsize = AtomicUsize::new(1);

// SAFETY: forwards every call unchanged to the system's allocator. Counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) != 0 {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: forwards the caller's layout unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if COUNTS.load(Ordering::Relaxed) != 0 {
            ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the pointer was allocated by the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of bytes that are allocated now. Counts only allocations made while counting is on.
pub fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// Turns counting off, so that threads do not contend on the counter.
pub fn stop_counting() {
    COUNTS.store(0, Ordering::Relaxed);
}
