//! Descriptions of keyspaces, leases, streams, producers, consumer groups, caches and members of a cluster.
//!
//! Owns: descriptions and results that both the engine and the client library return to their callers. Each is declared
//! once here. The native protocol (`docs/formats/wire.md`) encodes most of them as they are. A lease and the result of
//! a settlement are encoded as structures of `thalweg-wire`.
//!
//! Does not own: the JSON of the HTTP API, whose fields have other names and units (`thalweg-http`); the stored rows
//! from which the descriptions are made (`thalweg-state`); the counters of a cache without its name (`thalweg-broker`).

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    codec::{choices, structure},
    command::{
        KeyspaceConfig, StreamConfig,
        groups::{GroupConfig, Lapsed},
    },
    durability::Durability,
    ids::{GroupId, KeyspaceId, LeaseId, NodeId, Offset, StreamId},
};

structure! {
    /// Description of a keyspace, as the server returns it to clients.
    Keyspace as "keyspace" {
        /// Id of the keyspace, which commands use to name it. The server never gives this id to another keyspace.
        id: KeyspaceId,
        /// Time at which the keyspace was created, by the clock that all replicas share (space time).
        created: SpaceTime,
        /// Settings of the keyspace.
        config: KeyspaceConfig,
        /// Name of the keyspace.
        name: String,
    }
}

structure! {
    /// Number and size of a keyspace's keys.
    KeyspaceCounts as "keyspace counts" {
        /// Number of keys in the keyspace, exact or estimated.
        keys: u64,
        /// Bytes of all keys and values in the keyspace, exact or estimated.
        bytes: u64,
        /// True if the numbers of keys and bytes are exact as of one moment; otherwise they are estimates. Even in a
        /// keyspace that counts exactly, an expired key counts until a log entry removes it, moments later.
        exact: bool,
        /// True if rows of deleted keys are still to be removed in the background.
        sweeping: bool,
    }
}

/// Description of a lease. Keys that are attached to a lease live only while a client keeps the lease alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Id of the lease.
    pub id: LeaseId,
    /// Time from each keep-alive of the lease to its deadline.
    pub ttl: Duration,
    /// Time at which the lease ends unless it is kept alive before, by the clock that all replicas share (space time).
    pub deadline: SpaceTime,
    /// Time from now until the deadline of the lease.
    pub remaining: Duration,
    /// Approximate number of attached keys: a key that was overwritten or deleted counts until maintenance notices
    /// this.
    pub keys: u32,
}

structure! {
    /// Description of a stream, as the server returns it to clients.
    Stream as "stream" {
        /// Id of the stream, which commands use to name it. The server never gives this id to another stream.
        id: StreamId,
        /// Offset of the oldest record that the stream still keeps.
        start: Offset,
        /// Offset that the next appended record will get; on a single node it equals the high watermark.
        next: Offset,
        /// Total size in bytes of the encoded records that the stream still keeps.
        bytes: u64,
        /// Time of the last append to the stream, by the clock that all replicas share (space time); 0 if there was
        /// none.
        last_time: SpaceTime,
        /// Configuration of the stream.
        config: StreamConfig,
        /// Name of the stream.
        name: String,
    }
}

structure! {
    /// A producer (an appending client with sequence numbers) that a stream remembers.
    Producer as "producer" {
        /// Current epoch of the producer.
        epoch: u32,
        /// Next sequence number that the producer must use in its current epoch.
        next_sequence: u64,
        /// Time at which the producer last appended or was opened, by the clock that all replicas share (space time).
        last_time: SpaceTime,
        /// Id of the producer.
        id: String,
    }
}

structure! {
    /// Description of a member of a consumer group, as the server returns it to clients.
    Member as "member" {
        /// Time of the member's last fetch, by the clock that all replicas share (space time), exact to ten seconds.
        last_fetch: SpaceTime,
        /// Number of records that the member holds: they were delivered to it, it has not acked or nacked them yet, and
        /// their ack deadline has not passed.
        in_flight: u64,
        /// Number of attempts (deliveries to the member) that are not finished: the member still holds at least one of
        /// their records.
        attempts: u64,
        /// Name of the member.
        name: String,
    }
}

