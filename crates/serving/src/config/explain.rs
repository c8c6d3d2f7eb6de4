//! Text of `serve --explain`: every configuration value, its source, and the sum of the memory bounds. Also the text of
//! the example file.
//!
//! Owns: the worst case of each memory bound with its sum, and both texts. Does not own: the choice of bounds that fit
//! into the memory (`memory`), or the help of flags.

use std::fmt::Write as _;

use super::{ByteSize, Config, KNOBS, MemorySize, Resolved, RespAddress, memory::FOLLOWERS};

use thalweg_types::limits::MAX_WATCH_QUEUE_BYTES;

use crate::limits::{
    CACHED_SUBJECT_BYTES, CLEARS_TABLE_BYTES, COLD_READ_BYTES, CONNECTION_BYTES, COUNTED_PAGE_BYTES,
    COUNTED_REPLY_BYTES, COUNTED_TAIL_BYTES, HANDSHAKE_BYTES, MAX_COLD_READ_THREADS, MAX_STATUS_CONNECTIONS,
    NATIVE_PAGE_BYTES, OUTBOX_BYTES, OWN_CLEARS_TABLES, PUSH_LEDGER_BYTES, QUIC_SEND_BYTES, QUIC_SOCKET_BYTES,
    REQUEST_BYTES, RESP_CURSORS_BYTES, SUBSCRIPTION_BYTES, TAIL_PAGE_BYTES,
};

/// Memory in bytes of a tail (a client that follows the end of a stream): the page that is being sent, and the next
/// page. Pages of native clients are the largest, so they are counted. A watch over HTTP needs as much: a page's worth
/// of changes, and a shorter page that is being sent. A page of a single larger record is not included. It counts as a
/// reply, and its sender waits until the bound on replies permits it.
const TAIL_BYTES: u64 = 2 * NATIVE_PAGE_BYTES;
const _: () = assert!(TAIL_PAGE_BYTES as u64 <= NATIVE_PAGE_BYTES);
const _: () = assert!(MAX_WATCH_QUEUE_BYTES + COUNTED_TAIL_BYTES <= TAIL_BYTES as usize);

/// Maximum bytes of uncounted replies that one native client can have in memory: an outbox just below its limit, and
/// one frame just below the size from which replies are counted.
const NATIVE_REPLIES_BYTES: u64 = (OUTBOX_BYTES + COUNTED_REPLY_BYTES) as u64;

/// Number of chunks that a snapshot in progress has in memory. Up to four threads compress. Each of them has a chunk
/// before, a chunk in and a chunk after compression. Further chunks are being gathered and sent.
pub(super) const SNAPSHOT_CHUNKS: u64 = 16;

