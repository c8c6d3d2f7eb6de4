//! The node's one durable log: segments, framing, checksums, group commit, recovery, space.
//!
//! Owns: `<root>/log/*.seg`, LSNs, durability and its watermark, which segments exist.
//! Does not own: what records mean, which segments are still wanted (its user says so), time.
//!
//! [`Log`] is the whole of it; [`offline`] looks at a directory that nobody has open. The bytes are
//! described in `docs/formats/log.md`.

mod commit;
mod crc;
mod cursor;
mod encode;
mod errors;
pub mod format;
mod inventory;
mod log;
mod mend;
pub mod offline;
mod options;
mod prepare;
mod reader;
mod record;
mod recovery;
mod segment;
mod space;
mod survey;
mod syncer;
mod truncations;
mod writer;

pub use crc::crc32c;
pub use errors::{AppendError, Corruption, DiskFault, OpenError, ReadError};
pub use format::RECORD_HEADER_BYTES;
pub use log::Log;
pub use options::{LogOptions, LogStats, Recovery, Repair, SegmentInfo};
pub use reader::Records;
pub use record::{Appended, Draft, LogRecord, Purpose, RecordKind, Truncation};
