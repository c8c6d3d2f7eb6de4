//! Locks, semaphores and elections, over keys that hang on leases. Every one gives its holder a fencing token.
//!
//! Owns: who holds, who waits for whom, and when a holder must take it that it has lost what it held. Does not
//! own: where the keys are. What it needs of a database is the trait [`Coordinator`]: the engine implements it, and
//! so can a client over any protocol.
//!
//! ```text
//!   NAME/LEASE, attached to that lease, at a revision          one key a contender
//!
//!   revision   12        15        19        23
//!            [holds] ◄─ [waits] ◄─ [waits] ◄─ [waits]          a lock: each watches the one before
//!            [holds]   [holds] ◄───[waits]────[waits]          a semaphore of 2: each counts who leaves
//! ```
//! A contender's key is written once, so its revision is its place in the queue. The lowest holds (of a semaphore the
//! lowest N), and that revision is the *fencing token*: a later holder's is higher.
//!
//! A holder may be paused for longer than its lease lives, and not know it. So whatever it does under a lock should
//! be fenced: a write to the same space with the condition [`Hold::expect`] on [`Hold::key`] happens only as long as
//! it really holds; any other resource gets the token, and refuses one that is lower than what it has seen. That is
//! why there is no lock without a token here.
//!
//! All of it blocks: waiting for a lock is waiting. From async code it belongs on a thread that may block (such as one of
//! a runtime's pool for that); [`Hold::keep`] keeps what is held alive on a thread of its own, and then
//! [`Kept::is_lost`] is a look at a clock, which may be asked anywhere.
//!
//! Invariants: a contender never rewrites its key; who holds goes on holding until its key is gone; a key is gone,
//! for all conditions and reads, from the moment at which its lease ends, whoever has noticed it.

mod coordinator;
mod election;
mod error;
mod hold;
mod keeper;
mod keeping;
mod lock;
mod place;
mod standing;

pub use coordinator::{Contender, Coordinator, Entered, Noticed, Watched, Watching};
pub use election::{Election, Leader, Observer};
pub use error::RecipeError;
pub use hold::{FencingToken, Hold};
pub use keeper::Kept;
pub use lock::{Acquire, Lock, Semaphore};
