//! The deterministic state machine: entries in, outcomes out, over any backend.
//!
//! Owns: applying entries in log order (`entry`, `commit`, `admin`, `keyspace_admin`, `consumers`), what a
//! key is at the entry's time (`live`), what the commands so far have changed and how that is taken back (`staged`,
//! `savepoint`), transactions (`transaction`), deletes by prefix and their sweep (`clearing`), moves of bytes (`moves`),
//! what the space's group must find again when the log has been freed (`group`), what readers of the log
//! need to tell what its entries changed (`history`), versions of keys of keyspaces with history (`versions`,
//! `prune`), Redis commands and the parts of hashes and streams (`redis`, `parts`), the hash over all that
//! entries have done (`running_hash`), versions of the state machine itself (`upgrade`), views for digests (`digest_view`), and reads of what is applied (`reads`). Does not own the
//! log, the order of entries, time, or the bytes of streams and large values.
//!
//! Time: what ends (`timed`, `leases`, `expire`) does so by the time of entries; reads hide it by a time of their
//! own (`time`) that no later entry falls below.
//!
//! Invariants:
//! * Outcomes, and the replicated rows (see [`crate::digest`]), are functions of the commands alone: of which commands
//!   there are, in which order, and at which times. How they are grouped into entries, where those lie in the log,
//!   [`MachineOptions`], restarts, moves and compactions do not show.
//! * The same entries at the same log positions, applied from the same map with the same options, give the same map
//!   byte for byte.
//! * Everything one entry changes is one backend batch, and becomes visible with it: heads and names in
//!   memory are published after the batch, so a reader never sees a promise without what it promises.
//! * A revision is used by each command that commits and by each that removes keys which have ended, and by
//!   nothing else: a failed condition, an unknown name, or a command about a keyspace, a stream or a lease
//!   uses none.
//! * After an error in the middle of an entry, nothing of it is applied, and nothing more is accepted.

pub(crate) mod applier;
pub(crate) mod apply;
pub(crate) mod applying;
pub(crate) mod commit;
pub(crate) mod open;
pub(crate) mod running_hash;
pub(crate) mod savepoint;
pub(crate) mod staged;
pub(crate) mod state_machine;
pub(crate) mod transaction;
pub(crate) mod transaction_scan;
pub(crate) mod undo;
pub(crate) mod upgrade;

pub use state_machine::{Machine, MachineOptions};
pub use upgrade::KNOWN_VERSION;

pub use crate::{
    entry::{Entry, Moved},
    error::{MachineError, StreamReadError},
};
