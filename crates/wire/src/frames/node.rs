//! What a node says of itself.

use thalweg_types::{Durability, NodeId, SpaceTime};

use crate::{
    codec::List,
    layouts::{choices, structure},
};

structure! {
    /// Asks how the node is.
    ReadStatus as "read status" {}
}

choices! {
    /// Whether a node takes writes.
    Health as "health" {
        /// It does.
        Good = 0 "good",
        /// It takes deletes and trims.
        DiskFull = 1 "disk full",
        /// It does not: it must be restarted or repaired.
        Failed = 2 "failed",
        /// It is stopping.
        Stopping = 3 "stopping",
    }
}

structure! {
    /// A figure of a node.
    Figure<'a> as "figure" {
        /// Its name, as in `/v1/status`, levels joined by dots.
        name: &'a str,
        /// What it is.
        value: u64,
    }
}

structure! {
    /// How a node is.
    Status<'a> as "status" {
        /// Whether it takes writes.
        health: Health,
        /// The level of acks where a request does not say.
        durability: Durability,
        /// Which node.
        node: NodeId,
        /// Microseconds since it started.
        uptime: u64,
        /// The time of the space.
        space_time: SpaceTime,
        /// Its version.
        version: &'a str,
        /// Its state backend.
        backend: &'a str,
        /// Why it failed, if it did.
        reason: &'a str,
        /// More.
        figures: List<'a, Figure<'a>>,
    }
}
