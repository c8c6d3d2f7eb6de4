//! Commands: the requests in a log entry that the state machine carries out, and their outcomes.
//!
//! Owns the byte encoding of commands, entries and moves, which `docs/formats/command.md` describes. The proposer
//! encodes a command once, and readers decode it as a view that borrows the encoded bytes.
//!
//! Most commands are declared ([`Command`], [`GroupCommand`], [`TimeCommand`], [`MoveTarget`]), so that encoder,
//! decoder and documented layout come from one place. To add a command, add a variant to such a declaration and a row
//! to the document. The codecs on the path of every request are written by hand: commits with their writes,
//! transactions, acks, and bursts of Redis commands. Their layouts are stated beside them, and the same test compares
//! them with the document.
//!
//! This module only gathers the names of the modules below it.

mod append;
mod checks;
mod commit;
mod condition;
mod entry;
mod error;
pub mod groups;
mod history;
mod keyspace_config;
mod kinds;
mod moves;
mod operations;
mod outcome;
mod outcome_bytes;
mod redis;
mod step_bounds;
mod stream_config;
mod structures;
mod time;
mod transaction;
mod versions;
mod write;

pub use append::{
    AppendConditions, AppendedAt, EncodedStamp, ExpectedOffset, ProducerRefusal, ProducerStamp, check_producer_id,
};
pub use checks::{check_key, check_name, check_value};
pub use commit::{
    BlindPut, Commit, CommitBuilder, encode_append, encode_append_with, encode_delete, encode_put, encode_put_until,
    uses_revision,
};
pub use condition::{Condition, Expect, UnchangedRange};
pub use entry::{Commands, Framed};
pub use error::CommandError;
pub use groups::GroupCommand;
pub use history::{HistoryFloor, KeyspaceHistory};
pub use keyspace_config::KeyspaceConfig;
pub use kinds::{
    Command, encode_configure_keyspace, encode_configure_stream, encode_create_keyspace, encode_create_stream,
    encode_delete_stream, encode_digest, encode_drop_keyspace, encode_enforce_retention, encode_forget_producers,
    encode_open_producer, encode_prune_versions, encode_raise_version, encode_sweep, encode_trim_stream,
};
pub use moves::{Compacted, Move, MoveTarget};
pub use operations::Operations;
pub use outcome::Outcome;
pub use redis::{GroupMark, RedisBatch, RedisBuilder, RedisCommands, group_mark, offset_within};
pub use step_bounds::{ValueUse, max_steps, max_steps_with};
pub use stream_config::{Compaction, StreamConfig, StreamLimit};
pub use structures::structures;
pub use time::{
    Deadline, TimeCommand, encode_expire, encode_forget_rows, encode_grant_lease, encode_keep_lease,
    encode_revoke_lease,
};
pub use transaction::{
    FailedCondition, OperationError, OperationResult, ReadValue, ScanPage, ScannedItem, Transacted, Transaction,
    TransactionBuilder,
};
pub use versions::{FIRST_VERSION, Unwrapped, encode_versioned, unwrap, version_needed};
pub use write::{ScanOperation, Write, Writes};

#[cfg(test)]
mod tests;
