//! Verifies every byte of a log's data.
//!
//! Owns: the checks of each batch and each footer, the check that each segment continues the one before it, and the
//! report with its verdict. Does not own: the list of files (`inventory`), the search for the end of the log
//! (`survey`), or repairs, which are part of an open.

use std::ops::ControlFlow;

use serde::Serialize;
use thalweg_disk::Disk;

use super::{OfflineError, Step, each_batch, inventory};
use crate::{
    errors::{Corruption, DiskFault},
    format::{DATA_START, Damage},
    inventory::FoundSegment,
    survey::{Depth, Survey, Surveyed},
};

/// Severity of damage that a verification found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Data that a later batch header attests as durable is damaged. The operator must restore it from a copy, or
    /// repair the log.
    Data,
    /// Redundant data is damaged (a copy of a header, a footer); no record is lost.
    Redundant,
}

/// Damage that a verification found at one position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity of the damage: in attested data, or only in redundant data.
    pub severity: Severity,
    /// Path of the segment file, relative to the disk's root.
    pub file: String,
    /// Byte offset of the damage in the segment file.
    pub offset: u64,
    /// Name of the check that the bytes in the file failed.
    pub what: &'static str,
    /// Value that the failed check expected.
    pub expected: u64,
    /// Value that the failed check found in the file.
    pub got: u64,
}

impl Finding {
    fn new(severity: Severity, corruption: Corruption) -> Self {
        let Corruption { file, offset, what, expected, got } = corruption;
        Self { severity, file, offset, what, expected, got }
    }
}

/// A torn end of the log: bytes that were never attested as durable. The next open cuts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Torn {
    /// Path of the segment file in which the log ends.
    pub file: String,
    /// Byte position at which the log ends in the file.
    pub offset: u64,
    /// Number of bytes behind the end of the log up to the end of the last batch there with a valid header. Such batches
    /// do not belong to the log, because one before them is torn or corrupt.
    pub bytes: u64,
}

/// Overall result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All bytes of the log are as they were written.
    Good,
    /// All records are good, but redundant data is damaged.
    Degraded,
    /// Data that a later batch header attests as durable is damaged.
    Corrupt,
}

/// Result of a verification of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Overall result of the verification.
    pub verdict: Verdict,
    /// Number of live segments (those that contain the log).
    pub segments: u64,
    /// Number of empty segment files that are ready for use.
    pub spare_segments: u64,
    /// Number of valid batches in the log.
    pub batches: u64,
    /// Number of valid records in the log.
    pub records: u64,
    /// Total bytes of all valid batches in the log.
    pub bytes: u64,
    /// First LSN of the oldest segment.
    pub first_lsn: u64,
    /// LSN after the last record that an open of this log would keep.
    pub end_lsn: u64,
    /// LSN below which all records were durable, as a batch header in the log attests.
    pub attested_lsn: u64,
    /// True if the last run closed the log cleanly.
    pub clean: bool,
    /// The torn end of the log, if there is one.
    pub torn: Option<Torn>,
    /// Damage that the verification found, in the order of the log.
    pub findings: Vec<Finding>,
}

/// Reads and verifies the whole log in the directory `dir`. Changes nothing.
pub fn verify(disk: &dyn Disk, dir: &str) -> Result<Report, OfflineError> {
    let inventory = inventory(disk, dir)?;
    let mut report = Report {
        verdict: Verdict::Good,
        segments: inventory.live.len() as u64,
        spare_segments: inventory.spares.len() as u64,
        batches: 0,
        records: 0,
        bytes: 0,
        first_lsn: inventory.live.first().map_or(0, |found| found.header.base.0),
        end_lsn: 0,
        attested_lsn: 0,
        clean: inventory.live.is_empty(),
        torn: None,
        findings: Vec::new(),
    };
    for file in inventory.unreadable.iter().cloned() {
        report.findings.push(Finding::new(Severity::Data, file.corruption));
    }
    for found in inventory.live.iter().chain(&inventory.spares) {
        report.findings.extend(found.damaged_copy.clone().map(|damage| Finding::new(Severity::Redundant, damage)));
    }
    if !inventory.live.is_empty() {
        let survey = Survey::of(&inventory, Depth::Tail)?;
        report.end_lsn = survey.end().0;
        report.attested_lsn = survey.attested.0;
        report.clean = survey.clean;
        report.check_segments(&survey)?;
    }
    report.verdict = if report.findings.iter().any(|finding| finding.severity == Severity::Data) {
        Verdict::Corrupt
    } else if report.findings.is_empty() {
        Verdict::Good
    } else {
        Verdict::Degraded
    };
    Ok(report)
}

impl Report {
    fn check_segments(&mut self, survey: &Survey) -> Result<(), OfflineError> {
        let last = survey.kept.len() - 1;
        for (at, kept) in survey.kept.iter().enumerate() {
            let corrupt_end = at == last && survey.corruption.is_some();
            let until = if corrupt_end { kept.found.key().limit } else { kept.extent.written };
            let ours = survey.corruption.clone().filter(|_| corrupt_end).map(|bad| Finding::new(Severity::Data, bad));
            self.check_batches(&kept.found, until)?;
            if at < last {
                self.check_end(kept, &survey.kept[at + 1].found)?;
            }
            if let Some(ours) = ours
                && !self.findings.contains(&ours)
            {
                self.findings.push(ours);
            }
        }
        if survey.corruption.is_some() {
            for found in &survey.cut {
                self.check_batches(found, found.key().limit)?;
            }
        } else if survey.cut_bytes > 0 {
            let end = &survey.kept[last];
            self.torn = Some(Torn {
                file: end.found.path().to_owned(),
                offset: end.extent.written.into(),
                bytes: survey.cut_bytes,
            });
        }
        Ok(())
    }

    fn check_batches(&mut self, found: &FoundSegment, until: u32) -> Result<(), DiskFault> {
        // The unused end of a segment looks like damage without a valid header after it.
        let ends_before = until < found.key().limit;
        each_batch(found, until, |step| {
            match step {
                Step::Batch(_, batch, _) => {
                    self.batches += 1;
                    self.records += u64::from(batch.header.count);
                    self.bytes += u64::from(batch.header.total_bytes());
                }
                Step::Bad(bad, followed) if followed || ends_before => {
                    let corruption = Corruption::at(found.path(), bad.offset, bad.damage);
                    self.findings.push(Finding::new(Severity::Data, corruption));
                }
                Step::Bad(..) => {}
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Checks the footer of a sealed segment, and checks that the next segment continues where this one ends.
    fn check_end(&mut self, kept: &Surveyed, next: &FoundSegment) -> Result<(), DiskFault> {
        let footer = kept.found.footer()?;
        let damage = match footer {
            Ok(footer) if footer.end != kept.extent.written => {
                Some(Damage::new("footer's end", kept.extent.written, footer.end))
            }
            Ok(footer) if footer.truncates != kept.extent.truncates => {
                Some(Damage::new("footer's truncation flag", kept.extent.truncates, footer.truncates))
            }
            Ok(_) => None,
            Err(damage) => Some(damage),
        };
        let file = kept.found.path();
        if let Some(damage) = damage {
            let place = kept.found.key().limit;
            self.findings.push(Finding::new(Severity::Redundant, Corruption::at(file, place, damage)));
        }
        if next.header.previous == kept.found.header.generation && next.header.base != kept.extent.next {
            let damage = Damage::new("LSN that follows the previous segment", kept.extent.next.0, next.header.base.0);
            let corruption = Corruption::at(next.path(), DATA_START, damage);
            self.findings.push(Finding::new(Severity::Data, corruption));
        }
        Ok(())
    }
}
