//! Streams: their heads, the positions of their batches, appends, producers, retention and compaction.
//!
//! Owns: stream heads, index entries and producer rows, the commands about streams, and the queries of maintenance.
//! Does not own: the bytes of records, which are in the log; consumer groups (`groups`); or the choice of records that
//! compaction drops.
//!
//! Invariant: index entries tile the offsets of a stream from its first indexed one to its end. They are node-local;
//! heads have replicated and node-local fields.
//!
//! * `heads`: encoding and table of heads. `index_entry`: encoding of index entries. `index`: lookups of index entries.
//! * `append`: appends. `admin`: commands about streams, and reclaiming index entries.
//! * `producers`: rows of producers. `producing`: appends of producers. `checked_producers`: producers of a commit
//!   being checked.
//! * `compaction`: data for compaction. `replacing`: replacement of batches by compacted ones.
//! * `retention`: trims that a configuration requires.
//! * `read`: results of reads. `reads`: queries.

pub(crate) mod admin;
pub(crate) mod append;
pub(crate) mod checked_producers;
pub(crate) mod compaction;
pub(crate) mod heads;
pub(crate) mod index;
pub(crate) mod index_entry;
pub(crate) mod producers;
pub(crate) mod producing;
pub(crate) mod read;
pub(crate) mod reads;
pub(crate) mod replacing;
pub(crate) mod retention;

pub use compaction::{BatchRange, CompactionCandidate};
pub use read::{BatchForm, BatchRef, Batches, LiveStream};
pub use retention::DueTrim;
