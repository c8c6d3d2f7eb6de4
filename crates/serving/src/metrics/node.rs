//! Metrics of the node: its log, its state, its queue of commands, and its health.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
    registry::Unit,
};
use thalweg_engine::{Database, Health, ReplicationStage, ScrubStats, Stats, WriteStage, snapshot::SnapshotStats};
use thalweg_types::Log2Histogram;

use super::encode::{NoLabels, counter, counters, gauge, gauges};

/// Collector of the node's metrics: those of its log, its state, its queue of commands, and its health.
#[derive(Debug)]
pub struct Node(pub Database);

impl Collector for Node {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let db = &self.0;
        let stats = db.stats();
        let healthy = i64::from(matches!(db.health(), Health::Good));
        gauge(&mut encoder, "healthy", "1 while all writes are accepted", healthy as u64)?;
        encode_log(&mut encoder, &stats)?;
        encode_pacer(&mut encoder, &stats)?;
        encode_engine(&mut encoder, &stats)?;
        encode_snapshots(&mut encoder, &stats.snapshots)?;
        encode_scrub(&mut encoder, &stats.scrub)?;
        encode_state(&mut encoder, &stats)
    }
}

fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, micros: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
    ConstCounter::new(micros as f64 / 1e6).encode(metric)
}

/// Encodes a histogram. `scale` converts the counted values to the unit of the metric.
fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    counted: &Log2Histogram,
    scale: f64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabels>(counted.sum as f64 * scale, counted.count(), &buckets(counted, scale), None)
}

/// Returns the upper bounds of a histogram's buckets in the unit of the metric, and the number of values in each.
fn buckets(counted: &Log2Histogram, scale: f64) -> Vec<(f64, u64)> {
    let bound = |at| Log2Histogram::upper_bound(at).map_or(f64::INFINITY, |bound| bound as f64 * scale);
    counted.buckets.iter().enumerate().map(|(at, count)| (bound(at), *count)).collect()
}

fn encode_log(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let log = &stats.log;
    counter(encoder, "log_appends", "Batches appended to the log", log.appends)?;
    counter(encoder, "log_records", "Records appended to the log", log.records)?;
    counter(encoder, "log_bytes", "Bytes written to the log, framing included", log.bytes)?;
    counter(encoder, "log_payload_bytes", "Payload bytes written to the log", log.payload_bytes)?;
    counter(encoder, "log_syncs", "fsyncs of the log", log.syncs)?;
    seconds(encoder, "log_sync", "Time spent in fsyncs of the log", log.sync_micros)?;
    let latency = "Time of each fsync of the log";
    histogram(encoder, "log_sync_duration", latency, Some(&Unit::Seconds), &log.sync_latency, 1e-6)?;
    histogram(encoder, "log_sync_batches", "Batches that each fsync made durable", None, &log.batches_per_sync, 1.0)?;
    gauge(
        encoder,
        "log_batches_per_sync_max",
        "Maximum number of batches that shared an fsync",
        log.batches_per_sync_max,
    )?;
    gauge(encoder, "log_waiting_writers", "Callers waiting for the log", log.waiting_writers)?;
    gauge(encoder, "log_segments", "Segments in use", log.segments)?;
    gauge(encoder, "log_spare_segments", "Prepared segments", log.spare_segments)?;
    counter(encoder, "log_segments_recycled", "Segments that were reused", log.recycled)?;
    counter(encoder, "log_segments_created", "Segment files that were created", log.created)?;
    counter(encoder, "log_zeroed_bytes", "Bytes written to prepare segments", log.zeroed_bytes)?;
    counter(
        encoder,
        "log_reserved_bytes",
        "Bytes of segments that were reserved and not zeroed, because an append waited",
        log.reserved_bytes,
    )?;
    counter(encoder, "log_segment_waits", "Appends that had to wait for their next segment", log.segment_waits)?;
    seconds(encoder, "log_segment_wait", "Time of these waits", log.segment_wait_micros)?;
    gauge(encoder, "disk_free_bytes", "Bytes free on the disk", log.free_disk_bytes)
}

