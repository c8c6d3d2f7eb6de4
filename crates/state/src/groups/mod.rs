//! Consumer groups: their rows, the rules of delivery, commands and reads.
//!
//! Owns: the delivery state of each group: its cursor, pending records, members and dead letters. Does not own: the
//! records of streams (groups handle only offsets), or the timers of waiting consumers.
//!
//! Invariant: a record below a group's cursor is settled unless it is pending; no record is pending twice.
//!
//! * `table`: all groups, the layout of their rows, and the invariants.
//! * `group`: the rules of one group. `head`: its identity, cursor and counters.
//! * `parcels`: the pending records of the attempts. `order`: order per key. `members`: members.
//! * `claims`: settlements of a commit that are checked but not applied.
//! * `reclaim`: removal of rows in parts.
//! * `commands`: commands and queries. `read`: results of queries.

pub(crate) mod claims;
pub(crate) mod commands;
pub(crate) mod group;
pub(crate) mod head;
pub(crate) mod members;
pub(crate) mod order;
pub(crate) mod parcels;
pub(crate) mod read;
pub(crate) mod reclaim;
pub(crate) mod table;

pub use commands::SettlementWaiter;
pub use read::{DeadParcel, GroupCounters, GroupReady, HeldAttempt};
