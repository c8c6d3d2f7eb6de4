//! The configuration values that each profile sets.

use thalweg_broker::Batching;

use super::{ByteSize, ConfigLayer, Profile, Span, WhenIdle};

const MIB: u64 = 1024 * 1024;

impl Profile {
    /// Returns the configuration values that the profile sets.
    #[must_use]
    pub fn layer(self) -> ConfigLayer {
        match self {
            Self::Balanced => ConfigLayer::default(),
            Self::Latency => ConfigLayer {
                subscription_messages: Some(4096),
                subscription_bytes: Some(ByteSize(MIB)),
                max_link_bytes: Some(ByteSize(4 * MIB)),
                max_queued_bytes: Some(ByteSize(64 * MIB)),
                ..batching(Batching::LATENCY)
            },
            Self::Throughput => ConfigLayer {
                subscription_messages: Some(262_144),
                subscription_bytes: Some(ByteSize(64 * MIB)),
                max_link_bytes: Some(ByteSize(128 * MIB)),
                max_queued_bytes: Some(ByteSize(1024 * MIB)),
                ..batching(Batching::THROUGHPUT)
            },
        }
    }
}

fn batching(batching: Batching) -> ConfigLayer {
    let Batching { max_messages, max_bytes, max_delay, when_idle } = batching;
    ConfigLayer {
        batch_messages: Some(max_messages),
        batch_bytes: Some(ByteSize(max_bytes as u64)),
        batch_delay: Some(Span(max_delay)),
        batch_when_idle: Some(WhenIdle(when_idle)),
        ..ConfigLayer::default()
    }
}
