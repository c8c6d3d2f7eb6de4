//! Streams: entries by id, consumer groups, and what is pending with whom.
//!
//! Owns: all `X` commands, exact to Redis 7.0, over collections whose parts are the rows of [`layout`]. Does not own
//! waiting: commands answer as if nobody had asked for `BLOCK`, and [`block`] tells a session what to wait for.
//!
//! Invariants:
//! * `XADD` costs one meta and one part. What else a command costs is bounded by what it answers or removes, and that by
//!   `types::limits`.
//! * Bytes of the store that no version wrote are a [`StoreError`], never a panic.

mod arguments;
pub mod block;
mod claim;
mod deliver;
mod entries;
mod graves;
mod groups;
mod id;
mod info;
pub mod layout;
pub mod native;
mod pending;
mod read;
mod room;
mod stream;
mod trim;

pub use block::{Blocked, Poll};
pub use id::EntryId;

use crate::{
    command::{Command, Keys},
    store::{Collection, StoreError},
};

/// The commands of this family.
pub const COMMANDS: &[Command] = &[
    Command::write("xadd", -5, &["write", "denyoom", "fast"], Keys::ONE, entries::xadd),
    Command::read("xlen", 2, &["readonly", "fast"], Keys::ONE, entries::xlen),
    Command::read("xrange", -4, &["readonly"], Keys::ONE, entries::xrange),
    Command::read("xrevrange", -4, &["readonly"], Keys::ONE, entries::xrevrange),
    Command::read("xread", -4, &["readonly", "blocking", "movablekeys"], Keys::BEHIND_STREAMS, read::xread),
    Command::write("xreadgroup", -7, &["write", "blocking", "movablekeys"], Keys::BEHIND_STREAMS, deliver::xreadgroup),
    Command::write("xtrim", -4, &["write"], Keys::ONE, trim::xtrim),
    Command::write("xdel", -3, &["write", "fast"], Keys::ONE, entries::xdel),
    Command::write("xsetid", -3, &["write", "denyoom", "fast"], Keys::ONE, entries::xsetid),
    Command::write("xack", -4, &["write", "fast"], Keys::ONE, pending::xack),
    Command::read("xpending", -3, &["readonly"], Keys::ONE, pending::xpending),
    Command::write("xclaim", -6, &["write", "fast"], Keys::ONE, claim::xclaim),
    Command::write("xautoclaim", -6, &["write", "fast"], Keys::ONE, claim::xautoclaim),
    Command::write("xgroup", -2, &[], Keys::NONE, groups::xgroup).with(groups::SUBCOMMANDS),
    Command::read("xinfo", -2, &[], Keys::NONE, info::xinfo).with(info::SUBCOMMANDS),
];

/// How many entries a stream has, and the name of the first one's part.
pub(crate) fn entries_of(stream: &Collection) -> Result<(u64, Vec<u8>), StoreError> {
    let meta = layout::Meta::decode(&stream.meta)?;
    Ok((meta.len, layout::entry(meta.first_id).to_vec()))
}