impl Config {
    /// Returns the worst-case memory of each bound, with the sum last. This does not include the page cache, which the
    /// kernel can reclaim, about 20 MiB for the program itself, and the stored data of the memory backend (see
    /// [`Resolved::explain`]).
    #[must_use]
    pub fn memory(&self) -> Vec<(String, ByteSize)> {
        let times = |count: u32, bytes: u64| u64::from(count).saturating_mul(bytes);
        let snapshot_bytes = SNAPSHOT_CHUNKS * self.snapshot_chunk_bytes() as u64;
        let mut parts = vec![
            ("block cache: cache_bytes".to_owned(), self.cache_bytes.0),
            ("memtables: 4 x memtable_bytes".to_owned(), self.memtable_bytes.0.saturating_mul(4)),
            (
                "streams, consumer groups, their unsettled records, and leases: max_object_bytes".to_owned(),
                self.max_object_bytes.0,
            ),
            ("queued commands: max_queue_bytes".to_owned(), self.max_queue_bytes.0),
            (
                "request bodies: 3 x max_body_bytes_in_flight".to_owned(),
                self.max_body_bytes_in_flight.0.saturating_mul(3),
            ),
            (
                format!("connections: max_connections x {}", ByteSize(CONNECTION_BYTES)),
                times(self.max_connections, CONNECTION_BYTES),
            ),
            (
                format!(
                    "connections for health and metrics: {MAX_STATUS_CONNECTIONS} x {}",
                    ByteSize(CONNECTION_BYTES)
                ),
                MAX_STATUS_CONNECTIONS as u64 * CONNECTION_BYTES,
            ),
            (
                format!("native handshakes: max_handshakes x {}", ByteSize(HANDSHAKE_BYTES)),
                times(self.max_handshakes, HANDSHAKE_BYTES),
            ),
            (
                format!("QUIC sockets: native_quic_sockets x {}", ByteSize(QUIC_SOCKET_BYTES)),
                times(if self.serves_quic() { self.native_quic_sockets } else { 0 }, QUIC_SOCKET_BYTES),
            ),
            (
                format!(
                    "QUIC connections: max_quic_connections x (2 x native_quic_window + {})",
                    ByteSize(QUIC_SEND_BYTES)
                ),
                times(
                    if self.serves_quic() { self.max_quic_connections } else { 0 },
                    self.native_quic_window.0.saturating_mul(2).saturating_add(QUIC_SEND_BYTES),
                ),
            ),
            (
                format!("queued replies to native clients: max_connections x {}", ByteSize(NATIVE_REPLIES_BYTES)),
                times(self.max_connections, NATIVE_REPLIES_BYTES),
            ),
            (
                "queued large replies, all protocols: max_reply_bytes_in_flight".to_owned(),
                self.max_reply_bytes_in_flight.0,
            ),
            (format!("large reads in progress: 2 x {}", ByteSize(self.reading_bytes())), 2 * self.reading_bytes()),
            (
                format!("cold reads in progress: {MAX_COLD_READ_THREADS} x {}", ByteSize(COLD_READ_BYTES)),
                MAX_COLD_READ_THREADS as u64 * COLD_READ_BYTES,
            ),
            (
                format!("requests: max_requests_in_flight x {}", ByteSize(REQUEST_BYTES)),
                times(self.max_requests_in_flight, REQUEST_BYTES),
            ),
            (
                format!("scans: max_scans x 2 x {}", ByteSize(COUNTED_PAGE_BYTES as u64)),
                times(self.max_scans, 2 * COUNTED_PAGE_BYTES as u64),
            ),
            (
                format!(
                    "prefixes of deletes that wait, for each scan: (max_scans + {OWN_CLEARS_TABLES}) x {}",
                    ByteSize(CLEARS_TABLE_BYTES)
                ),
                times(self.max_scans, CLEARS_TABLE_BYTES) + OWN_CLEARS_TABLES * CLEARS_TABLE_BYTES,
            ),
            (
                format!(
                    "tails, pushes and watches, and subscribers over HTTP: max_tails x ({} + {PUSH_LEDGER_BYTES})",
                    ByteSize(TAIL_BYTES)
                ),
                times(self.max_tails, TAIL_BYTES + PUSH_LEDGER_BYTES),
            ),
            ("queued changes for watches".to_owned(), self.watch_queues_bytes()),
            (
                format!("snapshots in progress: {} x {}", self.max_snapshots(), ByteSize(snapshot_bytes)),
                self.max_snapshots() * snapshot_bytes,
            ),
            ("keys of a stream during compaction".to_owned(), self.compaction_key_bytes()),
            (
                format!("subscriptions: max_subscriptions x {SUBSCRIPTION_BYTES}"),
                times(self.max_subscriptions, SUBSCRIPTION_BYTES),
            ),
            (
                "message batches: max_connections x batch_bytes".to_owned(),
                times(self.max_connections, self.batch_bytes.0),
            ),
            ("queued messages for subscribers: max_queued_bytes".to_owned(), self.max_queued_bytes.0),
            (
                format!("cached subjects: {} x {CACHED_SUBJECT_BYTES}", self.cached_subjects()),
                self.cached_subjects() as u64 * CACHED_SUBJECT_BYTES,
            ),
            ("caches: max_caches_bytes".to_owned(), self.max_caches_bytes.0),
            (
                "scans of Redis clients in progress".to_owned(),
                if self.resp == RespAddress::Off { 0 } else { RESP_CURSORS_BYTES },
            ),
        ];
        parts.extend(self.cluster_memory());
        let sum = parts.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        parts.push(("sum".to_owned(), sum));
        parts.into_iter().map(|(what, bytes)| (what, ByteSize(bytes))).collect()
    }
}

impl Resolved {
    /// Returns the text that `serve --explain` prints.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut out = String::new();
        for (knob, source) in KNOBS.iter().zip(&self.sources) {
            let value = self.config.get(knob.name).unwrap_or_default();
            let _ = writeln!(out, "{:<26} {:<22} {source}", knob.name, value);
        }
        if let Some(bytes) = self.memory.bytes {
            let _ = write!(out, "\n{} MiB of memory", bytes / (1024 * 1024));
            let half = if self.config.memory == MemorySize::Auto { "half" } else { "out" };
            let _ = match &self.memory.available {
                Some(there) => writeln!(out, ", {half} of the {there}"),
                None => writeln!(out),
            };
        }
        out.push_str("\nworst-case memory, without the page cache:\n");
        for (what, bytes) in self.config.memory() {
            let _ = writeln!(out, "  {:>10.1} MiB  {what}", bytes.0 as f64 / (1024.0 * 1024.0));
        }
        if self.config.backend.0 == Some(thalweg_engine::BackendKind::Memory) {
            out.push_str("  plus all stored data: the memory backend keeps it in memory\n");
        }
        for warning in self.warnings() {
            let _ = writeln!(out, "  warning: {warning}");
        }
        out
    }
}

/// Returns the text of the example configuration file: every knob with its default, and a comment on its
/// effect and cost.
#[must_use]
pub fn example(defaults: &Config) -> String {
    let mut out = String::from(
        "# Every key of a server's configuration, with its default. Flags (--max-scans 10) win over the\n\
         # environment (THALWEG_MAX_SCANS=10), which wins over this file, which wins over the defaults.\n\
         # A key that is not listed here is an error. Keys in comments follow from `memory`; they show the values for\n\
         # 16 GiB or more.\n",
    );
    for knob in KNOBS {
        out.push('\n');
        for line in wrap(knob.help, 100) {
            let _ = writeln!(out, "# {line}");
        }
        let value = defaults.get(knob.name).unwrap_or_default();
        let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let bare = value == "true" || value == "false" || is_number;
        let comment = if FOLLOWERS.contains(&knob.name) { "# " } else { "" };
        let _ = match bare {
            true => writeln!(out, "{comment}{} = {value}", knob.name),
            false => writeln!(out, "{comment}{} = {value:?}", knob.name),
        };
    }
    out
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
