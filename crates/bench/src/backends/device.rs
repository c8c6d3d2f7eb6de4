//! Flushes of the disk and bytes written to it, from the kernel's counters of the block device.
//!
//! Fsyncs cannot be counted in the same way for all stores, but flushes that reach the device can. The kernel's
//! counters of a process show the pages that it changed, not the bytes that reached the disk, so they are not used. The
//! counters of the device include other processes, so measurements need a quiet machine. One fsync causes at most one
//! flush. It causes none if several fsyncs are merged, or if nothing had to be written.

use std::{fs, os::linux::fs::MetadataExt as _, path::Path};

/// Bytes of a sector in the kernel's counters. It does not depend on the device's own sector size.
const SECTOR_BYTES: u64 = 512;

/// Counters of a block device since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceCounts {
    /// Number of times that the device was told to flush its write cache.
    pub flushes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
}

/// The block device that holds a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    major: u64,
    minor: u64,
}

impl Device {
    /// Returns the device that holds `dir`. `None` if the filesystem has no device of its own, or if the device has no
    /// counters.
    pub(super) fn below(dir: &Path) -> Option<Self> {
        let number = fs::metadata(dir).ok()?.st_dev();
        let device = Self { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) };
        device.counts().map(|_| device)
    }

    /// Reads the device's counters; `None` if they cannot be read.
    pub(super) fn counts(&self) -> Option<DeviceCounts> {
        let text = fs::read_to_string("/proc/diskstats").ok()?;
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_it = fields.first()?.parse() == Ok(self.major) && fields.get(1)?.parse() == Ok(self.minor);
            // Fields: device numbers and name; 4 counts of reads; 4 of writes, the third in sectors; 3 of time; 4 of
            // discards; flushes.
            let count = |at: usize| fields.get(at)?.parse::<u64>().ok();
            let read = || Some(DeviceCounts { written_bytes: count(9)? * SECTOR_BYTES, flushes: count(18)? });
            if is_it { read() } else { None }
        })
    }
}

impl DeviceCounts {
    /// Returns the increase since the earlier counters `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self { flushes: self.flushes - before.flushes, written_bytes: self.written_bytes - before.written_bytes }
    }
}
