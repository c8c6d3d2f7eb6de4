//! Lists the files of a log's directory and reads their segment headers, but no other bytes. Writes nothing.

use std::{collections::BTreeSet, sync::Arc};

use thalweg_disk::{Disk, File};
use thalweg_types::Generation;

use crate::{
    errors::{Corruption, DiskFault, Explain},
    format::{
        Damage, FOOTER_BYTES, Footer, HEADER_BLOCK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentState,
        VERSION_DAMAGE, parse_segment_name,
    },
    prepare::Slot,
    segment::SegmentKey,
};

/// A segment file that has at least one valid copy of its header.
#[derive(Clone, Debug)]
pub(crate) struct FoundSegment {
    pub slot: Slot,
    pub header: SegmentHeader,
    /// Damage of one copy of the segment header, if the other copy is valid.
    pub damaged_copy: Option<Corruption>,
}

impl FoundSegment {
    pub(crate) fn key(&self) -> SegmentKey {
        SegmentKey::new(self.header.id, self.header.generation, self.header.segment_bytes)
    }

    pub(crate) fn path(&self) -> &str {
        &self.slot.path
    }

    /// Reads the footer of the segment. The inner result is an error if the footer is not valid.
    pub(crate) fn footer(&self) -> Result<Result<Footer, Damage>, DiskFault> {
        let key = self.key();
        let mut bytes = [0; FOOTER_BYTES];
        self.slot.file.read_exact_at(&mut bytes, key.limit.into()).explain("read", self.path())?;
        let footer = Footer::decode(&bytes, key.id, key.limit);
        Ok(footer.and_then(|footer| {
            if footer.first == self.header.base {
                Ok(footer)
            } else {
                Err(Damage::new("footer's first LSN", self.header.base.0, footer.first.0))
            }
        }))
    }
}

/// A segment file without a valid header copy.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    pub corruption: Corruption,
    /// Format version in the header, if another version of the program wrote it; `None` if the header is
    /// damaged.
    pub version: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// Segment files that contain the log, ordered by generation (segment number).
    pub live: Vec<FoundSegment>,
    pub spares: Vec<FoundSegment>,
    pub unreadable: Vec<Unreadable>,
    /// Paths of segment files whose preparation was not finished, because the process was killed.
    pub unfinished: Vec<String>,
    /// Highest generation (segment number) in any segment header.
    pub generation: Generation,
    pub slots: BTreeSet<u32>,
}

impl Inventory {
    pub(crate) fn take(disk: &dyn Disk, dir: &str) -> Result<Self, DiskFault> {
        let mut inventory = Self::default();
        for name in disk.list(dir).explain("list", dir)? {
            let path = format!("{dir}/{name}");
            if name.ends_with(".tmp") {
                inventory.unfinished.push(path);
            } else if let Some(slot) = parse_segment_name(&name) {
                let file = disk.open(&path).explain("open", &path)?;
                inventory.slots.insert(slot);
                inventory.add(file, path, slot)?;
            }
        }
        inventory.live.sort_by_key(|found| found.header.generation);
        Ok(inventory)
    }

    fn add(&mut self, file: Arc<dyn File>, path: String, slot: u32) -> Result<(), DiskFault> {
        let len = file.len().explain("measure", &path)?;
        let first = read_copy(&*file, &path, 0, len, slot)?;
        let second = read_copy(&*file, &path, HEADER_BLOCK_BYTES, len, slot)?;
        let damage_at = |at: u32, damage: Damage| Corruption::at(&path, at, damage);
        let (header, damaged_copy) = match (first, second) {
            (Ok(first), Ok(second)) => (newer(first, second), None),
            (Ok(first), Err(damage)) => (first, Some(damage_at(HEADER_BLOCK_BYTES, damage))),
            (Err(damage), Ok(second)) => (second, Some(damage_at(0, damage))),
            (Err(damage), Err(_)) => {
                let version = (damage.what == VERSION_DAMAGE).then_some(damage.got);
                self.unreadable.push(Unreadable { corruption: damage_at(0, damage), version });
                return Ok(());
            }
        };
        self.generation = self.generation.max(header.generation);
        let slot = Slot { file, path, slot, segment_bytes: header.segment_bytes };
        let found = FoundSegment { slot, header, damaged_copy };
        match header.state {
            SegmentState::Live => self.live.push(found),
            SegmentState::Spare => self.spares.push(found),
        }
        Ok(())
    }

    /// Returns true if a segment file that was prepared with this generation (segment number) still exists and was
    /// never used.
    pub(crate) fn has_spare(&self, generation: Generation) -> bool {
        self.spares.iter().any(|found| found.header.generation == generation)
    }
}

fn read_copy(
    file: &dyn File,
    path: &str,
    at: u32,
    len: u64,
    slot: u32,
) -> Result<Result<SegmentHeader, Damage>, DiskFault> {
    if len < u64::from(at) + SEGMENT_HEADER_BYTES as u64 {
        return Ok(Err(Damage::new("file length", u64::from(at) + SEGMENT_HEADER_BYTES as u64, len)));
    }
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    file.read_exact_at(&mut bytes, at.into()).explain("read", path)?;
    Ok(SegmentHeader::decode(&bytes).and_then(|header| {
        if header.slot != slot {
            Err(Damage::new("slot in the file's name", slot, header.slot))
        } else if u64::from(header.segment_bytes) > len {
            Err(Damage::new("file length", header.segment_bytes, len))
        } else {
            Ok(header)
        }
    }))
}

/// Returns the newer of the two copies of a segment header: the one with the higher generation, or the live one if the
/// generations are equal. A crash may have left one copy in an older state.
fn newer(first: SegmentHeader, second: SegmentHeader) -> SegmentHeader {
    let rank = |header: &SegmentHeader| (header.generation, header.state == SegmentState::Live);
    if rank(&second) > rank(&first) { second } else { first }
}
