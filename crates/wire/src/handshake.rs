//! Handshake at the start of a connection: agreement on the version and the limits.
//!
//! Owns: the rules by which each side answers the other side's offer, and the time after which a silent peer counts as
//! gone. Does not own: the bytes (`frames/connection`), or clocks; time is an argument.
//!
//! A client sends [`Hello`] first, and a server answers with [`Welcome`] or [`Goodbye`]. These three frames have the
//! same layout in every version of the protocol, so two sides without a common version can still report that.

use std::time::Duration;

use thalweg_types::{
    Action, Classified, Durability, NodeId,
    codec::List,
    limits::{MAX_FRAME_BYTES, MIN_FRAME_BYTES},
};

use crate::{
    decoder::RawFrame,
    frames::{ClientFrame, DecodeError, Goodbye, Hello, Kind, Magic, Reason, Space, Welcome},
};

/// Lowest protocol version that this crate supports.
pub const MIN_VERSION: u16 = 1;
/// Highest protocol version that this crate supports.
pub const MAX_VERSION: u16 = 1;

/// Name of the protocol in TLS and QUIC (ALPN).
pub const ALPN: &[u8] = b"thalweg";

/// Number of the feature `cluster`: the server is a member of a cluster, and answers `read members`.
pub const FEATURE_CLUSTER: u16 = 1;

/// Shortest keep-alive interval. A side that requests a shorter one gets this interval.
pub const MIN_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Error returned when the handshake fails, so that a connection cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The first frame of the connection is not a hello.
    #[error(
        "the first frame has kind {kind:#06x}: this port speaks Thalweg's native protocol, which begins with a hello"
    )]
    NotHello {
        /// Number of the kind of the first frame.
        kind: u16,
    },
    /// The first frame is malformed.
    #[error("this is not Thalweg's native protocol: {0}")]
    Malformed(DecodeError),
    /// The two sides have no version in common.
    #[error(
        "the peer supports versions {min} to {max} of the protocol, and this side supports {MIN_VERSION} to \
        {MAX_VERSION}"
    )]
    NoCommonVersion {
        /// Lowest protocol version that the peer supports.
        min: u16,
        /// Highest protocol version that the peer supports.
        max: u16,
    },
    /// The peer's limit on the size of frames is below [`MIN_FRAME_BYTES`].
    #[error("the peer accepts frames of at most {got} bytes: its limit must be at least {MIN_FRAME_BYTES}")]
    FrameTooSmall {
        /// The peer's limit on the size of frames, in bytes.
        got: u32,
    },
}

impl Classified for HandshakeError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotHello { .. } | Self::Malformed(_) => "not_thalweg",
            Self::NoCommonVersion { .. } => "no_common_version",
            Self::FrameTooSmall { .. } => "frame_limit_too_small",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

impl HandshakeError {
    /// Creates the goodbye for the peer; `message` is this error's [text](ToString::to_string).
    #[must_use]
    pub fn goodbye<'a>(&self, message: &'a str) -> Goodbye<'a> {
        let reason = match self {
            Self::NoCommonVersion { .. } => Reason::Version,
            _ => Reason::Protocol,
        };
        goodbye(reason, self.action(), message)
    }
}

/// Creates a goodbye that states this crate's protocol versions.
#[must_use]
pub fn goodbye(reason: Reason, class: Action, message: &str) -> Goodbye<'_> {
    Goodbye { reason, class, min_version: MIN_VERSION, max_version: MAX_VERSION, message }
}

/// Parameters of a connection that both sides use after the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Protocol version that both sides use.
    pub version: u16,
    /// Size of the largest frame that the peer accepts, in bytes after the header.
    pub max_send_bytes: u32,
    /// Keep-alive interval of the connection, see [`KeepAlive`].
    pub keep_alive: Duration,
    /// Optional protocol features that both sides support.
    pub features: Vec<u16>,
}

/// Limits, identity and features that a server offers to a client in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerParameters<'a> {
    /// Size of the largest frame that the server accepts, in bytes after the header.
    pub max_frame_bytes: u32,
    /// Keep-alive interval that the server wants. A client may request a shorter one.
    pub keep_alive: Duration,
    /// Maximum number of concurrent requests on a channel (a TCP connection or a QUIC stream).
    pub max_requests: u32,
    /// Maximum number of subscriptions on a channel (a TCP connection or a QUIC stream).
    pub max_subscriptions: u32,
    /// Durability level of acknowledgements for requests that state no level.
    pub durability: Durability,
    /// Id of the server's node.
    pub node: NodeId,
    /// Number of this run of the node; each start has another number.
    pub run: u64,
    /// Version of the server, for people.
    pub server: &'a str,
    /// Optional protocol features that the server supports.
    pub features: &'a [u16],
    /// Spaces that the server offers. A space is one log with the keyspaces and streams computed from it.
    pub spaces: &'a [Space<'a>],
}

