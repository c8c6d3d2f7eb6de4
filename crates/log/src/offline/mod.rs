//! Inspects a log that no process has open: verify, dump, stats. Writes nothing, not even a lock.
//!
//! Owns: the traversal of a damaged log beyond the first damage. It uses the code that opens a log to decide which
//! batches are valid and where the log ends.

mod dump;
mod stats;
mod verify;

use thalweg_disk::Disk;
use thalweg_types::{Action, Classified};

pub use self::{
    dump::{Item, dump},
    stats::{SegmentStats, Stats, stats},
    verify::{Finding, Report, Severity, Torn, Verdict, verify},
};
use crate::{
    cursor::{CHUNK_BYTES, DamageAt, Expected, VerifiedBatch, Window, find_header, read_batch},
    errors::{DiskFault, Explain},
    format::{BATCH_ALIGN, DATA_START},
    inventory::{FoundSegment, Inventory},
};

/// Error returned when a directory cannot be inspected. Damage is not an error here, but the result of the
/// inspection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfflineError {
    /// The directory does not exist or has no segment file.
    #[error("{dir} contains no log: use the data directory given to `serve`")]
    NoLog {
        /// Path of the directory that was inspected.
        dir: String,
    },
    /// A disk operation failed during the inspection.
    #[error("{0}")]
    Disk(#[from] DiskFault),
}

impl Classified for OfflineError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoLog { .. } => "no_log",
            Self::Disk(_) => "log_io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::NoLog { .. } => Action::Fix,
            Self::Disk(_) => Action::Stop,
        }
    }
}

fn inventory(disk: &dyn Disk, dir: &str) -> Result<Inventory, OfflineError> {
    let no_log = || OfflineError::NoLog { dir: dir.to_owned() };
    let inventory = Inventory::take(disk, dir).map_err(|fault| match fault.kind {
        std::io::ErrorKind::NotFound => no_log(),
        _ => fault.into(),
    })?;
    if inventory.slots.is_empty() { Err(no_log()) } else { Ok(inventory) }
}

/// An item of a segment that [`each_batch`] passes to its visitor.
enum Step<'a> {
    /// A valid batch, and the window that holds it.
    Batch(u32, VerifiedBatch, &'a mut Window),
    /// Damage. The flag is true if a valid batch header follows the damage in the segment; the traversal continues at
    /// that header.
    Bad(DamageAt, bool),
}

/// Calls `visit` with every batch and every damage of a segment up to byte position `until`. Also reports a damaged
/// batch at the end of the segment, if `until` lies beyond it. The visitor can end the traversal.
fn each_batch(
    found: &FoundSegment,
    until: u32,
    mut visit: impl FnMut(Step<'_>) -> Result<std::ops::ControlFlow<()>, DiskFault>,
) -> Result<(), DiskFault> {
    let key = found.key();
    let mut window = Window::new(found.slot.file.clone(), key.limit, CHUNK_BYTES);
    let mut sums = Vec::new();
    let mut expected = Some(Expected { first: found.header.base, chain: found.header.base_chain });
    let mut at = DATA_START;
    while at < until {
        let flow = match read_batch(&mut window, key, at, expected, &mut sums).explain("read", found.path())? {
            Ok(batch) => {
                let here = at;
                at += batch.header.total_bytes();
                expected = Some(batch.expects());
                visit(Step::Batch(here, batch, &mut window))?
            }
            Err(bad) => {
                let next = find_header(&mut window, key, at + BATCH_ALIGN).explain("read", found.path())?;
                let flow = visit(Step::Bad(bad, next.is_some()))?;
                // A batch after damage has no known predecessor.
                expected = None;
                at = next.map_or(until, |(position, _)| position);
                flow
            }
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}
