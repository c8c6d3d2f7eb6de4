//! Commands that are to be committed together, and where their replies go.
//!
//! Owns: the order of replies. A burst begins with a command that writes, to a database that answers later; from then on
//! all that comes with the same read joins it, reads too, for they are to see what was written before them. What is
//! answered without the database (`PING`) is kept as the bytes of its reply.
//!
//! ```text
//! SET a 1 · GET a · PING · MULTI · INCR a · EXEC          one command of one entry, with three commands:
//!   Outcome  Outcome  Held  Held    Held   Group(1) Outcome
//! ```
//!
//! Bounds: [`MAX_BURST_BYTES`], [`MAX_REDIS_COMMANDS`]; what does not fit waits in the receive buffer for the next.

use thalweg_types::limits::MAX_REDIS_COMMANDS;

use super::{commands::Commands, database::Watched};

/// Bytes of commands from which on nothing joins a burst. One command may pass it.
const MAX_BURST_BYTES: usize = 1024 * 1024;
/// Replies from which on nothing joins a burst.
const MAX_SLOTS: usize = MAX_REDIS_COMMANDS;

/// Where a reply comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The next of those that the database gives; of a scan, whose cursor is to be translated.
    Outcome {
        /// A scan's.
        is_scan: bool,
        /// The client does not want it.
        muted: bool,
    },
    /// So many bytes are there already.
    Held(u32),
    /// Begins the reply of `EXEC`, with so many replies in it.
    Group {
        /// How many slots follow that belong to it.
        len: u32,
        /// The client does not want it.
        muted: bool,
    },
    /// This error.
    Refused {
        /// Its text.
        error: &'static str,
        /// The client does not want it.
        muted: bool,
    },
    /// A command of the connection within a transaction: done when its turn comes.
    Session {
        /// Its arguments.
        arguments: Box<[Box<[u8]>]>,
        /// The client does not want the reply.
        muted: bool,
    },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Which database's.
    pub database: usize,
    /// What it is to do.
    pub commands: Commands,
    /// Only if these have not changed. Then there is nothing in the burst but one transaction.
    pub watched: Vec<Watched>,
    /// Replies in order.
    pub slots: Vec<Slot>,
    /// Bytes of [`Slot::Held`], one behind the other.
    pub held: Vec<u8>,
    /// Who waits for changes of its keys is to be told.
    pub touched: super::waiting::Touched,
}

impl Burst {
    /// Whether no reply waits for it.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether something may join it that has so many commands and bytes.
    #[must_use]
    pub(crate) fn has_room(&self, commands: usize, bytes: usize) -> bool {
        self.is_empty()
            || (self.commands.len() + commands <= MAX_REDIS_COMMANDS
                && self.commands.bytes() + bytes <= MAX_BURST_BYTES
                && self.slots.len() + commands < MAX_SLOTS)
    }

    /// Keeps a reply that was appended to `held`.
    pub(crate) fn hold(&mut self, bytes: usize) {
        match self.slots.last_mut() {
            // Replies fit into 4 GiB: they are small, and their number is bounded.
            Some(Slot::Held(before)) => *before += bytes as u32,
            _ => self.slots.push(Slot::Held(bytes as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With so many commands, whose arguments are together so many bytes.
    fn burst(commands: usize, bytes: usize) -> Burst {
        let mut burst = Burst::default();
        let append = thalweg_redis::find(b"append").unwrap();
        for at in 0..commands {
            let share = bytes / commands + usize::from(at < bytes % commands);
            burst.commands.push(append, [&vec![b'x'; share][..]].into_iter());
            burst.slots.push(Slot::Outcome { is_scan: false, muted: false });
        }
        burst
    }

    #[test]
    fn what_does_not_fit_waits_for_the_next_one() {
        let empty = Burst::default();
        assert!(empty.has_room(1, 100 * MAX_BURST_BYTES), "one command may be as large as it likes");
        // By commands: as many as a command of the log takes, be they one by one or a transaction of many.
        let few = burst(10, 100);
        assert!(few.has_room(MAX_REDIS_COMMANDS - 11, 0) && !few.has_room(MAX_REDIS_COMMANDS - 9, 0));
        let many = burst(MAX_REDIS_COMMANDS - 2, 0);
        assert!(many.has_room(1, 0) && !many.has_room(3, 0));
        // By bytes, with what each command takes around its arguments.
        let large = burst(1, MAX_BURST_BYTES - 100);
        let left = MAX_BURST_BYTES - large.commands.bytes();
        assert!(large.has_room(1, left) && !large.has_room(1, left + 1));
        // By replies, those that no command of the log has included.
        let mut held = burst(1, 0);
        held.slots.resize(MAX_SLOTS - 2, Slot::Refused { error: "", muted: false });
        assert!(held.has_room(1, 0));
        held.slots.push(Slot::Refused { error: "", muted: false });
        assert!(!held.has_room(1, 0));
    }

    #[test]
    fn replies_that_are_there_already_are_one_slot_as_long_as_nothing_comes_between() {
        let mut burst = burst(1, 1);
        for (bytes, slots) in [(5, 2), (7, 2)] {
            burst.hold(bytes);
            assert_eq!(burst.slots.len(), slots);
        }
        assert_eq!(burst.slots[1], Slot::Held(12));
        burst.slots.push(Slot::Refused { error: "", muted: false });
        burst.hold(3);
        assert_eq!(burst.slots[3], Slot::Held(3));
    }
}
