//! Flipped bits in the files of each backend: an open, a read or a verification notices each of them, or it changed
//! nothing that is in use.
//!
//! `THALWEG_FLIPS` sets the number of flips for each backend; the default is small.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{
    collections::BTreeMap,
    fs,
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::Arc,
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_store::{
    Applied, Backend, BackendError, Direction, SyncMode, VerifiedRows, WriteBatch,
    lsm::{Compaction, LsmBackend, LsmOptions, TableCompression},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{Classified, Index, Lsn};

use crate::backend_support::{Barrier, Random, small_buffer};

const DEFAULT_FLIPS: u64 = 60;
const ROUNDS: u64 = 4;
const KEYS_PER_ROUND: u64 = 700;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Open = dyn Fn(&Path) -> Result<Box<dyn Backend>, BackendError>;

fn applied(number: u64) -> Applied {
    Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() }
}

fn key(number: u64) -> [u8; 16] {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&spread.to_be_bytes());
    key
}

/// Puts and deletes the keys of one round. Returns the map afterwards.
fn round(backend: &dyn Backend, number: u64, map: &mut Map) {
    let mut batch = WriteBatch::new();
    for at in 0..KEYS_PER_ROUND {
        let key = key(number * KEYS_PER_ROUND / 2 + at);
        if at % 7 == number {
            batch.delete(&[&key]);
            map.remove(&key[..]);
        } else {
            let value = [number as u8; 60];
            batch.put(&[&key], &[&value]);
            map.insert(key.to_vec(), value.to_vec());
        }
    }
    backend.apply(&batch, applied(number)).unwrap();
    backend.flush().unwrap();
}

fn verify(backend: &dyn Backend) -> Result<VerifiedRows, BackendError> {
    backend.verify(&mut |_| ControlFlow::Continue(()))
}

