//! Bridges a log that a repair has cut below the state's applied position, so that the node can continue.
//!
//! Owns: [`bridge`]. Does not own: the repair that removes the damaged end of the log, or the decision to repair.
//!
//! The state (the data computed from the log) is complete and on disk; only a part of the log that led to the state is
//! lost. So `bridge` extends the log to the state's position. Filler records, which belong to no existing Raft group,
//! take the missing LSNs. One `Purged` record declares that the earlier log of the Raft group is gone, as after a
//! snapshot. No content of the state is discarded. But the state also refers to bytes in the log (large values and
//! stream batches), and bytes in the lost part of the log stay lost: reading them is an error.

use thalweg_log::{Draft, Log, Purpose, RecordKind};
use thalweg_store::Applied;
use thalweg_types::{Durability, Index, SpaceId, Term};

use crate::error::OpenError;

/// Id of a space (Raft group) that does not exist, used for filler records, which only take up LSNs. Real spaces are
/// numbered from 0 in order of creation.
const NOBODY: SpaceId = SpaceId(u32::MAX);
/// Number of filler records in one batch, which has about 60 KB.
const BATCH_RECORDS: u64 = 1000;
/// Maximum number of missing log records that a bridge fills. Bridging a longer gap would take hundreds of megabytes of
/// log.
pub const MAX_BRIDGED_RECORDS: u64 = 5_000_000;

/// Extends a log that ends below `applied`, the state's applied position, up to this position. Returns the number of
/// log records that were missing, 0 if there were none. If the process crashes during a call, the next call continues
/// the work.
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
    // The last fillers share a batch with the `Purged` record, so a log that reaches the state always has
    // that record.
    let mut last = vec![filler; left as usize];
    last.push(Draft { space, kind: RecordKind::Purged, term: applied.term, index: applied.index, ..filler });
    log.append(&last, Durability::Disk, Purpose::Reclaim)?;
    Ok(missing)
}
