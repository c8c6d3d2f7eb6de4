//! Snapshots of a database: the whole state, or all changes since an LSN, as bytes from which a new data directory can
//! be created.
//!
//! Owns: the bytes of a snapshot (`format`, `chunk`; see `docs/formats/snapshot.md`); taking a snapshot from a log and
//! a state ([`Origin`]); reading and checking it ([`verify`], [`survey`], [`Contents`]); loading its rows into an empty
//! state ([`Loader`]); and writing it to a file ([`SnapshotFile`]). Does not own: data directories; opening, restoring
//! and switching states, which the engine does; directories of backups; sockets.
//!
//! ```text
//! full       begin | rows of one view, in order, with the bytes that they point at ... | end
//! increment  begin | entries of the log from an LSN on, in order ...                   | end
//! ```
//! Invariants:
//! - A full snapshot shows the state as of one moment, between two log entries.
//! - Everything in a snapshot was on the node's disk before the snapshot's first chunk was returned. So a power loss
//!   cannot make the node lose data that its backup has.
//! - A snapshot contains nothing that is specific to the node (positions of bytes, votes, the history of the log).
//! - While a snapshot is open no segment of the log is freed, unless the disk is full ([`Pins`]).
//! - No byte of a chunk is decoded before the checksum of the whole chunk has been checked. A small file that
//!   decompresses to huge contents does not fill the reader's memory (`chunk`, `read`).
//!
//! There is deliberately no asynchronous interface. Each chunk is up to a megabyte that must be read from disk and
//! compressed, and beginning a snapshot waits for an fsync. A future would only move this blocking work to a thread for
//! blocking work. A [`Snapshot`] may move between threads. In an async runtime, begin the snapshot and request its
//! chunks on threads for blocking work (`spawn_blocking`), as the server does.

mod chunk;
mod error;
mod file;
mod format;
mod gather;
mod loader;
mod pace;
mod pins;
mod pipeline;
mod read;
mod stats;
mod stop;
mod taking;

pub use chunk::read_unchecked;
pub use error::{SnapshotError, SnapshotReadError};
pub use file::SnapshotFile;
pub use format::{Compression, EntryId, EntryItem, EntryKind, Item, PartKind, SnapshotInfo, Totals};
pub use loader::{LEAST_MEMORY_BYTES, LoadError, Loader};
pub use pins::{MayFree, Pins};
pub use read::{Contents, PartialSnapshot, Verified, VisitError, info, survey, verify};
pub use stats::{Counters, SnapshotStats};
pub use taking::{Origin, Snapshot, SnapshotOptions};
