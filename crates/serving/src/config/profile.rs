//! Profiles: named sets of values for the knobs that tune publishing to subjects.
//!
//! A profile is a layer above the defaults and below all other layers. So each knob can still be set on its own in any
//! profile. The profile `balanced` has the values of the defaults.

use super::Setting;

/// Goal for which a profile tunes the knobs of publishing to subjects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The profile that sets no values: all configuration values keep their defaults.
    #[default]
    Balanced,
    /// Low latency: queues are short, so that no message waits for long. A slow subscriber misses messages sooner.
    Latency,
    /// High throughput: queues may be long, and single messages wait for others.
    Throughput,
}

impl Profile {
    /// All profiles that a configuration can select.
    pub const ALL: [Self; 3] = [Self::Balanced, Self::Latency, Self::Throughput];
}

impl Setting for Profile {
    const VALUE_NAME: &'static str = "PROFILE";

    fn parse(text: &str) -> Result<Self, &'static str> {
        Self::ALL.into_iter().find(|profile| profile.show() == text).ok_or("balanced, latency or throughput")
    }

    fn show(&self) -> String {
        match self {
            Self::Balanced => "balanced",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
        .to_owned()
    }
}

/// Action for messages that a channel has gathered into a batch when the channel has no further input: send them
/// immediately, or wait for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenIdle(pub thalweg_broker::WhenIdle);

impl Setting for WhenIdle {
    const VALUE_NAME: &'static str = "ACTION";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "flush" => Ok(Self(thalweg_broker::WhenIdle::Flush)),
            "wait" => Ok(Self(thalweg_broker::WhenIdle::Wait)),
            _ => Err("flush or wait"),
        }
    }

    fn show(&self) -> String {
        match self.0 {
            thalweg_broker::WhenIdle::Flush => "flush",
            thalweg_broker::WhenIdle::Wait => "wait",
        }
        .to_owned()
    }
}
