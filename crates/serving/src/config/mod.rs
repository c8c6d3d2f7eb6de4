//! Configuration of a server: the layers that are given, and the values that result.
//!
//! Owns: the knobs (one table, [`KNOBS`], from which flags, environment variables and the example file follow),
//! layering, defaults ([`DEFAULTS`]), validation, the explanation of every value.
//! Does not own: reading the command line (the command does, and passes a [`Given`]).
//! Invariants: a key that is not a knob is an error in every layer; [`Config`] holds no value that has not been
//! checked; every knob has an effect.

mod certificate;
mod explain;
mod layers;
mod presets;
mod profile;
mod resp;
mod units;

use std::{net::SocketAddr, path::PathBuf, sync::LazyLock};

use thalweg_broker::Batching;
use thalweg_engine::{BackendKind, Options};
use thalweg_transport::MAX_QUIC_SOCKETS;
use thalweg_types::{
    Action, Classified, Durability,
    limits::{
        DEFAULT_LINK_BYTES, DEFAULT_SUBSCRIPTION_BYTES, DEFAULT_SUBSCRIPTION_MESSAGES, MAX_PUBLISH_BYTES,
        MAX_REDIS_REPLY_BYTES, MIN_CACHE_BYTES,
    },
};

use crate::limits::MAX_CONNECTION_THREADS;

pub use certificate::PemFile;
pub use explain::example;
pub use layers::{Layers, Resolved, Source};
pub use profile::{Profile, WhenIdle};
pub use resp::{Password, RespAddress, RespDatabase, RespDatabases};
pub use units::{Backend, ByteSize, LogFormat, NativeAddress, Setting, Span};

/// A configuration key, with its text for the help, the example file and the explanation.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name in the file. The flag is `--name-with-dashes`, and the environment variable is `THALWEG_NAME`.
    pub name: &'static str,
    /// Effect and cost of the knob.
    pub help: &'static str,
}

