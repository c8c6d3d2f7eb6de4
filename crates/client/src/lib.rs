//! An async client of Thalweg's native protocol: pooled connections, pipelining, reconnect and resume.
//!
//! Owns: everything between an application's calls and the channels to a server ([`thalweg_transport`]). Does not own
//! the bytes of the protocol ([`thalweg_wire`]), nor the execution of requests on the server.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use thalweg_client::{Client, Endpoint, Options, Position};
//!
//! let client = Client::connect(Endpoint::tcp("127.0.0.1:7500"), Options::default()).await?;
//!
//! let orders = client.stream("orders");
//! orders.create_if_missing(&Default::default()).await?;
//! let mut tail = orders.tail(Position::Start {}).await?;
//! while let Some(record) = tail.next().await? {
//!     println!("{}: {:?}", record.offset, record.payload);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Behaviour
//!
//! * **Connections**: the client restores lost connections, after growing pauses. Requests wait for the connection, at
//!   most for their [`timeout`](Client::timeout). Tails, watches and groups resume where they were. Subscriptions to
//!   subjects have no history, so they report a gap. A watch of the cluster that continues on another node also reports
//!   a gap.
//! * **Clusters**: the client takes several seeds, learns the members and the leader from them, follows the leader, and
//!   finds a new one within the timeout of a request. Each read states a level ([`Client::read_level`]). A cache is on
//!   one node, or spread over all nodes ([`SpreadCache`]).
//! * **Errors** state the next step ([`Classified`]): retry, fix, or stop. They also state if the request may have had
//!   an effect ([`Error::effect`]). The client itself retries requests that do no harm if they are sent twice, such as
//!   reads; with [`Options::repeat_puts`] also puts and deletes. Any other write that may have been carried out ends
//!   with [`Error::OutcomeUnknown`].
//! * **Bounds**: every queue has a bound, see [`Options`]. At the bound callers wait.
//! * **Cancelling**: dropping a request's future cancels it on the server; dropping a subscription ends it.

mod backoff;
mod cache;
mod channel;
mod client;
mod cluster_events;
mod connect;
mod directory;
mod error;
mod flow;
mod group;
mod keyspace;
mod lease;
mod link;
mod mailbox;
mod member_pools;
mod members;
mod membership;
mod named;
mod names;
mod options;
mod pool;
mod publisher;
mod records;
mod rendezvous;
mod request;
mod spread_cache;
mod staged;
mod staging;
mod status;
mod stream;
mod stream_publisher;
mod subject;
mod subscription;
mod target;
mod telemetry;
mod watch;
mod write;

pub use cache::{Cache, CacheFigures, CacheValue};
pub use client::Client;
pub use cluster_events::{ClusterChange, ClusterEvent, ClusterUpdate, ClusterWatch, EventPosition, EventsFrom};
pub use connect::ServerInfo;
pub use directory::Seeds;
pub use error::{ConnectError, Error, Failure, Invalid, Lost, ProtocolError};
pub use group::{Delivery, Group, GroupInfo, MemberInfo, PushOptions, Pushes, SettlementResult};
pub use keyspace::{Keyspace, KeyspaceCounts, KeyspaceInfo, Pair, Put, Scan, ScanRange, Value, Version, Versions};
pub use lease::{Lease, LeaseInfo};
pub use membership::{ClusterMember, ClusterMembers, MemberHealth, MemberRole};
pub use options::{
    DEFAULT_RETRIES, DEFAULT_WINDOW, MAX_CHANNELS, MAX_POOL, MIN_REFRESH, Options, ReadFrom, Retries, Window,
};
pub use publisher::{Acks, Publisher, PublisherOptions};
pub use records::{OwnedRecord, RecordAt, Records};
pub use spread_cache::SpreadCache;
pub use status::Status;
pub use stream::{ProducerInfo, Stream, StreamInfo, Tail};
pub use stream_publisher::{Ack, StreamPublisher, StreamPublisherOptions};
pub use subject::{Delivered, MessageBatch, OwnedMessage, Published, SubscribeOptions, Subscriber};
pub use telemetry::{ClientTelemetry, RequestTelemetry};
pub use watch::{Change, Changes, Watch, Watched};
pub use write::{Appended, Committed, Transacted};

pub use thalweg_transport::{Endpoint, Fingerprint, Kind as EndpointKind, QuicOptions, Trust};
pub use thalweg_types::{self as types, Action, Classified, Durability, ReadLevel};
pub use thalweg_wire::{
    BatchWriter, CacheCreate, CacheExpect, CacheTtl, ChangeKind, Checksum, Count, Effect, Health, Message, Order,
    Policy, Position, Release, SharedBatch, Values, VersionState,
};

/// Item whose documentation is the text of the guide, so that rustdoc compiles the guide's Rust examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/rust-client.md")]
pub struct Guide;
