//! Profiles: what of the knobs of subjects goes together.
//!
//! A profile is a layer above the defaults and below everything that is given, so a single knob can be turned in any of
//! them. `balanced` is the defaults.

use super::Setting;

/// What subjects are tuned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The defaults.
    #[default]
    Balanced,
    /// What waits is short, so that nothing waits for long: who does not keep up misses sooner.
    Latency,
    /// What waits may be long, and single messages wait for others.
    Throughput,
}

impl Profile {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Balanced, Self::Latency, Self::Throughput];
}

impl Setting for Profile {
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

/// What happens to gathered messages when nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenIdle(pub thalweg_broker::WhenIdle);

impl Setting for WhenIdle {
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
