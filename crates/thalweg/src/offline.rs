//! Options with which a command opens a data directory without a server.
//!
//! Owns: the choice of these options for the memory of this machine. Does not own: the rule that computes bounds from
//! the memory, which is that of `serve` (`thalweg_server::config`).
//!
//! Invariant: on a machine with enough memory, the options are the defaults of the engine.

use thalweg_engine::Options;
use thalweg_server::config::{AvailableMemory, Layers};

use crate::failure::Failure;

/// Returns the engine's default options with the bounds on memory that `serve` has by default. The database that a
/// command opens in a control group with little memory then stays within the group's limit. The command's own buffers
/// are not counted.
pub(crate) fn options() -> Result<Options, Failure> {
    options_within(AvailableMemory::of_this_process())
}

/// Returns the options for a machine or a control group with this memory; `None` if its size is unknown.
fn options_within(available: Option<AvailableMemory>) -> Result<Options, Failure> {
    let resolved = Layers::new().resolve_within(available).map_err(|error| Failure::of(&error))?;
    let (bounded, defaults) = (resolved.engine_options(), Options::default());
    let has_enough = bounded.cache_bytes >= defaults.cache_bytes && bounded.memtable_bytes >= defaults.memtable_bytes;
    // With enough memory, a command may leave all the tables that it writes in the page cache: it shares the machine
    // with no clients.
    let page_cache_bytes = if has_enough { defaults.page_cache_bytes } else { bounded.page_cache_bytes };
    Ok(Options { page_cache_bytes, ..bounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn for_memory(bytes: u64) -> Options {
        options_within(Some(AvailableMemory { bytes, limited_by: None })).unwrap()
    }

    #[test]
    fn options_stay_within_a_small_memory() {
        for bytes in [64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB] {
            let options = for_memory(bytes);
            let state = options.cache_bytes + 4 * options.memtable_bytes as u64 + options.compaction_key_bytes as u64;
            let queues = (options.max_queue_bytes + options.max_watch_queues_bytes) as u64;
            assert!(state + queues <= bytes, "{} MiB: {options:?}", bytes / MIB);
            // Half of the memory stays free for the page cache and for the command itself.
            assert!(bytes < 256 * MIB || state + queues <= bytes / 2, "{} MiB: {options:?}", bytes / MIB);
            assert!(options.page_cache_bytes < bytes, "{} MiB: {options:?}", bytes / MIB);
        }
    }

    #[test]
    fn a_large_machine_and_an_unknown_one_have_the_defaults() {
        assert_eq!(for_memory(16 * 1024 * MIB), Options::default());
        assert_eq!(for_memory(256 * 1024 * MIB), Options::default());
        assert_eq!(options_within(None).unwrap(), Options::default());
    }
}
