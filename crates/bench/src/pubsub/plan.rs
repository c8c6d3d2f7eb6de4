//! The plan of one run: a scenario at a pace, on a server.

use thalweg_wire::Permit;

use super::{options::PubsubOptions, scenario::Scenario};
use crate::{
    load::pace::Pace,
    native::{options::LoadOptions, payload::Depth, place::Place},
};

/// Everything that one run does.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Address of the server, and the transport.
    pub place: Place,
    /// Publishers, subscribers and messages.
    pub scenario: &'a Scenario,
    /// Pacing of messages, over all publishers.
    pub pace: Pace,
    /// Times, threads and seed.
    pub load: LoadOptions,
    /// How much of a payload is compared.
    pub depth: Depth,
    /// Bounds of a subscription's queue; 0: the server's bounds.
    pub queue: Permit,
    /// Credit that a subscriber gives.
    pub window: Permit,
}

impl<'a> Plan<'a> {
    /// Creates the plan of a scenario at a pace.
    #[must_use]
    pub fn new(scenario: &'a Scenario, options: &PubsubOptions, place: Place, pace: Pace) -> Self {
        Self {
            place,
            scenario,
            pace,
            load: options.load.clone(),
            depth: options.depth(scenario.payload_bytes),
            queue: Permit { messages: options.queue_messages, bytes: options.queue_bytes },
            window: Permit { messages: options.window_messages, bytes: options.window_bytes },
        }
    }
}
