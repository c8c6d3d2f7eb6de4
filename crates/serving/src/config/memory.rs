//! The memory that a server may use, and the bounds that follow from it.
//!
//! Owns: the share of the memory that each bound gets. Does not own: the sum of the bounds (`explain`), the memory that
//! the system offers ([`memory_size`](super::memory_size)).
//!
//! Invariants: this module never changes a knob that a file, a variable or a flag sets. If the size of the memory is
//! unknown, or at least 16 GiB, the bounds are those of [`DEFAULTS`](super::DEFAULTS).

use thalweg_types::limits::{
    DEFAULT_CACHED_SUBJECTS, MAX_COMMAND_BYTES, MAX_COMPACTION_KEY_BYTES, MAX_OPEN_SNAPSHOTS, MAX_VALUE_BYTES,
    MAX_WATCH_QUEUES_BYTES, MIN_CACHE_BYTES, SNAPSHOT_CHUNK_BYTES,
};

use super::{AvailableMemory, ByteSize, Config, ConfigError, ConfigLayer, MemorySize, memory_size::LEAST_REPLY_BYTES};
use crate::limits::{
    CONNECTION_BYTES, COUNTED_PAGE_BYTES, COUNTED_REPLY_BYTES, HANDSHAKE_BYTES, MAX_READING_BYTES, NATIVE_PAGE_BYTES,
    OUTBOX_BYTES, PUSH_LEDGER_BYTES, QUIC_SEND_BYTES, QUIC_SOCKET_BYTES, REQUEST_BYTES, SUBSCRIPTION_BYTES,
};
use crate::reserve::least_with_reserve;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Memory in bytes of a connection with full buffers, as counted in the sum that `--explain` shows. Does not include
/// the connection's message batch.
const CONNECTION_SUM_BYTES: u64 = CONNECTION_BYTES + (OUTBOX_BYTES + COUNTED_REPLY_BYTES) as u64;

/// Memory in bytes of a tail of a stream or a push of group records, as counted in the sum that `--explain` shows.
const TAIL_SUM_BYTES: u64 = 2 * NATIVE_PAGE_BYTES + PUSH_LEDGER_BYTES;

/// Knobs whose values follow from the knob `memory` unless an operator sets them. The example configuration file shows
/// them as comments.
pub(super) const FOLLOWERS: [&str; 21] = [
    "native_quic_sockets",
    "native_quic_window",
    "cache_bytes",
    "memtable_bytes",
    "max_object_bytes",
    "max_queue_bytes",
    "max_connections",
    "max_quic_connections",
    "max_handshakes",
    "max_requests_in_flight",
    "max_body_bytes_in_flight",
    "max_reply_bytes_in_flight",
    "max_scans",
    "max_tails",
    "batch_bytes",
    "max_subscriptions",
    "subscription_bytes",
    "max_link_bytes",
    "max_queued_bytes",
    "max_caches_bytes",
    "new_cache_bytes",
];

/// Knobs of [`FOLLOWERS`] that bound memory of the state or of caches. The others bound the resources of clients.
const OF_STATE: [&str; 5] =
    ["cache_bytes", "memtable_bytes", "max_object_bytes", "max_caches_bytes", "new_cache_bytes"];

/// Bounds without a knob of their own. Each is computed from the value of a knob.
impl Config {
    /// Maximum number of bytes that reads on the threads for long reads may request at a time: a quarter of
    /// `max_reply_bytes_in_flight`, and at least a value of the maximum size.
    #[must_use]
    pub fn reading_bytes(&self) -> u64 {
        (self.max_reply_bytes_in_flight.0 / 4).clamp(MAX_VALUE_BYTES as u64 + 4 * MIB, MAX_READING_BYTES.into())
    }

    /// Maximum number of snapshots in progress: one for each 32 MiB of `max_reply_bytes_in_flight`, and at least two,
    /// so that one client address cannot hold all.
    #[must_use]
    pub fn max_snapshots(&self) -> u64 {
        (self.max_reply_bytes_in_flight.0 / (32 * MIB)).clamp(2, MAX_OPEN_SNAPSHOTS as u64)
    }

    /// Returns the number of bytes of rows in a chunk of a snapshot. If `max_reply_bytes_in_flight` is below 64 MiB,
    /// chunks have half their usual size. Two snapshots then need as much memory as one with full chunks.
    #[must_use]
    pub fn snapshot_chunk_bytes(&self) -> usize {
        let is_small = self.max_reply_bytes_in_flight.0 < 64 * MIB;
        if is_small { SNAPSHOT_CHUNK_BYTES / 2 } else { SNAPSHOT_CHUNK_BYTES }
    }

