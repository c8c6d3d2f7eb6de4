//! Frames about the connection itself, and those that belong to any request: errors, credit, the end.

use thalweg_types::{
    Action, Classified, Durability, NodeId, SpaceId,
    record::{Malformed, Reader},
};

use crate::{
    codec::{EncodeError, Field, Level, List},
    layouts::{choices, structure},
};

/// `TLWG`: by which a connection is known to be meant for us.
const MAGIC: u32 = u32::from_le_bytes(*b"TLWG");

/// Stands for the magic number.
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
    /// The first frame of a connection. Its layout is the same in every version.
    Hello<'a> as "hello" {
        /// By which it is known.
        magic: Magic,
        /// Lowest version that the client speaks.
        min_version: u16,
        /// Highest version that it speaks.
        max_version: u16,
        /// Largest frame that it takes.
        max_frame_bytes: u32,
        /// After so much silence it wants to hear something; 0: it does not care.
        keep_alive_millis: u32,
        /// What it calls itself, for people.
        name: &'a str,
        /// Features that it would like, see [`features`](crate::handshake).
        features: List<'a, u16>,
    }
}

structure! {
    /// The answer to a hello that is accepted.
    Welcome<'a> as "welcome" {
        /// The version that is spoken from here on.
        version: u16,
        /// Largest frame that the server takes.
        max_frame_bytes: u32,
        /// After so much silence either side says something; after three times as much it is gone.
        keep_alive_millis: u32,
        /// Requests under way on one channel; more are shed.
        max_requests: u32,
        /// Subscriptions on one channel; more are refused.
        max_subscriptions: u32,
        /// The level of acks where a request does not say.
        durability: Durability,
        /// The server's node.
        node: NodeId,
        /// Another one each time the server starts: ids of caches are of a run.
        run: u64,
        /// The server's version, for people.
        server: &'a str,
        /// Features that both have.
        features: List<'a, u16>,
        /// The spaces, the default one first.
        spaces: List<'a, Space<'a>>,
    }
}

structure! {
    /// A space.
    Space<'a> as "space" {
        /// Its id.
        id: SpaceId,
        /// Its name.
        name: &'a str,
    }
}

/// Why a side says goodbye. Codes that are not known here are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client has done what it wanted.
    Done,
    /// The server stops, or restarts.
    Stopping,
    /// Nothing was heard for three times the keep-alive interval.
    Silent,
    /// The peer sent what it may not.
    Protocol,
    /// There is no version that both speak.
    Version,
    /// As many connections as there may be.
    Overloaded,
    /// The peer does not take what it is sent.
    Slow,
    /// The peer has not shown who it is, or may not be here. Not used yet.
    Refused,
    /// One that a newer peer knows.
    Other(u16),
}

impl Reason {
    /// All but [`Other`](Self::Other), by code, as the document lists them.
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

    /// Its number.
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
    /// The last frame that a side sends. Its layout is the same in every version.
    Goodbye<'a> as "goodbye" {
        /// Why.
        reason: Reason,
        /// Whether connecting again helps.
        class: Action,
        /// Lowest version that the sender speaks.
        min_version: u16,
        /// Highest version that it speaks.
        max_version: u16,
        /// For people.
        message: &'a str,
    }
}

structure! {
    /// Is answered with a [`Pong`] at once.
    Ping as "ping" {
        /// Comes back as it is.
        token: u64,
    }
}

structure! {
    /// The answer to a [`Ping`].
    Pong as "pong" {
        /// As it came.
        token: u64,
    }
}

choices! {
    /// What becomes of what waits for a subscription that is cancelled.
    CancelMode as "cancel mode" {
        /// It is dropped.
        Now = 0 "now",
        /// It is still delivered, as far as credit goes; nothing new joins it.
        Drain = 1 "drain",
    }
}

structure! {
    /// Ends the request or subscription whose id the frame has. What has ended already is not an error.
    Cancel as "cancel" {
        /// What becomes of what waits.
        mode: CancelMode,
    }
}

structure! {
    /// Up to which totals a subscription may send, see [`credit`](crate::credit). Never goes back.
    Credit as "credit" {
        /// Messages, records or changes since the subscription began.
        messages: u64,
        /// Bytes since then.
        bytes: u64,
    }
}

choices! {
    /// Whether a request that failed did something.
    Effect as "effect" {
        /// Nothing happened.
        Nothing = 0 "nothing",
        /// It may have happened all the same: what must not happen twice is not to be sent again as it is.
        Unknown = 1 "unknown",
    }
}

structure! {
    /// A figure that helps to go on.
    Detail<'a> as "detail" {
        /// What it is, as in errors over HTTP.
        name: &'a str,
        /// The figure.
        value: u64,
    }
}

structure! {
    /// The reply to a request that was not carried out, or not to its end.
    Failed<'a> as "failed" {
        /// What to do: retry, fix the request, or stop.
        class: Action,
        /// Whether something happened.
        effect: Effect,
        /// The level of what the error shows of the data, if it shows some.
        shown: Level,
        /// Stable, for programs.
        code: &'a str,
        /// For people: what happened and what to do next.
        message: &'a str,
        /// Figures.
        details: List<'a, Detail<'a>>,
    }
}

impl<'a> Failed<'a> {
    /// The reply that tells of an error which did nothing, without figures; `message` is its text.
    #[must_use]
    pub fn of(error: &impl Classified, message: &'a str) -> Self {
        let (class, code) = (error.action(), error.code());
        Self { class, effect: Effect::Nothing, shown: Level(None), code, message, details: List::default() }
    }

    /// The figure of that name.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<u64> {
        self.details.iter().find(|detail| detail.name == name).map(|detail| detail.value)
    }
}

structure! {
    /// The last frame of a subscription: its id is free again.
    Ended<'a> as "ended" {
        /// Whether beginning it again helps.
        class: Action,
        /// Stable, for programs: `cancelled`, `limit_reached`, or the code of an error.
        code: &'a str,
        /// For people.
        message: &'a str,
        /// Figures, such as `next`: where to go on.
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
