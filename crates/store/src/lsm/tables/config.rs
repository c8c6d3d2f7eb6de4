//! Configuration of the LSM crate.
//!
//! Owns: the properties of the tables that the crate writes: their blocks, filters and compression on each level. Does
//! not own: reading tables. A reader takes these properties from the table itself, so tables written with different
//! options can be in one directory.

use std::{path::Path, sync::Arc};

use lsm_tree::{
    Cache, CompressionType, Config, SequenceNumberCounter,
    config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry},
    config::{HashRatioPolicy, PartitioningPolicy, PinningPolicy, RestartIntervalPolicy},
};

use crate::{backend::BackendError, lsm::TableCompression};

/// Size in bytes at which the crate begins a new data block.
pub(super) const BLOCK_BYTES: u32 = 16 * 1024;
/// Bits for each key in the bloom filters, by level, level 0 first. The last level has most keys, so it gets the fewest
/// bits; a small tree has only level 0 and the last level. A read of a missing key checks every run. Level 0 has many
/// sorted runs with few keys, so more bits there cost little memory. With six runs on level 0 and three levels below
/// it, 1.6 % of the reads of missing keys read a block for nothing.
const FILTER_BITS_PER_KEY: [f32; 7] = [18.0, 12.0, 12.0, 12.0, 12.0, 12.0, 10.0];
const CRATE_CACHE_BYTES: u64 = 1 << 20;

/// Returns the LSM crate's configuration for the tables in `dir`. Tables below level 0 are compressed with
/// `below_level_0`.
pub(super) fn config(dir: &Path, below_level_0: CompressionType) -> Config {
    let filter = |bits| FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(bits));
    Config::new(dir, SequenceNumberCounter::default(), SequenceNumberCounter::default())
        // The crate's cache serves only its reads while it opens a table; data blocks are in our own cache.
        .use_cache(Arc::new(Cache::with_capacity_bytes(CRATE_CACHE_BYTES)))
        .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        .data_block_restart_interval_policy(RestartIntervalPolicy::all(1))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(0.0))
        .data_block_compression_policy(compression_by_level(below_level_0))
        .index_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .filter_policy(FilterPolicy::new(FILTER_BITS_PER_KEY.map(filter)))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        // Our own table handles have the index and filter in memory; the crate needs its copies only while it opens a
        // table.
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::all(false))
}

/// Returns the compression of data blocks on each level.
///
/// Tables on level 0 are not compressed, because each flush waits until its table is written. Tables on level 1 are
/// compressed, although compactions of level 0 rewrite them often, because they can become tables of deeper levels
/// without being written again. This happens in two ways. The crate counts the first level below level 0 that has
/// tables as level 1, and fills levels from the last one up, so a table's level number can grow. A table that overlaps
/// no other is moved down as it is. A compaction of all tables writes to the last level.
fn compression_by_level(below_level_0: CompressionType) -> CompressionPolicy {
    CompressionPolicy::new([CompressionType::None, below_level_0])
}

/// Returns the LSM crate's value for a compression. Fails if this build does not contain the compression.
pub(super) fn compression_type(compression: TableCompression) -> Result<CompressionType, BackendError> {
    match compression {
        TableCompression::None => Ok(CompressionType::None),
        #[cfg(feature = "lz4")]
        TableCompression::Lz4 => Ok(CompressionType::Lz4),
        #[cfg(not(feature = "lz4"))]
        TableCompression::Lz4 => Err(BackendError::CompressionNotBuilt { compression: compression.name() }),
    }
}

#[cfg(test)]
#[cfg(not(feature = "lz4"))]
mod lean_tests {
    use super::*;

    #[test]
    fn a_build_without_a_compression_says_so() {
        let error = compression_type(TableCompression::Lz4).unwrap_err();
        assert!(matches!(error, BackendError::CompressionNotBuilt { compression: "lz4" }), "{error}");
    }
}

#[cfg(test)]
#[cfg(feature = "lz4")]
mod tests {
    use std::{
        collections::BTreeMap,
        ops::{Bound, ControlFlow},
    };

    use super::{
        super::{
            cursor::RunCursor,
            store::{TableOptions, TableStore},
            table::TableEntry,
        },
        *,
    };
    use crate::{
        backend::{Applied, Direction, VerifiedRows, WriteBatch},
        cursor::Cursor as _,
        memtable::Memtable,
        span::{Reads, Span},
    };

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    fn open(dir: &Path, table_bytes: u64, compression: TableCompression) -> TableStore {
        let options = TableOptions { cache_bytes: 64 << 20, table_bytes, page_cache_bytes: u64::MAX, compression };
        TableStore::open(dir, options, Default::default()).unwrap()
    }

    /// Flushes one memtable with `keys` to level 0, and puts its pairs into `map`.
    fn flush(store: &TableStore, keys: impl Iterator<Item = u32>, map: &mut Map) {
        let (memtable, mut writer) = Memtable::create(4 << 20);
        let mut batch = WriteBatch::new();
        for key in keys {
            let (key, value) = ([b"k", &key.to_be_bytes()[..]].concat(), vec![key as u8; 100]);
            batch.put(&[&key], &[&value]);
            map.insert(key, value);
        }
        writer.apply(&batch).unwrap();
        store.flush(memtable.changes(), Applied::default()).unwrap();
    }

