//! Options of a client.
//!
//! Owns: [`Options`], their defaults and their costs. Does not own the address of the server: see
//! [`Endpoint`](thalweg_transport::Endpoint).

use std::time::Duration;

use thalweg_transport::QuicOptions;
use thalweg_types::{ReadLevel, limits::MIN_FRAME_BYTES};
use thalweg_wire::Permit;

/// Options for connecting, and bounds on the memory of a client.
///
/// Memory: on each channel, at most [`max_unsent_bytes`](Self::max_unsent_bytes) bytes and one frame wait to be
/// written. The read buffer of a channel takes 64 KiB, or the size of the incoming frame if that is larger (at most
/// [`max_frame_bytes`](Self::max_frame_bytes)). Each subscription holds at most the items of its [`Window`] and one
/// frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Name of the client, shown to operators of the server.
    pub name: String,
    /// Number of connections to the server. Each costs a socket and a task. More than one helps if one
    /// processor core cannot process all requests.
    pub connections: usize,
    /// Number of channels (independently ordered streams of frames) of each QUIC connection. With more than
    /// one, a large reply does not delay replies on other channels. TCP and TLS connections have one channel.
    pub channels: usize,
    /// Windows and buffers of QUIC connections. Larger ones cost memory: see [`QuicOptions`].
    pub quic: QuicOptions,
    /// Longest time from dialling the server to the end of the handshake.
    pub connect_timeout: Duration,
    /// Longest time that a request may take, retries included; `None` waits forever. See
    /// [`Client::timeout`](crate::Client::timeout).
    pub timeout: Option<Duration>,
    /// Maximum number of retries of a failed request, and the pauses between retries and between attempts to
    /// reconnect.
    pub retries: Retries,
    /// True if the client repeats puts and deletes without conditions when their effect is unknown, such as after a
    /// lost connection. The server may carry out the first one after the repetition. It can then undo a write that
    /// another client made in between and that was acknowledged. Use this option for keys that only one client writes,
    /// or if a lost write is acceptable when several clients write a key. If false, such a put or delete ends with
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown).
    pub repeat_puts: bool,
    /// Maximum number of requests in progress on one channel (a TCP connection or a QUIC stream). The server may set a
    /// lower maximum. While the maximum is reached, further callers wait.
    pub max_requests: usize,
    /// Maximum number of bytes of requests that wait to be written on one channel (a TCP connection or a QUIC stream).
    /// While the maximum is reached, further callers wait.
    pub max_unsent_bytes: usize,
    /// Largest frame that the client accepts from the server, in bytes without the frame's header.
    pub max_frame_bytes: u32,
    /// Keep-alive interval: client and server each send something at least this often. Each treats the
    /// connection as lost if it receives nothing for three intervals. The server may require a shorter
    /// interval.
    pub keep_alive: Duration,
    /// Default [`Window`] of each subscription: the numbers of messages and bytes that the server may send
    /// before the application has taken them.
    pub window: Window,
    /// Level of reads on a node of a cluster; `None` selects the server's default. See
    /// [`Client::read_level`](crate::Client::read_level).
    pub read_level: Option<ReadLevel>,
    /// Node that answers reads at levels that need no leader.
    pub reads: ReadFrom,
    /// True if the client counts its requests and measures their times, see
    /// [`Client::telemetry`](crate::Client::telemetry). Cost: two readings of the clock and two additions for each
    /// request, about 0.1 µs.
    pub telemetry: bool,
    /// Time after which each connection asks again for the members of the cluster. If a leader does not answer within
    /// this time, the client asks the other members for the leader.
    pub refresh: Duration,
}

/// Node that answers reads at the levels [`ReadLevel::Stale`] and [`ReadLevel::AtLeast`], which need no leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// The leader, as for all other requests.
    #[default]
    Leader,
    /// The member with the shortest round trip. The client measures the round trips to all members when it connects,
    /// and then twice a minute. It keeps a second pool of connections to the nearest member.
    Nearest,
}

/// Number of retries of a request, and the pauses between them.
///
/// Each pause is a random time between half of a bound and the bound. The bound is `base` before the first retry,
/// doubles with each retry, and is at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of retries of a request; 0 for none. Attempts to reconnect are not limited.
    pub max_attempts: u32,
    /// Upper bound of the pause before the first retry. The bound doubles with each retry.
    pub base: Duration,
    /// Longest pause before a retry of a request.
    pub max: Duration,
}

/// Numbers of messages and bytes that the server may send in a subscription before the application has taken them. The
/// client holds at most this many messages and bytes, and one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of messages, records, changes or events, depending on the kind of subscription.
    pub messages: u64,
    /// Number of bytes of messages, records, changes or events, depending on the kind of subscription.
    pub bytes: u64,
}

impl Window {
    pub(crate) fn permit(self) -> Permit {
        Permit { messages: self.messages.max(1), bytes: self.bytes.max(1) }
    }
}

/// Default window of a subscription: the numbers of messages and bytes that the server may send before the application
/// has taken them.
pub const DEFAULT_WINDOW: Window = Window { messages: 65_536, bytes: 8 * 1024 * 1024 };

/// Default number of retries of a client's requests, and default pauses between them.
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
            repeat_puts: false,
            max_requests: 4096,
            max_unsent_bytes: 1024 * 1024,
            max_frame_bytes: 32 * 1024 * 1024,
            keep_alive: Duration::from_secs(10),
            window: DEFAULT_WINDOW,
            read_level: None,
            reads: ReadFrom::Leader,
            telemetry: false,
            refresh: Duration::from_secs(2),
        }
    }
}

/// Shortest time between two requests for the members of the cluster.
pub const MIN_REFRESH: Duration = Duration::from_millis(10);
/// Maximum number of connections of a client.
pub const MAX_POOL: usize = 1024;
/// Maximum number of channels of a connection. The server permits no more: opening one more channel would wait until
/// another channel ends.
pub const MAX_CHANNELS: usize = 64;

impl Options {
    /// Returns the options with the numbers of connections and channels within their limits. Each number is at least 1.
    /// The maximums are [`MAX_POOL`] and [`MAX_CHANNELS`].
    pub(crate) fn bounded(mut self) -> Self {
        self.connections = self.connections.clamp(1, MAX_POOL);
        self.channels = self.channels.clamp(1, MAX_CHANNELS);
        self.max_requests = self.max_requests.max(1);
        self.max_unsent_bytes = self.max_unsent_bytes.max(1);
        self.refresh = self.refresh.max(MIN_REFRESH);
        self.max_frame_bytes = self.max_frame_bytes.max(MIN_FRAME_BYTES);
        self
    }
}
