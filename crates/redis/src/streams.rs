//! Streams: entries ordered by id, consumer groups, and pending entries of consumers.
//!
//! Owns: all `X` commands, exactly as in Redis 7.0, over collections whose parts are the rows of [`layout`]. Does not
//! own: waiting. Commands answer as if without `BLOCK`, and [`block`] tells a session on which keys to wait.
//!
//! Invariants:
//! * `XADD` writes one meta (the value of the stream's key) and one part (the row of the new entry). The cost of
//!   other commands is bounded by the number of rows that they return or remove, which `types::limits` bounds.
//! * Malformed bytes in the store cause a [`StoreError`], never a panic.

mod arguments;
pub mod block;
mod claim;
mod deliver;
mod destroyed_groups;
mod entries;
mod group_commands;
mod groups;
pub mod growth;
mod id;
mod info;
pub mod layout;
pub mod native;
mod pending;
mod read;
mod stream;
mod trim;
mod visit;

pub use block::{Blocked, Poll};
pub use id::EntryId;

use visit::Order;

use crate::{
    command::{Command, Keys},
    flags::Flags,
    store::{Collection, StoreError},
};

const READ: Flags = Flags::STREAM.and(Flags::READ_ONLY);
const WRITE_SLOW: Flags = Flags::STREAM.and(Flags::WRITE);
const WRITE: Flags = WRITE_SLOW.and(Flags::FAST);
const WAITING: Flags = Flags::BLOCKING.and(Flags::MOVABLE_KEYS);

/// Table of the commands on streams.
pub const COMMANDS: &[Command] = &[
    Command::write("xadd", -5, WRITE.and(Flags::DENY_OOM), Keys::ONE, entries::xadd),
    Command::read("xlen", 2, READ.and(Flags::FAST), Keys::ONE, entries::xlen),
    Command::read("xrange", -4, READ, Keys::ONE, |read, args| entries::range(read, args, Order::Ascending)),
    Command::read("xrevrange", -4, READ, Keys::ONE, |read, args| entries::range(read, args, Order::Descending)),
    Command::read("xread", -4, READ.and(WAITING), Keys::BEHIND_STREAMS, read::xread),
    Command::write("xreadgroup", -7, WRITE_SLOW.and(WAITING), Keys::BEHIND_STREAMS, deliver::xreadgroup),
    Command::write("xtrim", -4, WRITE_SLOW, Keys::ONE, trim::xtrim),
    Command::write("xdel", -3, WRITE, Keys::ONE, entries::xdel),
    Command::write("xsetid", -3, WRITE.and(Flags::DENY_OOM), Keys::ONE, entries::xsetid),
    Command::write("xack", -4, WRITE, Keys::ONE, pending::xack),
    Command::read("xpending", -3, READ, Keys::ONE, pending::xpending),
    Command::write("xclaim", -6, WRITE, Keys::ONE, claim::xclaim),
    Command::write("xautoclaim", -6, WRITE, Keys::ONE, claim::xautoclaim),
    Command::write("xgroup", -2, Flags::NONE, Keys::NONE, group_commands::xgroup).with(group_commands::SUBCOMMANDS),
    Command::read("xinfo", -2, Flags::NONE, Keys::NONE, info::xinfo).with(info::SUBCOMMANDS),
];

/// Returns the number of entries of a stream, and the name of the row that stores its first entry.
pub(crate) fn entries_of(stream: &Collection) -> Result<(u64, Vec<u8>), StoreError> {
    let meta = layout::Meta::decode(&stream.meta)?;
    Ok((meta.len, layout::entry(meta.first_id).to_vec()))
}
