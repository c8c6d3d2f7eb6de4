//! Sorted tables on disk.
//!
//! Owns: everything that knows the LSM crate. The rest of the backend sees [`TableStore`] (write,
//! compact), [`TableSet`] (an immutable set of tables, point reads) and [`RunCursor`] (scans); another
//! table format would replace this module and nothing else.

mod block;
mod cache;
mod cursor;
mod discarding;
mod filter;
mod growing;
mod pace;
mod set;
mod store;
mod table;

pub use cursor::{Reads, RunCursor, Span};
pub use pace::Backlog;
pub use set::TableSet;
pub use store::{RESERVED, TableOptions, TableStore};
pub use table::Found;