/// Reads everything, by scan and by key.
fn read(backend: &dyn Backend, keys: &Map) -> Result<(Map, Map), BackendError> {
    let (mut scanned, mut found) = (Map::new(), Map::new());
    backend.view().scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward, &mut |key, value| {
        scanned.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    for key in keys.keys() {
        found.extend(backend.get(key)?.map(|value| (key.clone(), value.to_vec())));
    }
    Ok((scanned, found))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let to = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
}

fn no_flip_is_silent(open: &Open) {
    no_flip_is_silent_after(&|_| (), open);
}

/// Flips bits in the files that a backend has after the rounds and `finish`.
fn no_flip_is_silent_after(finish: &dyn Fn(&dyn Backend), open: &Open) {
    let flips = std::env::var("THALWEG_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_FLIPS);
    let dir = tempfile::tempdir().unwrap();
    // The map after each round: a damaged end can also bring the previous transaction back, whole.
    let mut maps = vec![Map::new()];
    {
        let backend = open(dir.path()).unwrap();
        for number in 1..=ROUNDS {
            let mut map = maps[number as usize - 1].clone();
            round(&*backend, number, &mut map);
            maps.push(map);
        }
        finish(&*backend);
        let verified = verify(&*backend).unwrap();
        assert!(verified.is_complete && verified.rows >= maps[ROUNDS as usize].len() as u64, "{verified:?}");
    }
    let all = files(dir.path());
    let bytes: Vec<Vec<u8>> = all.iter().map(|file| fs::read(file).unwrap()).collect();
    let total: usize = bytes.iter().map(Vec::len).sum();
    let (mut noticed, mut by_verification) = (0, 0);
    for seed in 0..flips {
        let mut random = Random(seed * 7919 + 1);
        // Bytes that are zero are mostly unused, so most flips hit others.
        let (mut file, mut at) = (0, 0);
        for _ in 0..20 {
            at = random.below(total as u64) as usize;
            file = 0;
            while at >= bytes[file].len() {
                at -= bytes[file].len();
                file += 1;
            }
            if bytes[file][at] != 0 {
                break;
            }
        }
        let damaged = tempfile::tempdir().unwrap();
        copy(dir.path(), damaged.path());
        let path = damaged.path().join(all[file].strip_prefix(dir.path()).unwrap());
        let mut content = bytes[file].clone();
        content[at] ^= 1 << random.below(8);
        fs::write(&path, content).unwrap();
        let what = format!("seed {seed}, byte {at} of {}", path.display());
        let is_damage = |error: &BackendError| {
            assert!(matches!(error.code(), "state_corrupt" | "state_io" | "state_format"), "{what}: {error}");
        };
        let backend = match open(damaged.path()) {
            Ok(backend) => backend,
            Err(error) => {
                is_damage(&error);
                noticed += 1;
                continue;
            }
        };
        if let Err(error) = verify(&*backend) {
            is_damage(&error);
            noticed += 1;
            by_verification += 1;
            continue;
        }
        let number = backend.applied().map_or(0, |applied| applied.index.0);
        assert!(number <= ROUNDS, "{what}: the state claims to have applied {number}");
        assert_eq!(backend.applied(), (number > 0).then(|| applied(number)), "{what}");
        let expected = &maps[number as usize];
        let (scanned, found) =
            read(&*backend, &maps[ROUNDS as usize]).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(scanned == *expected, "{what}: a scan shows other rows, and the verification was silent");
        let of_keys: Map = expected
            .iter()
            .filter(|(key, _)| maps[ROUNDS as usize].contains_key(*key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        assert!(found == of_keys, "{what}: gets find other rows, and the verification was silent");
    }
    eprintln!("{noticed} of {flips} flips were noticed, {by_verification} of them only by the verification");
    assert!(noticed * 10 > flips, "only {noticed} of {flips} flips were noticed");
}

#[test]
fn no_flipped_bit_in_the_memory_backend_is_silent() {
    no_flip_is_silent(&|dir| {
        let disk = Arc::new(RealDisk::open(dir).unwrap());
        Ok(Box::new(MemoryBackend::open(disk, MemoryOptions::default(), Arc::new(Barrier::default()))?))
    });
}

#[test]
fn no_flipped_bit_in_the_lsm_backend_is_silent() {
    no_flip_is_silent(&|dir| {
        let options = LsmOptions {
            cache_bytes: 100_000,
            memtable_bytes: 256 << 10,
            compaction: Compaction::WhenAsked,
            ..LsmOptions::new(dir.join("lsm"))
        };
        Ok(Box::new(LsmBackend::open(options, Arc::new(Barrier::default()))?))
    });
}

#[test]
fn no_flipped_bit_in_compressed_tables_of_the_lsm_backend_is_silent() {
    let finish = |backend: &dyn Backend| {
        let before = backend.stats().disk_bytes;
        backend.compact().unwrap();
        let after = backend.stats().disk_bytes;
        assert!(after < before, "{after} of {before} bytes");
    };
    no_flip_is_silent_after(&finish, &|dir| {
        let options = LsmOptions {
            cache_bytes: 100_000,
            memtable_bytes: 256 << 10,
            compression: TableCompression::Lz4,
            compaction: Compaction::WhenAsked,
            ..LsmOptions::new(dir.join("lsm"))
        };
        Ok(Box::new(LsmBackend::open(options, Arc::new(Barrier::default()))?))
    });
}

#[test]
fn no_flipped_bit_in_the_redb_backend_is_silent() {
    no_flip_is_silent(&|dir| {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir).unwrap());
        let options =
            RedbOptions { cache_bytes: 400_000, buffer: small_buffer(SyncMode::BehindLog), ..RedbOptions::default() };
        Ok(Box::new(RedbBackend::open(&disk, options, Arc::new(Barrier::default()))?))
    });
}

#[test]
fn no_flipped_bit_in_the_sqlite_backend_is_silent() {
    no_flip_is_silent(&|dir| {
        let options = SqliteOptions {
            cache_bytes: 400_000,
            buffer: small_buffer(SyncMode::BehindLog),
            ..SqliteOptions::new(dir.join("sqlite"))
        };
        Ok(Box::new(SqliteBackend::open(options, Arc::new(Barrier::default()))?))
    });
}
