//! Computes the sizes, LSNs and times of the segments in a log's directory. Reads only the headers, the footers and the
//! newest segment.

use serde::Serialize;
use thalweg_disk::Disk;
use thalweg_types::{Generation, Lsn, SpaceTime};

use super::{OfflineError, inventory};
use crate::{
    format::DATA_START,
    options::SegmentInfo,
    survey::{Depth, Survey},
};

/// LSNs, times and sizes of a segment that contains a part of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentStats {
    /// Path of the segment file, relative to the disk's root.
    pub file: String,
    /// Generation (segment number) of the segment.
    pub generation: u64,
    /// LSN of the segment's first record.
    pub first_lsn: u64,
    /// LSN after the segment's last record.
    pub next_lsn: u64,
    /// Timestamp of the segment's first record in microseconds, by the clock that all replicas share (space time).
    pub first_time: u64,
    /// Highest timestamp of the segment's records in microseconds, by the clock that all replicas share (space time).
    pub last_time: u64,
    /// Total bytes of the segment's batches.
    pub bytes: u64,
    /// Size of the segment file in bytes.
    pub file_bytes: u64,
}

/// Sizes, LSNs and times of all segments in a log's directory, and their totals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Live segments (those that contain the log), oldest first.
    pub segments: Vec<SegmentStats>,
    /// Number of empty segment files that are ready for use.
    pub spare_segments: u64,
    /// Number of segment files without a valid header.
    pub unreadable_segments: u64,
    /// First LSN of the oldest segment.
    pub first_lsn: u64,
    /// LSN after the last record of the log.
    pub end_lsn: u64,
    /// LSN below which all records were durable, as a batch header in the log attests.
    pub attested_lsn: u64,
    /// True if the last run closed the log cleanly.
    pub clean: bool,
    /// Total bytes of all batches of the log.
    pub bytes: u64,
    /// Total size in bytes of the files of all live and prepared segments.
    pub file_bytes: u64,
}

impl Stats {
    /// Returns the live segments as the open log would describe them, oldest first.
    #[must_use]
    pub fn segment_infos(&self) -> Vec<SegmentInfo> {
        let last = self.segments.last().map(|segment| segment.generation);
        let infos = self.segments.iter().map(|segment| SegmentInfo {
            generation: Generation(segment.generation),
            file: segment.file.clone(),
            first: Lsn(segment.first_lsn),
            next: Lsn(segment.next_lsn),
            first_time: SpaceTime(segment.first_time),
            last_time: SpaceTime(segment.last_time),
            bytes: u32::try_from(segment.bytes).unwrap_or(u32::MAX),
            active: Some(segment.generation) == last,
        });
        infos.collect()
    }
}

/// Reads the segment headers and footers, and the newest segment, and returns the sizes, LSNs and times of all
/// segments.
pub fn stats(disk: &dyn Disk, dir: &str) -> Result<Stats, OfflineError> {
    let inventory = inventory(disk, dir)?;
    let mut stats = Stats {
        segments: Vec::new(),
        spare_segments: inventory.spares.len() as u64,
        unreadable_segments: inventory.unreadable.len() as u64,
        first_lsn: 0,
        end_lsn: 0,
        attested_lsn: 0,
        clean: inventory.live.is_empty(),
        bytes: 0,
        file_bytes: inventory
            .live
            .iter()
            .chain(&inventory.spares)
            .map(|found| u64::from(found.header.segment_bytes))
            .sum(),
    };
    if inventory.live.is_empty() {
        return Ok(stats);
    }
    let survey = Survey::of(&inventory, Depth::Tail)?;
    stats.first_lsn = inventory.live[0].header.base.0;
    stats.end_lsn = survey.end().0;
    stats.attested_lsn = survey.attested.0.min(stats.end_lsn);
    stats.clean = survey.clean;
    stats.segments = survey
        .kept
        .iter()
        .map(|kept| SegmentStats {
            file: kept.found.path().to_owned(),
            generation: kept.found.header.generation.0,
            first_lsn: kept.found.header.base.0,
            next_lsn: kept.extent.next.0,
            first_time: kept.extent.first_time.0,
            last_time: kept.extent.last_time.0,
            bytes: u64::from(kept.extent.written - DATA_START),
            file_bytes: kept.found.header.segment_bytes.into(),
        })
        .collect();
    stats.bytes = stats.segments.iter().map(|segment| segment.bytes).sum();
    Ok(stats)
}
