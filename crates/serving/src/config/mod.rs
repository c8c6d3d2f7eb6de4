//! Configuration of a server: the layers that are given, and the values that result.
//!
//! Owns: the knobs, which are the named configuration values (one table, [`KNOBS`], from which flags,
//! environment variables and the example file follow); layering, defaults ([`DEFAULTS`]), validation, the
//! explanation of every value. Does not own: reading the command line (the command does, and passes a
//! [`Given`]). Invariants: a key that is not a knob is an error in every layer; [`Config`] holds no value
//! that has not been checked; every knob has an effect.

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
    /// Name of the knob in the configuration file. Its flag is `--name-with-dashes`, and its environment
    /// variable is `THALWEG_NAME`.
    pub name: &'static str,
    /// Text about the effect and the cost of the configuration value.
    pub help: &'static str,
}

macro_rules! knobs {
    ($($(#[doc = $help:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// Configuration as one layer, such as the file or the flags, gives it. A `None` leaves the value to
        /// the next layer.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Given {
            $($(#[doc = $help])+ pub $name: Option<$type>,)+
        }

        /// Configuration as a server uses it: every value present and checked.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $help])+ pub $name: $type,)+
        }

        /// Every knob (configuration value), in the order of the example file.
        pub const KNOBS: &[Knob] = &[$(Knob { name: stringify!($name), help: concat!($($help),+) },)+];

        impl Given {
            /// Sets a knob from its text in a flag, an environment variable or the file.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
                match name {
                    $(stringify!($name) => self.$name = Some(Setting::parse(text).map_err(|expected| {
                        ConfigError::Value { name: stringify!($name), got: text.to_owned(), expected }
                    })?),)+
                    _ => return Err(ConfigError::Unknown { name: name.to_owned() }),
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

            /// Replaces the values that `given`, a layer of the configuration, has.
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

/// Default values of every knob. The engine defines the defaults of its own knobs.
pub static DEFAULTS: LazyLock<Config> = LazyLock::new(|| defaults(&Options::default()));

impl Default for Config {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

const MIB: u64 = 1024 * 1024;

knobs! {
    /// Directory of the database, created if missing. Costs what you store, plus the segments below.
    data: PathBuf = |_| PathBuf::from("thalweg-data");
    /// Address and port of HTTP. Port 0 lets the system choose. Costs one listening socket.
    http: SocketAddr = |_| SocketAddr::from(([127, 0, 0, 1], 7070));
    /// Address and port of the native protocol; `next` is HTTP's address and the port after its own, `off` serves none.
    /// Costs one listening socket.
    native: NativeAddress = |_| NativeAddress::Next;
    /// Speak TLS on the native protocol's TCP port, and nothing else; QUIC always does. Costs about three times
    /// the CPU for each byte, and a signature for each connection.
    native_tls: bool = |_| false;
    /// Threads that serve native clients over plain TCP, each its share of the connections; 0: half as many as there are
    /// processors. (TLS and QUIC are served by as many threads as there are processors, with HTTP.) Each costs 190 KiB, and
    /// more of them a wake more often than not for a request that fewer would have taken along with others.
    native_threads: u32 = |_| 0;
    /// PEM file with the certificate of the native protocol, and those between it and its authority; development: one that
    /// the server makes and keeps in its data directory, for clients that know its fingerprint. Costs a SIGHUP to replace;
    /// the log warns two weeks before it expires.
    native_certificate: PemFile = |_| PemFile::Development;
    /// PEM file with the private key of `native_certificate`; both are files, or none is. Costs nothing by itself.
    native_key: PemFile = |_| PemFile::Development;
    /// UDP sockets for QUIC on the native protocol's port, each served by a task of its own; as many as there are cores
    /// that may serve QUIC, 0 for no QUIC. Each costs 2 MiB, and up to 8 MiB in the kernel.
    native_quic_sockets: u32 = |_| 4;
    /// Bytes of a QUIC connection that may be on their way, each way; a channel gets half. Costs twice that much
    /// memory for each connection whose side does not read; less slows down far clients: a round trip each.
    native_quic_window: ByteSize = |_| ByteSize(2 * MIB);
    /// Address and port for Redis clients (RESP2 and RESP3), such as 127.0.0.1:7379; `off` serves none. Costs one listening
    /// socket, and 5 MiB for scans under way.
    resp: RespAddress = |_| RespAddress::Off;
    /// Databases of Redis clients by number: `keyspace:NAME`, durable, created with exact counts if missing, or `cache:NAME`,
    /// for strings, created if missing. Costs what you store; a cache costs `new_cache_bytes` once it is full.
    resp_databases: RespDatabases = |_| RespDatabases(vec![
        (0, RespDatabase::Keyspace("redis".to_owned())),
        (1, RespDatabase::Cache("redis".to_owned())),
    ]);
    /// Threads that serve Redis clients, each its share of the connections; 0: half as many as there are processors. A
    /// thread commits what its clients write, so that all of them wait for that fsync and for each other's long commands: more
    /// threads keep that apart. Each costs 190 KiB, and groups of its own where fewer would share fsyncs.
    resp_threads: u32 = |_| 0;
    /// Password of Redis clients (`AUTH`, `HELLO`); empty asks for none. Costs nothing; it travels in the clear, and a flag is
    /// seen by whoever lists processes: prefer the environment or the file.
    resp_password: Password = |_| Password::default();
    /// Permit an address that other machines reach, although there is no authentication, and no TLS for HTTP:
    /// costs the confidentiality of everything stored unless the network is trusted.
    allow_unprotected: bool = |_| false;
    /// Level of writes that name none: none, os, interval, disk or quorum. The stronger, the longer an
    /// ack takes: `disk` costs a shared fsync, about 0.1 ms here.
    durability: Durability = |engine| engine.durability;
    /// What keeps the state: lsm, memory, redb or sqlite; auto is what the directory has, and lsm for a new
    /// one. Another one than the directory has is refused: `thalweg migrate` moves it. memory costs RAM for
    /// everything stored; redb and sqlite cost more disk writes and slower reads than lsm.
    backend: Backend = |engine| Backend(engine.backend);
    /// Bytes of a log segment file. Costs that much disk per segment; larger ones are freed later. A write for which a segment
    /// has no room is refused; with 32MiB or more none is.
    segment_bytes: ByteSize = |engine| ByteSize(u64::from(engine.segment_bytes));
    /// Prepared, zero-filled segments kept ready. Each costs `segment_bytes` of disk; too few stall writes.
    /// Up to 64 more, or 2GiB, are kept for reuse while segments are used as fast.
    spare_segments: u32 = |engine| engine.spare_segments;
    /// Longest time until an `interval` write is fsynced: what a power loss may cost at that level.
    sync_interval: Span = |engine| Span(engine.sync_interval);
    /// Free disk bytes below which new data is refused, kept for deletes and trims. Costs that much disk.
    reserve_bytes: ByteSize = |engine| ByteSize(engine.reserve_bytes);
    /// History kept for watches and snapshots, at most so many bytes of log; a full disk gives up the oldest. Costs that
    /// much disk.
    history_bytes: ByteSize = |engine| ByteSize(engine.history_bytes);
    /// History kept, at most so old. Costs disk for what was written in that time.
    history_age: Span = |engine| Span(engine.history_age);
    /// Wait before an fsync for more writers to join. Costs its length in every durable ack; 0s is off.
    commit_delay: Span = |engine| Span(engine.commit_delay);
    /// Values up to this size live in the state, larger ones stay in the log. Larger costs write
    /// amplification in compaction, smaller an extra read per get.
    inline_value_bytes: ByteSize = |engine| ByteSize(engine.inline_value_bytes as u64);
    /// Block cache of the state. Costs that much memory; less costs disk reads.
    cache_bytes: ByteSize = |engine| ByteSize(engine.cache_bytes);
    /// Memtable size of the state. Costs up to four times that in memory while flushes catch up.
    memtable_bytes: ByteSize = |engine| ByteSize(engine.memtable_bytes as u64);
    /// Bytes of commands that may wait for the writer; beyond it requests are shed. Costs that much memory.
    max_queue_bytes: ByteSize = |engine| ByteSize(engine.max_queue_bytes as u64);
    /// Log that a crash may have to replay before the state is flushed. More costs a longer start after a
    /// crash, less costs more and smaller flushes.
    max_replay_bytes: ByteSize = |engine| ByteSize(engine.max_replay_bytes);
    /// How often retention, moving and freeing run. Shorter costs CPU, longer disk.
    maintenance_interval: Span = |engine| Span(engine.maintenance_interval);
    /// Open connections, over HTTP and native ones; one more is told so (503, goodbye) and closed. Each costs up to 160 KiB of
    /// buffers, a native one 256 KiB of waiting replies more.
    max_connections: u32 = |_| 4096;
    /// Open QUIC connections, which are among those; one more is refused. Each costs up to twice `native_quic_window`
    /// and 64 KiB.
    max_quic_connections: u32 = |_| 256;
    /// Native connections that have not said who they are yet; one more is refused, and from half of it on QUIC clients
    /// must first prove their address. Each costs up to 128 KiB; fewer shed sooner when many connect at once.
    max_handshakes: u32 = |_| 512;
    /// Requests being worked on; beyond it requests are shed with 503. Each costs about 4 KiB.
    max_requests_in_flight: u32 = |_| 4096;
    /// Largest request body; larger is 413. Costs nothing by itself.
    max_body_bytes: ByteSize = |_| ByteSize(16 * MIB);
    /// Bytes of request bodies held at a time, with native frames and Redis requests above 64 KiB, and what Redis clients
    /// queue above 64 KiB behind MULTI; beyond it requests are shed, with 503 over HTTP. Costs up to three times that in
    /// memory: the body, its decoded form and the encoded command.
    max_body_bytes_in_flight: ByteSize = |_| ByteSize(64 * MIB);
    /// Bytes of replies above 128 KiB that wait for native clients, clients over HTTP (values; pages of scans, reads and tails
    /// that are large because a value is) and Redis clients, with native ones above 4 KiB that were read on another thread
    /// and wait for their turn; beyond it reads that would be answered with so much are shed, `overloaded`, with 503 over HTTP
    /// and `BUSY` to Redis clients. Costs that much memory.
    max_reply_bytes_in_flight: ByteSize = |_| ByteSize(256 * MIB);
    /// Scans and record reads being streamed; beyond it they are shed. Each costs up to two pages of 512 KiB as they are sent;
    /// what is more, because a single value is, counts above.
    max_scans: u32 = |_| 64;
    /// Open tails, pushes and watches, and subscribers over HTTP; beyond it they are shed. Each costs up to two pages, of
    /// 64 KiB over HTTP and 256 KiB for native clients.
    max_tails: u32 = |_| 1024;
    /// What the keys below up to `max_queued_bytes` are, unless they are given: balanced, latency (short queues, small
    /// batches) or throughput (long queues, large batches, single messages wait for others). Costs what those keys cost.
    profile: Profile = |_| Profile::Balanced;
    /// Messages of which a server makes one batch if they come one by one and want no reply; 1 gathers none. More costs
    /// the first ones time, fewer costs CPU for each.
    batch_messages: u32 = |_| Batching::BALANCED.max_messages;
    /// Bytes of such a batch. Costs that much memory for each channel that publishes one by one.
    batch_bytes: ByteSize = |_| ByteSize(Batching::BALANCED.max_bytes as u64);
    /// Age of such a batch's first message at which it goes out, be it full or not. Costs its length in latency: of every
    /// such message if `batch_when_idle` is wait, else only while more comes all the time.
    batch_delay: Span = |_| Span(Batching::BALANCED.max_delay);
    /// Whether such a batch goes out when its channel has nothing more to read: flush or wait. wait costs latency, and
    /// saves CPU where many connections publish a few messages each.
    batch_when_idle: WhenIdle = |_| WhenIdle(Batching::BALANCED.when_idle);
    /// Subscriptions to subjects, of all connections. Each costs about 400 bytes, and what waits for it.
    max_subscriptions: u32 = |_| 100_000;
    /// Messages that wait for a subscription that asks for nothing else; at the bound its policy decides. Costs
    /// nothing by itself: bytes are bounded below.
    subscription_messages: u32 = |_| DEFAULT_SUBSCRIPTION_MESSAGES as u32;
    /// Bytes that wait for a subscription that asks for nothing else; at the bound its policy decides. Costs that much
    /// memory for each that does not keep up; less drops sooner.
    subscription_bytes: ByteSize = |_| ByteSize(DEFAULT_SUBSCRIPTION_BYTES);
    /// Bytes that wait for all subscriptions of one connection; at the bound the policy of whichever would get more
    /// decides. Costs that much memory for each connection that does not keep up.
    max_link_bytes: ByteSize = |_| ByteSize(DEFAULT_LINK_BYTES);
    /// Bytes of messages that wait for all connections, counted for each; at the bound as for one. Costs that
    /// much memory at worst; less sheds sooner when many subscribers are slow at once.
    max_queued_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Bytes of all caches together, by their bounds; one more than fits is refused. Costs that much memory once
    /// they are full.
    max_caches_bytes: ByteSize = |_| ByteSize(256 * MIB);
    /// Bytes of a cache that is created without a bound of its own. Costs that much of `max_caches_bytes`.
    new_cache_bytes: ByteSize = |_| ByteSize(32 * MIB);
    /// Longest time for a request's head to arrive. Shorter costs slow clients, longer lets them hold
    /// connections.
    header_timeout: Span = |_| Span::seconds(10);
    /// Longest time for a request's body to arrive.  Shorter costs slow clients, longer lets them hold
    /// admitted bytes.
    body_timeout: Span = |_| Span::seconds(30);
    /// A connection on which nothing happens for so long is closed. Longer costs memory for idle clients.
    idle_timeout: Span = |_| Span::seconds(75);
    /// A client that accepts no byte of a reply for so long is cut off. Longer costs the view and pages that it holds meanwhile.
    write_timeout: Span = |_| Span::seconds(30);
    /// Silence after which a tail sends a comment, so that proxies keep it open. Shorter costs traffic.
    tail_keep_alive: Span = |_| Span::seconds(15);
    /// Longest wait at a stop for requests in progress; then they are cut. At most 8s, so that a stop
    /// ends within 10 s. Costs its length in restarts under load.
    drain_timeout: Span = |_| Span::seconds(5);
    /// Format of log lines on standard error: text or json. Costs nothing measurable.
    log_format: LogFormat = |_| LogFormat::Text;
    /// Least severe log level shown: error, warn, info, debug or trace. debug costs about 2 us a request.
    log_level: units::LogLevel = |_| units::LogLevel::Info;
}

pub use units::LogLevel;

impl Config {
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

    /// Checks that the configuration values fit together. The error names the first value that does not.
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
    /// The configuration file could not be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error text of the system.
        reason: String,
    },
    /// The configuration file is not valid TOML.
    #[error("{path} is not TOML: {reason}")]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Position and cause, from the parser.
        reason: String,
    },
    /// The configuration names a value that does not exist.
    #[error("unknown configuration key {name:?}: `serve --explain` lists all keys")]
    Unknown {
        /// Unknown name, as given.
        name: String,
    },
    /// The text of a configuration value cannot be parsed.
    #[error("configuration key {name}: {got:?} is not {expected}")]
    Value {
        /// Name of the configuration value.
        name: &'static str,
        /// Text of the configuration value, as given.
        got: String,
        /// Description of the texts that are valid for this configuration value.
        expected: &'static str,
    },
    /// A value is outside its range, or conflicts with another value.
    #[error("configuration key {name} must be {expected}")]
    Range {
        /// Name of the configuration value.
        name: &'static str,
        /// Description of the values that are valid.
        expected: &'static str,
    },
    /// The server would listen at an address that other machines can reach, and `allow_unprotected` is not
    /// set.
    #[error(
        "{knob} = {address} can be reached by other machines, and there is no authentication yet (TLS alone keeps nobody \
         out, and the password of Redis clients travels in the clear): use a loopback address, or set allow_unprotected = true if the network is trusted"
    )]
    Unprotected {
        /// Name of the configuration value that has the address.
        knob: &'static str,
        /// The address that other machines can reach.
        address: SocketAddr,
    },
    /// An error in a configuration value, with the file or variable that has the value.
    #[error("{place}: {error}")]
    At {
        /// Path of the file, or name of the variable, that has the value.
        place: String,
        /// Error in the configuration value.
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
