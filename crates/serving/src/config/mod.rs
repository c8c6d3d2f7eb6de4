//! Configuration of a server: the layers that give values, and the resulting values.
//!
//! Owns: the knobs (one table, [`KNOBS`], from which flags, environment variables and the example file are made),
//! layering, defaults ([`DEFAULTS`]), validation (`checks`), the explanation of every value. Does not own: reading the
//! command line (the command does, and passes a [`ConfigLayer`]). `docs/decisions.md` compares this module with the
//! library figment. Invariants: a key that is not a knob is an error in every layer; every value of a [`Config`] has
//! been checked; every knob has an effect.

mod certificate;
mod checks;
mod cluster;
mod cluster_checks;
mod cluster_memory;
mod error;
mod explain;
mod hosts;
mod layers;
mod memory;
mod memory_size;
mod ports;
mod presets;
mod profile;
mod resp;
mod subjects;
mod units;
mod warnings;

use std::{net::SocketAddr, path::PathBuf, sync::LazyLock, time::Duration};

use thalweg_broker::Batching;
use thalweg_engine::{BackendKind, Options, TableCompression};
use thalweg_types::{
    Durability, ReadLevel,
    limits::{DEFAULT_LINK_BYTES, DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES},
};

use crate::pace::MinRate;

pub use certificate::{PeerPem, PemFile};
pub use cluster::{Advertise, ClusterAddress, HostPort, JoinAddresses, Label, NodeName};
pub use error::ConfigError;
pub use explain::example;
pub use hosts::AllowedHosts;
pub use layers::{Layers, Resolved, Source, resembling};
pub use memory::MemoryBudget;
pub use memory_size::{AvailableMemory, MemorySize};
pub use profile::{Profile, WhenIdle};
pub use resp::{Password, RespAddress, RespDatabase, RespDatabases};
pub use subjects::SubjectPatterns;
pub use units::{Backend, ByteSize, LogFormat, NativeAddress, Setting, Span};

/// A configuration key, with its text in the help, the example file and the explanation.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name of the knob in the configuration file. Its flag is `--name-with-dashes`, and its environment
    /// variable is `THALWEG_NAME`.
    pub name: &'static str,
    /// Text about the effect and the cost of the configuration value.
    pub help: &'static str,
    /// Placeholder for the value in the help of its flag, such as `SIZE`.
    pub value_name: &'static str,
}

macro_rules! knobs {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// Values that one layer of the configuration, such as the file or the flags, gives. `None` leaves a value to
        /// the next layer.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct ConfigLayer {
            $($(#[doc = $help])+ pub $name: Option<$type>,)+
        }

        /// Configuration as a server uses it: every value is present and checked.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $help])+ pub $name: $type,)+
        }

        /// Every knob (configuration value), in the order of the example file.
        pub const KNOBS: &[Knob] = &[$(Knob {
            name: stringify!($name),
            help: concat!($($help),+),
            value_name: <$type as Setting>::VALUE_NAME,
        },)+];

        impl ConfigLayer {
            /// Sets a knob from its text in a flag, an environment variable or the file.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
                match name {
                    $(stringify!($name) => self.$name = Some(Setting::parse(text).map_err(|expected| {
                        ConfigError::Value { name: stringify!($name), got: text.to_owned(), expected }
                    })?),)+
                    _ => return Err(ConfigError::Unknown { name: name.to_owned(), similar: similar(name) }),
                }
                Ok(())
            }

            /// Returns the value of a knob as text, or `None` if this layer does not give it.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => self.$name.as_ref().map(Setting::show),)+
                    _ => None,
                }
            }
        }

        impl Config {
            /// Returns the value of a knob as text, or `None` if no knob has this name.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(Setting::show(&self.$name)),)+
                    _ => None,
                }
            }

            /// Replaces those values of this layer that the layer `given` contains.
            fn take(&mut self, given: &ConfigLayer) {
                $(if let Some(value) = &given.$name {
                    self.$name = value.clone();
                })+
            }
        }

        fn defaults(engine: &Options) -> Config {
            Config { $($name: {
                let default: fn(&Options) -> $type = $default;
                default(engine)
            },)+ }
        }
    };
}

