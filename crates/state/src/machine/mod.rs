//! The deterministic state machine: entries in, outcomes out, over any backend.
//!
//! Owns: the machine's tables in memory, the changes of the record being applied and their rollback, the running hash,
//! and the version of the state machine. Does not own: the dispatch of commands, and the commands that concern several
//! subjects (`apply`); the rows and commands of one subject, which are in the other modules of the crate (`keyspaces`,
//! `streams`, `groups`, `expiry`, `history`, `changes`, `clears`, `redis`, `segments`, `membership`, `digest`); the
//! log, the order of entries, time, or the bytes of streams and large values.
//!
//! * `state_machine`: [`Machine`], the data shared by the applying thread and readers.
//! * `applying`: the record being applied. `applier`: the data that the applying thread keeps between records.
//! * `staged`: the changes of the record, and reads that include them. `savepoint` and `undo`: rollback of a command.
//! * `verdicts`: writes the rows of history (`changes`) while an entry is applied, raises the history floor, and
//!   answers readers of the log. `digest_view`: the command that keeps a view for a digest.
//! * `running_hash`: hash over the outcomes and writes of all entries. `upgrade`: the version in force.
//!
//! Time: keys and leases end by the time of entries (`expiry`). Reads hide ended keys by a time of their own
//! (`expiry::time_of_reads`), which is never above the time of a later entry.
//!
//! Invariants:
//! * Outcomes, and the replicated rows (see [`crate::digest`]), are functions of the commands alone: their content,
//!   their order, and their times. The grouping of commands into entries, the positions of entries in the log,
//!   [`MachineOptions`], restarts, moves and compactions have no effect on them.
//! * The same entries at the same log positions, applied to the same map with the same options, produce the same map
//!   byte for byte.
//! * All changes of one entry are one backend batch, and become visible with it. Stream heads and names in memory are
//!   published after the batch, so a reader never sees a head before the rows that it refers to.
//! * A revision is used by each command that commits and by each that removes ended keys, and by no other: a failed
//!   condition, an unknown name, or a command about a keyspace, a stream or a lease uses none. (Dropping a keyspace and
//!   revoking a lease remove keys, and use one.)
//! * After an error in the middle of an entry, no change of it is applied, and no further entry is accepted.

pub(crate) mod applier;
pub(crate) mod applying;
pub(crate) mod digest_view;
pub(crate) mod gaps;
pub(crate) mod running_hash;
pub(crate) mod savepoint;
pub(crate) mod staged;
pub(crate) mod state_machine;
pub(crate) mod undo;
pub(crate) mod upgrade;
pub(crate) mod verdicts;

pub use state_machine::{Machine, MachineOptions};
pub use upgrade::KNOWN_VERSION;
pub use verdicts::Verdicts;

pub use crate::{
    entry::{Entry, LocalOutcome},
    error::{MachineError, StreamReadError},
};
