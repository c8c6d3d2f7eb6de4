//! Consumer groups: their rows, the rules of delivery, commands and reads.

pub(crate) mod claims;
pub(crate) mod commands;
pub(crate) mod group;
pub(crate) mod head;
pub(crate) mod members;
pub(crate) mod order;
pub(crate) mod parcel;
pub(crate) mod read;
pub(crate) mod table;

pub use commands::SettlementWaiter;
pub use read::{DeadParcel, GroupCounters, GroupInfo, GroupReady, HeldAttempt, MemberInfo};
