//! The nodes' own counters over a measurement: bytes on the links between the nodes, and the stages of replicated
//! writes.
//!
//! Owns: the increase of the metrics of all nodes together. Does not own: the stages as a table ([`Stages`]).
//!
//! The bytes are those of frames with their headers, before encryption and without handshakes. TCP and IP add 52 to 66
//! bytes to each packet. Each byte counts once, at the node that sends it. Heartbeats during the measurement count,
//! too.

use crate::{
    nodes::Nodes,
    server::{Metrics, Stages},
};

/// Metric that counts the bytes that a node has sent to each other node.
const SENT_METRIC: &str = "thalweg_cluster_link_sent_bytes_total";
/// Name and labels of the metric with the server's times of puts over HTTP.
const PUTS: (&str, &[(&str, &str)]) = ("thalweg_http_request_duration_seconds", &[("operation", "kv_put")]);

/// Increase of the metrics of all nodes together during a measurement; `None` if a node was down or showed no metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted(Option<Metrics>);

impl Counted {
    /// Calls `run`. Returns its result, and the increase of the nodes' counters during the call.
    pub(crate) fn around<T>(nodes: &Nodes, run: impl FnOnce() -> T) -> (T, Self) {
        let before = nodes.all_metrics();
        let result = run();
        let increase = before.zip(nodes.all_metrics()).map(|(before, after)| {
            let mut increase = Metrics::default();
            before.iter().zip(&after).for_each(|(before, after)| increase.add_increase(before, after));
            increase
        });
        (result, Self(increase))
    }

    /// Returns the sum of the increases of several measurements. Unknown increases add nothing.
    pub(crate) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum: Option<Metrics> = None;
        for metrics in all.into_iter().filter_map(|counted| counted.0.as_ref()) {
            sum.get_or_insert_default().add_increase(&Metrics::default(), metrics);
        }
        Self(sum)
    }

    /// Returns the bytes that all nodes have sent to each other; NaN if they are not known.
    pub(crate) fn sent_bytes(&self) -> f64 {
        self.0.as_ref().and_then(|metrics| metrics.sum(SENT_METRIC, &[])).unwrap_or(f64::NAN)
    }

    /// Returns a table of the average times that puts over HTTP spent in each stage in the servers. `response_us` is
    /// the average response time that the clients measured. `None` if the nodes counted no replicated write.
    pub(crate) fn stages_of_puts(&self, label: &str, response_us: f64) -> Option<Stages> {
        let response_us = Some(response_us).filter(|time| *time > 0.0);
        Stages::of_durable_writes(self.0.as_ref()?, label, PUTS, response_us)
    }

    /// Returns a table of the average times that writes spent in each stage in the servers. Meant for writes for which
    /// the servers have no metric of the total time, such as appends over the native protocol. `response_us` is the
    /// average response time that the clients measured. `None` if the nodes counted no replicated write.
    pub(crate) fn stages(&self, label: &str, response_us: f64) -> Option<Stages> {
        Stages::of_durable_writes(self.0.as_ref()?, label, ("", &[]), Some(response_us).filter(|time| *time > 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_are_those_of_all_links() {
        let counted = |text: &str| Counted(Some(Metrics::parse(text)));
        let first = counted(
            "thalweg_cluster_link_sent_bytes_total{node=\"n2\",channel=\"control\"} 60\n\
             thalweg_cluster_link_sent_bytes_total{node=\"n3\",channel=\"appends\"} 100\n\
             thalweg_cluster_link_received_bytes_total{node=\"n3\",channel=\"control\"} 7\n",
        );
        assert_eq!(first.sent_bytes(), 160.0);
        let second = counted("thalweg_cluster_link_sent_bytes_total{node=\"n3\",channel=\"appends\"} 40\n");
        assert_eq!(Counted::sum([&first, &Counted::default(), &second]).sent_bytes(), 200.0);
        assert!(Counted::default().sent_bytes().is_nan() && Counted::sum([]).sent_bytes().is_nan());
        assert!(first.stages_of_puts("put", 1.0).is_none() && first.stages("append", 1.0).is_none());
    }
}
