//! Locks, semaphores and elections over keys attached to leases. Each gives its holder a fencing token.
//!
//! Owns: the order of contenders, and the rule when a holder must assume that its hold is lost. Does not own: the
//! storage of the keys. The trait [`Coordinator`] is the interface to a database: the engine implements this trait, and
//! a client over any protocol can implement it too.
//!
//! ```text
//!   NAME/LEASE, attached to that lease, at a revision          one key for each contender
//!
//!   revision   12        15        19        23
//!            [holds] ◄─ [waits] ◄─ [waits] ◄─ [waits]          a lock: each watches the previous contender
//!            [holds]   [holds] ◄───[waits]────[waits]          a semaphore of 2: each counts departures
//! ```
//! A contender's key is written once, so its revision is its position in the queue. The contender with the lowest
//! revision holds the lock (for a semaphore with N slots, those with the N lowest revisions hold a slot). The holder's
//! revision is the *fencing token*: a later holder's token is higher.
//!
//! A holder can be paused, without noticing, for longer than its lease lives. So everything that it does under a lock
//! should be fenced. A write to the same database with the condition [`Hold::expect`] on [`Hold::key`] succeeds only
//! while the lock is really held. Any other resource should receive the token and reject a token lower than the highest
//! it has seen. Therefore this crate has no lock without a token.
//!
//! All calls block. Async code should call them on a thread that may block, for example one of the runtime's blocking
//! pool. [`Hold::keep`] keeps a hold alive on a separate thread. Its result has the method [`KeptHold::is_lost`], which
//! only reads a clock and can be called anywhere.
//!
//! Invariants: a contender never rewrites its key; a holder holds until its key is gone; for all conditions and reads,
//! a key is gone from the moment its lease ends, even before it is removed.

mod acquire;
mod coordinator;
mod election;
mod error;
mod hold;
mod keeper;
mod lease_schedule;
mod lock;
mod queue_entry;
mod queue_order;

pub use acquire::Acquire;
pub use coordinator::{Contender, Coordinator, EnterResult, KeyWatch, WatchResult, Watched};
pub use election::{Election, Leader, Observer};
pub use error::RecipeError;
pub use hold::{FencingToken, Hold};
pub use keeper::KeptHold;
pub use lock::{Lock, Semaphore};
