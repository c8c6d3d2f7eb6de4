//! Streams: their heads, where their batches lie, appends, producers, retention and compaction.

pub(crate) mod admin;
pub(crate) mod append;
pub(crate) mod checked_producers;
pub(crate) mod compaction;
pub(crate) mod heads;
pub(crate) mod index;
pub(crate) mod producers;
pub(crate) mod producing;
pub(crate) mod read;
pub(crate) mod reads;
pub(crate) mod replacing;
pub(crate) mod retention;

pub use compaction::{CompactionCandidate, Stretch};
pub use producers::ProducerInfo;
pub use read::{BatchForm, BatchRef, Batches, StreamInfo};