/// Encodes counters of the pacer, which slows background work on the disk.
fn encode_pacer(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let pacer = &stats.log.pacer;
    let help = "Bytes per second at which the disk has lately taken pieces of background work; 0 until it is measured";
    gauge(encoder, "pacer_rate_bytes", help, pacer.rate_bytes)?;
    let help = "Pauses of background work, for the syncs of clients and for other work that is late";
    let mut metric = encoder.encode_descriptor("pacer_rest", help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (work, rest_micros, _) in pacer.works() {
        ConstCounter::new(rest_micros as f64 / 1e6).encode(metric.encode_family(&vec![("work", work)])?)?;
    }
    let help = "Pieces of background work without a pause, because writers were about to wait for the work";
    counters(encoder, "pacer_late", help, pacer.works().map(|(work, _, late)| ([("work", work)], late)))
}

/// Encodes the times of the stages of writes, given as names and histograms in nanoseconds. Leaves out stages without
/// times.
fn encode_stages<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    stages: impl Iterator<Item = (&'static str, &'a Log2Histogram)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (stage, counted) in stages.filter(|(_, counted)| counted.count() > 0) {
        let labels = vec![("stage", stage)];
        metric.encode_family(&labels)?.encode_histogram::<NoLabels>(
            counted.sum as f64 * 1e-9,
            counted.count(),
            &buckets(counted, 1e-9),
            None,
        )?;
    }
    Ok(())
}

fn encode_engine(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    counter(encoder, "commands", "Commands applied", stats.commands)?;
    counter(encoder, "entries", "Log entries applied; commands / entries is the size of a group", stats.entries)?;
    histogram(encoder, "entry_commands", "Commands of each entry", None, &stats.entry_commands, 1.0)?;
    let what = "Reads of files by the thread that applies entries, also of bytes that the kernel had in memory";
    counter(encoder, "apply_file_reads", what, stats.apply_file_reads)?;
    let help = "Time of each stage of a write that waits for an fsync, on a single node";
    let stages = WriteStage::ALL.map(WriteStage::name).into_iter().zip(&stats.write_stages);
    encode_stages(encoder, "write_stage_duration", help, stages)?;
    let help = "Time of each stage of a replicated write, on a member of a cluster";
    let stages = ReplicationStage::ALL.map(ReplicationStage::name).into_iter().zip(&stats.replication_stages);
    encode_stages(encoder, "replication_stage_duration", help, stages)?;
    gauge(encoder, "queue_commands", "Commands queued for the writer", stats.queue_commands)?;
    gauge(encoder, "queue_bytes", "Bytes of commands queued for the writer", stats.queue_bytes)?;
    gauge(encoder, "replay_bytes", "Log bytes to replay if the node crashed now", stats.replay_bytes)?;
    gauge(encoder, "applied_index", "Index of the last applied entry", stats.applied_index.0)?;
    gauge(encoder, "applied_revision", "Revision of the last applied command", stats.applied_revision.0)?;
    gauge(encoder, "keyspaces", "Keyspaces", stats.keyspaces)?;
    gauge(encoder, "streams", "Streams", stats.streams)?;
    let done = &stats.maintenance;
    counter(encoder, "trimmed_streams", "Streams trimmed by retention", done.trimmed_streams)?;
    counter(encoder, "swept_rows", "Rows of deleted prefixes examined", done.swept_rows)?;
    counter(encoder, "reclaimed_entries", "Index entries of trimmed batches removed", done.reclaimed_entries)?;
    counter(encoder, "compacted_records", "Records dropped by compaction by key", done.compacted_records)?;
    counter(encoder, "moved_bytes", "Live bytes copied forward in the log", done.moved_bytes)?;
    counter(encoder, "freed_segments", "Segments freed", done.freed_segments)?;
    let what = "Segments with live data although the state counted none: a fault, detected before data was lost";
    counter(encoder, "undercounted_segments", what, done.undercounted_segments)?;
    let what = "Segments kept because a record of them could not be read: see `thalweg log verify`";
    counter(encoder, "unreadable_segments", what, done.unreadable_segments)
}

