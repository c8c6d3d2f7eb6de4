//! Producers, expectations, compaction by key, limits of streams.
