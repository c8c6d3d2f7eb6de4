//! Prints the content of a log for inspection, batch by batch and record by record.

use std::ops::ControlFlow;

use thalweg_disk::Disk;
use thalweg_types::{Generation, Lsn};

use super::{OfflineError, Step, each_batch, inventory};
use crate::{
    cursor::BatchRecords,
    errors::{Corruption, Explain},
    format::BatchHeader,
    inventory::Inventory,
    record::LogRecord,
    survey::{Depth, Survey},
};

/// An item of a dump of the log: a segment, a batch, a record or damage.
#[derive(Clone, Debug)]
pub enum Item {
    /// The start of a segment.
    Segment {
        /// Path of the segment file, relative to the disk's root.
        file: String,
        /// Generation (segment number) of the segment.
        generation: Generation,
        /// LSN of the segment's first record.
        base: Lsn,
    },
    /// A valid batch; its records follow.
    Batch {
        /// Byte offset of the batch in the segment file.
        offset: u32,
        /// Header of the batch.
        header: BatchHeader,
    },
    /// A valid record of the last shown batch.
    Record(LogRecord),
    /// Damage in the log. The dump continues at the next valid batch header.
    Damage(Corruption),
}

/// Calls `visit` with the segments, batches and records at LSN `from` and above, up to `limit` records or
/// until `visit` returns `Break`. Does not show records beyond a torn end of the log, but shows those after
/// damage.
pub fn dump(
    disk: &dyn Disk,
    dir: &str,
    from: Lsn,
    limit: u64,
    mut visit: impl FnMut(Item) -> ControlFlow<()>,
) -> Result<(), OfflineError> {
    let inventory = inventory(disk, dir)?;
    for file in &inventory.unreadable {
        if visit(Item::Damage(file.corruption.clone())).is_break() {
            return Ok(());
        }
    }
    if inventory.live.is_empty() {
        return Ok(());
    }
    let mut left = limit;
    for (found, until) in extents(&inventory, from)? {
        if left == 0 {
            break;
        }
        let mut stopped = visit(Item::Segment {
            file: found.path().to_owned(),
            generation: found.header.generation,
            base: found.header.base,
        })
        .is_break();
        if stopped {
            break;
        }
        each_batch(found, until, |step| {
            let flow = match step {
                Step::Bad(bad, _) => visit(Item::Damage(Corruption::at(found.path(), bad.offset, bad.damage))),
                Step::Batch(_, batch, _) if batch.header.next() <= from && batch.header.first < from => {
                    ControlFlow::Continue(())
                }
                Step::Batch(offset, batch, window) => {
                    let records =
                        BatchRecords::new(window, found.key(), offset, &batch.header).explain("read", found.path())?;
                    let mut flow = visit(Item::Batch { offset, header: batch.header });
                    for record in records.filter(|record| record.lsn >= from) {
                        if flow.is_break() || left == 0 {
                            break;
                        }
                        left -= 1;
                        flow = visit(Item::Record(record));
                    }
                    flow
                }
            };
            stopped = flow.is_break() || left == 0;
            Ok(if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if stopped {
            break;
        }
    }
    Ok(())
}

/// Returns the segments that can hold records at or after LSN `from`, each with the byte position at which
/// the dump of the segment ends.
fn extents(inventory: &Inventory, from: Lsn) -> Result<Vec<(&crate::inventory::FoundSegment, u32)>, OfflineError> {
    let survey = Survey::of(inventory, Depth::Tail)?;
    let mut shown = Vec::new();
    for (at, found) in inventory.live.iter().enumerate() {
        let later_starts_below = inventory.live.get(at + 1).is_some_and(|next| next.header.base <= from);
        let until = match survey.kept.get(at) {
            Some(kept) if at + 1 < survey.kept.len() || survey.corruption.is_none() => kept.extent.written,
            // At or after damage: shows everything that still has a valid header.
            _ if survey.corruption.is_some() => found.key().limit,
            _ => continue,
        };
        if !later_starts_below {
            shown.push((found, until));
        }
    }
    Ok(shown)
}
