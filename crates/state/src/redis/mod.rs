//! Redis commands over the state. Commands that write run when their entry is applied; commands that only read run
//! over a view.
//!
//! Owns: the store interface of `thalweg-redis` over this crate's rows, and the parts (fields and entries) of Redis
//! hashes and streams. Does not own: the effect of each command (`thalweg-redis`), or the rows of keys (`keyspaces`).
//!
//! Invariant: a rejected command leaves no change. The parts of a collection without a key are unreachable, and are
//! removed later.
//!
//! * `apply`: runs the commands of an entry.
//! * `store`: keys as the commands of an entry change them. `read`: reads of those keys. `perform`: rows of the
//!   changes.
//! * `parts`: changes and removal of parts. `part_rows`: keys of their rows.
//! * `view`: commands that only read, over a view.
//! * `errors`: conversion of errors between the machine and `thalweg-redis`.

pub(crate) mod apply;
pub(crate) mod errors;
pub(crate) mod part_rows;
pub(crate) mod parts;
pub(crate) mod perform;
pub(crate) mod read;
pub(crate) mod store;
pub(crate) mod view;

pub use view::{ReadAhead, RedisView, Resolve};
