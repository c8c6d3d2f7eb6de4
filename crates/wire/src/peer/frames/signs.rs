//! Frames about nodes: signs of life, with facts about the sender, and descriptions.

use thalweg_types::{
    Index, SpaceTime,
    codec::{Varint, structure},
};

structure! {
    /// A sign of life. Every node sends it to every other node, which replies.
    ///
    /// `heard` shows the receiver whether the sender hears it. A node ignores appends from a leader that has not heard
    /// it for one lease: such a leader keeps its followers quiet and commits nothing.
    Ping as "ping" {
        /// Number of the ping, which rises by one with each.
        number: u64,
        /// Number of the last ping of the receiver that the sender has received; 0 for none.
        heard: u64,
    }
}

structure! {
    /// Reply to [`Ping`]: how far the node is.
    Pong as "pong" {
        /// Number of the ping.
        number: u64,
        /// Index of the last entry in the node's log.
        last: Index,
        /// Index of the last entry that the node has applied.
        applied: Index,
        /// Free bytes on the disk that the node may use for data.
        free_bytes: u64,
        /// Wall clock of the node.
        wall: SpaceTime,
    }
}

structure! {
    /// Sign of life, to which [`Ping`] and its rules apply, but without a reply: the receiver's own signs show that it
    /// hears the sender. The facts about the sender are those that it has last stated on this connection. Only for
    /// nodes of version 3 or later.
    Sign as "sign of life" {
        /// Number of the sign among the pings, signs and facts that the sender has sent to the receiver, which rises by
        /// one.
        number: u64 as Varint,
        /// Number of the last one of the receiver that the sender has received; 0 for none.
        heard: u64 as Varint,
    }
}

structure! {
    /// Sign of life with facts about the sender: the first one of a connection, and again when the facts have changed.
    Facts as "facts" {
        /// Number, as in [`Sign`].
        number: u64 as Varint,
        /// Number of the last sign heard, as in [`Sign`].
        heard: u64 as Varint,
        /// Index of the last entry in the sender's log.
        last: Index as Varint,
        /// Index of the last entry that the sender has applied.
        applied: Index as Varint,
        /// True if the sender's disk is too full for new data.
        lacks_room: bool,
        /// Wall clock of the sender. The receiver continues it until the next facts.
        wall: SpaceTime as Varint,
        /// Number that changes with the sender's [`Description`]: the receiver asks for it only after a change.
        about: u32,
    }
}

structure! {
    /// Requests the description of the receiving node, which the sender shows to users.
    Describe as "describe" {}
}

structure! {
    /// Reply to [`Describe`].
    Description<'a> as "description" {
        /// Name of the node.
        name: &'a str,
        /// Zone of the node; empty if it has none.
        zone: &'a str,
        /// Version of the node's software.
        software: &'a str,
        /// Address of HTTP; empty if it is not known.
        http: &'a str,
        /// Address of the native protocol; empty if it is not served.
        native: &'a str,
        /// Address for Redis clients; empty if they are not served.
        resp: &'a str,
    }
}
