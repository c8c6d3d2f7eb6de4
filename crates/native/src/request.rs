//! A request, as handlers are given it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_wire::{Fields, Kind, SharedFrame};

/// A request, beside its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'f> {
    /// Its id; 0: nobody waits for a reply.
    pub id: u32,
    /// What kind it is.
    pub kind: Kind,
    /// Its optional fields.
    pub fields: Fields<'f>,
    /// When it came.
    pub received: Instant,
    /// The frame as a share in the receive buffer, for kinds whose bytes travel on.
    pub shared: Option<&'f SharedFrame>,
}

impl Request<'_> {
    /// Part of the frame, to be kept: shared with the receive buffer if the frame is, else copied.
    #[must_use]
    pub(crate) fn share(&self, part: &[u8]) -> Bytes {
        self.shared.map_or_else(|| Bytes::copy_from_slice(part), |frame| frame.share(part))
    }

    /// How long the client waits for the reply.
    #[must_use]
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.fields.timeout_micros.map(Duration::from_micros)
    }
}
