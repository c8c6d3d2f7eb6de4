//! Metrics of the reads that serving threads leave to other threads.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
    registry::Unit,
};

use super::encode::{counters, gauges};
use crate::readers::{ReadKind, Readers};

/// Collector of the metrics of the [readers](crate::readers).
#[derive(Debug)]
pub struct Reads(pub Arc<Readers>);

impl Collector for Reads {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let kinds = ReadKind::ALL.map(|kind| ([("kind", kind.name())], self.0.figures(kind)));
        let help = "Reads that serving threads have handed over, by kind: those that take long, and those that wait for the disk";
        counters(&mut to, "reads_handed_over", help, kinds.iter().map(|(labels, figures)| (*labels, figures.done)))?;
        let help = "Time of these reads, from the transfer to the result";
        let mut metric = to.encode_descriptor("reads_handed_over", help, Some(&Unit::Seconds), MetricType::Counter)?;
        for (labels, figures) in &kinds {
            ConstCounter::new(figures.micros as f64 / 1e6).encode(metric.encode_family(labels)?)?;
        }
        let help = "Reads that wait for a thread, by kind";
        gauges(&mut to, "reads_queued", help, kinds.iter().map(|(labels, figures)| (*labels, figures.queued as u64)))
    }
}