    /// Returns the maximum number of bytes of changes that are queued for watches: a quarter of `max_queued_bytes`,
    /// within fixed limits.
    #[must_use]
    pub fn watch_queues_bytes(&self) -> u64 {
        (self.max_queued_bytes.0 / 4).clamp(4 * MIB, MAX_WATCH_QUEUES_BYTES as u64)
    }

    /// Returns the maximum number of bytes of keys that a compaction of a stream has in memory: half of
    /// `memtable_bytes`, within fixed limits.
    #[must_use]
    pub fn compaction_key_bytes(&self) -> u64 {
        (self.memtable_bytes.0 / 2).clamp(4 * MIB, MAX_COMPACTION_KEY_BYTES as u64)
    }

    /// Returns the maximum number of subjects for which the list of matching subscriptions is cached: as many as there
    /// may be subscriptions, within fixed limits.
    #[must_use]
    pub fn cached_subjects(&self) -> usize {
        (self.max_subscriptions as usize).clamp(1000, DEFAULT_CACHED_SUBJECTS)
    }
}

/// Memory that a server may use, from the configuration or from the size that the system reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Number of bytes that the server may use; `None` if the configuration states none and the system reports none.
    pub bytes: Option<u64>,
    /// Memory that the system offers; `None` if the system does not report it.
    pub available: Option<AvailableMemory>,
}

impl MemoryBudget {
    /// Determines the memory from the knob and from the memory that the system offers. Returns an error if the knob
    /// states more than the system offers.
    pub(super) fn new(memory: MemorySize, available: Option<AvailableMemory>) -> Result<Self, ConfigError> {
        let bytes = match (memory, &available) {
            (MemorySize::Bytes(given), Some(there)) if given.0 > there.bytes => {
                return Err(ConfigError::Memory { asked: given, available: there.clone() });
            }
            (MemorySize::Bytes(given), _) => Some(given.0),
            (MemorySize::Auto, there) => there.as_ref().map(|there| there.bytes / 2),
        };
        Ok(Self { bytes, available })
    }

    /// Returns the number of bytes that the system has for its page cache: the memory that the system offers, minus the
    /// server's. If the system does not report its memory, returns `u64::MAX`.
    #[must_use]
    pub fn page_cache_bytes(&self) -> u64 {
        self.available.as_ref().map_or(u64::MAX, |there| there.bytes.saturating_sub(self.bytes.unwrap_or(0)))
    }

    /// Returns a warning if `sum`, the bytes of all bounds together, exceeds the memory that the system offers.
    #[must_use]
    pub fn warning(&self, sum: ByteSize) -> Option<String> {
        let there = self.available.as_ref().filter(|there| sum.0 > there.bytes)?;
        Some(format!(
            "the memory bounds add up to {} MiB, above the {there}: the system may kill the server if clients use all of \
             them at the same time; lower the largest bounds that `serve --explain` lists",
            sum.0 / MIB
        ))
    }
}

/// Rule that computes a memory bound: a fraction of the server's memory, but not less than a minimum.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Divisor: the bound is the memory divided by this number.
    part: u64,
    /// Minimum of the bound in bytes, however small the memory is.
    least: u64,
}

