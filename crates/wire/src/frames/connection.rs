//! Frames about the connection itself, and frames that belong to any request: errors, credit and the end of
//! subscriptions.
//!
//! Owns: the contents of these frames, and the reasons for the end of a connection. Does not own: the steps of the
//! handshake (`handshake`), or the arithmetic of credit (`credit`).

use thalweg_types::{
    Action, Classified, Durability, NodeId, SpaceId,
    codec::{EncodeError, Field, Level, List, Malformed, Reader, choices, structure},
};

/// Magic number `TLWG`, which identifies a connection as using Thalweg's native protocol.
const MAGIC: u32 = u32::from_le_bytes(*b"TLWG");

/// The magic number of the native protocol, as a field of a frame. Its encoding is always the bytes `TLWG`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Magic;

impl<'a> Field<'a> for Magic {
    fn layout() -> String {
        "magic".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        MAGIC.put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        if reader.u32(what)? == MAGIC { Ok(Self) } else { Err(Malformed { at, expected: "the magic number TLWG" }) }
    }
}

structure! {
    /// First frame of a connection, sent by the client. Its layout is the same in every version.
    Hello<'a> as "hello" {
        /// Magic number `TLWG`, which identifies the protocol.
        magic: Magic,
        /// Lowest protocol version that the client supports.
        min_version: u16,
        /// Highest protocol version that the client supports.
        max_version: u16,
        /// Size of the largest frame that the client accepts, in bytes after the header.
        max_frame_bytes: u32,
        /// Longest silence that the client wants from the server, in milliseconds; 0 leaves the interval to the
        /// server.
        keep_alive_millis: u32,
        /// Name of the client, for people.
        name: &'a str,
        /// Features that the client wants to use, see [`handshake`](crate::handshake).
        features: List<'a, u16>,
    }
}

structure! {
    /// Answer of the server to a hello that it accepts.
    Welcome<'a> as "welcome" {
        /// Protocol version that both sides use after the handshake.
        version: u16,
        /// Size of the largest frame that the server accepts, in bytes after the header.
        max_frame_bytes: u32,
        /// Keep-alive interval in milliseconds. Either side sends something at least this often, and treats the peer
        /// as gone after three times as much silence.
        keep_alive_millis: u32,
        /// Maximum number of concurrent requests on one channel (a TCP connection or a QUIC stream); the server rejects
        /// further ones as `overloaded`.
        max_requests: u32,
        /// Maximum number of subscriptions on one channel (a TCP connection or a QUIC stream); the server rejects
        /// further ones.
        max_subscriptions: u32,
        /// Durability level that an acknowledgement has if its request states no level.
        durability: Durability,
        /// Id of the server's node.
        node: NodeId,
        /// Number of this run of the server. Each start of the server has another number; ids of caches are valid
        /// within one run.
        run: u64,
        /// Version of the server, for people.
        server: &'a str,
        /// Optional protocol features that both sides support.
        features: List<'a, u16>,
        /// Spaces of the server, the default space first. A space is one log with the keyspaces and streams computed
        /// from it.
        spaces: List<'a, Space<'a>>,
    }
}

structure! {
    /// A space of the server: one log with the keyspaces and streams computed from it.
    Space<'a> as "space" {
        /// Id of the space (one log of the server, with its keyspaces and streams).
        id: SpaceId,
        /// Name of the space (one log of the server, with its keyspaces and streams).
        name: &'a str,
    }
}

/// Reason why a side ends a connection. A code that this version does not know becomes [`Other`](Self::Other).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client has finished its work.
    Done,
    /// The server is stopping or restarting.
    Stopping,
    /// The sender of the goodbye received nothing for three times the keep-alive interval.
    Silent,
    /// The peer violated the protocol.
    Protocol,
    /// The client and the server have no protocol version in common.
    Version,
    /// The server has reached its maximum number of connections.
    Overloaded,
    /// The peer does not read its data fast enough.
    Slow,
    /// The peer is not authenticated or has no access. Not used yet.
    Refused,
    /// A reason from a newer version of the protocol, with its code.
    Other(u16),
}

impl Reason {
    /// All reasons except [`Other`](Self::Other) with their codes and names, in the order of the format document.
    pub const ALL: [(Self, u16, &'static str); 8] = [
        (Self::Done, 0, "done"),
        (Self::Stopping, 1, "stopping"),
        (Self::Silent, 2, "silent"),
        (Self::Protocol, 3, "protocol"),
        (Self::Version, 4, "version"),
        (Self::Overloaded, 5, "overloaded"),
        (Self::Slow, 6, "slow"),
        (Self::Refused, 7, "refused"),
    ];

    /// Returns the number of the reason on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Other(code) => code,
            known => Self::ALL.iter().find(|(reason, ..)| *reason == known).map_or(u16::MAX, |(_, code, _)| *code),
        }
    }
}

