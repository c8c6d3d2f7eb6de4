//! A burst: the commands of one client that are committed together, and the order of their replies.
//!
//! Owns: the order of replies. A burst begins with a command that writes to a batched database (one that replies after
//! a commit, such as a keyspace). All later commands of the same read from the socket join the burst. Reads join it
//! too, because they must see the earlier writes. Commands that need no database, such as `PING`, only add the encoded
//! bytes of their reply.
//!
//! ```text
//! SET a 1 · GET a · PING · MULTI · INCR a · EXEC          one command of one entry, with three commands:
//!   Outcome  Outcome  Held  Held    Held   Group(1) Outcome
//! ```
//!
//! Limits: [`MAX_BURST_BYTES`], [`MAX_REDIS_COMMANDS`]. Further requests wait in the receive buffer for the next
//! burst.

use thalweg_serving::{admission::Reservation, deleting::DeleteShare};
use thalweg_types::limits::MAX_REDIS_COMMANDS;

use super::{
    commands::Commands,
    database::{PendingOutcome, Watched},
};

/// Total size in bytes of a burst (commands of one client that are committed together) at which no more commands join
/// it. A single command may be larger.
const MAX_BURST_BYTES: usize = 1024 * 1024;
/// Number of replies at which no more commands join a burst (commands of one client that are committed together).
const MAX_SLOTS: usize = MAX_REDIS_COMMANDS;

/// Source of one reply to a burst. (A burst is a list of commands of one client that are committed together.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The next reply that the database returns. If the command is a scan, the position in the reply must be replaced
    /// by a numeric cursor.
    Outcome {
        /// True if the command is a scan: SCAN or HSCAN.
        is_scan: bool,
        /// True if the command only reads.
        is_read: bool,
        /// True if the client wants no reply to the command.
        muted: bool,
        /// [Number](thalweg_redis::Command::number_of) of the command.
        command: u16,
    },
    /// Replies that are already encoded. They are the next bytes of [`Burst::held`]; contains their number of bytes.
    Held(u32),
    /// Head of the reply to `EXEC`. This reply is an array, and its elements are the replies of the following elements
    /// of [`Burst::slots`].
    Group {
        /// Number of following elements of [`Burst::slots`] that belong to the reply to `EXEC`.
        len: u32,
        /// True if the client wants no reply to `EXEC`.
        muted: bool,
    },
    /// An error reply to a command that was rejected before it reached the database.
    Refused {
        /// Text of the error reply to the rejected command.
        error: &'static str,
        /// True if the client wants no reply to the rejected command.
        muted: bool,
    },
    /// A command that is part of a transaction and that the session itself implements. It runs when its reply is due.
    Session {
        /// Arguments of the session's command, its name first.
        arguments: Box<[Box<[u8]>]>,
        /// True if the client wants no reply to the session's command.
        muted: bool,
    },
}

/// Commands of one client that are committed together, and the sources of their replies in order.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Index of the database to which the commands go.
    pub database: usize,
    /// Commands that go to the database in one proposal.
    pub commands: Commands,
    /// Keys that the client watches with `WATCH`. They must be unchanged when the commands are applied. If there are
    /// any, the burst consists of one transaction.
    pub watched: Vec<Watched>,
    /// Sources of the replies, in the order in which the client gets the replies.
    pub slots: Vec<Slot>,
    /// Bytes of all [`Slot::Held`], concatenated. At most [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) bytes
    /// and one more reply.
    pub held: Vec<u8>,
    /// Keys that the commands may change. When the commands have been applied, clients that wait for these keys in
    /// blocking reads are notified.
    pub touched: super::waiting::TouchedKeys,
    /// Reservations for those commands of the burst that delete all keys of a database. They are held until the outcome
    /// of the commands is known.
    pub deletes: Vec<DeleteShare>,
}

impl Burst {
    /// Returns true if the burst (the client's commands that are committed together) contains nothing that needs a
    /// reply.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns true if `commands` more commands, with `bytes` bytes in total, may be committed together with those of
    /// this burst.
    #[must_use]
    pub(crate) fn has_room(&self, commands: usize, bytes: usize) -> bool {
        self.is_empty()
            || (self.commands.len() + commands <= MAX_REDIS_COMMANDS
                && self.commands.bytes() + bytes <= MAX_BURST_BYTES
                && self.slots.len() + commands < MAX_SLOTS)
    }

    /// Adds a reply of `bytes` bytes. The caller has already appended the encoded reply to `held`.
    pub(crate) fn hold(&mut self, bytes: usize) {
        match self.slots.last_mut() {
            // The total stays below 4 GiB: replies are small, and their number is bounded.
            Some(Slot::Held(before)) => *before += bytes as u32,
            _ => self.slots.push(Slot::Held(bytes as u32)),
        }
    }
}

/// Commands of one client (a burst) that were proposed to their database together.
pub(crate) struct PendingBurst {
    /// Future that returns the replies to the proposed commands.
    pub commands: PendingOutcome,
    /// Reservations for those of the proposed commands that delete all keys of a database.
    pub deletes: Vec<DeleteShare>,
    /// Reservation of one of the server's permitted requests in flight, held until the replies are known.
    pub _held: Reservation,
}

impl std::fmt::Debug for PendingBurst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingBurst")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a burst of `commands` commands. Their arguments have `bytes` bytes in total.
    fn burst(commands: usize, bytes: usize) -> Burst {
        let mut burst = Burst::default();
        let append = thalweg_redis::find(b"append").unwrap();
        for at in 0..commands {
            let share = bytes / commands + usize::from(at < bytes % commands);
            burst.commands.push(append, [&vec![b'x'; share][..]].into_iter());
            burst.slots.push(Slot::Outcome { is_scan: false, is_read: false, muted: false, command: 0 });
        }
        burst
    }

    #[test]
    fn what_does_not_fit_waits_for_the_next_one() {
        let empty = Burst::default();
        assert!(empty.has_room(1, 100 * MAX_BURST_BYTES), "one command may be as large as it likes");
        // Limit on commands: as many as one command of the log may contain, either as single commands or as one
        // transaction.
        let few = burst(10, 100);
        assert!(few.has_room(MAX_REDIS_COMMANDS - 11, 0) && !few.has_room(MAX_REDIS_COMMANDS - 9, 0));
        let many = burst(MAX_REDIS_COMMANDS - 2, 0);
        assert!(many.has_room(1, 0) && !many.has_room(3, 0));
        // Limit on bytes, including the overhead of each command.
        let large = burst(1, MAX_BURST_BYTES - 100);
        let left = MAX_BURST_BYTES - large.commands.bytes();
        assert!(large.has_room(1, left) && !large.has_room(1, left + 1));
        // Limit on replies, including replies to commands that do not go to the log.
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
