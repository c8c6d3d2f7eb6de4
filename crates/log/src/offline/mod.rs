//! Looking at a log that nobody has open: verify, dump, stats. Nothing is written, not even a lock.
//!
//! Owns: going through a damaged log without stopping at the first bad place. What is good and where the log ends
//! is decided by the same code as at open.

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
    cursor::{BadAt, CHUNK_BYTES, Checked, Expected, Window, find_header, read_batch},
    errors::{DiskFault, Explain},
    format::{BATCH_ALIGN, DATA_START},
    inventory::{Found, Inventory},
};

/// Why a directory could not be looked at. Damage in it is no error here: it is what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfflineError {
    /// There is no such directory, or no segment file in it.
    #[error("{dir} holds no log: give the data directory that `serve` was given")]
    NoLog {
        /// The directory.
        dir: String,
    },
    /// The disk refused.
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

/// What [`each_batch`] comes across.
enum Step<'a> {
    /// A good batch, and the window that holds it.
    Batch(u32, Checked, &'a mut Window),
    /// A bad place, and whether a valid header follows it in the segment; goes on there.
    Bad(BadAt, bool),
}

/// Calls `visit` with every batch and every bad place of a segment up to `until`. A bad batch at the end is reported
/// too, if `until` is past it. The visitor says whether to go on.
fn each_batch(
    found: &Found,
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
                // What follows a bad place has nothing to be joined to.
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