/// Computes the bounds that follow from the memory, for those knobs of `config` that are not set. `config` has the
/// merged values of all layers. The result contains only the values that differ from `config`. If possible, all bounds
/// together fit into the memory that the configuration states. If it states none, they fit into all memory that the
/// system offers.
///
/// Each bound is a fraction of `memory`. If the sum is too large, the bounds on clients shrink first, down to the
/// minimum at which every request works. After them, the bounds of the state shrink. The links of a cluster member have
/// fixed bounds. They are part of the sum, but do not shrink the other bounds below half of the memory.
pub(super) fn plan(config: &Config, budget: &MemoryBudget, is_set: impl Fn(&str) -> bool + Copy) -> ConfigLayer {
    let Some(memory) = budget.bytes else { return ConfigLayer::default() };
    let is_stated = config.memory != MemorySize::Auto;
    let limit = match &budget.available {
        Some(there) if !is_stated => there.bytes,
        _ => memory,
    };
    let at = |state: u64, clients: u64| follow(config, state, clients, is_stated, is_set);
    let fits = |layer: &ConfigLayer| {
        let mut planned = config.clone();
        planned.take(layer);
        // The links of a member have fixed bounds. They must leave at least half of the memory to the other bounds.
        let of_cluster = planned.cluster_memory().iter().map(|(_, bytes)| bytes).sum::<u64>();
        let excess = of_cluster.saturating_sub(limit / 2);
        planned.memory().last().is_none_or(|(_, sum)| sum.0 - excess <= limit)
    };
    let whole = at(memory, memory);
    if fits(&whole) {
        return whole;
    }
    // Finds the largest part of the memory, in steps of 1/256, at which the sum of the bounds fits.
    let largest =
        |of: &dyn Fn(u64) -> ConfigLayer| (0..256).rev().map(|part| of(memory / 256 * part)).find(|layer| fits(layer));
    let found = largest(&|clients| at(memory, clients)).or_else(|| largest(&|state| at(state, 0)));
    // If no part fits, knobs that are set may be too large already. Then shrinking the other bounds would not help.
    found.unwrap_or_else(|| if FOLLOWERS.iter().any(|name| is_set(name)) { whole } else { at(0, 0) })
}

