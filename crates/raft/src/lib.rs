//! Consensus by Raft: openraft replicates the entries of a *space* (one Raft group's data) over the logs of its nodes.
//!
//! Owns: openraft's types for a space ([`Types`]), their conversion to and from log records, the log of one space
//! ([`LogStore`]), and the fsyncs that all spaces of a node share ([`SyncQueue`]). Does not own: the bytes of the log
//! (`log`), the meaning of entries (`state`), the layout of memberships and votes (`replica`), sockets, an async
//! runtime. Everything is generic over openraft's `AsyncRuntime`, and all spaces of a node run on one thread.
//!
//! ```text
//! openraft ── append ──> LogStore ── try_append, level os ──> Log
//!    ^                      │ LSN, callback                     ^
//!    └── callback ─── SyncQueue ── one fsync for all spaces ────┘
//! ```
//!
//! Invariants:
//! - a callback reports success only after its entries, and all records before them in the log, were in an fsync that
//!   returned success; a vote counts as saved only after such an fsync;
//! - entries and votes reach the log in the order in which openraft wrote them;
//! - no reader gets an entry that a truncation has voided;
//! - the entries of a space have consecutive indexes, beginning after the last purged entry.

mod append_times;
mod applied;
mod applier;
mod barriers;
mod bell;
mod commit_notices;
mod consensus;
mod convert;
mod election_state;
mod elections;
mod entry_names;
mod error;
mod facts;
mod forward;
mod hearing;
mod index;
mod members;
mod options;
mod proposals;
mod read_ahead;
mod reader;
mod reads;
mod receiving;
mod recovery;
mod snapshots;
mod space_log;
mod store;
mod suspensions;
mod sync_queue;
mod sync_thread;
mod tail;
mod target;
mod ticks;
mod turns;
mod types;
mod weighing;
mod written;

pub use append_times::AppendTimes;
pub use applier::{Applier, Raft, SnapshotPoint};
pub use commit_notices::{FollowerRequests, NoticeTimes, without_needless_notices};
pub use consensus::{Consensus, ConsensusParts, History};
pub use convert::{entry_of_parts, log_id, raft_log_id, raft_vote, record_of, vote};
pub use entry_names::EntryNames;
pub use error::{BarrierError, ChangeError, StartError, StoreError};
pub use facts::MemberFacts;
pub use forward::Forwarder;
pub use hearing::Hearing;
pub use members::{ConsensusStatus, MemberStatus};
pub use options::ConsensusOptions;
pub use reader::{EntryRead, LogReader};
pub use receiving::{Begun, Receiving, Reception};
pub use recovery::Base;
pub use snapshots::{SnapshotHandle, SnapshotId, SnapshotPosition, SnapshotReader, SnapshotWriter, Snapshots, Switch};
pub use space_log::StoreStats;
pub use store::{LogStore, StoreOptions};
pub use sync_queue::{SyncDriver, SyncQueue, Unsynced};
pub use sync_thread::SyncThread;
pub use turns::{Turn, Turns};
pub use types::{
    Commands, RaftEntry, RaftLogId, RaftMembership, RaftSnapshot, RaftVote, Response, SnapshotMeta, StoredMembership,
    Types,
};