/// Default values of every knob. The engine defines the defaults of its own knobs.
pub static DEFAULTS: LazyLock<Config> = LazyLock::new(|| defaults(&Options::default()));

impl Default for Config {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

const MIB: u64 = 1024 * 1024;

knobs! {
    /// Directory of the database. The server creates it if it is missing. Cost: disk space for the stored data and for
    /// the log segments below.
    data: PathBuf = |_| PathBuf::from("thalweg-data");
    /// Memory that the server may use. The bounds on memory below follow from it, unless they are set themselves: the
    /// block cache, memtables, caches, queues, replies and connections. `auto` is half of the machine's memory, or of
    /// the control group's (cgroup v1 and v2) if that is less. Cost: a larger value lets the server use more memory.
    memory: MemorySize = |_| MemorySize::Auto;
    /// Address and port for HTTP; `localhost` means 127.0.0.1. With port 0 the system chooses a port. Cost: one
    /// listening socket.
    http: SocketAddr = |_| SocketAddr::from(([127, 0, 0, 1], 7070));
    /// Address and port for the native protocol; `off` disables it. `next` uses the address of HTTP and the port after
    /// HTTP's, or a later one if `resp` or `cluster` has that port. Cost: one listening socket.
    native: NativeAddress = |_| NativeAddress::Next;
    /// Require TLS on the TCP port of the native protocol. QUIC always uses TLS. Cost: about three times the CPU per
    /// byte, and one signature per connection.
    native_tls: bool = |_| false;
    /// Threads that serve native clients over plain TCP; the connections are divided among them. 0 starts one thread
    /// for every two processors. TLS and QUIC connections share the threads of HTTP, one per processor. Cost: 190 KiB
    /// per thread, and more wakeups, because each thread then handles fewer requests at a time.
    native_threads: u32 = |_| 0;
    /// PEM file with the certificate of the native protocol and its intermediate certificates. `development` is a
    /// certificate that the server creates in its data directory, for clients that pin its fingerprint. Send SIGHUP to
    /// reload a changed file; the log warns two weeks before the certificate expires. Cost: none.
    native_certificate: PemFile = |_| PemFile::Development;
    /// PEM file with the private key of `native_certificate`. Set both to files, or neither. Send SIGHUP to reload a
    /// changed file. Cost: none.
    native_key: PemFile = |_| PemFile::Development;
    /// UDP sockets for QUIC on the port of the native protocol, each with its own task. Use the number of cores that
    /// may serve QUIC; 0 disables QUIC. Cost: 2 MiB per socket, and up to 8 MiB in the kernel.
    native_quic_sockets: u32 = |_| 4;
    /// Maximum number of bytes in flight per QUIC connection and direction; one channel may use half of it. A smaller
    /// window slows down distant clients: each window takes one round trip. Cost: twice this much memory for each
    /// connection whose peer does not read.
    native_quic_window: ByteSize = |_| ByteSize(2 * MIB);
    /// Address and port for Redis clients (RESP2 and RESP3), such as 127.0.0.1:7379; `off` disables the protocol. Cost:
    /// one listening socket, and 6 MiB for scans in progress.
    resp: RespAddress = |_| RespAddress::Off;
    /// Databases of Redis clients. `16` means the durable keyspaces `redis`, `redis-1` to `redis-15`; after it,
    /// `NUMBER=DATABASE` replaces one, as in `16,15=cache:sessions`. `keyspace:NAME` is durable and has exact counts;
    /// `cache:NAME` holds strings in memory and evicts them when it is full; `streams` holds the native streams. The
    /// server creates caches when it starts, and a keyspace at the first write to it. Cost: the stored data; a full
    /// cache costs `new_cache_bytes` of memory.
    resp_databases: RespDatabases = |_| RespDatabases::durable(16);
    /// Threads that serve Redis clients; the connections are divided among them. 0 starts one thread for every two
    /// processors. A thread commits the writes of its clients together, so its clients share an fsync, but also wait
    /// for each other's long commands. Cost: 190 KiB per thread; with more threads, fewer clients share an fsync.
    resp_threads: u32 = |_| 0;
    /// Password for Redis clients (`AUTH`, `HELLO`); empty requires none. Set it in the environment or in the file: a
    /// flag is visible in the list of processes, and the protocol sends the password in the clear. Cost: none.
    resp_password: Password = |_| Password::default();
    /// Names in the `Host` header of HTTP requests that are accepted, joined by commas; `any` accepts every name.
    /// Always accepted are localhost, loopback addresses, and the address at which the connection arrived. The server
    /// answers other names with 403. Otherwise a website whose own name leads to this node could use the node through
    /// its visitors' browsers. Cost: with `any`, that protection.
    allowed_hosts: AllowedHosts = |_| AllowedHosts::default();
    /// Permit addresses that other machines can reach, although clients are not authenticated and HTTP has no TLS.
    /// Cost: on an untrusted network, the confidentiality of all stored data.
    allow_unprotected: bool = |_| false;
    /// Address and port for the other nodes of a cluster, such as 127.0.0.1:7072; `off` runs the node alone. The node's
    /// first start with an address needs `cluster_init` or `join`; later starts need neither. Cost: each write waits
    /// for a majority of the nodes.
    cluster: ClusterAddress = |_| ClusterAddress::Off;
    /// Create a cluster with this node as its first member, which keeps its data. The server prints the admin token of
    /// the cluster once. A node that is a member already ignores this. Cost: none.
    cluster_init: bool = |_| false;
    /// Addresses of members at which the node joins, joined by commas. The node gets all data and becomes a voter once
    /// it has caught up. Its directory must be new; a node that is a member already ignores this. Cost: none.
    join: JoinAddresses = |_| JoinAddresses::default();
    /// Number of nodes that found a new cluster together. Start each of them with this number, and with the addresses
    /// of all of them in `join`. If one of them has data already, the empty nodes join it instead. 0 joins an existing
    /// cluster. A node that is a member already ignores this. Cost: none.
    expect: u32 = |_| 0;
    /// Token with which the node joins, as `thalweg cluster join-token` prints it; the node keeps it in its directory.
    /// Set it in the environment or in the file: a flag is visible in the list of processes. Cost: none.
    join_token: Password = |_| Password::default();
    /// Name of the node in the cluster, for people, of at most 64 bytes; its id if empty. Cost: none.
    node_name: NodeName = |_| NodeName::default();
    /// Zone of the node, such as a rack or a data center; clients may prefer nodes of their zone. Cost: none.
    zone: Label = |_| Label::default();
    /// Address and port at which the other nodes reach this one; `listening` is the address of `cluster`. Cost: none.
    advertise: Advertise = |_| Advertise::Listening;
    /// Time between two heartbeats of the leader, and between two pings of each node to each other node. Elections
    /// begin after 3 to 5 heartbeats without one. All nodes need the same value. Cost: shorter times use more CPU and
    /// network, and a pause of a node ends its leadership sooner; longer ones delay the election of a new leader.
    cluster_heartbeat: Span = |_| Span(Duration::from_millis(80));
    /// Maximum silence after which another node is suspected. It is suspected earlier if the silence is improbably long
    /// compared with its usual pings. Cost: short times suspect nodes that only pause.
    cluster_suspect_after: Span = |_| Span(Duration::from_millis(700));
    /// Silence after which another node counts as down. For a node whose pings often come late, the time is up to two
    /// thirds longer. Elections do not wait for this time. Cost: short times report nodes as down that only pause. A
    /// node that counts its leader as down is not ready, and messages for subscribers on a node that is down are lost.
    cluster_down_after: Span = |_| Span(Duration::from_millis(850));
    /// Number of missing entries above which a member is reported as `lagging`, in events, the status and the metrics.
    /// Cost: none.
    cluster_lag_entries: u32 = |_| 1000;
    /// Number of missing bytes above which a member is reported as `lagging`. Cost: none.
    cluster_lag_bytes: ByteSize = |_| ByteSize(64 * MIB);
    /// Time without an up-to-date state after which a member is reported as `stale`. Cost: none.
    cluster_stale_after: Span = |_| Span(Duration::from_secs(30));
    /// Use TLS between the nodes of the cluster even if `cluster` is a loopback address. At any other address the links
    /// always use TLS. All nodes need the same choice. Cost: the consensus thread encrypts what it sends and receives.
    cluster_tls: bool = |_| false;
    /// PEM file with the certificates of the authorities that sign the certificates of the nodes, as
    /// `thalweg cluster create-ca` makes one. `none` uses certificates that each process makes for itself: the nodes
    /// then know each other by the secret in the join token alone, which they bind to each TLS session. All nodes need
    /// the same choice. Send SIGHUP to reload a changed file. Cost: none.
    cluster_ca: PeerPem = |_| PeerPem::None;
    /// PEM file with this node's certificate for the other nodes, and its intermediate certificates, as
    /// `thalweg cluster create-cert` makes one. It names this node, by `node_name` or by the host of its address. Send
    /// SIGHUP to reload a changed file; the log warns two weeks before the certificate expires. Cost: none.
    cluster_certificate: PeerPem = |_| PeerPem::None;
    /// PEM file with the private key of `cluster_certificate`. Send SIGHUP to reload a changed file. Cost: none.
    cluster_key: PeerPem = |_| PeerPem::None;
    /// Repair this node automatically if its state differs from that of a majority of the members, or if a scrub finds
    /// damage: the node stops, gets the state of another member, and starts again. It does so once; after that it waits
    /// for an operator to run `thalweg cluster repair`. Cost: a copy of the whole state over the network; the former
    /// state is lost as evidence of the fault.
    cluster_repair: bool = |_| false;
    /// Level of reads that state none, over HTTP and the native protocol, on a node of a cluster. `linearizable` shows
    /// all acknowledged writes; `lease` does too if all clocks run at equal speed; `stale` shows what the node has.
    /// Cost: `linearizable` waits for an exchange with a majority; concurrent reads share it.
    read_level: ReadLevel = |_| ReadLevel::Linearizable;
    /// Level of the reads of Redis clients, on a node of a cluster, as for `read_level`. Cost: that of `read_level`; a
    /// pipelined burst of reads pays it once.
    resp_read_level: ReadLevel = |_| ReadLevel::Linearizable;
    /// Durability level of writes that state none: none, os, interval, disk or quorum. Stronger levels take longer to
    /// acknowledge. Cost: `disk` waits for a shared fsync, about 0.1 ms on a fast disk.
    durability: Durability = |engine| engine.durability;
    /// Backend that stores the state: lsm, memory, redb or sqlite. `auto` uses the backend of an existing directory,
    /// and lsm for a new one. The server refuses to open a directory with another backend; `thalweg migrate` converts
    /// it. Cost: memory needs RAM for all stored data; redb and sqlite write more to disk and read more slowly than
    /// lsm.
    backend: Backend = |engine| Backend(engine.backend);
    /// Size of a log segment file in bytes. A write that does not fit into an empty segment is rejected; from 17MiB on
    /// every write fits. A member of a cluster needs at least that. Cost: this much disk per segment; the disk space of
    /// large segments is freed later.
    segment_bytes: ByteSize = |engine| ByteSize(u64::from(engine.segment_bytes));
    /// Number of prepared, zero-filled segments that are kept ready. With too few, writes wait. While writes use
    /// segments quickly, the server keeps up to 64 more for reuse, at most 2GiB; after 30 seconds without a write, it
    /// keeps none. Cost: `segment_bytes` of disk per spare segment.
    spare_segments: u32 = |engine| engine.spare_segments;
    /// Maximum time between a write at level `interval` and its fsync. Cost: a power failure can lose this much time of
    /// acknowledged `interval` writes.
    sync_interval: Span = |engine| Span(engine.sync_interval);
    /// Free disk space below which the server rejects new data, so that deletes and trims still succeed. Cost: this
    /// much disk.
    reserve_bytes: ByteSize = |engine| ByteSize(engine.reserve_bytes);
    /// Maximum size of the log that is kept as history for watches and snapshots. If the disk is full, the oldest
    /// history is removed. Cost: this much disk.
    history_bytes: ByteSize = |engine| ByteSize(engine.history_bytes);
    /// Maximum age of the history. Cost: disk for everything written in this time.
    history_age: Span = |engine| Span(engine.history_age);
    /// Time that an fsync waits for more writers to join; 0s disables the wait. Cost: every durable acknowledgement
    /// takes this much longer.
    commit_delay: Span = |engine| Span(engine.commit_delay);
    /// Maximum size of values that are stored in the state; larger values stay in the log. Cost: larger limits add
    /// write amplification in compaction, smaller ones add a read to a get.
    inline_value_bytes: ByteSize = |engine| ByteSize(engine.inline_value_bytes as u64);
    /// Size of the block cache of the state. Smaller caches read more from disk. Cost: this much memory.
    cache_bytes: ByteSize = |engine| ByteSize(engine.cache_bytes);
    /// Size of a memtable of the state. Cost: up to four times this much memory while flushes catch up.
    memtable_bytes: ByteSize = |engine| ByteSize(engine.memtable_bytes as u64);
    /// Compression of the tables of the LSM backend, none or lz4. `lz4` compresses all tables except the newest, those
    /// on level 0. A directory can be started with either value; existing tables change when they are compacted. Cost:
    /// with lz4, CPU for each block that is read from a file and for compactions; with none, disk.
    table_compression: TableCompression = |engine| engine.table_compression;
    /// Maximum memory of streams, consumer groups and leases, which the state holds beside its caches. Each counts with
    /// the most that it can take: 655 bytes for a stream, 3700 for a consumer group with four members, 610 for each
    /// further member, 100 for each record that waits for an ack and for each dead letter, 220 for a lease. At the
    /// limit, requests to create one are rejected as `overloaded`, and consumer groups deliver no new records until
    /// some are acked; those that exist stay. Cost: this much memory.
    max_object_bytes: ByteSize = |_| ByteSize(1024 * MIB);
    /// Maximum size of the commands that wait for the writer thread; the server rejects requests above it. Cost: this
    /// much memory.
    max_queue_bytes: ByteSize = |engine| ByteSize(engine.max_queue_bytes as u64);
    /// Maximum size of the log that is replayed after a crash; the state is flushed before that. Cost: larger limits
    /// lengthen the start after a crash, smaller ones cause more and smaller flushes.
    max_replay_bytes: ByteSize = |engine| ByteSize(engine.max_replay_bytes);
    /// Time between runs of retention, of moving values out of old segments, and of freeing segments. Cost: shorter
    /// intervals use more CPU, longer ones more disk.
    maintenance_interval: Span = |engine| Span(engine.maintenance_interval);
    /// Maximum time by which the wall clock may be ahead of the last use of the directory at a start; the server
    /// refuses to start beyond it, because a wrong clock would end leases and expire keys for good. 0s disables the
    /// check. Cost: a node that was off for longer must be started once with a larger value.
    max_clock_jump: Span = |engine| Span(engine.max_clock_jump);
    /// Time between two scrubs. A scrub reads all stored data and reports damage in the metrics and the status; 0s
    /// disables scrubs. The first one begins within ten minutes of a start. In a cluster, the leader also requests a
    /// digest of all rows from all members at this interval, and a member whose digest differs from that of a majority
    /// stops serving. Cost: `scrub_bytes_per_second` of the disk while a scrub runs.
    scrub_interval: Span = |engine| Span(engine.scrub_interval);
    /// Maximum number of bytes that a scrub reads per second. Cost: this much of the disk's throughput; lower rates let
    /// the files of redb and sqlite grow by what is written during the longer scrub.
    scrub_bytes_per_second: ByteSize = |engine| ByteSize(engine.scrub_bytes_per_second);
    /// Maximum number of connections over all protocols. Further clients get 503 or a goodbye, and are disconnected. 32
    /// additional HTTP connections get answers to requests for health, readiness, metrics and status. At start the
    /// server lowers this number so that half of the process's file limit, or 4096 files, stay free for the node's
    /// data. Cost: up to 160 KiB of buffers per connection; a native connection up to 256 KiB more for pending replies.
    max_connections: u32 = |_| 4096;
    /// Maximum number of QUIC connections, which also count as connections. Further clients are rejected. Cost: up to
    /// twice `native_quic_window` and 64 KiB per connection.
    max_quic_connections: u32 = |_| 256;
    /// Maximum number of connections that are not ready yet: native ones with an unfinished handshake, and Redis
    /// clients that have not authenticated. At the limit, the address with most of them loses its oldest one. Above
    /// half of the limit, QUIC clients must first prove their address. Smaller limits disconnect clients sooner when
    /// many connect at the same time. Cost: up to 128 KiB per handshake.
    max_handshakes: u32 = |_| 512;
    /// Maximum number of requests in progress; the server answers further ones with 503. Cost: about 4 KiB per request.
    max_requests_in_flight: u32 = |_| 4096;
    /// Maximum size of a request body; larger ones get 413. Cost: none; `max_body_bytes_in_flight` bounds the memory.
    max_body_bytes: ByteSize = |_| ByteSize(16 * MIB);
    /// Maximum size of all request bodies in memory. Only bytes that have arrived count, and not the first 16 KiB of
    /// each connection. Native frames and Redis requests above 64 KiB count, and commands above 64 KiB that Redis
    /// clients queue after MULTI. Above this size, requests are rejected, over HTTP with 503. Cost: up to three times
    /// this much memory, for the body, its decoded form and the encoded command.
    max_body_bytes_in_flight: ByteSize = |_| ByteSize(64 * MIB);
    /// Maximum size of the large replies that wait for clients. Large are replies of 128 KiB or more in all protocols,
    /// replies of 1 KiB or more over HTTP/2, and native replies of 4 KiB or more that another thread has read. Values
    /// in long JSON replies count with their stored size. Above this size, reads with large replies are rejected as
    /// `overloaded`, with 503 over HTTP and `BUSY` for Redis clients; tails, watches, pushes and subscriptions wait.
    /// Writes are answered even above it. Cost: this much memory.
    max_reply_bytes_in_flight: ByteSize = |_| ByteSize(256 * MIB);
    /// Maximum number of scans, record reads and long reads of Redis clients in progress; further ones are rejected.
    /// Cost: up to two pages of 512 KiB per scan, and 448 KiB for the deleted prefixes that waited to be swept when it
    /// began; a larger page, which holds one large value, counts in `max_reply_bytes_in_flight`.
    max_scans: u32 = |_| 64;
    /// Maximum number of tails, pushes and watches, and of subscribers over HTTP, at most 10000; further ones are
    /// rejected. Cost: up to 512 KiB each: two pages of 64 KiB for a tail over HTTP, two of 256 KiB for a native
    /// client, and a page and 256 KiB of changes for a watch over HTTP. Larger records and changes count in
    /// `max_reply_bytes_in_flight`.
    max_tails: u32 = |_| 1024;
    /// Part of every bound that is kept for the clients that hold least, in percent, at most 50; 0 keeps none. One
    /// client alone can use everything but this part. When a bound is reached, requests of the connection that holds
    /// most are rejected first, then those of the address that holds most. An IPv6 address counts as its /64 network.
    /// Cost: this part of each bound stays unused while one client is alone.
    share_reserve_percent: u32 = |_| 10;
    /// Minimum rate, in bytes per second, at which a request body must arrive and a client must read its reply. Bodies
    /// are measured over a third of `body_timeout`, replies over `write_timeout`. Each stream of an HTTP/2 connection
    /// that waits is measured by itself, and needs at least 4 KiB in each `write_timeout`. Slower clients are
    /// disconnected. Cost: low rates let slow clients hold memory, scans and snapshots for longer.
    min_transfer_rate: ByteSize = |_| ByteSize(1024);
    /// Defaults of the keys from here to `max_queued_bytes`: balanced, latency (short queues, small batches) or
    /// throughput (long queues, large batches; single messages wait for more). Cost: that of these keys.
    profile: Profile = |_| Profile::Balanced;
    /// Maximum number of messages in a batch that the server gathers from messages published one by one without a
    /// reply; 1 disables batches. Cost: larger batches delay their first messages, smaller ones use more CPU per
    /// message.
    batch_messages: u32 = |_| Batching::BALANCED.max_messages;
    /// Maximum size in bytes of a batch that the server gathers. Cost: this much memory for each channel that publishes
    /// one by one.
    batch_bytes: ByteSize = |_| ByteSize(Batching::BALANCED.max_bytes as u64);
    /// Maximum age of a batch that the server gathers. At this age the batch is published even if it is not full. Cost:
    /// this much latency. If `batch_when_idle` is wait, it delays every message published one by one, otherwise only
    /// messages that are followed by more.
    batch_delay: Span = |_| Span(Batching::BALANCED.max_delay);
    /// Action when a channel with a gathered batch has no more input: `flush` publishes the batch, `wait` keeps it
    /// until it is full or old enough. Cost: wait adds latency, but saves CPU if many connections publish a few
    /// messages each.
    batch_when_idle: WhenIdle = |_| WhenIdle(Batching::BALANCED.when_idle);
    /// Maximum number of subscriptions to subjects, over all connections. Cost: about 400 bytes per subscription, and
    /// its queued messages.
    max_subscriptions: u32 = |_| 100_000;
    /// Maximum number of messages queued for a subscription that states no limit. At the limit its policy applies.
    /// Cost: none; the limits in bytes bound the memory.
    subscription_messages: u32 = |_| DEFAULT_SUBSCRIPTION_MESSAGES as u32;
    /// Maximum size of the messages queued for a subscription that states no limit. At the limit its policy applies;
    /// smaller limits apply it sooner. Cost: this much memory for each slow subscription.
    subscription_bytes: ByteSize = |_| ByteSize(DEFAULT_SUBSCRIPTION_BYTES);
    /// Maximum size of the messages queued for all subscriptions of one connection. At the limit, the policy of the
    /// subscription that would get the next message applies. Cost: this much memory for each slow connection.
    max_link_bytes: ByteSize = |_| ByteSize(DEFAULT_LINK_BYTES);
    /// Maximum size of the messages queued for all connections; a message counts once per connection. At the limit the
    /// policies apply, sooner if it is small and many subscribers are slow. Cost: at most this much memory.
    max_queued_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Patterns of the subjects whose native subscribers may choose the policy `block`: publishers wait while the
    /// queues of these subscribers are full. Empty permits the policy nowhere. Publishes of Redis clients never wait.
    /// Cost: on these subjects, one subscriber that does not read stops every publisher over HTTP and the native
    /// protocol.
    blocking_subjects: SubjectPatterns = |_| SubjectPatterns::parse(">").unwrap_or_default();
    /// Patterns of the subjects whose HTTP subscribers may choose the policy `block`. Cost: as for `blocking_subjects`.
    http_blocking_subjects: SubjectPatterns = |_| SubjectPatterns::default();
    /// Maximum total size of all caches, counted by their own limits. A new cache that does not fit is rejected. Cost:
    /// this much memory when the caches are full.
    max_caches_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Size of a cache if the request that creates it states none. Cost: this much of `max_caches_bytes`.
    new_cache_bytes: ByteSize = |_| ByteSize(32 * MIB);
    /// Maximum time until the head of a request has arrived. Cost: short timeouts disconnect slow clients; long ones
    /// let them hold connections.
    header_timeout: Span = |_| Span::seconds(10);
    /// Maximum time until the body of a request has arrived. Cost: short timeouts disconnect slow clients; long ones
    /// let them hold admitted bytes.
    body_timeout: Span = |_| Span::seconds(30);
    /// Time after which an idle connection is closed. Cost: long timeouts keep the memory of idle clients.
    idle_timeout: Span = |_| Span::seconds(75);
    /// Time after which an idle connection is closed while connections run short. They run short if only the reserve of
    /// `max_connections` is free, and the client's address holds more connections than are free in the lower half of
    /// the reserve. So the upper half stays free for new clients. This also applies to native and Redis clients.
    /// Subscribers and clients that wait in blocking reads are not idle. Cost: short times make clients connect again.
    idle_timeout_when_short: Span = |_| Span::seconds(10);
    /// Time after which a client that accepts its reply too slowly is disconnected. Cost: long timeouts keep the views
    /// and pages that slow clients hold.
    write_timeout: Span = |_| Span::seconds(30);
    /// Time of silence after which a tail sends a comment, so that proxies keep the connection open. Cost: short times
    /// cause more traffic.
    tail_keep_alive: Span = |_| Span::seconds(15);
    /// Maximum time that a stopping server waits for requests in progress before it cancels them; at most 8s, so that a
    /// stop takes at most 10 s. Cost: restarts under load take this much longer.
    drain_timeout: Span = |_| Span::seconds(5);
    /// Format of log lines on standard error: text or json. Cost: not measurable.
    log_format: LogFormat = |_| LogFormat::Text;
    /// Least severe level of log lines that are written: error, warn, info, debug or trace. Cost: debug adds about 2 us
    /// per request.
    log_level: units::LogLevel = |_| units::LogLevel::Info;
}

pub use units::LogLevel;

impl Config {
    /// Returns the durability level that a write reaches before its ack if the request states no level. A member of a
    /// cluster raises each level but `none` to `quorum`.
    #[must_use]
    pub fn acknowledged(&self) -> Durability {
        if self.cluster.address().is_some() && self.durability != Durability::None {
            return Durability::Quorum;
        }
        self.durability
    }

