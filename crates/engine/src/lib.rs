//! The embedded database: the log, the state and the replica behind one blocking and one async handle.
//!
//! Owns: a data directory (its lock, identity, log and state), opening and closing it, maintenance in the background
//! (retention, moving, freeing, flushing), and reading values that stay in the log. Does not own: the network,
//! configuration files.
//!
//! ```no_run
//! use thalweg_engine::{Database, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let db = Database::open("data", Options::default())?;
//! let users = db.keyspace("users")?;
//! let ack = users.put(b"ada", b"1815")?; // on disk when it returns
//! assert_eq!(users.get(b"ada")?.unwrap().value, &b"1815"[..]);
//! println!("{} at revision {:?}", ack.durability, ack.revision);
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Layout of a directory: `LOCK`, `IDENTITY`, `CLOCK`, `log/`, `state/default/BACKEND/`; `docs/formats/directory.md`
//! has all files.

mod ack;
mod async_database;
mod async_time;
mod backends;
mod blocking;
mod clock_file;
mod command;
mod compactor;
mod coordination;
mod cursor;
mod database;
mod digests;
mod error;
mod expiry;
mod fetch_gate;
mod group;
mod identity;
mod inner;
mod install_error;
mod install_slot;
mod key_history;
mod keyspace;
mod keyspace_admin;
mod leases;
mod maintenance;
mod maintenance_counts;
mod member;
pub mod migrate;
mod mover;
mod open;
mod open_parts;
mod open_replica;
mod optimistic;
mod options;
#[cfg(feature = "plant")]
pub mod plant;
#[cfg(not(feature = "plant"))]
mod plant;
mod producer;
mod quiet;
mod read_ahead;
mod redis;
mod redis_streams;
mod repair_note;
mod row_fetch;
mod runs;
mod scan_page;
mod scan_range;
mod scrub;
pub mod snapshot;
pub mod space;
mod state_digest;
mod state_dir;
pub mod state_files;
mod state_version;
mod stats;
mod stored_objects;
mod stream;
mod stream_growth;
mod stream_page;
mod tails;
mod text_file;
mod transaction;
mod unfinished_restore;
mod value_reads;
mod waiting_fetches;
mod watch;
mod watches;

pub use ack::Ack;
pub use async_database::AsyncDatabase;
pub use command::{CommandResult, PendingCommand};
pub use coordination::{Coordination, CoordinationError, CoordinationWatch};
pub use cursor::ScanCursor;
pub use database::{Database, Health};
pub use digests::{DigestReport, HashMark};
pub use error::{OpenError, ReadError, WriteError};
pub use expiry::{Lifetime, PutOptions};
pub use group::{
    Credit, Delivery, Extended, FetchRequest, Group, GroupError, GroupFigures, GroupInfo, GroupStart, HeldAttempt,
    MAX_LISTED_MEMBERS, MemberInfo, Message, PreparedFetch, Push, PushRequest, PushWaits, Ready, SettlementResult,
    UnreadDelivery,
};
pub use identity::MemberIdentity;
pub use key_history::{KeyVersion, KeyVersions, VersionLifetime};
pub use keyspace::{Entry, Head, Keyspace, KeyspaceInfo, KeyspaceIter, ScanItem};
pub use keyspace_admin::{DEFAULT_STATS_KEYS, KeyspaceCounts};
pub use leases::{LeaseGrant, LeaseInfo, LeaseKey, Leases};
pub use maintenance_counts::Maintenance;
pub use member::{MemberParts, SteppedOptions};
pub use open::{OpenReport, check_directory};
pub use optimistic::{Transaction, TransactionError};
pub use options::{BackendKind, Create, Options, Repair};
pub use producer::{AsyncProducer, Producer};
pub use redis_streams::RedisStreams;
pub use repair_note::{RepairDue, RepairNote};
pub use row_fetch::{RowFetch, RowsOf};
pub use runs::{RunLimits, StreamRun};
pub use scan_range::{Order, ScanRange, Values};
pub use scrub::ScrubStats;
pub use state_digest::{DigestError, StateView};
pub use stats::{LogHolders, Stats};
pub use stored_objects::{GroupObjects, StoredObjects};
pub use stream::{Stream, StreamInfo};
pub use stream_growth::GrowthListener;
pub use stream_page::{StreamBatch, StreamPage};
pub use thalweg_log::Purpose;
pub use thalweg_recipes as recipes;
pub use thalweg_redis::streams::growth::{GrownStreams, GrowthWaiter, stream_key_hash};
pub use thalweg_replica::{
    Client, ClientAddress, Origin, ReplayProgress, ReplicationStage, ReplicationStages, Wake, WriteStage, WriteStages,
};
pub use thalweg_state::expiry::Expiry;
pub use thalweg_state::history::VersionEnd;
pub use thalweg_store::lsm::{Compaction, TableCompression};
pub use thalweg_types as types;
pub use thalweg_types::info::Producer as ProducerInfo;
pub use transaction::{Added, PrefixDeleted, TransactionAck};
pub use watch::{Watch, WatchBatch, WatchKeys, WatchLimits};
pub use watches::{
    error::WatchError,
    event::{WatchChange, WatchEvent},
};
