//! Deadlines and leases: their rows, writes with a deadline, removal of ended keys, and the time of reads.
//!
//! Owns: the encoding of a value's expiry, the rows by which ended keys and leases are found, and the commands that
//! grant, extend and remove them. Does not own: the time of entries, which comes with them, or values without a
//! deadline (`keyspaces`).
//!
//! Invariant: an ended key is hidden immediately, by the time of the reader or of the entry; its removal changes
//! nothing that a reader sees.
//!
//! * `rows`: encoding of expiries, deadlines, leases and attachments, and the rule by which a key is hidden.
//! * `writes`: puts with a deadline or lease, and touches.
//! * `leases`: commands about leases.
//! * `expire`: commands that remove ended keys and leases.
//! * `reads`: reads about leases. `time_of_reads`: the clock of reads.

pub(crate) mod expire;
pub(crate) mod leases;
pub(crate) mod reads;
pub(crate) mod rows;
pub(crate) mod time_of_reads;
pub(crate) mod writes;

pub use expire::StaleCursor;
pub use reads::AttachedKey;
pub use rows::Expiry;
pub use time_of_reads::ReadTime;
