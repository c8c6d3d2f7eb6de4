//! State of the applying thread: data kept between records, and the changes of the current record.
//!
//! Owns: the fields that commands read and change while a record is applied. Does not own: the tables that readers
//! see ([`Published`](crate::machine::state_machine::Published)), which change after the record's batch is applied
//! to the backend.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use thalweg_store::Applied;
use thalweg_types::{KeyspaceId, Offset, StreamId, command::HistoryFloor};

use crate::{
    changes::verdict::VerdictBuilder,
    clears::table::{ClearChanges, ClearTable},
    entry::Position,
    error::MachineError,
    groups::claims::Claims,
    history::rows::HistoryRow,
    keyspaces::{
        catalog::{KeyspaceKinds, KeyspaceRow, KeyspaceTable, Meta},
        counts::Counts,
    },
    machine::{running_hash::RunningHash, staged::Staged, undo::UndoList},
    segments::{inline_floor::InlineFloor, liveness::LivenessChanges},
    streams::{checked_producers::CheckedProducers, heads::Head},
};

/// State that the applying thread keeps between records.
#[derive(Debug)]
pub(crate) struct Applier {
    /// The staged changes of the record, which reads of its commands include.
    pub(crate) staged: Staged,
    /// Undo list of the current command.
    pub(crate) undo: UndoList,
    /// Meta row as changed by the commands so far.
    pub(crate) meta: Meta,
    /// Meta row in the backend; `None` before the first record.
    pub(crate) stored_meta: Option<Meta>,
    pub(crate) applied: Applied,
    pub(crate) inline_floor: InlineFloor,
    /// Number of live streams, and of deleted ones whose producers are not removed yet, as changed by the commands
    /// so far.
    pub(crate) stream_count: usize,
    /// Number of keyspace rows, including dropped keyspaces that are not swept yet and changes of the current
    /// record.
    pub(crate) keyspace_count: usize,
    /// Kinds of keyspaces as changed by the commands so far.
    pub(crate) kinds: KeyspaceKinds,
    /// Number of leases, including ended ones that are not removed yet and changes of the current record.
    pub(crate) lease_count: usize,
    pub(crate) stopped: bool,
    pub(crate) pending: Pending,
    pub(crate) liveness: LivenessChanges,
    /// Deleted prefixes as changed by the commands so far.
    pub(crate) clears: Arc<ClearTable>,
    /// Exact counts as changed by the commands so far.
    pub(crate) counts: BTreeMap<KeyspaceId, Counts>,
    pub(crate) verdict: VerdictBuilder,
    pub(crate) history_floor: HistoryFloor,
    /// Histories of keyspaces that keep or have kept versions, as changed by the commands so far.
    pub(crate) histories: BTreeMap<KeyspaceId, HistoryRow>,
    /// Offset within its segment of the current entry's payload.
    pub(crate) payload_at: u32,
    pub(crate) running_hash: RunningHash,
    /// Id of the digest that the current record requested.
    pub(crate) digest_wanted: Option<u64>,
    pub(crate) scratch: Vec<u8>,
}

/// Changes of the current record to tables other than keys.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Changed keyspace rows; `None` removes the row.
    pub(crate) keyspaces: BTreeMap<KeyspaceId, Option<KeyspaceRow>>,
    /// Changed stream heads; `None` removes the head.
    pub(crate) heads: BTreeMap<StreamId, Option<Head>>,
    /// Live streams created by this record, by name.
    pub(crate) stream_names: HashMap<Arc<str>, StreamId>,
    /// Next offsets of streams while a commit is checked.
    pub(crate) next_offsets: HashMap<StreamId, Offset>,
    /// Records that the current commit acknowledges or negatively acknowledges.
    pub(crate) claims: Claims,
    /// Producers as they will be after the commit being checked.
    pub(crate) producers: CheckedProducers,
    pub(crate) clears: ClearChanges,
    /// Keyspaces whose exact counts changed.
    pub(crate) counted: BTreeSet<KeyspaceId>,
}

impl Applier {
    pub(crate) fn new(
        stored_meta: Option<Meta>,
        applied: Applied,
        stream_count: usize,
        keyspaces: &KeyspaceTable,
        lease_count: usize,
    ) -> Self {
        Self {
            staged: Staged::default(),
            undo: UndoList::default(),
            meta: stored_meta.unwrap_or_default(),
            stored_meta,
            applied,
            inline_floor: InlineFloor::default(),
            stream_count,
            keyspace_count: keyspaces.len(),
            kinds: keyspaces.kinds(),
            lease_count,
            stopped: false,
            pending: Pending::default(),
            liveness: LivenessChanges::default(),
            clears: Arc::default(),
            counts: BTreeMap::new(),
            verdict: VerdictBuilder::default(),
            history_floor: HistoryFloor::default(),
            histories: BTreeMap::new(),
            payload_at: 0,
            running_hash: RunningHash::default(),
            digest_wanted: None,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn check(&self, position: &Position) -> Result<(), MachineError> {
        if self.stopped {
            return Err(MachineError::Stopped);
        }
        if position.next_lsn <= self.applied.lsn {
            return Err(MachineError::AlreadyApplied { next_lsn: position.next_lsn, applied: self.applied.lsn });
        }
        Ok(())
    }
}
