//! Consumer groups: their configuration, the commands about them, and the outcomes of these commands.
//!
//! An *attempt* is one delivery of some records to one member. Attempts of a group have rising numbers that are never
//! reused. A settlement (ack or nack) names its attempt, so a settlement cannot be mistaken for one of another delivery
//! of the same records, of a deleted group with the same name, or from before a restore.
//!
//! This module only gathers the names of the modules below it.

mod commands;
mod config;
mod outcome;
mod settlements;

pub use commands::{
    Fetch, GroupCommand, check_member, encode_ack, encode_configure_group, encode_create_group, encode_delete_group,
    encode_extend, encode_fetch, encode_nack, encode_reclaim_group, encode_seek, key_hash,
};
pub use config::{GroupConfig, GroupOrder, MAX_ACK_DEADLINE};
pub use outcome::{DeliveredRun, Fetched, GroupOutcome, Lapsed};
pub(super) use settlements::settlements_len;
pub use settlements::{OffsetRun, Redelivery, Runs, Settle, Settlement, SettlementKind, Settlements};

#[cfg(test)]
mod tests;
