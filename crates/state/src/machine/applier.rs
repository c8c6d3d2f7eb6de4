//! State of the thread that applies log records: data kept between records, and the changes of the current record.
//!
//! Owns: the fields that commands read and change while a log record is applied. Does not own: the tables that readers
//! see ([`Published`](crate::machine::state_machine::Published)), which change after the record's batch is applied to
//! the backend.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use thalweg_redis::streams::growth::GrownStreams;
use thalweg_store::Applied;
use thalweg_types::{KeyspaceId, Offset, StreamId, command::HistoryFloor};

use crate::{
    changes::verdict::VerdictBuilder,
    clears::table::{ClearChanges, ClearTable},
    entry::Position,
    error::MachineError,
    groups::claims::CheckedSettlements,
    history::rows::HistoryRow,
    keyspaces::{
        catalog::{KeyspaceKinds, KeyspaceRow, KeyspaceTable, Meta},
        counts::Counts,
    },
    machine::{running_hash::RunningHash, staged::Staged, undo::UndoList},
    segments::{inline_floor::InlineFloor, liveness::LivenessChanges},
    streams::{checked_producers::CheckedProducers, heads::Head},
};

/// State that the thread which applies log records keeps between two records.
#[derive(Debug)]
pub(crate) struct Applier {
    /// Row changes of the log record being applied. Reads by its commands see them.
    pub(crate) staged: Staged,
    /// List of the changes that undo the current command, if it is rejected half-way.
    pub(crate) undo: UndoList,
    /// The meta row (next ids and counters of the state) as the commands so far have left it.
    pub(crate) meta: Meta,
    /// The meta row as stored in the backend; `None` before the first log record is applied.
    pub(crate) stored_meta: Option<Meta>,
    pub(crate) applied: Applied,
    pub(crate) inline_floor: InlineFloor,
    /// Number of live streams, plus deleted streams whose producers are not removed yet, after the commands so far.
    pub(crate) stream_count: usize,
    /// Number of keyspaces after the commands so far, including dropped ones whose rows are not all removed yet.
    pub(crate) keyspace_count: usize,
    /// Kind of each keyspace (missing, plain or configured), including the changes that commands of the current record
    /// have made.
    pub(crate) kinds: KeyspaceKinds,
    /// Number of leases. Includes ended ones that are not removed yet, and the changes of the log record being applied.
    pub(crate) lease_count: usize,
    pub(crate) stopped: bool,
    pub(crate) pending: Pending,
    pub(crate) liveness: LivenessChanges,
    /// Deleted prefixes whose rows are not all removed, including the changes that commands of the current record have
    /// made.
    pub(crate) clears: Arc<ClearTable>,
    /// Exact counts of keyspaces, including the changes that commands of the current record have made.
    pub(crate) counts: BTreeMap<KeyspaceId, Counts>,
    pub(crate) verdict: VerdictBuilder,
    pub(crate) history_floor: HistoryFloor,
    /// History rows of the keyspaces that keep or have kept former values, including the changes that commands of the
    /// current record have made.
    pub(crate) histories: BTreeMap<KeyspaceId, HistoryRow>,
    /// Offset, within its log segment, at which the payload of the current entry begins.
    pub(crate) payload_at: u32,
    pub(crate) running_hash: RunningHash,
    /// Positions of reads among the replies of a Redis batch. They are performed only if a client of this node waits.
    pub(crate) reads: Vec<usize>,
    /// Steps of work that the commands of all log entries have taken since the machine was opened.
    pub(crate) steps: u64,
    /// Steps of work of the reads that this node has performed for its clients. They are not part of `steps`.
    pub(crate) read_steps: u64,
    /// Redis streams that may have got entries by the commands of the current log record.
    pub(crate) grown: GrownStreams,
    /// Id of the state digest that a command of the current log record requested; `None` if none did.
    pub(crate) digest_wanted: Option<u64>,
    pub(crate) scratch: Vec<u8>,
}

/// Changes that the log record being applied makes to tables in memory.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Keyspace rows that the log record changes; `None` removes the row.
    pub(crate) keyspaces: BTreeMap<KeyspaceId, Option<KeyspaceRow>>,
    /// Stream heads that the log record changes; `None` removes the head.
    pub(crate) heads: BTreeMap<StreamId, Option<Head>>,
    /// Ids of the streams that this log record creates, by name.
    pub(crate) stream_names: HashMap<Arc<str>, StreamId>,
    /// Next offset of each stream to which the checked writes of the current commit append.
    pub(crate) next_offsets: HashMap<StreamId, Offset>,
    /// Records of consumer groups that the current commit acknowledges or negatively acknowledges.
    pub(crate) claims: CheckedSettlements,
    /// State that producers will have after those appends of the current commit that were checked so far.
    pub(crate) producers: CheckedProducers,
    pub(crate) clears: ClearChanges,
    /// Keyspaces whose exact counts the log record changes.
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
            reads: Vec::new(),
            steps: 0,
            read_steps: 0,
            grown: GrownStreams::None,
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