/// Computes the bounds of the state as parts of `state` bytes, and the bounds on clients as parts of `clients` bytes. A
/// bound does not exceed its default, with one exception: if the operator stated the memory (`may_grow`), the block
/// cache, the stored objects and the caches may grow above it.
fn follow(config: &Config, state: u64, clients: u64, may_grow: bool, is_set: impl Fn(&str) -> bool) -> ConfigLayer {
    let rounded = |bytes: u64| if bytes >= MIB { bytes / MIB * MIB } else { bytes / KIB * KIB };
    let size = |name: &str, now: ByteSize, Share { part, least }: Share, grows: bool| {
        let memory = if OF_STATE.contains(&name) { state } else { clients };
        let share = rounded(memory / part).max(least);
        let share = if grows && may_grow { share } else { share.min(now.0) };
        (!is_set(name) && share != now.0).then_some(ByteSize(share))
    };
    let count = |name: &str, now: u32, Share { part, least }: Share, each: u64| {
        let share = (clients / part / each).max(least).min(now.into()) as u32;
        (!is_set(name) && share != now).then_some(share)
    };
    let or = |derived: Option<ByteSize>, now: ByteSize| derived.unwrap_or(now).0;
    let window = size("native_quic_window", config.native_quic_window, Share { part: 1024, least: 128 * KIB }, false);
    let quic_bytes = 2 * or(window, config.native_quic_window) + QUIC_SEND_BYTES;
    let subscription =
        size("subscription_bytes", config.subscription_bytes, Share { part: 128, least: 256 * KIB }, false);
    let least = or(subscription, config.subscription_bytes);
    let link = size("max_link_bytes", config.max_link_bytes, Share { part: 32, least }, false);
    let least = or(link, config.max_link_bytes);
    let queued = size("max_queued_bytes", config.max_queued_bytes, Share { part: 16, least }, false);
    // Room for the largest body, and for the reserve of other clients.
    let least_bodies = least_with_reserve(config.max_body_bytes.0, config.share_reserve_percent).next_multiple_of(MIB);
    let batch = size("batch_bytes", config.batch_bytes, Share { part: 4096, least: 16 * KIB }, false);
    // Room for the largest command, and for other commands behind it.
    let queue = Share { part: 16, least: MAX_COMMAND_BYTES as u64 + 8 * MIB };
    let connection_bytes = CONNECTION_SUM_BYTES + or(batch, config.batch_bytes);
    ConfigLayer {
        native_quic_window: window,
        native_quic_sockets: count(
            "native_quic_sockets",
            config.native_quic_sockets,
            Share { part: 64, least: 1 },
            QUIC_SOCKET_BYTES,
        ),
        batch_bytes: batch,
        cache_bytes: size("cache_bytes", config.cache_bytes, Share { part: 8, least: 4 * MIB }, true),
        memtable_bytes: size("memtable_bytes", config.memtable_bytes, Share { part: 32, least: MIB }, false),
        max_object_bytes: size("max_object_bytes", config.max_object_bytes, Share { part: 8, least: 2 * MIB }, true),
        max_queue_bytes: size("max_queue_bytes", config.max_queue_bytes, queue, false),
        max_connections: count(
            "max_connections",
            config.max_connections,
            Share { part: 4, least: 96 },
            connection_bytes,
        ),
        max_quic_connections: count(
            "max_quic_connections",
            config.max_quic_connections,
            Share { part: 6, least: 16 },
            quic_bytes,
        ),
        max_handshakes: count("max_handshakes", config.max_handshakes, Share { part: 64, least: 32 }, HANDSHAKE_BYTES),
        max_requests_in_flight: count(
            "max_requests_in_flight",
            config.max_requests_in_flight,
            Share { part: 64, least: 256 },
            REQUEST_BYTES,
        ),
        max_body_bytes_in_flight: size(
            "max_body_bytes_in_flight",
            config.max_body_bytes_in_flight,
            Share { part: 16, least: least_bodies },
            false,
        ),
        max_reply_bytes_in_flight: size(
            "max_reply_bytes_in_flight",
            config.max_reply_bytes_in_flight,
            Share { part: 8, least: LEAST_REPLY_BYTES },
            false,
        ),
        max_scans: count("max_scans", config.max_scans, Share { part: 16, least: 4 }, 2 * COUNTED_PAGE_BYTES as u64),
        max_tails: count("max_tails", config.max_tails, Share { part: 12, least: 32 }, TAIL_SUM_BYTES),
        max_subscriptions: count(
            "max_subscriptions",
            config.max_subscriptions,
            Share { part: 32, least: 1000 },
            SUBSCRIPTION_BYTES,
        ),
        subscription_bytes: subscription,
        max_link_bytes: link,
        max_queued_bytes: queued,
        max_caches_bytes: size("max_caches_bytes", config.max_caches_bytes, Share { part: 8, least: MIB }, true),
        new_cache_bytes: size(
            "new_cache_bytes",
            config.new_cache_bytes,
            Share { part: 32, least: MIN_CACHE_BYTES },
            false,
        ),
        ..ConfigLayer::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{DEFAULTS, KNOBS, Layers, Source, memory_size::MIN_MEMORY_BYTES};

    const GIB: u64 = 1024 * MIB;

    fn machine(bytes: u64) -> Option<AvailableMemory> {
        Some(AvailableMemory { bytes, limited_by: None })
    }

    #[test]
    fn pages_of_files_get_what_the_server_leaves() {
        let resolved = Layers::new().resolve_within(machine(512 * MIB)).unwrap();
        assert_eq!(resolved.memory.page_cache_bytes(), 256 * MIB);
        assert_eq!(Layers::new().resolve_within(None).unwrap().memory.page_cache_bytes(), u64::MAX);
    }

    #[test]
    fn bounds_follow_from_half_of_what_there_is() {
        let resolve = |bytes| Layers::new().resolve_within(machine(bytes)).unwrap();
        assert_eq!(Layers::new().resolve_within(None).unwrap().config, *DEFAULTS, "the size is unknown");
        assert_eq!(resolve(32 * GIB).config, *DEFAULTS, "a large machine has the defaults");
        let mut before = DEFAULTS.clone();
        for bytes in [2 * GIB, 512 * MIB, 256 * MIB] {
            let resolved = resolve(bytes);
            let config = &resolved.config;
            let state = config.cache_bytes.0 + 4 * config.memtable_bytes.0 + config.max_caches_bytes.0;
            assert!(state + config.max_queue_bytes.0 <= bytes / 2, "{bytes}: {config:?}");
            let sum = |config: &Config| config.memory().last().unwrap().1;
            assert!(sum(config) < sum(&before));
            assert_eq!(resolved.source("cache_bytes"), Some(&Source::Memory));
            assert_eq!(resolved.source("max_body_bytes"), Some(&Source::Default));
            before = config.clone();
        }
        let text = resolve(2 * GIB).explain();
        assert!(text.contains("1024 MiB of memory, half of the 2048 MiB of this machine"), "{text}");
        assert!(resolve(2 * GIB).warnings().is_empty());
        assert!(resolve(160 * MIB).warnings()[0].contains("160 MiB of this machine"));
    }

    #[test]
    fn all_bounds_together_fit_into_the_memory() {
        let sum = |config: &Config| config.memory().last().unwrap().1.0;
        let redis = |text: &str| format!("resp = \"127.0.0.1:0\"\n{text}");
        for memory in [256 * MIB, 384 * MIB, 512 * MIB, GIB, 2 * GIB, 4 * GIB, 8 * GIB] {
            let stated = redis(&format!("memory = \"{}MiB\"", memory / MIB));
            for (text, available) in [(&*stated, 64 * GIB), (&stated, memory), (&redis(""), memory)] {
                let layers = Layers::new().file_text(Path::new("t.toml"), text).unwrap();
                let resolved = layers.resolve_within(machine(available)).unwrap();
                let config = &resolved.config;
                assert!(sum(config) <= memory, "{text}: {} of {}", sum(config) / MIB, memory / MIB);
                assert!(resolved.warnings().is_empty());
                // No bound is smaller than the need of a single request of the maximum size.
                assert!(config.max_reply_bytes_in_flight.0 >= LEAST_REPLY_BYTES && config.max_connections >= 96);
                assert!(config.max_body_bytes_in_flight.0 / 10 * 9 >= config.max_body_bytes.0, "a reserve remains");
                assert!(config.max_queue_bytes.0 > MAX_COMMAND_BYTES as u64 && config.max_snapshots() >= 2);
                assert!(config.warnings().is_empty());
                // If bounds had to shrink, they use nearly all of the memory.
                let is_short = config.max_connections < DEFAULTS.max_connections && text.contains("memory");
                assert!(!is_short || sum(config) >= memory / 16 * 13, "{text}: {} MiB", sum(config) / MIB);
            }
        }
    }

    #[test]
    fn what_is_set_wins_over_what_follows() {
        let given = "max_connections = 5000\ncache_bytes = \"100MiB\"\nmax_body_bytes = \"40MiB\"";
        let resolve = |text: &str, bytes| {
            let layers = Layers::new().file_text(Path::new("t.toml"), text).unwrap();
            layers.resolve_within(machine(bytes))
        };
        let resolved = resolve(given, 256 * MIB).unwrap();
        let config = &resolved.config;
        assert_eq!((config.max_connections, config.cache_bytes.0), (5000, 100 * MIB));
        assert_eq!(config.max_body_bytes_in_flight.0, 45 * MIB, "the largest body fits beside the reserve");
        assert_eq!(resolved.source("cache_bytes"), Some(&Source::File("t.toml".into())));
        // The stated memory counts, and not half of the machine's. The caches grow with it.
        let stated = resolve("memory = \"8GiB\"", 64 * GIB).unwrap().config;
        assert_eq!((stated.cache_bytes.0, stated.max_caches_bytes.0), (GIB, GIB));
        assert_eq!(resolve("memory = \"16GiB\"", 64 * GIB).unwrap().config.max_object_bytes.0, 2 * GIB);
        assert_eq!(stated.memtable_bytes, DEFAULTS.memtable_bytes);
        let small = resolve("memory = \"512MiB\"", 64 * GIB).unwrap().config;
        assert_eq!((small.cache_bytes.0, small.memtable_bytes.0), (64 * MIB, 16 * MIB));
        assert_eq!(small.max_object_bytes.0, 64 * MIB, "an eighth");
        let queued =
            resolve("memory = \"2GiB\"\nprofile = \"throughput\"", 64 * GIB).unwrap().config.max_queued_bytes.0;
        assert!((32 * MIB..=128 * MIB).contains(&queued), "{queued}");
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let resolve =
            |text: &str| Layers::new().file_text(Path::new("t.toml"), text).unwrap().resolve_within(machine(GIB));
        let error = resolve("memory = \"2GiB\"").unwrap_err();
        assert!(matches!(error, ConfigError::Memory { .. }), "{error}");
        assert!(
            error.to_string().contains("2GiB") && error.to_string().contains("1024 MiB of this machine"),
            "{error}"
        );
        assert!(matches!(resolve("memory = \"32MiB\""), Err(ConfigError::Range { name: "memory", .. })));
        assert!(resolve("memory = \"1GiB\"").is_ok());
        // A single bound above the memory causes a warning.
        let resolved = resolve("cache_bytes = \"2GiB\"").unwrap();
        assert!(resolved.warnings()[0].contains("1024 MiB of this machine"), "{:?}", resolved.warnings());
    }

    #[test]
    fn every_follower_is_a_knob_and_follows() {
        let config = Config::default();
        let derived = follow(&config, MIN_MEMORY_BYTES, MIN_MEMORY_BYTES, false, |_| false);
        for name in FOLLOWERS {
            assert!(derived.get(name).is_some(), "{name}");
        }
        let count = KNOBS.iter().filter(|knob| derived.get(knob.name).is_some()).count();
        assert_eq!(count, FOLLOWERS.len());
    }
}
