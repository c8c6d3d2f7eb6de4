//! How often the disk was told to flush, from the kernel's own count of the device.
//!
//! A store's fsyncs can't be counted in the same way for all stores; flushes that reach the device can. They are
//! the whole device's, so somebody else's count too: a quiet machine is needed. One fsync is at most one flush,
//! and none where several are merged or nothing was dirty.

use std::{fs, os::linux::fs::MetadataExt as _, path::Path};

/// The device under a directory.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    major: u64,
    minor: u64,
}

impl Device {
    /// The device that holds `dir`; `None` if the filesystem has none of its own, or it doesn't count.
    #[must_use]
    pub fn below(dir: &Path) -> Option<Self> {
        let number = fs::metadata(dir).ok()?.st_dev();
        let device = Self { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) };
        device.flushes().map(|_| device)
    }

    /// Flushes so far.
    #[must_use]
    pub fn flushes(&self) -> Option<u64> {
        let text = fs::read_to_string("/proc/diskstats").ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let is_it = fields.next()?.parse() == Ok(self.major) && fields.next()?.parse() == Ok(self.minor);
            // The name, 15 counts of reads, writes and discards, then the flushes.
            if is_it { fields.nth(16)?.parse().ok() } else { None }
        })
    }
}
