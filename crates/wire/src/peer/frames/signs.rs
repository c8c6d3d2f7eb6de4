//! Frames about nodes: signs of life with facts about the sender, and descriptions.

use thalweg_types::{
    Index, SpaceTime,
    codec::{Varint, structure},
};

structure! {
    /// A sign of life, which shows the receiver that the sender is alive, with a reply. Every node sends signs of life
    /// to every other node.
    ///
    /// The field `heard` shows the receiver if its own signs of life reach the sender. A node ignores log entries from
    /// a leader that has received none of the node's signs of life for the duration of one leader's lease: such a
    /// leader would keep its followers from electing another one, but could commit nothing.
    Ping as "ping" {
        /// Number of this ping. It rises by one with each sign of life from the sender to the receiver.
        number: u64,
        /// Number of the receiver's last sign of life that the sender has received; 0 for none.
        heard: u64,
    }
}

structure! {
    /// Reply to [`Ping`], with facts about the replying node.
    Pong as "pong" {
        /// Number of the ping that this replies to.
        number: u64,
        /// Index of the last entry in the replying node's log.
        last: Index,
        /// Index of the last entry that the replying node has applied.
        applied: Index,
        /// Free bytes on the disk that the replying node may use for data.
        free_bytes: u64,
        /// Wall-clock time of the replying node, in microseconds since 1970.
        wall: SpaceTime,
    }
}

structure! {
    /// A sign of life without a reply: it shows the receiver that the sender is alive. The rules of [`Ping`] apply.
    /// Instead of a reply, the receiver's own signs of life show that this one has arrived. The facts about the sender
    /// are unchanged since the sender last stated them on this connection. Only for nodes of version 3 or later.
    Sign as "sign of life" {
        /// Number of this sign of life. It rises by one with each sign of life (ping, sign or facts) from the sender to
        /// the receiver.
        number: u64 as Varint,
        /// Number of the receiver's last sign of life that the sender has received; 0 for none.
        heard: u64 as Varint,
    }
}

structure! {
    /// A sign of life with facts about the sender. It is sent first on a connection, and again after the facts have
    /// changed.
    Facts as "facts" {
        /// Number of this sign of life. It rises as described at [`Sign`].
        number: u64 as Varint,
        /// Number of the receiver's last sign of life that the sender has received, as in [`Sign`].
        heard: u64 as Varint,
        /// Index of the last entry in the sender's log.
        last: Index as Varint,
        /// Index of the last entry that the sender has applied.
        applied: Index as Varint,
        /// True if the sender's disk is too full for new data.
        lacks_room: bool,
        /// Wall-clock time of the sender, in microseconds since 1970. Until the next facts, the receiver adds the
        /// elapsed time to it.
        wall: SpaceTime as Varint,
        /// Number that changes whenever the sender's [`Description`] changes. The receiver asks for the description
        /// only after a change.
        about: u32,
    }
}

structure! {
    /// Asks for the description of the receiving node, which the asking node shows to users.
    Describe as "describe" {}
}

structure! {
    /// Reply to [`Describe`]: name, zone, version and addresses of the replying node.
    Description<'a> as "description" {
        /// Name of the replying node.
        name: &'a str,
        /// Zone of the node; empty if it has none.
        zone: &'a str,
        /// Version of the node's software.
        software: &'a str,
        /// Address at which the node serves HTTP; empty if it is not known.
        http: &'a str,
        /// Address at which the node serves the native protocol; empty if it does not serve this protocol.
        native: &'a str,
        /// Address at which the node serves Redis clients; empty if it does not serve them.
        resp: &'a str,
    }
}
