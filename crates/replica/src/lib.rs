//! Proposing, ordering and applying the log entries of a space. A space is the data that one Raft group replicates: it
//! has one order of log entries and one clock. A single node is a group of one voter.
//!
//! Owns: the space's queue of proposals, the writer role (the right of one thread at a time to turn queued proposals
//! into log entries), replay of the log into the state at open, the validity of entries after truncations, and space
//! time. It also owns the records that make the data directory of a single node identical to that of a Raft member with
//! one voter. Does not own: framing and syncing of records (`log`), the meaning of commands (`state`).
//!
//! Invariants:
//! - an entry is applied only after it, and everything before it in the log, has reached the level at which it was
//!   written: `applied.lsn <= log.end`, and `<= log.durable` whenever a caller waits for `disk`;
//! - valid entries of a space have indexes without gaps from 1 on, in terms that never decrease;
//! - space time never decreases.

mod apply;
mod bridge;
mod client;
mod clock;
mod counts;
mod error;
mod lead;
mod member;
mod membership;
mod pending;
#[cfg(feature = "plant")]
pub mod plant;
mod queue;
mod replay;
mod replica;
mod replication;
mod slot;
mod solo;
mod stages;
mod turn_pause;
mod turns;
mod valid;

pub use bridge::{MAX_BRIDGED_RECORDS, bridge};
pub use client::{Client, ClientAddress, Origin};
pub use clock::{NOTE_AHEAD, SpaceClock, TimeKeeper};
pub use counts::ReplicaStats;
pub use error::{OpenError, ProposeError};
pub use member::{AppliedEntry, ApplyingPause, Batch, Leadership, Member, MemberClock, MemberOptions, ProposalDriver};
pub use membership::{
    MAX_ADDRESS_BYTES, MAX_CONFIGS, MAX_MEMBERS, MAX_NAME_BYTES, Membership, MembershipError, NodeInfo, Vote,
};
pub use replay::{ReplayProgress, Replayed, check_sole_voter, replay, replay_while};
pub use replica::Replica;
pub use replication::{EntryTimes, ReplicationStage, ReplicationStages};
pub use slot::{Committed, Proposal};
pub use solo::{Observer, Solo, SoloOptions, Wake};
pub use stages::{WriteStage, WriteStages};
pub use valid::Valid;
