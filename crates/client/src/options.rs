//! What a client is told when it is made.
//!
//! Owns: [`Options`] with its defaults and what each costs. Does not own whom to connect to: that is an
//! [`Endpoint`](thalweg_transport::Endpoint).

use std::time::Duration;

use thalweg_transport::QuicOptions;
use thalweg_types::limits::MIN_FRAME_BYTES;
use thalweg_wire::Permit;

/// How a client connects, and what it may hold.
///
/// Memory: for each channel at most [`max_unsent_bytes`](Self::max_unsent_bytes) and one frame wait to be written, and
/// what has come and is not yet a whole frame takes 64 KiB, or as much as the frame that is coming
/// (at most [`max_frame_bytes`](Self::max_frame_bytes)). Each subscription holds at most its [`Window`] and one frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the client calls itself, for people who look at the server.
    pub name: String,
    /// Connections. Each costs a socket and a task; more than one helps where one core is not enough for all requests.
    pub connections: usize,
    /// Channels of each QUIC connection, so that one large reply does not hold up the others. TCP and TLS have one.
    pub channels: usize,
    /// Windows and buffers of QUIC connections, which cost memory: see there.
    pub quic: QuicOptions,
    /// Longest time from dialling to the server's welcome.
    pub connect_timeout: Duration,
    /// Longest time of a request, retries included; `None`: for ever. See [`Client::timeout`](crate::Client::timeout).
    pub timeout: Option<Duration>,
    /// How failed requests are repeated, and how lost connections are made again.
    pub retries: Retries,
    /// Requests under way on one channel; the server's bound holds if it is lower. At the bound callers wait.
    pub max_requests: usize,
    /// Bytes of requests that wait to be written on one channel. At the bound callers wait.
    pub max_unsent_bytes: usize,
    /// Largest frame that is taken from the server.
    pub max_frame_bytes: u32,
    /// After so much silence a side says something, and after three times as much it is gone. The server may want less.
    pub keep_alive: Duration,
    /// What a subscription may be sent ahead of the application, unless it says otherwise.
    pub window: Window,
}

/// How often and after which pauses something is tried again.
///
/// The pause before the n-th repetition is drawn from the upper half of `base * 2^n`, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Repetitions of a request; 0: none. A lost connection is made again without such a bound.
    pub max_attempts: u32,
    /// The first pause.
    pub base: Duration,
    /// The longest pause.
    pub max: Duration,
}

/// What a subscription may be sent that the application has not taken yet. It holds at most this and one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Messages, records or changes.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Window {
    pub(crate) fn permit(self) -> Permit {
        Permit { messages: self.messages.max(1), bytes: self.bytes.max(1) }
    }
}

/// What holds where nothing else is said.
pub const DEFAULT_WINDOW: Window = Window { messages: 65_536, bytes: 8 * 1024 * 1024 };

/// What holds where nothing else is said.
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

/// Most connections of a client.
pub const MAX_POOL: usize = 1024;
/// Most channels of a connection: a server permits no more, and opening another would wait for one to end.
pub const MAX_CHANNELS: usize = 64;

impl Options {
    /// Within what is possible: at least one of each, at most [`MAX_POOL`] and [`MAX_CHANNELS`].
    pub(crate) fn bounded(mut self) -> Self {
        self.connections = self.connections.clamp(1, MAX_POOL);
        self.channels = self.channels.clamp(1, MAX_CHANNELS);
        self.max_requests = self.max_requests.max(1);
        self.max_unsent_bytes = self.max_unsent_bytes.max(1);
        self.max_frame_bytes = self.max_frame_bytes.max(MIN_FRAME_BYTES);
        self
    }
}
