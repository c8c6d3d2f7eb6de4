//! Status of the node.

use std::time::Duration;

use thalweg_types::{Durability, SpaceTime};
use thalweg_wire::{self as wire, Health, SharedFrame};

use crate::{
    client::{Client, How},
    error::Error,
    request::reply_of,
};

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Ability of the node to accept writes.
    pub health: Health,
    /// Cause of a failure; empty if the node is healthy.
    pub reason: String,
    /// Durability level of acknowledgements for requests that state no level.
    pub durability: Durability,
    /// Id of the node.
    pub node: u64,
    /// Time since the node started.
    pub uptime: Duration,
    /// Space time of the node.
    pub space_time: SpaceTime,
    /// Version of the server's software.
    pub version: String,
    /// Name of the state backend.
    pub backend: String,
    /// Further figures. Their names are their paths in `/v1/status`, levels joined by dots.
    pub figures: Vec<(String, u64)>,
}

impl Client {
    /// Requests the status of the node.
    pub async fn status(&self) -> Result<Status, Error> {
        let read = |frame: &SharedFrame| {
            let status: wire::Status<'_> = reply_of(frame)?;
            Ok(Status {
                health: status.health,
                reason: status.reason.to_owned(),
                durability: status.durability,
                node: status.node.0,
                uptime: Duration::from_micros(status.uptime),
                space_time: status.space_time,
                version: status.version.to_owned(),
                backend: status.backend.to_owned(),
                figures: status.figures.iter().map(|figure| (figure.name.to_owned(), figure.value)).collect(),
            })
        };
        self.request(How::READ, wire::ReadStatus {}, read).await
    }
}