macro_rules! knobs {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// Configuration as one layer gives it. A `None` leaves the value to the layer below.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Given {
            $($(#[doc = $help])+ pub $name: Option<$type>,)+
        }

        /// Configuration as a server uses it: every value present and checked.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $help])+ pub $name: $type,)+
        }

        /// Every knob, in the order of the example file.
        pub const KNOBS: &[Knob] = &[$(Knob { name: stringify!($name), help: concat!($($help),+) },)+];

        impl Given {
            /// Sets a knob from the text of a flag, a variable or the file.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
                match name {
                    $(stringify!($name) => self.$name = Some(Setting::parse(text).map_err(|expected| {
                        ConfigError::Value { name: stringify!($name), got: text.to_owned(), expected }
                    })?),)+
                    _ => return Err(ConfigError::Unknown { name: name.to_owned() }),
                }
                Ok(())
            }

            /// Returns the text of a knob, or `None` if this layer does not give it.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => self.$name.as_ref().map(Setting::show),)+
                    _ => None,
                }
            }
        }

        impl Config {
            /// Returns the text of a knob, or `None` if no knob has this name.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(Setting::show(&self.$name)),)+
                    _ => None,
                }
            }

            /// Replaces the values that `given` has.
            fn take(&mut self, given: &Given) {
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

/// Defaults of every knob. The engine defines those of its own knobs.
pub static DEFAULTS: LazyLock<Config> = LazyLock::new(|| defaults(&Options::default()));

impl Default for Config {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

const MIB: u64 = 1024 * 1024;

knobs! {
    /// Directory of the database; created if missing. Costs the size of the stored data, plus the segments below.
    data: PathBuf = |_| PathBuf::from("thalweg-data");
    /// Address and port of HTTP. Port 0 lets the system choose one. Costs one listening socket.
    http: SocketAddr = |_| SocketAddr::from(([127, 0, 0, 1], 7070));
    /// Address and port of the native protocol: `next` is HTTP's address and the port after HTTP's, `off` serves none.
    /// Costs one listening socket.
    native: NativeAddress = |_| NativeAddress::Next;
    /// Require TLS on the TCP port of the native protocol; QUIC always uses TLS. Costs about three times the CPU per
    /// byte, and a signature per connection.
    native_tls: bool = |_| false;
    /// Threads that serve native clients over plain TCP, each with a share of the connections; 0 means half the number
    /// of processors. (TLS and QUIC run on the threads of HTTP, one per processor.) Each thread costs 190 KiB. More
    /// threads also cost more wake-ups, because fewer requests are handled together.
    native_threads: u32 = |_| 0;
    /// PEM file with the certificate of the native protocol and its intermediate certificates; `development` creates
    /// one in the data directory, for clients that know its fingerprint. Send SIGHUP to reload the file. Costs a
    /// renewal in time: the log warns two weeks before the certificate expires.
    native_certificate: PemFile = |_| PemFile::Development;
    /// PEM file with the private key of `native_certificate`. Give both files or neither. Costs no resources.
    native_key: PemFile = |_| PemFile::Development;
    /// UDP sockets for QUIC on the port of the native protocol, each served by one task; set it to the number of cores
    /// that may serve QUIC, or 0 for no QUIC. Each costs 2 MiB, and up to 8 MiB in the kernel.
    native_quic_sockets: u32 = |_| 4;
    /// Maximum bytes in flight of a QUIC connection in each direction; a channel gets half. Costs twice that much
    /// memory for each connection whose peer does not read. A smaller window slows down distant clients.
    native_quic_window: ByteSize = |_| ByteSize(2 * MIB);
    /// Address and port for Redis clients (RESP2 and RESP3), such as 127.0.0.1:7379; `off` serves none. Costs one
    /// listening socket, and 5 MiB for scans in progress.
    resp: RespAddress = |_| RespAddress::Off;
    /// Databases of Redis clients by number: `keyspace:NAME` is durable, `cache:NAME` holds strings in memory. Missing
    /// ones are created, keyspaces with exact counts. Costs the size of the stored data; a full cache costs
    /// `new_cache_bytes`.
    resp_databases: RespDatabases = |_| RespDatabases(vec![
        (0, RespDatabase::Keyspace("redis".to_owned())),
        (1, RespDatabase::Cache("redis".to_owned())),
    ]);
    /// Threads that serve Redis clients, each with a share of the connections; 0 means half the number of processors. A
    /// thread commits the writes of its clients together, so they wait for the same fsync and for each other's long
    /// commands. More threads separate them. Each thread costs 190 KiB, and fsyncs that fewer threads would share.
    resp_threads: u32 = |_| 0;
    /// Password of Redis clients (`AUTH`, `HELLO`); empty requires none. Clients send it unencrypted, and other users
    /// can see a flag in the process list: prefer the environment or the file. Costs no resources.
    resp_password: Password = |_| Password::default();
    /// Permit an address that other machines can reach, although there is no authentication, and no TLS for HTTP. On a
    /// network that is not trusted, it costs the confidentiality of all stored data.
    allow_unprotected: bool = |_| false;
    /// Durability of writes that name no level: none, os, interval, disk or quorum. A stronger level costs a longer
    /// wait for the acknowledgement: `disk` waits for a shared fsync, about 0.1 ms here.
    durability: Durability = |engine| engine.durability;
    /// Backend of the state: lsm, memory, redb or sqlite; auto uses that of the directory, and lsm for a new one. A
    /// directory with another backend is rejected: `thalweg migrate` converts it. memory costs RAM for all data; redb
    /// and sqlite cost more disk writes and slower reads than lsm.
    backend: Backend = |engine| Backend(engine.backend);
    /// Size of a segment file of the log. Costs that much disk per segment; larger segments are freed later. A write
    /// that does not fit into a segment is rejected; with 32MiB or more every write fits.
    segment_bytes: ByteSize = |engine| ByteSize(u64::from(engine.segment_bytes));
    /// Zero-filled segments to keep ready. Each costs `segment_bytes` of disk; too few stall writes. While segments are
    /// used quickly, up to 64 more, or 2GiB, are kept for reuse.
    spare_segments: u32 = |engine| engine.spare_segments;
    /// Maximum time until an `interval` write is fsynced. A power loss costs at most the `interval` writes of that
    /// time.
    sync_interval: Span = |engine| Span(engine.sync_interval);
    /// Free disk space that is reserved for deletes and trims; below it new data is rejected. Costs that much disk.
    reserve_bytes: ByteSize = |engine| ByteSize(engine.reserve_bytes);
    /// Maximum bytes of log to keep as history for watches and snapshots; a full disk drops the oldest history. Costs
    /// that much disk.
    history_bytes: ByteSize = |engine| ByteSize(engine.history_bytes);
    /// Maximum age of the history. Costs disk for the writes of that time.
    history_age: Span = |engine| Span(engine.history_age);
    /// Wait before an fsync, so that more writers can join it; 0s disables it. Costs its length in every durable
    /// acknowledgement.
    commit_delay: Span = |engine| Span(engine.commit_delay);
    /// Maximum size of a value in the state; larger values stay in the log. A larger limit costs write amplification in
    /// compaction, a smaller one an extra read per get.
    inline_value_bytes: ByteSize = |engine| ByteSize(engine.inline_value_bytes as u64);
    /// Size of the block cache of the state. Costs that much memory; a smaller cache costs disk reads.
    cache_bytes: ByteSize = |engine| ByteSize(engine.cache_bytes);
    /// Size of a memtable of the state. Costs up to four times that in memory while flushes catch up.
    memtable_bytes: ByteSize = |engine| ByteSize(engine.memtable_bytes as u64);
    /// Maximum bytes of commands that wait for the writer; above it requests are shed. Costs that much memory.
    max_queue_bytes: ByteSize = |engine| ByteSize(engine.max_queue_bytes as u64);
    /// Maximum bytes of log that a start replays after a crash; at the limit the state is flushed. A larger limit costs
    /// a longer start after a crash, a smaller one more and smaller flushes.
    max_replay_bytes: ByteSize = |engine| ByteSize(engine.max_replay_bytes);
    /// Interval of maintenance: retention, moving live data, and freeing segments. A shorter interval costs CPU, a
    /// longer one disk.
    maintenance_interval: Span = |engine| Span(engine.maintenance_interval);
    /// Maximum number of open HTTP and native connections; further ones are rejected (503, goodbye) and closed. Each
    /// costs up to 160 KiB of buffers, a native one 256 KiB more for queued replies.
    max_connections: u32 = |_| 4096;
    /// Maximum number of open QUIC connections, which also count as connections; further ones are rejected. Each costs
    /// up to twice `native_quic_window` and 64 KiB.
    max_quic_connections: u32 = |_| 256;
    /// Maximum number of native connections in the handshake; further ones are rejected. Above half of it, QUIC clients
    /// must first prove their address. Each costs up to 128 KiB; a smaller limit sheds sooner when many clients connect
    /// at the same time.
    max_handshakes: u32 = |_| 512;
    /// Maximum number of requests in progress; further ones are shed with 503. Each costs about 4 KiB.
    max_requests_in_flight: u32 = |_| 4096;
    /// Maximum size of a request body; larger ones are rejected with 413. Costs memory only for bodies in flight, which
    /// the next key bounds.
    max_body_bytes: ByteSize = |_| ByteSize(16 * MIB);
    /// Maximum bytes of request bodies in memory, including native frames and Redis requests above 64 KiB, and queued
    /// commands above 64 KiB after MULTI; further requests are shed, over HTTP with 503. Costs up to three times that
    /// in memory: the body, its decoded form and the encoded command.
    max_body_bytes_in_flight: ByteSize = |_| ByteSize(64 * MIB);
    /// Maximum bytes of large replies that wait for clients; above it, reads with large replies are shed (`overloaded`,
    /// 503 over HTTP, `BUSY` to Redis clients). Large means above 128 KiB, or above 4 KiB for native replies that were
    /// read on another thread. Pages of scans, reads and tails count if one value makes them large. Costs that much
    /// memory.
    max_reply_bytes_in_flight: ByteSize = |_| ByteSize(256 * MIB);
    /// Maximum number of scans and record reads in progress; further ones are shed. Each costs up to two pages of 512
    /// KiB; a page that one value makes larger counts above.
    max_scans: u32 = |_| 64;
    /// Maximum number of open tails, pushes and watches, and of subscribers over HTTP; further ones are shed. Each
    /// costs up to two pages, of 64 KiB over HTTP and 256 KiB for native clients.
    max_tails: u32 = |_| 1024;
    /// Defaults of the keys below up to `max_queued_bytes`: balanced, latency (short queues, small batches) or
    /// throughput (long queues, large batches; single messages wait for others). Costs what those keys cost.
    profile: Profile = |_| Profile::Balanced;
    /// Maximum number of single messages that the server publishes as one batch, if they want no reply; 1 disables
    /// batching. A larger batch costs latency of the first messages, a smaller one CPU per message.
    batch_messages: u32 = |_| Batching::BALANCED.max_messages;
    /// Maximum bytes of such a batch. Costs that much memory for each channel that publishes single messages.
    batch_bytes: ByteSize = |_| ByteSize(Batching::BALANCED.max_bytes as u64);
    /// Maximum age of the first message of such a batch, even if the batch is not full. Costs its length in latency:
    /// for every single message if `batch_when_idle` is wait, otherwise only while messages arrive continuously.
    batch_delay: Span = |_| Span(Batching::BALANCED.max_delay);
    /// Treatment of such a batch when its channel has nothing more to read: flush or wait. wait costs latency, and
    /// saves CPU if many connections publish a few messages each.
    batch_when_idle: WhenIdle = |_| WhenIdle(Batching::BALANCED.when_idle);
    /// Maximum number of subscriptions to subjects, over all connections. Each costs about 400 bytes, and its queued
    /// messages.
    max_subscriptions: u32 = |_| 100_000;
    /// Maximum number of queued messages of a subscription that names no limit; at the limit its policy applies. Costs
    /// memory only as the next key bounds it.
    subscription_messages: u32 = |_| DEFAULT_SUBSCRIPTION_MESSAGES as u32;
    /// Maximum bytes of queued messages of a subscription that names no limit; at the limit its policy applies. Costs
    /// that much memory for each slow subscription; a smaller limit drops messages sooner.
    subscription_bytes: ByteSize = |_| ByteSize(DEFAULT_SUBSCRIPTION_BYTES);
    /// Maximum bytes of queued messages of all subscriptions of a connection; at the limit the policy of the receiving
    /// subscription applies. Costs that much memory for each slow connection.
    max_link_bytes: ByteSize = |_| ByteSize(DEFAULT_LINK_BYTES);
    /// Maximum bytes of queued messages of all connections, with a message counted once per connection; at the limit
    /// the policies apply. Costs at most that much memory; a smaller limit sheds sooner when many subscribers are slow
    /// at the same time.
    max_queued_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Maximum sum of the sizes of all caches; a cache that does not fit is rejected. Costs that much memory once they
    /// are full.
    max_caches_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Size of a cache that is created without one. Costs that much of `max_caches_bytes`.
    new_cache_bytes: ByteSize = |_| ByteSize(32 * MIB);
    /// Maximum time for the head of a request to arrive. A shorter time costs slow clients their requests, a longer one
    /// lets them occupy connections.
    header_timeout: Span = |_| Span::seconds(10);
    /// Maximum time for the body of a request to arrive. A shorter time costs slow clients their requests, a longer one
    /// lets them occupy admitted bytes.
    body_timeout: Span = |_| Span::seconds(30);
    /// Time after which an idle connection is closed. A longer time costs memory for idle clients.
    idle_timeout: Span = |_| Span::seconds(75);
    /// Time after which a client that accepts no byte of a reply is disconnected. A longer time costs the view and the
    /// pages that the reply holds.
    write_timeout: Span = |_| Span::seconds(30);
    /// Silence after which a tail sends a comment, so that proxies keep it open. A shorter time costs traffic.
    tail_keep_alive: Span = |_| Span::seconds(15);
    /// Maximum time at a stop for requests in progress; then they are cut. At most 8s, so that a stop ends within 10 s.
    /// Costs its length in restarts under load.
    drain_timeout: Span = |_| Span::seconds(5);
    /// Format of log lines on standard error: text or json. Costs no measurable time.
    log_format: LogFormat = |_| LogFormat::Text;
    /// Least severe log level to show: error, warn, info, debug or trace. debug costs about 2 us per request.
    log_level: units::LogLevel = |_| units::LogLevel::Info;
}

pub use units::LogLevel;

impl Config {
    /// Returns the engine's options. The command sets `create` and `repair`, because they apply to one start only.
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
            max_queue_bytes: usize::try_from(self.max_queue_bytes.0).unwrap_or(usize::MAX),
            max_replay_bytes: self.max_replay_bytes.0,
            maintenance_interval: self.maintenance_interval.0,
            ..Options::default()
        }
    }

    /// Returns the limits for gathering messages that clients publish one by one.
    #[must_use]
    pub fn batching(&self) -> Batching {
        Batching {
            max_messages: self.batch_messages,
            max_bytes: usize::try_from(self.batch_bytes.0).unwrap_or(usize::MAX),
            max_delay: self.batch_delay.0,
            when_idle: self.batch_when_idle.0,
        }
    }

    /// Checks that the values fit together. The error names the first that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        if !self.http.ip().is_loopback() && !self.allow_unprotected {
            return Err(ConfigError::Unprotected { knob: "http", address: self.http });
        }
        self.check_native()?;
        if let RespAddress::At(address) = self.resp
            && !address.ip().is_loopback()
            && !self.allow_unprotected
        {
            return Err(ConfigError::Unprotected { knob: "resp", address });
        }
        for (name, threads) in [("native_threads", self.native_threads), ("resp_threads", self.resp_threads)] {
            if threads > MAX_CONNECTION_THREADS {
                return wrong(name, "at most 256");
            }
        }
        if u32::try_from(self.segment_bytes.0).is_err() {
            return wrong("segment_bytes", "below 4GiB");
        }
        for (name, value) in [
            ("max_connections", u64::from(self.max_connections)),
            ("max_requests_in_flight", u64::from(self.max_requests_in_flight)),
            ("max_handshakes", u64::from(self.max_handshakes)),
            ("max_body_bytes", self.max_body_bytes.0),
            ("max_scans", u64::from(self.max_scans)),
            ("batch_messages", u64::from(self.batch_messages)),
            ("batch_bytes", self.batch_bytes.0),
            ("subscription_messages", u64::from(self.subscription_messages)),
            ("subscription_bytes", self.subscription_bytes.0),
        ] {
            if value == 0 {
                return wrong(name, "at least 1");
            }
        }
        for (name, value) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("tail_keep_alive", self.tail_keep_alive),
        ] {
            if value.0.is_zero() {
                return wrong(name, "above 0s");
            }
        }
        if self.max_body_bytes_in_flight < self.max_body_bytes {
            return wrong("max_body_bytes_in_flight", "at least max_body_bytes, or the largest body is never admitted");
        }
        if self.max_reply_bytes_in_flight.0 < MAX_REDIS_REPLY_BYTES as u64 {
            return wrong("max_reply_bytes_in_flight", "at least 64MiB, or the largest reply is never admitted");
        }
        if self.max_link_bytes < self.subscription_bytes {
            return wrong(
                "max_link_bytes",
                "at least subscription_bytes, or a single subscription never gets its bound",
            );
        }
        if self.max_queued_bytes < self.max_link_bytes {
            return wrong("max_queued_bytes", "at least max_link_bytes, or a single connection never gets its bound");
        }
        if self.batch_bytes.0 > MAX_PUBLISH_BYTES as u64 / 2 {
            return wrong("batch_bytes", "at most 8MiB");
        }
        if self.new_cache_bytes.0 < MIN_CACHE_BYTES {
            return wrong("new_cache_bytes", "at least 64KiB");
        }
        if self.idle_timeout.0 < self.tail_keep_alive.0 * 2 {
            return wrong("idle_timeout", "at least twice tail_keep_alive, or quiet tails are taken for idle");
        }
        if self.drain_timeout > Span::seconds(8) {
            return wrong("drain_timeout", "at most 8s: a stop ends within 10s");
        }
        Ok(())
    }
}