impl ServerParameters<'_> {
    /// Checks a client's hello and returns the parameters of the connection.
    pub fn accept(&self, hello: &Hello<'_>) -> Result<Agreed, HandshakeError> {
        let version = common_version(hello.min_version, hello.max_version)?;
        check_frame_limit(hello.max_frame_bytes)?;
        let wanted = Duration::from_millis(hello.keep_alive_millis.into()).max(MIN_KEEP_ALIVE);
        let keep_alive = if hello.keep_alive_millis == 0 { self.keep_alive } else { self.keep_alive.min(wanted) };
        Ok(Agreed {
            version,
            max_send_bytes: hello.max_frame_bytes.min(MAX_FRAME_BYTES as u32),
            keep_alive: keep_alive.max(MIN_KEEP_ALIVE),
            features: hello.features.iter().filter(|feature| self.features.contains(feature)).collect(),
        })
    }

    /// Creates the welcome frame that announces the agreed parameters to the client.
    #[must_use]
    pub fn welcome<'a>(&'a self, agreed: &'a Agreed) -> Welcome<'a> {
        Welcome {
            version: agreed.version,
            max_frame_bytes: self.max_frame_bytes,
            keep_alive_millis: u32::try_from(agreed.keep_alive.as_millis()).unwrap_or(u32::MAX),
            max_requests: self.max_requests,
            max_subscriptions: self.max_subscriptions,
            durability: self.durability,
            node: self.node,
            run: self.run,
            server: self.server,
            features: List::Items(&agreed.features),
            spaces: List::Items(self.spaces),
        }
    }
}

/// Decodes the first frame of a connection, which must be a hello.
pub fn read_hello(raw: RawFrame<'_>) -> Result<Hello<'_>, HandshakeError> {
    if raw.header.kind != Kind::Hello as u16 {
        return Err(HandshakeError::NotHello { kind: raw.header.kind });
    }
    match ClientFrame::decode(raw).map_err(HandshakeError::Malformed)?.frame {
        ClientFrame::Hello(hello) => Ok(hello),
        other => Err(HandshakeError::NotHello { kind: other.kind() as u16 }),
    }
}

/// Creates a hello frame that states this crate's protocol versions.
#[must_use]
pub fn hello<'a>(name: &'a str, max_frame_bytes: u32, keep_alive: Duration, features: &'a [u16]) -> Hello<'a> {
    Hello {
        magic: Magic,
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        max_frame_bytes,
        keep_alive_millis: u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX),
        name,
        features: List::Items(features),
    }
}

/// Checks the server's welcome and returns the parameters of the connection.
pub fn check_welcome(welcome: &Welcome<'_>) -> Result<Agreed, HandshakeError> {
    Ok(Agreed {
        version: common_version(welcome.version, welcome.version)?,
        max_send_bytes: check_frame_limit(welcome.max_frame_bytes)?.min(MAX_FRAME_BYTES as u32),
        keep_alive: Duration::from_millis(welcome.keep_alive_millis.into()).max(MIN_KEEP_ALIVE),
        features: welcome.features.iter().collect(),
    })
}

/// Returns the highest protocol version that both sides support.
fn common_version(min: u16, max: u16) -> Result<u16, HandshakeError> {
    let highest = max.min(MAX_VERSION);
    if highest < min.max(MIN_VERSION) { Err(HandshakeError::NoCommonVersion { min, max }) } else { Ok(highest) }
}

fn check_frame_limit(got: u32) -> Result<u32, HandshakeError> {
    if got < MIN_FRAME_BYTES { Err(HandshakeError::FrameTooSmall { got }) } else { Ok(got) }
}

/// Action that a side of a connection must take now, given the time since it last sent and received a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveAction {
    /// Nothing yet: check again after this time.
    Wait(Duration),
    /// Send a ping, since this side has sent nothing for one keep-alive interval.
    Ping,
    /// Treat the peer as gone: this side has received nothing for three keep-alive intervals.
    PeerLost,
}

/// Keep-alive state of one side. Each side sends something at least once an interval, if necessary a ping. It treats
/// the peer as gone after three intervals of silence. All times come from a monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    interval: Duration,
    heard: Duration,
    sent: Duration,
}

impl KeepAlive {
    /// Creates the keep-alive state of a connection that begins at `now`. Both times, of the last sent and the last
    /// received bytes, start there.
    #[must_use]
    pub fn new(interval: Duration, now: Duration) -> Self {
        Self { interval: interval.max(MIN_KEEP_ALIVE), heard: now, sent: now }
    }

    /// Records that this side received something at the time `now`.
    pub fn record_receipt(&mut self, now: Duration) {
        self.heard = now;
    }

    /// Records that this side sent something at the time `now`.
    pub fn sent(&mut self, now: Duration) {
        self.sent = now;
    }