    /// Returns the compressions of the tables on each level that has tables, level 0 first.
    fn compressions(store: &TableStore) -> Vec<Vec<CompressionType>> {
        let set = store.newest();
        let mut tables = set.tables().map(|table| table.compression());
        let mut levels: Vec<Vec<_>> =
            set.tables_per_level().iter().map(|count| tables.by_ref().take(*count as usize).collect()).collect();
        levels.retain(|tables| !tables.is_empty());
        levels
    }

    /// Checks all pairs by key and, if there is only one sorted run, by a scan. Also checks the checksums of the
    /// tables.
    fn check(store: &TableStore, map: &Map) {
        let set = store.newest();
        for (key, value) in map {
            let found = set.get(key).unwrap();
            assert!(matches!(found, Some(TableEntry::Value(found)) if found == *value), "{key:?}");
        }
        let mut verified = VerifiedRows::default();
        for table in set.tables() {
            assert!(table.verify(&mut verified, &mut |_| ControlFlow::Continue(())).unwrap().is_continue());
        }
        assert_eq!(verified.rows, set.item_count());
        let [run] = set.runs() else { return };
        let upper = Bound::Excluded(super::super::RESERVED);
        let span = Span { lower: Bound::Unbounded, upper, direction: Direction::Reverse, reads: Reads::Once };
        let mut scanned = Map::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            scanned.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        RunCursor::open(run.tables(), span).unwrap().unwrap().walk(&mut visit).unwrap();
        assert!(scanned == *map);
    }

    #[test]
    fn a_directory_opens_after_the_compression_was_changed_and_takes_the_new_one_when_compacted() {
        let (none, lz4) = (CompressionType::None, CompressionType::Lz4);
        let dir = tempfile::tempdir().unwrap();
        let (mut map, mut bytes) = (Map::new(), Vec::new());
        for (round, (chosen, before, after)) in [
            (TableCompression::None, none, none),
            (TableCompression::Lz4, none, lz4),
            (TableCompression::None, lz4, none),
            (TableCompression::Lz4, none, lz4),
            (TableCompression::Lz4, lz4, lz4),
        ]
        .into_iter()
        .enumerate()
        {
            let store = open(dir.path(), 64 << 20, chosen);
            check(&store, &map);
            if round == 0 {
                flush(&store, 0..10_000, &mut map);
                // A table that overlaps no other is moved to the last level without being written again.
                while store.compact().unwrap().is_some() {}
            }
            assert_eq!(compressions(&store), [[before]], "round {round}");
            let compacted = store.compact_all().unwrap();
            assert_eq!(compacted.is_some(), before != after, "round {round}");
            assert_eq!(compressions(&store), [[after]], "round {round}");
            assert!(store.compact_all().unwrap().is_none(), "nothing is left to do");
            bytes.push(store.newest().disk_bytes());
            check(&store, &map);
        }
        assert!(bytes[1] * 3 < bytes[0] && bytes[3] * 3 < bytes[2] && bytes[4] == bytes[3], "{bytes:?}");
    }

    #[test]
    fn all_levels_below_level_0_are_compressed_even_if_keys_are_written_in_order() {
        for is_in_order in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path(), 32 << 10, TableCompression::Lz4);
            let (mut map, mut most_levels) = (Map::new(), 0);
            for round in 0..200_u32 {
                let numbers = round * 200..(round + 1) * 200;
                let key = |number: u32| if is_in_order { number } else { number.wrapping_mul(0x9e37_79b9) };
                flush(&store, numbers.map(key), &mut map);
                assert!(compressions(&store)[0].iter().all(|found| *found == CompressionType::None), "level 0");
                while store.compact().unwrap().is_some() {
                    let levels = store.newest().tables_per_level()[1..].iter().filter(|tables| **tables > 0).count();
                    most_levels = levels.max(most_levels);
                }
            }
            let set = store.newest();
            let tables: Vec<_> = set.tables().map(|table| table.compression()).collect();
            let (level_0, below) = tables.split_at(set.tables_per_level()[0] as usize);
            assert!(level_0.iter().all(|found| *found == CompressionType::None), "{tables:?}");
            // Level 1 has become level 2 at least once.
            assert!(most_levels > 1 && below.iter().all(|found| *found == CompressionType::Lz4), "{tables:?}");
            check(&store, &map);
        }
    }

    #[test]
    fn the_cache_counts_what_compressed_blocks_have_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), 64 << 20, TableCompression::Lz4);
        let mut map = Map::new();
        flush(&store, 0..10_000, &mut map);
        store.compact_all().unwrap().unwrap();
        let payload: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(store.warm(&|| true).unwrap());
        let cached = store.cached_bytes();
        assert!(cached > payload as u64, "{cached} bytes in memory for {payload} bytes");
        assert!(store.newest().disk_bytes() * 3 < cached);
        check(&store, &map);
        assert_eq!(store.cached_bytes(), cached, "all blocks are in memory");
    }
}
