//! Metrics of consumer groups.
//!
//! Each group has a few time series, so the number of groups shown is limited: the oldest groups by id, which
//! stay the same from scrape to scrape. The metric `groups` is the number of all groups.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use thalweg_engine::{Database, GroupFigures};

use super::encode::{counters, gauge, gauges};
use crate::limits::MAX_METRIC_GROUPS;

/// Collector of the metrics of the node's consumer groups.
#[derive(Debug)]
pub struct Groups(pub Database);

type Figure = fn(&GroupFigures) -> u64;

const GAUGES: [(&str, &str, Figure); 3] = [
    ("group_lag", "Records that were never delivered, by stream and group", |group| group.lag),
    ("group_pending", "Records that are pending an ack or another delivery, by stream and group", |group| {
        group.counts.pending
    }),
    ("group_members", "Known members, by stream and group", |group| group.counts.members),
];

const COUNTERS: [(&str, &str, Figure); 5] = [
    ("group_deliveries", "Records delivered, by stream and group", |group| group.counts.delivered),
    ("group_redeliveries", "Records delivered again, by stream and group", |group| group.counts.redelivered),
    ("group_acked", "Records acked, by stream and group", |group| group.counts.acked),
    ("group_dead_letters", "Records that became dead letters, by stream and group", |group| group.counts.dead),
    ("group_dropped", "Records delivered too often that were dropped, by stream and group", |group| {
        group.counts.dropped
    }),
];

impl Collector for Groups {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // If the state has failed, other metrics report it.
        let Ok((groups, count)) = self.0.group_figures(MAX_METRIC_GROUPS) else { return Ok(()) };
        gauge(&mut encoder, "groups", "Consumer groups", count as u64)?;
        if groups.is_empty() {
            return Ok(());
        }
        for (name, help, figure) in GAUGES {
            gauges(&mut encoder, name, help, groups.iter().map(|group| (labels(group), figure(group))))?;
        }
        for (name, help, figure) in COUNTERS {
            counters(&mut encoder, name, help, groups.iter().map(|group| (labels(group), figure(group))))?;
        }
        Ok(())
    }
}

fn labels(group: &GroupFigures) -> Vec<(&'static str, &str)> {
    vec![("stream", &group.stream), ("group", &group.name)]
}
