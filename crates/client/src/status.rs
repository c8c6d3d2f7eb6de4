//! The client's request for the status of a node.

use std::time::Duration;

use thalweg_types::{Durability, SpaceTime};
use thalweg_wire::{self as wire, Health, SharedFrame};

use crate::{
    client::{Client, RequestOptions},
    error::Error,
    request::reply_of,
};

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Health of the node: its ability to accept writes.
    pub health: Health,
    /// Cause of the node's failure; empty if the node is healthy.
    pub reason: String,
    /// Durability level that the server uses for writes whose request states no level.
    pub durability: Durability,
    /// Id of the node that answered.
    pub node: u64,
    /// Time since the node started.
    pub uptime: Duration,
    /// Present time of the cluster's own clock (space time), as far as the node knows it.
    pub space_time: SpaceTime,
    /// Version of the server's software.
    pub version: String,
    /// Name of the storage backend of the node's state.
    pub backend: String,
    /// Further figures of the node. The name of each is its path in the JSON of `/v1/status`, with levels
    /// joined by dots.
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
        self.request(RequestOptions::READ, wire::ReadStatus {}, read).await
    }
}