impl Config {
    fn serves_quic(&self) -> bool {
        self.native != NativeAddress::Off && self.native_quic_sockets > 0
    }

    fn check_native(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        // TLS alone does not authenticate clients, so it keeps none of them out.
        if let Some(address) = self.native.resolve(self.http)
            && !address.ip().is_loopback()
            && !self.allow_unprotected
        {
            return Err(ConfigError::Unprotected { knob: "native", address });
        }
        let is_file = |file: &PemFile| matches!(file, PemFile::At(_));
        if is_file(&self.native_certificate) && !is_file(&self.native_key) {
            return wrong("native_key", "a file, as native_certificate is: the one with its private key");
        }
        if is_file(&self.native_key) && !is_file(&self.native_certificate) {
            return wrong("native_certificate", "a file, as native_key is: the one with its certificate");
        }
        if self.native_quic_sockets as usize > MAX_QUIC_SOCKETS {
            return wrong("native_quic_sockets", "at most 64");
        }
        if self.native_quic_window < ByteSize(128 << 10) || self.native_quic_window > ByteSize(1 << 30) {
            return wrong("native_quic_window", "at least 128KiB and at most 1GiB");
        }
        Ok(())
    }
}

impl From<BackendKind> for Backend {
    fn from(kind: BackendKind) -> Self {
        Self(Some(kind))
    }
}

