//! Sorted tables on disk.
//!
//! Owns: all code that depends on the LSM crate. Other parts of the backend use [`TableStore`] (write, compact),
//! [`TableSet`] (an immutable set of tables, point reads) and [`RunCursor`] (scans). Another table format would require
//! changes only in this module.

mod block;
mod block_file;
mod cache;
mod config;
mod cursor;
mod discarding;
mod filter;
mod manifest;
mod partial;
mod private;
mod seqno;
mod set;
mod store;
mod table;
mod throttle;
mod writeback;

pub(super) use cursor::{BorrowedRunCursor, OwnedRunCursor, RunCursor};
pub(super) use set::TableSet;
pub(super) use store::{RESERVED, TableOptions, TableStore};
pub(super) use table::TableEntry;
pub(super) use throttle::{Backlog, RunCounts, WorkKind, WriteRoom};
