//! Helpers for the tests of the simulated disk.

use std::{collections::BTreeMap, sync::Arc};

use thalweg_disk::{Disk, File, SimDisk};

/// A small random generator for workloads; the disk has its own.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns bytes that are unlikely to repeat, and sometimes zeroes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        if self.below(8) == 0 {
            return vec![0; len];
        }
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// All files with their content, as a reader sees them.
pub fn tree(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    disk.paths().into_iter().map(|path| (path.clone(), disk.cached_bytes(&path).unwrap())).collect()
}

/// Creates a file in the root with synced content and name.
pub fn durable_file(disk: &SimDisk, path: &str, data: &[u8]) -> Arc<dyn File> {
    let file = disk.create(path).unwrap();
    file.write_all_at(data, 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir("").unwrap();
    file
}
