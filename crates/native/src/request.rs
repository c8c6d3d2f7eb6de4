//! A request as handlers receive it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_wire::{Fields, Kind, SharedFrame};

/// Metadata of a request, without its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'f> {
    /// Id of the request; 0 if the client wants no reply.
    pub id: u32,
    /// Kind of the request's frame.
    pub kind: Kind,
    /// Optional fields of the request.
    pub fields: Fields<'f>,
    /// Time at which the request arrived.
    pub received: Instant,
    /// The frame as a slice of the receive buffer, for kinds whose bytes outlive the handler.
    pub shared: Option<&'f SharedFrame>,
}

impl Request<'_> {
    /// Returns part of the frame to keep: shared with the receive buffer if the frame is, else copied.
    #[must_use]
    pub(crate) fn share(&self, part: &[u8]) -> Bytes {
        self.shared.map_or_else(|| Bytes::copy_from_slice(part), |frame| frame.share(part))
    }

    /// Time that the client waits for the reply.
    #[must_use]
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.fields.timeout_micros.map(Duration::from_micros)
    }
}