    /// Returns the options for opening the database. The command sets `create` and `repair`, because they
    /// apply to one start only.
    #[must_use]
    pub fn engine_options(&self) -> Options {
        Options {
            backend: self.backend.0,
            durability: self.durability,
            segment_bytes: u32::try_from(self.segment_bytes.0).unwrap_or(u32::MAX),
            spare_segments: self.spare_segments,
            sync_interval: self.sync_interval.0,
            reserve_bytes: self.reserve_bytes.0,
            history_bytes: self.history_bytes.0,
            history_age: self.history_age.0,
            commit_delay: self.commit_delay.0,
            inline_value_bytes: usize::try_from(self.inline_value_bytes.0).unwrap_or(usize::MAX),
            cache_bytes: self.cache_bytes.0,
            memtable_bytes: usize::try_from(self.memtable_bytes.0).unwrap_or(usize::MAX),
            table_compression: self.table_compression,
            max_queue_bytes: usize::try_from(self.max_queue_bytes.0).unwrap_or(usize::MAX),
            max_watch_queues_bytes: usize::try_from(self.watch_queues_bytes()).unwrap_or(usize::MAX),
            compaction_key_bytes: usize::try_from(self.compaction_key_bytes()).unwrap_or(usize::MAX),
            max_replay_bytes: self.max_replay_bytes.0,
            maintenance_interval: self.maintenance_interval.0,
            max_clock_jump: self.max_clock_jump.0,
            scrub_interval: self.scrub_interval.0,
            scrub_bytes_per_second: self.scrub_bytes_per_second.0,
            ..Options::default()
        }
    }

