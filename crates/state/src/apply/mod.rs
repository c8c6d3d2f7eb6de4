//! Applying entries: the dispatch of their commands, and the commands that concern several subjects.
//!
//! Owns: commits, transactions, and the records that move bytes within the log. Does not own: commands about one
//! subject (`keyspaces`, `streams`, `groups`, …), or the changes of the record being applied (`machine`).
//!
//! Invariant: no other module of the crate uses this one, so it may use the modules of all subjects.
//!
//! * `dispatch`: applies an entry and calls the module of each command.
//! * `commit`: conditional writes. `transaction` and `transaction_scan`: branches of operations, with reads.
//!   `transaction_view`: transactions that only read, outside the log.
//! * `moves`: applies records that move bytes.

pub(crate) mod commit;
pub(crate) mod dispatch;
pub(crate) mod moves;
pub(crate) mod transaction;
pub(crate) mod transaction_scan;
pub(crate) mod transaction_view;

pub use transaction_view::{ResolveIn, read_transaction};
