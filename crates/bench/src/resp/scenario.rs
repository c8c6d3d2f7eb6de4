//! The lines of the report.

use super::{
    goals::Goal,
    options::RespOptions,
    requests::Mix,
    server::{Choice, Spec},
};
use crate::{load::pace::Pace, random::Distribution};

/// Bytes of a value where nothing else is said.
pub const DEFAULT_VALUE_BYTES: usize = 100;

/// Work of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Requests and replies.
    Requests(Mix),
    /// Messages to this many subscribers.
    FanOut(usize),
}

/// A line of the report.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name in the report.
    pub name: String,
    /// Work of the line.
    pub work: Work,
    /// Servers, of which the first is compared with the others.
    pub servers: Vec<(Choice, u32)>,
    /// Connections; with subscribers the publisher's, which is one.
    pub connections: usize,
    /// Requests that may be under way on each connection.
    pub pipeline: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Number of different keys.
    pub keys: u64,
    /// Spread of the requests over the keys.
    pub distribution: Distribution,
    /// How requests are paced.
    pub pace: Pace,
    /// Goal of the first server.
    pub goal: Option<Goal>,
}

impl Scenario {
    /// Creates the scenario of the options.
    #[must_use]
    pub fn from_options(options: &RespOptions) -> Self {
        let (name, work, connections) = match options.subscribers {
            Some(count) => (format!("PUBLISH to {count}"), Work::FanOut(count), 1),
            None => (options.mix.to_string(), Work::Requests(options.mix.clone()), options.connections),
        };
        let database = |spec: &Spec| spec.database.unwrap_or(options.database);
        Self {
            name,
            work,
            servers: options.server.iter().map(|spec| (spec.choice.clone(), database(spec))).collect(),
            connections,
            pipeline: options.pipeline,
            value_bytes: options.value_size.unwrap_or(DEFAULT_VALUE_BYTES),
            keys: options.keys,
            distribution: options.distribution,
            pace: Pace::of_rate(options.rate, options.arrivals),
            goal: None,
        }
    }

    /// Returns the pacing in words.
    #[must_use]
    pub fn pace_name(&self) -> String {
        self.pace.name("/s")
    }
}
