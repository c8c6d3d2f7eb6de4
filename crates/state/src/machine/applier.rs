//! The applying thread's own state: what it keeps between records, and what the current record changes.
//!
//! Owns the fields that commands read and change while a record is applied. Does not own the tables that readers see
//! ([`Published`](crate::machine::state_machine::Published)), which change once the record's batch is in the backend.

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

/// What the applying thread keeps between records.
#[derive(Debug)]
pub(crate) struct Applier {
    /// What the record changes, and where reads find it.
    pub(crate) staged: Staged,
    /// How to take back the current command.
    pub(crate) undo: UndoList,
    /// As the commands so far left it.
    pub(crate) meta: Meta,
    /// As the backend holds it; `None` before the first record.
    pub(crate) stored_meta: Option<Meta>,
    pub(crate) applied: Applied,
    pub(crate) inline_floor: InlineFloor,
    /// Streams that live, and deleted ones of which producers are still to be removed; as the commands so far left them.
    pub(crate) stream_count: usize,
    /// Rows of keyspaces, those of dropped ones that wait to be swept and of the current record included.
    pub(crate) keyspace_count: usize,
    /// As the commands so far left them.
    pub(crate) kinds: KeyspaceKinds,
    /// Leases, those that have ended and wait to be removed and of the current record included.
    pub(crate) lease_count: usize,
    pub(crate) stopped: bool,
    pub(crate) pending: Pending,
    pub(crate) liveness: LivenessChanges,
    /// As the commands so far left it.
    pub(crate) clears: Arc<ClearTable>,
    /// As the commands so far left them.
    pub(crate) counts: BTreeMap<KeyspaceId, Counts>,
    pub(crate) verdict: VerdictBuilder,
    pub(crate) history_floor: HistoryFloor,
    /// Of keyspaces that keep, or have kept, versions; as the commands so far left them.
    pub(crate) histories: BTreeMap<KeyspaceId, HistoryRow>,
    /// Where in its segment the payload of the current entry begins.
    pub(crate) payload_at: u32,
    pub(crate) running_hash: RunningHash,
    /// By the current record.
    pub(crate) digest_wanted: Option<u64>,
    pub(crate) scratch: Vec<u8>,
}

/// What the current record changes beside keys.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Rows as changed; `None` is removed.
    pub(crate) keyspaces: BTreeMap<KeyspaceId, Option<KeyspaceRow>>,
    /// Heads as changed; `None` is removed.
    pub(crate) heads: BTreeMap<StreamId, Option<Head>>,
    /// Live streams created by this record.
    pub(crate) stream_names: HashMap<Arc<str>, StreamId>,
    /// Next offsets while a commit is checked.
    pub(crate) next_offsets: HashMap<StreamId, Offset>,
    /// What the current commit acks and nacks.
    pub(crate) claims: Claims,
    /// Producers as the commit being checked will leave them.
    pub(crate) producers: CheckedProducers,
    pub(crate) clears: ClearChanges,
    /// Keyspaces whose exact counts change.
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