structure! {
    /// Description of a consumer group, as the server returns it to clients.
    Group as "group" {
        /// Id of the group, which commands use to name it. The server never gives this id to another group.
        id: GroupId,
        /// Id of the group's stream.
        stream: StreamId,
        /// Cursor of the group: all records from this offset on have never been delivered.
        cursor: Offset,
        /// Lowest offset whose record is pending or has never been delivered. All records below this offset are acked,
        /// dropped or dead letters.
        floor: Offset,
        /// Number of records that the group has never delivered: the stream's next offset minus the cursor.
        lag: u64,
        /// Number of pending records: they are delivered but not acked, or wait for redelivery, or are parked.
        pending: u64,
        /// Number of pending records that members hold and whose ack deadline has not passed.
        in_flight: u64,
        /// Number of parked records: pending records that the group holds back until no earlier record with the same
        /// key is pending.
        parked: u64,
        /// Number of dead letters (records not acked after too many deliveries) that are being written to the stream
        /// for dead letters.
        dying: u64,
        /// Number of deliveries of records since the group was created, redeliveries included.
        delivered: u64,
        /// Number of the group's deliveries that were redeliveries.
        redelivered: u64,
        /// Number of records that members have acked.
        acked: u64,
        /// Number of records that became dead letters.
        dead: u64,
        /// Number of records dropped after too many deliveries, because the group has no stream for dead letters.
        dropped: u64,
        /// Configuration of the group.
        config: GroupConfig,
        /// Name of the group, unique within its stream.
        name: String,
        /// Name of the group's stream.
        stream_name: String,
        /// Members of the group that have fetched records.
        members: Vec<Member>,
    }
}

/// Counts of a consumer group, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounts {
    /// Number of records that wait for an ack or for redelivery.
    pub pending: u64,
    /// Number of dead letters that are not in the group's dead-letter stream yet.
    pub dying: u64,
    /// Number of members that the group remembers.
    pub members: u64,
    /// Number of deliveries of records, including redeliveries.
    pub delivered: u64,
    /// Number of deliveries of records that had been delivered before.
    pub redelivered: u64,
    /// Number of records that consumers have acked.
    pub acked: u64,
    /// Number of records moved to the group's dead-letter stream.
    pub dead: u64,
    /// Number of records that failed for good while the group had no dead-letter stream, and so were dropped.
    pub dropped: u64,
}

/// Result of a settlement (ack or nack) of delivered records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlementResult {
    /// Durability level that the settlement reached.
    pub durability: Durability,
    /// Number of records that this settlement has acked or nacked.
    pub settled: u32,
    /// Records that this settlement has not acked or nacked: the ack deadline of their attempt had passed, or an
    /// earlier settlement had acked or nacked them.
    pub lapsed: Vec<Lapsed>,
}

structure! {
    /// Name and statistics of a cache. All counters start at 0 when the cache is created.
    CacheFigures as "cache figures" {
        /// Id of the cache.
        cache: u32,
        /// Number of entries now in the cache.
        entries: u64,
        /// Bytes of all keys and values in the cache, including the memory overhead of each entry.
        bytes: u64,
        /// Capacity of the cache in bytes.
        max_bytes: u64,
        /// Number of reads that found an entry.
        hits: u64,
        /// Number of reads that found no entry.
        misses: u64,
        /// Number of values that clients have set in the cache.
        puts: u64,
        /// Number of cache entries removed by clients.
        deletes: u64,
        /// Number of entries evicted to make room for others.
        evictions: u64,
        /// Number of cache entries that expired.
        expirations: u64,
        /// Name of the cache.
        name: String,
    }
}

choices! {
    /// Role of a member of a cluster.
    MemberRole as "member role" {
        /// The member counts towards a majority and may become the leader.
        Voter = 0 "voter",
        /// The member receives all entries, but does not count towards a majority.
        Learner = 1 "learner",
    }
}

choices! {
    /// Health of a member of a cluster, as the answering node sees it.
    MemberHealth as "member health" {
        /// The answering node hears from the member regularly.
        Alive = 0 "alive",
        /// The answering node has not heard from the member for longer than usual, or has never heard from it.
        Suspect = 1 "suspect",
        /// The member has been silent for so long that it counts as failed.
        Down = 2 "down",
    }
}

structure! {
    /// A member of a cluster, as another member sees it.
    ClusterMember as "cluster member" {
        /// Id of the member.
        node: NodeId,
        /// Role of the member.
        role: MemberRole,
        /// Health of the member.
        health: MemberHealth,
        /// Name of the member, for people.
        name: String,
        /// Zone of the member, such as a rack or a data center; empty if it has none.
        zone: String,
        /// Address `HOST:PORT` at which the member serves the native protocol; empty if it is unknown.
        address: String,
    }
}

impl MemberRole {
    /// Returns the role's name in replies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
        }
    }
}

impl MemberHealth {
    /// Returns the health's name in replies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Down => "down",
        }
    }
}

/// Condition for the removal of a member from its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The member is removed only if, without it, a majority of the voters has answered recently.
    Safe,
    /// The member is removed without a check of the other voters.
    Forced,
}