/// Error in a configuration, which cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error text of the system.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{path} is not TOML: {reason}")]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Position and cause, from the parser.
        reason: String,
    },
    /// No knob has this name.
    #[error("unknown configuration key {name:?}: `serve --explain` lists all keys")]
    Unknown {
        /// Name as given.
        name: String,
    },
    /// The text of a value cannot be parsed.
    #[error("configuration key {name}: {got:?} is not {expected}")]
    Value {
        /// Name of the knob.
        name: &'static str,
        /// Value as given.
        got: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A value is outside its range, or conflicts with another value.
    #[error("configuration key {name} must be {expected}")]
    Range {
        /// Name of the knob.
        name: &'static str,
        /// Description of valid values.
        expected: &'static str,
    },
    /// The address is reachable from other machines, and `allow_unprotected` is not set.
    #[error(
        "{knob} = {address} can be reached by other machines, and there is no authentication yet (TLS alone keeps nobody \
         out, and the password of Redis clients travels in the clear): use a loopback address, or set allow_unprotected = true if the network is trusted"
    )]
    Unprotected {
        /// Name of the knob.
        knob: &'static str,
        /// The reachable address.
        address: SocketAddr,
    },
    /// An error in a value, with the place that the value came from.
    #[error("{place}: {error}")]
    At {
        /// File or variable of the value.
        place: String,
        /// Error in the value.
        error: Box<ConfigError>,
    },
}

impl Classified for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            Self::At { error, .. } => error.code(),
            Self::File { .. } => "config_file",
            Self::Syntax { .. } => "config_syntax",
            Self::Unknown { .. } => "config_unknown_key",
            Self::Value { .. } | Self::Range { .. } => "config_value",
            Self::Unprotected { .. } => "config_unprotected",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

#[cfg(test)]
mod tests;
