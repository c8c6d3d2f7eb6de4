//! A node whose keys are in tables of an LSM tree, and not in memory as far as the file system permits.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::{Config, config::Backend};

use super::{Node, config, small_options};

/// Number of keys of a cold keyspace.
pub const KEYS: u32 = 20_000;
/// Metric of the reads that threads for cold reads have performed.
pub const COLD_READS: &str = "reads_handed_over_total{kind=\"cold\"}";
/// Metric of the reads of files by the thread that applies entries.
pub const APPLY_READS: &str = "apply_file_reads_total";

/// Starts a node whose keyspace `redis` has [`KEYS`] keys that are not in memory, with values of 200 bytes. The
/// keyspace counts its keys, so a write of a key reads the row that it replaces.
pub async fn node(cache_bytes: u64, change: impl FnOnce(&mut Config)) -> (Node, TempDir) {
    let mut config = config();
    change(&mut config);
    config.backend = Backend(Some(BackendKind::Lsm));
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::open(dir.path(), Options { cache_bytes, ..small_options(&config) }).unwrap();
    let db = open();
    let keyspace = db.redis_keyspace("redis").unwrap();
    let mut proposed = Vec::new();
    for number in 0..KEYS {
        proposed.push(db.to_async().put(keyspace.id(), key(number).as_bytes(), &[b'v'; 200], db.durability()));
    }
    for put in proposed {
        put.await.unwrap();
    }
    db.close().unwrap();
    drop((keyspace, db));
    let node = Node::over(config.clone(), open()).await;
    drop_pages(&dir.path().join("state"));
    (node, dir)
}

/// Returns the name of a key of a cold keyspace.
pub fn key(number: u32) -> String {
    format!("key-{number:06}")
}

/// Returns keys that are in different blocks.
pub fn apart(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(move |number| key(number * (KEYS / count)))
}

/// Drops the files below a directory from the memory of the kernel, unless the file system keeps them there.
fn drop_pages(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            drop_pages(&path);
        } else {
            fadvise(File::open(&path).unwrap(), 0, None, Advice::DontNeed).unwrap();
        }
    }
}

/// Returns true if the largest file below a directory is not in memory. False on file systems that keep it there, or
/// that cannot tell.
pub fn is_cold(dir: &Path) -> bool {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.metadata().unwrap() {
                data if data.is_dir() => dirs.push(entry.path()),
                data => files.push((data.len(), entry.path())),
            }
        }
    }
    let (bytes, path) = files.into_iter().max().unwrap();
    thalweg_disk::read_resident(&File::open(path).unwrap(), 4096, bytes / 2).unwrap().is_none()
}
