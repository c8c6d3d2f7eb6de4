//! Reading newly written blocks into the cache of the LSM backend.

use std::sync::Arc;

use thalweg_store::{
    Applied, Backend, Background, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
};
use thalweg_types::{Index, Lsn};

use crate::backend_support::Barrier;

const MEMTABLE_BYTES: usize = 64 << 10;

/// Overwrites a key, each time with a value that needs another memtable.
fn overwrite(backend: &LsmBackend, rounds: std::ops::Range<u64>) {
    for round in rounds {
        let mut batch = WriteBatch::new();
        batch.put(&[b"key"], &[&vec![round as u8; MEMTABLE_BYTES / 2]]);
        let number = round + 1;
        backend.apply(&batch, Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() }).unwrap();
    }
}

/// Writers wait for the publication of new tables then, and the blocks may have to be read from the disk.
#[test]
fn blocks_are_not_read_ahead_while_writes_are_slowed_down() {
    let dir = tempfile::tempdir().unwrap();
    let options = LsmOptions {
        memtable_bytes: MEMTABLE_BYTES,
        max_sealed: 64,
        background: Background::Stepped,
        ..LsmOptions::new(dir.path().join("state"))
    };
    let backend = LsmBackend::open(options, Arc::new(Barrier::default())).unwrap();
    overwrite(&backend, 0..4);
    assert!(backend.step());
    let stats = backend.stats();
    assert_eq!((stats.tables, stats.compactions), (3, 0));
    assert!(stats.cache_bytes > MEMTABLE_BYTES as u64, "{} bytes in memory", stats.cache_bytes);
    overwrite(&backend, 4..24);
    assert!(backend.step());
    let stats = backend.stats();
    assert_eq!((stats.tables, stats.compactions), (1, 1), "the runs of all flushes were merged");
    assert_eq!(stats.cache_bytes, 0, "the merged table was published at once");
    assert_eq!(backend.get(b"key").unwrap().as_deref(), Some(&[23; MEMTABLE_BYTES / 2][..]));
    assert!(backend.stats().sealed_memtables == 0);
}
