//! Metrics of subjects and caches.
//!
//! Each cache has a few time series, so the number of caches shown is limited: the first ones by name. The
//! metric `caches` is the number of all caches.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use thalweg_broker::{CacheCounts, NamedCache};
use thalweg_types::printable::one_line;

use super::encode::{counter, counters, gauge, gauges};
use crate::{limits::MAX_METRIC_CACHES, views::Views};

/// Collector of the metrics of subjects.
#[derive(Debug)]
pub struct Subjects(pub Arc<Views>);

impl Collector for Subjects {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.0.broker.stats();
        let to = &mut encoder;
        gauge(to, "subject_links", "Connections that may subscribe", stats.links as u64)?;
        gauge(to, "subject_subscriptions", "Subscriptions to subjects", stats.subscriptions as u64)?;
        let queued = "Messages queued for subscribers, counted once per subscription";
        gauge(to, "subject_queue_messages", queued, stats.queued_messages)?;
        gauge(to, "subject_queue_bytes", "Bytes reserved for queued messages, in steps of 64 KiB", stats.queued_bytes)?;
        gauge(to, "subject_remembered", "Subjects in memory", stats.subjects as u64)?;
        counter(to, "subject_batches", "Batches published", stats.batches)?;
        counter(to, "subject_messages", "Messages published", stats.messages)?;
        counter(to, "subject_unmatched_batches", "Batches without a subscriber", stats.unmatched)?;
        counter(to, "subject_deliveries", "Batches queued, counted once per subscription", stats.deliveries)?;
        counter(to, "subject_blocked", "Publishes that had to wait for room in queues", stats.blocked)?;
        let losses = stats.losses;
        let slow = "Subscriptions that have missed messages, each counted once";
        counter(to, "subject_slow_subscriptions", slow, losses.slow_subscriptions)?;
        let given_up = "Connections closed because the queue of a subscription overflowed";
        counter(to, "subject_disconnected_links", given_up, losses.disconnected_links)?;
        let help = "Messages that subscriptions missed because queues were full, by policy";
        let policies =
            [("drop_new", losses.drop_new), ("drop_old", losses.drop_old), ("disconnect", losses.disconnect)];
        let dropped = policies.map(|(policy, messages)| ([("policy", policy)], messages));
        counters(to, "subject_dropped_messages", help, dropped)
    }
}

/// Collector of the metrics of caches.
#[derive(Debug)]
pub struct Caches(pub Arc<Views>);

type Figure = fn(&CacheCounts) -> u64;

const GAUGES: [(&str, &str, Figure); 3] = [
    ("cache_entries", "Entries, by cache", |stats| stats.entries),
    ("cache_bytes", "Bytes charged for entries, by cache", |stats| stats.bytes),
    ("cache_max_bytes", "Maximum number of bytes, by cache", |stats| stats.max_bytes),
];

const COUNTERS: [(&str, &str, Figure); 6] = [
    ("cache_hits", "Reads that found an entry, by cache; hits / (hits + misses) is the hit ratio", |stats| stats.hits),
    ("cache_misses", "Reads that found no entry, by cache", |stats| stats.misses),
    ("cache_puts", "Values put, by cache", |stats| stats.puts),
    ("cache_deletes", "Existing keys deleted, by cache", |stats| stats.deletes),
    ("cache_evictions", "Entries evicted to make room, by cache", |stats| stats.evictions),
    ("cache_expirations", "Entries that expired, by cache", |stats| stats.expired),
];

impl Collector for Caches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let caches = self.0.caches.list();
        gauge(&mut encoder, "caches", "Caches", caches.len() as u64)?;
        // Clients choose the names. Control characters in a name would affect the terminal that shows the metrics.
        let stats = |named: NamedCache| (one_line(named.name.as_bytes()), named.cache.stats());
        let shown: Vec<_> = caches.into_iter().take(MAX_METRIC_CACHES).map(stats).collect();
        if shown.is_empty() {
            return Ok(());
        }
        let series =
            |figure: Figure| shown.iter().map(move |(cache, stats)| ([("cache", cache.as_str())], figure(stats)));
        for (name, help, figure) in GAUGES {
            gauges(&mut encoder, name, help, series(figure))?;
        }
        for (name, help, figure) in COUNTERS {
            counters(&mut encoder, name, help, series(figure))?;
        }
        Ok(())
    }
}
