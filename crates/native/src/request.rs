//! A request of a client in the form that handlers receive.

use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_wire::{Fields, Kind, SharedFrame};

/// Metadata of a request: id, kind, optional fields and time. The decoded frame is separate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'f> {
    /// Id of the request; 0 if the client wants no reply.
    pub id: u32,
    /// Kind of the request's frame.
    pub kind: Kind,
    /// Optional fields of the request, such as its timeout.
    pub fields: Fields<'f>,
    /// Time at which the server received the request.
    pub received: Instant,
    /// The request's frame as a slice of the receive buffer. Present only for kinds whose bytes are needed after the
    /// handler has returned, such as publishes.
    pub shared: Option<&'f SharedFrame>,
}

/// Name of a request in log lines: the name that the client gave to the request, or else the number of the channel (a
/// TCP connection or a QUIC stream) and the id of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId<'w> {
    pub trace: Option<&'w str>,
    pub channel: u64,
    pub id: u32,
}

impl std::fmt::Display for RequestId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.trace {
            // The client chooses the name. Quotes and escapes keep it on one line of the log.
            Some(trace) => write!(f, "{}", trace.escape_debug()),
            None => write!(f, "{:016x}-{}", self.channel, self.id),
        }
    }
}

impl Request<'_> {
    /// Returns owned bytes of `part`, a part of the frame. If the frame has a shared receive buffer, the bytes share
    /// it; otherwise they are copied.
    #[must_use]
    pub(crate) fn share(&self, part: &[u8]) -> Bytes {
        self.shared.map_or_else(|| Bytes::copy_from_slice(part), |frame| frame.share(part))
    }

    /// Returns the name of the request in log lines. `channel` is the number of its channel.
    #[must_use]
    pub(crate) fn name(&self, channel: u64) -> RequestId<'_> {
        RequestId { trace: self.fields.trace, channel, id: self.id }
    }

    /// Maximum time that the client waits for the reply; `None` if the request has no timeout.
    #[must_use]
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.fields.timeout_micros.map(Duration::from_micros)
    }
}
