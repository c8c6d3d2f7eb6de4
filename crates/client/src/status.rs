//! What the node says about itself.

use std::time::Duration;

use thalweg_types::{Durability, SpaceTime};
use thalweg_wire::{self as wire, Fields, Frame, Health, SharedFrame};

use crate::{
    client::{Client, How},
    error::Error,
    request::reply_of,
    write::fits,
};

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether it can do its work.
    pub health: Health,
    /// Why not; empty if it can.
    pub reason: String,
    /// The level of acks where a request does not say.
    pub durability: Durability,
    /// Its node.
    pub node: u64,
    /// How long it has been running.
    pub uptime: Duration,
    /// Its time.
    pub space_time: SpaceTime,
    /// Its version.
    pub version: String,
    /// What keeps its state.
    pub backend: String,
    /// Figures, by the names that they have in `/v1/status`.
    pub figures: Vec<(String, u64)>,
}

impl Client {
    /// How the node is.
    pub async fn status(&self) -> Result<Status, Error> {
        let encode =
            |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| fits(wire::ReadStatus {}.encode_with(out, id, fields));
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
        self.call(How::READ, encode, read).await
    }
}
