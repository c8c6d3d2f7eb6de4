//! Verifies every byte that counts.

use std::ops::ControlFlow;

use serde::Serialize;
use thalweg_disk::Disk;

use super::{OfflineError, Step, each_batch, inventory};
use crate::{
    errors::{Corruption, DiskFault},
    format::{DATA_START, Damage},
    inventory::Found,
    survey::{Depth, Survey, Surveyed},
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Attested data is damaged: restore or mend.
    Data,
    /// Something that the log can do without is damaged (a copy of a header, a footer): nothing is lost.
    Redundant,
}

/// A bad place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The segment file, relative to the disk's root.
    pub file: String,
    /// Byte offset of what is bad.
    pub offset: u64,
    /// What was checked.
    pub what: &'static str,
    /// The value that was expected.
    pub expected: u64,
    /// The value that was there.
    pub got: u64,
}

impl Finding {
    fn new(severity: Severity, corruption: Corruption) -> Self {
        let Corruption { file, offset, what, expected, got } = corruption;
        Self { severity, file, offset, what, expected, got }
    }
}

/// An end that was never attested and will be cut at the next open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Torn {
    /// The segment file in which the log ends.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// Bytes up to the end of the last batch whose header is there.
    pub bytes: u64,
}

/// The short answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All is as it was written.
    Good,
    /// As `Good`, except for what the log can do without.
    Degraded,
    /// Attested data is damaged.
    Corrupt,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The short answer.
    pub verdict: Verdict,
    /// Live segments.
    pub segments: u64,
    /// Prepared segments.
    pub spare_segments: u64,
    /// Good batches, and good records in them.
    pub batches: u64,
    /// Good records.
    pub records: u64,
    /// Bytes of good batches.
    pub bytes: u64,
    /// First LSN of the oldest segment.
    pub first_lsn: u64,
    /// Exclusive bound of the records that open would keep.
    pub end_lsn: u64,
    /// Exclusive bound of what is attested as durable.
    pub attested_lsn: u64,
    /// Whether the log was closed cleanly.
    pub clean: bool,
    /// A torn end, if there is one.
    pub torn: Option<Torn>,
    /// Bad places, in the order of the log.
    pub findings: Vec<Finding>,
}

/// Reads all of a log and checks it.
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

    fn check_batches(&mut self, found: &Found, until: u32) -> Result<(), DiskFault> {
        // The unused end of a segment is a bad place after which nothing comes.
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

    /// The footer of a sealed segment, and whether the next one joins it.
    fn check_end(&mut self, kept: &Surveyed, next: &Found) -> Result<(), DiskFault> {
        let footer = kept.found.footer()?;
        let damage = match footer {
            Ok(footer) if footer.end != kept.extent.written => {
                Some(Damage::new("footer's end", kept.extent.written, footer.end))
            }
            Ok(footer) if footer.truncates != kept.extent.truncates => {
                Some(Damage::new("footer's word on truncations", kept.extent.truncates, footer.truncates))
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
            let damage = Damage::new("LSN that follows the segment before", kept.extent.next.0, next.header.base.0);
            let corruption = Corruption::at(next.path(), DATA_START, damage);
            self.findings.push(Finding::new(Severity::Data, corruption));
        }
        Ok(())
    }
}
