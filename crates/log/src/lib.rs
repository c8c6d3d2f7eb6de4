//! The single durable log of a node: segments, framing, checksums, group commit, recovery, space.
//!
//! Owns: the segment files `<root>/log/*.seg`, the LSNs of records, the watermark below which records are
//! durable, and the set of segments. Does not own: the meaning of records; the decision which segments are
//! still needed, which the log's user makes; the clock.
//!
//! [`Log`] is the complete interface to an open log; [`offline`] inspects a directory that no process has
//! open. `docs/formats/log.md` describes the bytes.

mod append_progress;
mod apply_survey;
mod background;
mod commit;
mod crc;
mod cursor;
mod encode;
mod errors;
pub mod format;
mod gates;
mod inventory;
mod log;
pub mod offline;
mod options;
mod prepare;
mod reader;
mod record;
mod record_kind;
mod records;
mod recovery;
mod rest;
mod segment;
mod shared;
mod space;
mod survey;
mod syncer;
mod truncations;
mod try_append;
mod writer;
mod writer_rest;
mod writer_role;

pub use crc::crc32c;
pub use errors::{AppendError, Corruption, DiskFault, OpenError, ReadError};
pub use format::{DATA_START as SEGMENT_HEAD_BYTES, RECORD_HEADER_BYTES};
pub use log::Log;
pub use options::{LogOptions, LogStats, Recovery, Repair, SegmentInfo};
pub use prepare::StateSpace;
pub use record::{Appended, Draft, LogRecord, Purpose, Truncation};
pub use record_kind::RecordKind;
pub use records::Records;
pub use space::{HistoryBounds, SegmentUse, segment_uses};
pub use try_append::{Blocked, TryAppendError};
