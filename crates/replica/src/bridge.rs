//! A log that a repair has cut below what the state has applied: how it goes on all the same.
//!
//! Owns: [`bridge`]. Does not own: the cut, which is the log's repair, or whether one was asked for.
//!
//! The state is whole and on disk; only the log's record of how it came about is lost. So the log is brought to
//! where the state is: records of a space that nobody has take up the missing LSNs, and one `Purged` record
//! says that the space's log before it is gone, as after a snapshot. Nothing that the state holds is given up.
//! What it only points at, and what of that lay in the part that was cut, stays lost: reading it is an error.

use thalweg_log::{Draft, Log, Purpose, RecordKind};
use thalweg_store::Applied;
use thalweg_types::{Durability, Index, SpaceId, Term};

use crate::error::OpenError;

/// The space of records that only take up LSNs. Spaces are numbered from 0 as they are created.
const NOBODY: SpaceId = SpaceId(u32::MAX);
/// Records per batch: about 60 KB.
const BATCH_RECORDS: u64 = 1000;
/// A longer gap is not bridged: it would take hundreds of megabytes of log.
pub const MAX_BRIDGED_RECORDS: u64 = 5_000_000;

/// Brings a log that ends below `applied` to where the state is. Says how many records were missing; 0 if none
/// were. After a crash in between it goes on where it was.
pub fn bridge(log: &Log, space: SpaceId, applied: Applied) -> Result<u64, OpenError> {
    let end = log.end();
    let missing = applied.lsn.0.saturating_sub(end.0);
    if missing == 0 {
        return Ok(0);
    }
    if missing > MAX_BRIDGED_RECORDS {
        return Err(OpenError::StateAhead { applied: applied.lsn, end });
    }
    let filler = Draft {
        space: NOBODY,
        kind: RecordKind::Blank,
        term: Term(0),
        index: Index::ZERO,
        time: applied.time,
        payload: &[],
    };
    let mut left = missing;
    while left > BATCH_RECORDS {
        log.append(&vec![filler; BATCH_RECORDS as usize], Durability::Os, Purpose::Reclaim)?;
        left -= BATCH_RECORDS;
    }
    // The last ones in one batch with what says so: a log that reaches the state says what is gone.
    let mut last = vec![filler; left as usize];
    last.push(Draft { space, kind: RecordKind::Purged, term: applied.term, index: applied.index, ..filler });
    log.append(&last, Durability::Disk, Purpose::Reclaim)?;
    Ok(missing)
}
