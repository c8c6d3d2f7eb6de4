//! Deadlines and leases: their rows, writes that end, removal of what has ended, and the time of reads.

pub(crate) mod expire;
pub(crate) mod leases;
pub(crate) mod reads;
pub(crate) mod rows;
pub(crate) mod time_of_reads;
pub(crate) mod writes;

pub use expire::StaleCursor;
pub use reads::{AttachedKey, LeaseInfo};
pub use rows::{Expiry, Lease};
pub use time_of_reads::ReadTime;
