//! Proposing, ordering and applying the entries of a space.
//!
//! Owns: the space's queue of proposals, the writer role that turns them into entries, replay of the
//! log into the state at open, which entries a truncation has made void, space time, and the records that make a directory written by one node
//! alone what a one-voter Raft group would have written.
//! Does not own: how records are framed and synced (`log`), what commands mean (`state`).
//!
//! Invariants:
//! - an entry is applied only after it and everything before it in the log reached the level it was
//!   written at: `applied.lsn <= log.end`, and `<= log.durable` whenever a waiter asked for `disk`;
//! - entries of a space that count have indexes without gaps from 1 on, in terms that never go back;
//! - space time never goes back.

mod bridge;
mod clock;
mod error;
mod group;
mod lead;
mod queue;
mod replay;
mod slot;
mod solo;
mod valid;

pub use bridge::{MAX_BRIDGED_RECORDS, bridge};
pub use clock::SpaceClock;
pub use error::{OpenError, ProposeError};
pub use group::{MAX_ADDRESS_BYTES, MAX_CONFIGS, MAX_MEMBERS, Membership, MembershipError, Vote};
pub use replay::{Replayed, replay};
pub use slot::Proposal;
pub use solo::{Committed, Observer, Solo, SoloOptions, SoloStats, Wake};
pub use valid::Valid;