    /// Returns the limits of the batches that the server gathers from messages that clients publish one by one.
    #[must_use]
    pub fn batching(&self) -> Batching {
        Batching {
            max_messages: self.batch_messages,
            max_bytes: usize::try_from(self.batch_bytes.0).unwrap_or(usize::MAX),
            max_delay: self.batch_delay.0,
            when_idle: self.batch_when_idle.0,
        }
    }

    /// Returns the minimum rate at which the bytes of a request must arrive once it has begun.
    #[must_use]
    pub fn body_rate(&self) -> MinRate {
        MinRate::new(self.min_transfer_rate.0, self.body_timeout.0 / 3)
    }

    /// Returns the minimum rate at which a client must read a reply that waits for it.
    #[must_use]
    pub fn reply_rate(&self) -> MinRate {
        MinRate::new(self.min_transfer_rate.0, self.write_timeout.0)
    }
}

/// Returns the name of the knob that resembles the unknown name `name`; `None` if none does.
fn similar(name: &str) -> Option<&'static str> {
    let distances = KNOBS.iter().map(|knob| (strsim::damerau_levenshtein(name, knob.name), knob.name));
    distances.min().filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
}

impl From<BackendKind> for Backend {
    fn from(kind: BackendKind) -> Self {
        Self(Some(kind))
    }
}

#[cfg(test)]
mod tests;
