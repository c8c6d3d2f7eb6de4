//! The resources of a server that clients share.
//!
//! Owns: their names, and the rules that differ between them. Does not own: the bounds, and the amounts that clients
//! hold (`admission`).

use crate::limits::{GROUP_BYTES, LEASE_BYTES, OWN_BODY_BYTES, STREAM_BYTES};

/// A limited resource of the server that clients share. Each variant is one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resource {
    /// Requests of clients that are in progress: their handlers are running.
    Requests,
    /// Bytes of request bodies in memory, except for [`OWN_BODY_BYTES`] of each connection.
    BodyBytes,
    /// Bytes of large replies that wait for their clients.
    ReplyBytes,
    /// Scans of keys, reads of records, and long reads of Redis clients, while they are in progress.
    Scans,
    /// Open tails of streams, pushes of consumer groups, watches of keys or of the cluster, reads that wait for data,
    /// and subscribers to subjects over HTTP.
    Tails,
    /// Snapshots that are being sent or kept for a client that may resume them.
    Snapshots,
    /// Subscriptions to subjects.
    Subscriptions,
    /// Capacity in bytes of caches, held by the address that created them.
    CacheBytes,
    /// Number of caches, held by the address that created them.
    Caches,
    /// Keyspaces, held by the address that created them.
    Keyspaces,
    /// Streams, held by the address that created them.
    Streams,
    /// Leases, held by the address to which they were granted.
    Leases,
    /// Consumer groups, held by the address that created them.
    Groups,
    /// Bytes of memory of streams, leases, and consumer groups with their members and unsettled records. The address
    /// whose client created an object holds its bytes. Bytes of objects that no client of this node has created since
    /// its start are charged to no client.
    ObjectBytes,
    /// Deletes of many keys at once, such as of a prefix, whose rows the server has still to remove. The address that
    /// sent a delete holds its units. A unit measures the memory of a waiting delete.
    Deletes,
    /// Connections; each channel of a QUIC connection after the first also counts as one.
    Connections,
    /// QUIC connections; they also count as [`Connections`](Self::Connections).
    QuicConnections,
}

impl Resource {
    /// Every resource, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Requests,
        Self::BodyBytes,
        Self::ReplyBytes,
        Self::Scans,
        Self::Tails,
        Self::Snapshots,
        Self::Subscriptions,
        Self::CacheBytes,
        Self::Caches,
        Self::Keyspaces,
        Self::Streams,
        Self::Leases,
        Self::Groups,
        Self::ObjectBytes,
        Self::Deletes,
        Self::Connections,
        Self::QuicConnections,
    ];
    pub(super) const COUNT: usize = Self::ALL.len();

    /// Returns the name of the resource in metrics and log lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::BodyBytes => "body_bytes",
            Self::ReplyBytes => "reply_bytes",
            Self::Scans => "scans",
            Self::Tails => "tails",
            Self::Snapshots => "snapshots",
            Self::Subscriptions => "subscriptions",
            Self::CacheBytes => "cache_bytes",
            Self::Caches => "caches",
            Self::Keyspaces => "keyspaces",
            Self::Streams => "streams",
            Self::Leases => "leases",
            Self::Groups => "groups",
            Self::ObjectBytes => "object_bytes",
            Self::Deletes => "deletes",
            Self::Connections => "connections",
            Self::QuicConnections => "quic_connections",
        }
    }

    /// A part of each resource's bound, the reserve, is kept for the clients that hold least. Returns true if a
    /// connection that holds little may take this resource from half of the reserve, although all connections of its
    /// address together hold more than the address's share. Returns false for resources that outlive a connection, and
    /// for connections themselves. A client could take ever more of these with new connections, because a new
    /// connection holds nothing yet.
    pub(super) const fn is_shared_by_connection(self) -> bool {
        use Resource::*;
        !matches!(
            self,
            CacheBytes
                | Caches
                | Keyspaces
                | Streams
                | Leases
                | Groups
                | ObjectBytes
                | Deletes
                | Connections
                | QuicConnections
        )
    }

    /// Returns true if amounts of this resource are numbers of bytes, and false if they are numbers of items.
    pub(super) const fn is_in_bytes(self) -> bool {
        matches!(self, Self::BodyBytes | Self::ReplyBytes | Self::CacheBytes | Self::ObjectBytes)
    }

    /// Returns the amount that each connection holds without being charged, because the memory of the connection
    /// includes it.
    pub(super) const fn own(self) -> u64 {
        match self {
            Self::BodyBytes => OWN_BODY_BYTES as u64,
            _ => 0,
        }
    }

    /// Returns the resources whose items also use this one, each with the amount of this resource that one item uses.
    /// For example, each stream uses object bytes.
    pub(super) const fn parts(self) -> &'static [(Self, u64)] {
        match self {
            Self::ObjectBytes => {
                &[(Self::Streams, STREAM_BYTES), (Self::Groups, GROUP_BYTES), (Self::Leases, LEASE_BYTES)]
            }
            _ => &[],
        }
    }
}
