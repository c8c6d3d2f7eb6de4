//! Options of a client.
//!
//! Owns: [`Options`], their defaults and their costs. Does not own the address of the server: see
//! [`Endpoint`](thalweg_transport::Endpoint).

use std::time::Duration;

use thalweg_transport::QuicOptions;
use thalweg_types::limits::MIN_FRAME_BYTES;
use thalweg_wire::Permit;

/// Options for connecting, and bounds on the memory of a client.
///
/// Memory: each channel holds at most [`max_unsent_bytes`](Self::max_unsent_bytes) and one frame that wait to be
/// written. Received bytes that are not yet a whole frame take 64 KiB, or as much as the incoming frame (at most
/// [`max_frame_bytes`](Self::max_frame_bytes)). Each subscription holds at most its [`Window`] and one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Name of the client, for people who look at the server.
    pub name: String,
    /// Number of connections. Each costs a socket and a task. More than one helps if one core cannot process all
    /// requests.
    pub connections: usize,
    /// Number of channels of each QUIC connection. More than one keeps a large reply from delaying others. TCP and TLS
    /// connections have one channel.
    pub channels: usize,
    /// Windows and buffers of QUIC connections. They cost memory: see [`QuicOptions`].
    pub quic: QuicOptions,
    /// Longest time from dialling to the server's welcome.
    pub connect_timeout: Duration,
    /// Longest time of a request, retries included; `None` waits forever. See
    /// [`Client::timeout`](crate::Client::timeout).
    pub timeout: Option<Duration>,
    /// Retries of failed requests, and pauses between attempts to reconnect.
    pub retries: Retries,
    /// Maximum number of requests in progress on one channel; a lower bound of the server takes precedence. At the
    /// bound callers wait.
    pub max_requests: usize,
    /// Maximum number of bytes of requests that wait to be written on one channel. At the bound callers wait.
    pub max_unsent_bytes: usize,
    /// Largest frame that the client accepts from the server, in bytes without the header.
    pub max_frame_bytes: u32,
    /// Keep-alive interval: either side sends something at least this often, and gives up a peer that is silent three
    /// times as long. The server may require a shorter interval.
    pub keep_alive: Duration,
    /// Default amount that the server may send ahead of the application in each subscription.
    pub window: Window,
}

/// Number of retries and the pauses between them.
///
/// The pause before the n-th retry is random in the upper half of `base * 2^n` and at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of retries of a request; 0 for none. Reconnecting has no such bound.
    pub max_attempts: u32,
    /// First pause.
    pub base: Duration,
    /// Longest pause.
    pub max: Duration,
}

/// Amount that the server may send ahead of the application in a subscription. The client holds at most this and one
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Messages, records or changes.
    pub messages: u64,
    /// Bytes of these.
    pub bytes: u64,
}

impl Window {
    pub(crate) fn permit(self) -> Permit {
        Permit { messages: self.messages.max(1), bytes: self.bytes.max(1) }
    }
}

/// Default window of a subscription.
pub const DEFAULT_WINDOW: Window = Window { messages: 65_536, bytes: 8 * 1024 * 1024 };

/// Default retries of a client.
pub const DEFAULT_RETRIES: Retries =
    Retries { max_attempts: 5, base: Duration::from_millis(10), max: Duration::from_secs(1) };

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "thalweg-client".to_owned(),
            connections: 1,
            channels: 4,
            quic: QuicOptions::default(),
            connect_timeout: Duration::from_secs(5),
            timeout: Some(Duration::from_secs(30)),
            retries: DEFAULT_RETRIES,
            max_requests: 4096,
            max_unsent_bytes: 1024 * 1024,
            max_frame_bytes: 32 * 1024 * 1024,
            keep_alive: Duration::from_secs(10),
            window: DEFAULT_WINDOW,
        }
    }
}

/// Maximum number of connections of a client.
pub const MAX_POOL: usize = 1024;
/// Maximum number of channels of a connection. A server permits no more, and opening another one would wait for one to
/// end.
pub const MAX_CHANNELS: usize = 64;

impl Options {
    /// Returns the options within their limits: at least one of each, at most [`MAX_POOL`] and [`MAX_CHANNELS`].
    pub(crate) fn bounded(mut self) -> Self {
        self.connections = self.connections.clamp(1, MAX_POOL);
        self.channels = self.channels.clamp(1, MAX_CHANNELS);
        self.max_requests = self.max_requests.max(1);
        self.max_unsent_bytes = self.max_unsent_bytes.max(1);
        self.max_frame_bytes = self.max_frame_bytes.max(MIN_FRAME_BYTES);
        self
    }
}
