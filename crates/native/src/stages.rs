//! Times of the stages of a publish. One in [`SAMPLED_OF`] batches of each channel is timed.
//!
//! Owns: the stages, their names and their histograms. Does not own: the points in time between them, which the tasks
//! of the publisher's and the subscribers' channels record.

use std::{fmt, time::Duration};

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType, registry::Unit};
use thalweg_serving::metrics::{NoLabels, Shards};

/// Sampling rate: one in this number of batches of a channel (a TCP connection or a QUIC stream) is timed. Reading the
/// clock for every batch would take a noticeable part of the time of a small batch.
pub(crate) const SAMPLED_OF: u32 = 64;

/// Stage in the processing of a publish, whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishStage {
    /// Decoding and checking: from the arrival of the request's bytes to the beginning of its distribution.
    Receive,
    /// Distribution to the queues of all matching subscriptions. It overlaps with `Queue`.
    FanOut,
    /// Waiting in a queue: from the beginning of the distribution until a subscriber's channel takes the batch.
    Queue,
    /// Sending: from taking the batch until all its bytes for the subscriber are passed to the kernel.
    Send,
}

impl PublishStage {
    const ALL: [Self; 4] = [Self::Receive, Self::FanOut, Self::Queue, Self::Send];

    const fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::FanOut => "fan_out",
            Self::Queue => "queue",
            Self::Send => "send",
        }
    }
}

/// Histograms of the times that publishes spend in each stage.
#[derive(Debug)]
pub(crate) struct PublishTimes(Shards);

impl Default for PublishTimes {
    fn default() -> Self {
        Self(Shards::new(PublishStage::ALL.len(), 0))
    }
}

impl PublishTimes {
    /// Adds the time that a publish has spent in a stage.
    pub(crate) fn record(&self, stage: PublishStage, time: Duration) {
        self.0.record_many(stage as usize, time, time, 1);
    }

    /// Encodes the histograms of the stages of publishes as metrics. Leaves out histograms without values.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time of each stage of a publish to subjects, of a sample of the batches";
        let name = "native_publish_stage_duration";
        let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for stage in PublishStage::ALL {
            let Some(all) = self.0.histogram(stage as usize) else { continue };
            let labels = vec![("stage", stage.name())];
            let mut encoder = metric.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabels>(all.sum, all.count, &all.buckets, None)?;
        }
        Ok(())
    }
}