    /// Returns the action that is due at the time `now`: wait, ping, or treat the peer as gone.
    #[must_use]
    pub fn due_action(&self, now: Duration) -> KeepAliveAction {
        let (ping_at, gone_at) = (self.sent + self.interval, self.heard + 3 * self.interval);
        if now >= gone_at {
            KeepAliveAction::PeerLost
        } else if now >= ping_at {
            KeepAliveAction::Ping
        } else {
            KeepAliveAction::Wait(ping_at.min(gone_at) - now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decoder::Decoder, frames::Frame};

    const SECOND: Duration = Duration::from_secs(1);

    fn parameters() -> ServerParameters<'static> {
        ServerParameters {
            max_frame_bytes: 1 << 20,
            keep_alive: 30 * SECOND,
            max_requests: 100,
            max_subscriptions: 10,
            durability: Durability::Disk,
            node: NodeId(1),
            run: 2,
            server: "0.1",
            features: &[3, 5],
            spaces: &[],
        }
    }

    #[test]
    fn both_sides_agree() {
        let parameters = parameters();
        let agreed = parameters.accept(&hello("test", 70_000, 10 * SECOND, &[1, 5])).unwrap();
        let wanted = Agreed { version: 1, max_send_bytes: 70_000, keep_alive: 10 * SECOND, features: vec![5] };
        assert_eq!(agreed, wanted);
        let at_client = check_welcome(&parameters.welcome(&agreed)).unwrap();
        assert_eq!(at_client, Agreed { max_send_bytes: 1 << 20, ..wanted });
        let patient = parameters.accept(&hello("test", u32::MAX, Duration::ZERO, &[])).unwrap();
        assert_eq!((patient.keep_alive, patient.max_send_bytes), (30 * SECOND, MAX_FRAME_BYTES as u32));
        let hasty = parameters.accept(&hello("test", 70_000, Duration::from_millis(1), &[])).unwrap();
        assert_eq!(hasty.keep_alive, MIN_KEEP_ALIVE);
    }

    #[test]
    fn versions_are_negotiated_or_refused() {
        let parameters = parameters();
        let offer = |min_version, max_version| Hello { min_version, max_version, ..hello("t", 70_000, SECOND, &[]) };
        assert_eq!(parameters.accept(&offer(1, 9)).unwrap().version, 1);
        assert_eq!(parameters.accept(&offer(0, 1)).unwrap().version, 1);
        for (min, max) in [(2, 9), (0, 0), (1, 0)] {
            let error = parameters.accept(&offer(min, max)).unwrap_err();
            assert_eq!(error, HandshakeError::NoCommonVersion { min, max });
            let text = error.to_string();
            let goodbye = error.goodbye(&text);
            assert_eq!((goodbye.reason, goodbye.class), (Reason::Version, Action::Fix));
        }
        let agreed = parameters.accept(&offer(1, 1)).unwrap();
        let welcome = Welcome { version: 2, ..parameters.welcome(&agreed) };
        assert_eq!(check_welcome(&welcome), Err(HandshakeError::NoCommonVersion { min: 2, max: 2 }));
        let small = Hello { max_frame_bytes: 65_535, ..offer(1, 1) };
        assert_eq!(parameters.accept(&small), Err(HandshakeError::FrameTooSmall { got: 65_535 }));
    }

    #[test]
    fn anything_but_a_hello_is_another_protocol() {
        let mut bytes = Vec::new();
        hello("t", 70_000, SECOND, &[]).encode(&mut bytes, 0).unwrap();
        let read = |bytes: &[u8]| {
            let mut decoder = Decoder::new();
            decoder.feed(bytes);
            read_hello(decoder.next_borrowed().unwrap().unwrap()).map(|hello| hello.name.to_owned())
        };
        assert_eq!(read(&bytes), Ok("t".to_owned()));
        let mut other = bytes.clone();
        other[12] = b'X';
        assert!(matches!(read(&other), Err(HandshakeError::Malformed(_))));
        bytes[4] = Kind::Ping as u8;
        let error = read(&bytes).unwrap_err();
        assert_eq!(error, HandshakeError::NotHello { kind: 4 });
        assert_eq!(error.goodbye("").reason, Reason::Protocol);
    }

    #[test]
    fn silence_is_broken_and_then_final() {
        let mut alive = KeepAlive::new(10 * SECOND, 100 * SECOND);
        assert_eq!(alive.due_action(104 * SECOND), KeepAliveAction::Wait(6 * SECOND));
        assert_eq!(alive.due_action(110 * SECOND), KeepAliveAction::Ping);
        alive.sent(110 * SECOND);
        assert_eq!(alive.due_action(110 * SECOND), KeepAliveAction::Wait(10 * SECOND));
        alive.record_receipt(111 * SECOND);
        alive.sent(139 * SECOND);
        assert_eq!(alive.due_action(140 * SECOND), KeepAliveAction::Wait(SECOND), "it is gone before the next ping");
        assert_eq!(alive.due_action(141 * SECOND), KeepAliveAction::PeerLost);
    }
}
