//! Descriptions of keyspaces, streams, producers, consumer groups and caches.
//!
//! Each is declared once: the engine returns it, the native protocol encodes it (`docs/formats/wire.md`), and the
//! client returns what it has decoded.

use crate::{
    clock::SpaceTime,
    codec::structure,
    command::{KeyspaceConfig, StreamConfig, groups::GroupConfig},
    ids::{GroupId, KeyspaceId, Offset, StreamId},
};

structure! {
    /// Description of a keyspace.
    Keyspace as "keyspace" {
        /// Id of the keyspace, which commands use. The server never gives it to another keyspace.
        id: KeyspaceId,
        /// Space time of the creation.
        created: SpaceTime,
        /// Settings of the keyspace.
        config: KeyspaceConfig,
        /// Name of the keyspace.
        name: String,
    }
}

structure! {
    /// Description of a stream.
    Stream as "stream" {
        /// Id of the stream, which commands use. The server never gives it to another stream.
        id: StreamId,
        /// Oldest offset kept.
        start: Offset,
        /// Next offset to assign; on a single node it equals the high watermark.
        next: Offset,
        /// Encoded bytes of the records kept.
        bytes: u64,
        /// Space time of the last append; 0 if there was none.
        last_time: SpaceTime,
        /// Configuration of the stream.
        config: StreamConfig,
        /// Name of the stream.
        name: String,
    }
}

structure! {
    /// A producer that a stream remembers.
    Producer as "producer" {
        /// Epoch of the producer.
        epoch: u32,
        /// Next sequence number of the epoch.
        next_sequence: u64,
        /// Space time at which the producer last appended or was opened.
        last_time: SpaceTime,
        /// Id of the producer.
        id: String,
    }
}

structure! {
    /// A member of a consumer group.
    Member as "member" {
        /// Space time of the member's last fetch, exact to ten seconds.
        last_fetch: SpaceTime,
        /// Number of records that the member holds.
        in_flight: u64,
        /// Number of attempts that the member holds.
        attempts: u64,
        /// Name of the member.
        name: String,
    }
}

structure! {
    /// Description of a consumer group.
    Group as "group" {
        /// Id of the group, which commands use. The server never gives it to another group.
        id: GroupId,
        /// Id of the group's stream.
        stream: StreamId,
        /// Offset of the next record that has never been delivered.
        cursor: Offset,
        /// Offset below which all records are settled.
        floor: Offset,
        /// Number of records that have never been delivered: the stream's next offset minus the cursor.
        lag: u64,
        /// Number of records that wait for an ack or for redelivery.
        pending: u64,
        /// Number of pending records that members hold before their deadline.
        in_flight: u64,
        /// Number of pending records that wait for another record of the same key.
        parked: u64,
        /// Number of dead letters that are being written to their stream.
        dying: u64,
        /// Number of deliveries of records since the group was created, redeliveries included.
        delivered: u64,
        /// Number of these deliveries that were redeliveries.
        redelivered: u64,
        /// Number of records acked.
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
        /// Members that have fetched.
        members: Vec<Member>,
    }
}

structure! {
    /// Statistics of a cache. Counters start at 0 when the cache is created.
    CacheFigures as "cache figures" {
        /// Id of the cache.
        cache: u32,
        /// Number of entries.
        entries: u64,
        /// Bytes of keys and values, including the overhead of each entry.
        bytes: u64,
        /// Capacity in bytes.
        max_bytes: u64,
        /// Number of reads that found an entry.
        hits: u64,
        /// Number of reads that found no entry.
        misses: u64,
        /// Number of values set.
        puts: u64,
        /// Number of entries removed by clients.
        deletes: u64,
        /// Number of entries evicted to make room for others.
        evictions: u64,
        /// Number of entries that expired.
        expirations: u64,
        /// Name of the cache.
        name: String,
    }
}
