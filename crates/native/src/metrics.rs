//! Metrics of native connections and requests.
//!
//! Invariant: counting a request costs three relaxed atomic additions to memory that few threads share. Counting the
//! bytes that a channel's task moves in one turn (one pass of its loop) costs one addition.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use thalweg_serving::metrics::{Connections, NoLabels, Shards, counter, gauge};
use thalweg_transport::Identity;
use thalweg_types::Durability;
use thalweg_wire::{Kind, Role};

use super::stages::PublishTimes;

/// Counters of all native connections, for metrics.
#[derive(Debug)]
pub struct Metrics {
    /// Histograms of the times of requests, by frame kind and durability of the reply, and counters of requests, by
    /// kind and result. Two more counters, the last ones, are for bytes received and sent.
    requests: Shards,
    /// Position of each frame kind in `kinds`, the list of the kinds that are counted. The index is the number of the
    /// frame kind.
    places: Box<[u8]>,
    kinds: Vec<Kind>,
    /// Counters of opened and closed connections, which the server's status shows as well.
    pub(crate) connections: Arc<Connections>,
    channels_opened: AtomicU64,
    channels_closed: AtomicU64,
    handshakes_failed: AtomicU64,
    /// Histograms of the times that publishes spend in each stage.
    pub(crate) publishes: PublishTimes,
    /// TLS identity, with its certificate, that the native port presents in handshakes.
    identity: OnceLock<Identity>,
}

/// Number of values that the durability label of a request can have: all levels, and one for replies without a level.
const LEVELS: usize = Durability::ALL.len() + 1;

/// Exclusive upper bound on the numbers of frame kinds.
const MAX_KIND: usize = 0x0800;

impl Metrics {
    /// Creates the metrics of native connections with all counts at zero.
    #[must_use]
    pub fn new(connections: &Arc<Connections>) -> Self {
        let counts = |kind: &&Kind| matches!(kind.role(), Role::Request | Role::Subscription);
        let kinds: Vec<Kind> = Kind::ALL.iter().filter(counts).copied().collect();
        let mut places = vec![0; MAX_KIND].into_boxed_slice();
        for (at, kind) in kinds.iter().enumerate() {
            places[*kind as usize] = u8::try_from(at).expect("fewer than 256 kinds");
        }
        Self {
            requests: Shards::new(kinds.len() * LEVELS, kinds.len() * 2 + 2),
            places,
            kinds,
            connections: Arc::clone(connections),
            channels_opened: AtomicU64::new(0),
            channels_closed: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
            publishes: PublishTimes::default(),
            identity: OnceLock::new(),
        }
    }

    /// Sets the identity whose certificate the metrics describe. The metrics follow it when its certificate is
    /// replaced. Only the first call has an effect.
    pub fn serves_as(&self, identity: &Identity) {
        let _ = self.identity.set(identity.clone());
    }

    /// Counts an answered request or a subscription that has begun. `good` is true for a success, `level` is the
    /// durability level that the reply states, and `took` is the time of the request.
    pub(crate) fn request(&self, kind: Kind, good: bool, level: Option<Durability>, took: Duration) {
        let place = usize::from(self.places[kind as usize]);
        let level = level.map_or(0, |level| level as usize + 1);
        self.requests.record(place * LEVELS + level, place * 2 + usize::from(!good), took);
    }

    /// Counts a channel of a native connection that was opened.
    pub(crate) fn channel_opened(&self) {
        self.channels_opened.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a channel of a native connection that has ended.
    pub(crate) fn channel_closed(&self) {
        self.channels_closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection whose handshake failed.
    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to the number of bytes that the server has received from native clients.
    pub(crate) fn received(&self, bytes: usize) {
        self.requests.add(self.received_bytes(), bytes as u64);
    }

    /// Adds to the number of bytes that the server has sent to native clients.
    pub(crate) fn sent(&self, bytes: usize) {
        self.requests.add(self.received_bytes() + 1, bytes as u64);
    }

    /// Returns the index of the counter of received bytes. The counter of sent bytes has the next index.
    fn received_bytes(&self) -> usize {
        self.kinds.len() * 2
    }
}

/// Collector that encodes the metrics of native connections when they are scraped.
#[derive(Debug)]
pub struct NativeCollector(pub Arc<Metrics>);

impl Collector for NativeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &*self.0;
        let to = &mut encoder;
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        counter(to, "native_connections_opened", "Native connections accepted", metrics.connections.opened())?;
        counter(to, "native_channels_opened", "Channels opened on native connections", load(&metrics.channels_opened))?;
        let failed = "Native connections whose handshake failed";
        counter(to, "native_handshakes_failed", failed, load(&metrics.handshakes_failed))?;
        let received = "Bytes received over native connections";
        counter(to, "native_received_bytes", received, metrics.requests.count(metrics.received_bytes()))?;
        let sent = metrics.requests.count(metrics.received_bytes() + 1);
        counter(to, "native_sent_bytes", "Bytes sent over native connections", sent)?;
        gauge(to, "native_connections", "Open native connections", metrics.connections.count())?;
        if let Some(validity) = metrics.identity.get().and_then(Identity::validity) {
            let (name, help) =
                ("native_certificate_expiry", "Expiry time of the native port's certificate, in Unix seconds");
            let metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
            ConstGauge::new(validity.not_after).encode(metric)?;
        }
        requests(metrics, &mut encoder)?;
        metrics.publishes.encode(&mut encoder)
    }
}

fn requests(metrics: &Metrics, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Native requests by kind and result";
    let mut metric = encoder.encode_descriptor("native_requests", help, None, MetricType::Counter)?;
    for (place, kind) in metrics.kinds.iter().enumerate() {
        for (result, name) in ["good", "failed"].into_iter().enumerate() {
            let count = metrics.requests.count(place * 2 + result);
            if count > 0 {
                let labels = vec![("kind", kind.name()), ("result", name)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    let help = "Time from the arrival of a native request to its reply, by kind and durability of the reply";
    let mut metric =
        encoder.encode_descriptor("native_request_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (place, kind) in metrics.kinds.iter().enumerate() {
        let names = std::iter::once("").chain(Durability::ALL.map(Durability::name));
        for (level, durability) in names.enumerate() {
            let Some(all) = metrics.requests.histogram(place * LEVELS + level) else { continue };
            let labels = vec![("kind", kind.name()), ("durability", durability)];
            let mut encoder = metric.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabels>(all.sum, all.count, &all.buckets, None)?;
        }
    }
    Ok(())
}