impl<'a> Field<'a> for Reason {
    fn layout() -> String {
        "u16".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.code().put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let got = reader.u16(what)?;
        let known = Self::ALL.iter().find(|(_, code, _)| *code == got);
        Ok(known.map_or(Self::Other(got), |(reason, ..)| *reason))
    }
}

structure! {
    /// Last frame that a side sends on a connection. Its layout is the same in every version.
    Goodbye<'a> as "goodbye" {
        /// Reason for the end of the connection.
        reason: Reason,
        /// Advice to the peer: connect again later, fix the cause first, or stop.
        class: Action,
        /// Lowest protocol version that the sender supports.
        min_version: u16,
        /// Highest protocol version that the sender supports.
        max_version: u16,
        /// Explanation for people.
        message: &'a str,
    }
}

structure! {
    /// Request for a [`Pong`], which the receiver sends immediately.
    Ping as "ping" {
        /// Number that the sender chooses, and that the receiver repeats in its pong.
        token: u64,
    }
}

structure! {
    /// Answer to a [`Ping`].
    Pong as "pong" {
        /// Number in the ping that this pong answers.
        token: u64,
    }
}

choices! {
    /// Treatment of queued messages when a client cancels a subscription.
    CancelMode as "cancel mode" {
        /// The server drops the queued messages.
        Now = 0 "now",
        /// The server still delivers the queued messages as far as credit allows, and queues no new ones.
        Drain = 1 "drain",
    }
}

structure! {
    /// Ends the request or subscription with the id in the frame's header. If it has already ended, the server ignores
    /// the frame.
    Cancel as "cancel" {
        /// Treatment of the subscription's queued messages.
        mode: CancelMode,
    }
}

structure! {
    /// New totals of messages and bytes that a subscription's receiver permits the sender to send; see
    /// [`credit`](crate::credit). Totals never decrease.
    Credit as "credit" {
        /// Total number of messages, records or changes that the sender may send, counted since the subscription began.
        messages: u64,
        /// Total number of bytes that the sender may send, counted since the subscription began.
        bytes: u64,
    }
}

choices! {
    /// Effect that a failed request had on the data.
    Effect as "effect" {
        /// The request changed nothing.
        Nothing = 0 "nothing",
        /// The server may have executed the request. A client must not resend the request unchanged if executing it
        /// twice would do harm.
        Unknown = 1 "unknown",
    }
}

structure! {
    /// A named number in an error that helps the client to recover, such as `next`.
    Detail<'a> as "detail" {
        /// Name of the number, such as `next`. Errors over HTTP use the same names.
        name: &'a str,
        /// The number that `name` names.
        value: u64,
    }
}

structure! {
    /// Reply to a request that the server did not execute, or not completely.
    Failed<'a> as "failed" {
        /// Advice to the client: retry, fix the request, or stop.
        class: Action,
        /// Effect that the failed request has had on the data.
        effect: Effect,
        /// Durability level of the stored data that the error reveals, such as the present revision of a key; none if
        /// the error reveals no data.
        shown: Level,
        /// Stable code of the error, for programs.
        code: &'a str,
        /// Message for people: the cause and the next step.
        message: &'a str,
        /// Named numbers in the error that help the client to recover, such as `next`.
        details: List<'a, Detail<'a>>,
    }
}

impl<'a> Failed<'a> {
    /// Creates the reply for an error that changed nothing and has no numbers for recovery. `message` is the error's
    /// text.
    #[must_use]
    pub fn of(error: &impl Classified, message: &'a str) -> Self {
        let (class, code) = (error.action(), error.code());
        Self { class, effect: Effect::Nothing, shown: Level(None), code, message, details: List::default() }
    }

    /// Returns the number with this name among those that help the client to recover; `None` if there is none.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<u64> {
        self.details.iter().find(|detail| detail.name == name).map(|detail| detail.value)
    }
}

structure! {
    /// Last frame of a subscription. The subscription's id is free again afterwards.
    Ended<'a> as "ended" {
        /// Advice to the client: subscribe again later, fix the request first, or stop.
        class: Action,
        /// Stable code for programs: `cancelled`, `limit_reached`, or the code of an error.
        code: &'a str,
        /// Message for people: the reason for the end.
        message: &'a str,
        /// Named numbers such as `next`, the position from which a new subscription continues.
        details: List<'a, Detail<'a>>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::DecodeError;

    #[test]
    fn an_error_becomes_a_reply() {
        let error = DecodeError::UnknownField { tag: 0x8005 };
        let message = error.to_string();
        let details = [Detail { name: "next", value: 42 }];
        let failed = Failed { details: List::Items(&details), ..Failed::of(&error, &message) };
        assert_eq!((failed.class, failed.code, failed.effect), (Action::Fix, "unknown_field", Effect::Nothing));
        assert_eq!((failed.detail("next"), failed.detail("limit")), (Some(42), None));
    }
}