fn encode_snapshots(encoder: &mut DescriptorEncoder<'_>, stats: &SnapshotStats) -> fmt::Result {
    gauge(
        encoder,
        "snapshots_open",
        "Snapshots that retain log: being sent, or kept for clients that may resume",
        stats.open,
    )?;
    counter(encoder, "snapshots_taken", "Snapshots sent completely", stats.taken)?;
    counter(encoder, "snapshots_failed", "Snapshots that could not begin, or failed", stats.failed)?;
    counter(encoder, "snapshots_abandoned", "Snapshots that expired because no client resumed them", stats.abandoned)?;
    counter(encoder, "snapshot_bytes", "Bytes of snapshots sent", stats.bytes)?;
    let took = "Time of each snapshot, from its beginning to its last chunk";
    histogram(encoder, "snapshot_duration", took, Some(&Unit::Seconds), &stats.took_millis, 1e-3)
}

fn encode_scrub(encoder: &mut DescriptorEncoder<'_>, stats: &ScrubStats) -> fmt::Result {
    gauge(encoder, "scrub_running", "1 while a scrub reads the stored data", u64::from(stats.is_running))?;
    gauge(encoder, "scrub_done_bytes", "Bytes verified by the scrub in progress, or the last one", stats.done_bytes)?;
    gauge(encoder, "scrub_total_bytes", "Approximate bytes that this scrub verifies in all", stats.total_bytes)?;
    counter(encoder, "scrub_rounds", "Scrubs that have read all stored data", stats.rounds)?;
    counter(encoder, "scrub_bytes", "Bytes verified by all scrubs", stats.bytes)?;
    counter(encoder, "scrub_damages", "Damaged log segments and states that scrubs have found", stats.damages)
}

fn encode_state(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let state = &stats.state;
    gauge(encoder, "state_memory_bytes", "Bytes in memtables", state.memory_bytes)?;
    gauge(encoder, "state_disk_bytes", "Bytes of tables", state.disk_bytes)?;
    gauge(encoder, "state_tables", "Tables", state.tables)?;
    gauge(encoder, "state_sealed_memtables", "Memtables queued for a flush", state.sealed_memtables)?;
    counter(encoder, "state_flushes", "Flushes", state.flushes)?;
    counter(encoder, "state_flushed_bytes", "Bytes written by flushes", state.flushed_bytes)?;
    counter(encoder, "state_compactions", "Compactions", state.compactions)?;
    counter(encoder, "state_compacted_bytes", "Bytes written by compactions", state.compacted_bytes)?;
    counter(encoder, "state_stalls", "Applies that had to wait until flushes or compactions made room", state.stalls)?;
    seconds(encoder, "state_stall", "Time that applies waited for room", state.stall_micros)?;
    counter(encoder, "state_pauses", "Pauses that slowed writes down because compactions are behind", state.pauses)?;
    seconds(encoder, "state_pause", "Time of these pauses", state.pause_micros)?;
    let help = "Pauses of flushes between pieces of tables, for the syncs of clients that write";
    seconds(encoder, "state_flush_rest", help, state.flush_rest_micros)?;
    let help = "Pauses of compactions between pieces of tables, for the syncs of clients that write";
    seconds(encoder, "state_compaction_rest", help, state.compaction_rest_micros)?;
    let help = "Rate at which compactions remove data from level 0, to which writes are slowed down";
    gauge(encoder, "state_slowdown_bytes_per_second", help, state.slowdown_bytes_per_second)?;
    gauge(encoder, "state_estimated_keys", "Keys, dead versions included", state.estimated_keys)?;
    gauge(encoder, "state_cache_bytes", "Bytes of cached blocks", state.cache_bytes)?;
    let tables = state.tables_per_level.iter().enumerate();
    let tables = tables.map(|(level, tables)| ([("level", level.to_string())], *tables));
    gauges(encoder, "state_level_tables", "Tables of each level", tables)
}
