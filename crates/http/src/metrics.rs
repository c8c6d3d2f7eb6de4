//! Metrics of HTTP requests.
//!
//! Owns: request counters and latency histograms by operation and level, and their collector, which also shows the
//! server's bounds. Does not own: operations. This module knows an operation as a number with a name. Invariant:
//! recording a request costs three relaxed additions to memory that few other threads write.

use std::{fmt, sync::Arc, time::Duration};

use http::StatusCode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
    registry::Unit,
};
use thalweg_serving::{
    admission::{Admission, Bound, Resource},
    metrics::{NoLabels, Shards, counters, gauges},
};
use thalweg_types::Durability;

/// Number of values that the durability label of a request can have: all levels, and one for requests without a level.
const LEVELS: usize = Durability::ALL.len() + 1;
const CLASSES: usize = 5;

/// Counters and latency histograms of HTTP requests.
#[derive(Debug)]
pub(crate) struct Requests {
    shards: Shards,
    /// Names of the operations. The index of a name is the operation's number.
    operations: Vec<&'static str>,
}

impl Requests {
    /// Creates counters at zero for operations with these names.
    #[must_use]
    pub(crate) fn new(operations: Vec<&'static str>) -> Self {
        Self { shards: Shards::new(operations.len() * LEVELS, operations.len() * CLASSES), operations }
    }

    /// Counts a request of the operation with this number. `level` is the durability level that the reply states.
    pub(crate) fn record(&self, operation: usize, level: Option<Durability>, status: StatusCode, took: Duration) {
        let level = level.map_or(0, |level| level as usize + 1);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.shards.record(operation * LEVELS + level, operation * CLASSES + class, took);
    }
}

fn level_name(at: usize) -> &'static str {
    at.checked_sub(1).and_then(|at| Durability::ALL.get(at)).map_or("", |level| level.name())
}

/// Collector of the metrics of HTTP requests, and of the limits that HTTP shares with other protocols.
#[derive(Debug)]
pub(crate) struct RequestCollector {
    requests: Arc<Requests>,
    admission: Arc<Admission>,
}

impl RequestCollector {
    /// Creates the collector of these requests' metrics and of the limits in `admission`.
    #[must_use]
    pub(crate) fn new(requests: &Arc<Requests>, admission: &Arc<Admission>) -> Self {
        Self { requests: Arc::clone(requests), admission: Arc::clone(admission) }
    }
}

impl Collector for RequestCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_counts(&self.requests, &mut encoder)?;
        encode_latencies(&self.requests, &mut encoder)?;
        let (bounds, to) = (Resource::ALL.map(|resource| (resource, self.admission.bound(resource))), &mut encoder);
        let series = |figure: fn(&Bound) -> u64| {
            bounds.iter().map(move |(resource, bound)| ([("bound", resource.name())], figure(bound)))
        };
        gauges(to, "http_in_use", "Units in use of each bound", series(Bound::used))?;
        gauges(to, "http_limit", "Size of each bound", series(Bound::limit))?;
        counters(to, "http_shed", "Requests and connections rejected at each bound", series(Bound::rejections))
    }
}

fn encode_counts(requests: &Requests, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests by operation and status class";
    let mut metric = encoder.encode_descriptor("http_requests", help, None, MetricType::Counter)?;
    for (operation, name) in requests.operations.iter().enumerate() {
        for (class, status) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate() {
            let count = requests.shards.count(operation * CLASSES + class);
            if count > 0 {
                let labels = labels(&[("operation", *name), ("status", status)]);
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn encode_latencies(requests: &Requests, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Time from the head of a request to the head of its reply, by operation and durability of the reply";
    let mut metric =
        encoder.encode_descriptor("http_request_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (operation, name) in requests.operations.iter().enumerate() {
        for level in 0..LEVELS {
            let Some(all) = requests.shards.histogram(operation * LEVELS + level) else { continue };
            let labels = labels(&[("operation", *name), ("durability", level_name(level))]);
            let mut encoder = metric.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabels>(all.sum, all.count, &all.buckets, None)?;
        }
    }
    Ok(())
}

fn labels<'a>(pairs: &[(&'a str, &'a str)]) -> impl EncodeLabelSet + use<'a> {
    pairs.to_vec()
}
