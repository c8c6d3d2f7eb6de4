//! A state machine over the memory backend, and a log of one segment that its pointers point into.

use std::{
    ops::Bound,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use thalweg_state::{
    blobs::{BlobUnreadable, Blobs},
    expiry::StaleCursor,
    history::HistoryError,
    keyspaces::{ReadView, ScanRange},
    machine::{Entry, Machine, MachineOptions, LocalOutcome},
};
use thalweg_store::{
    Backend, Direction,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    BlobRef, Generation, Index, KeyspaceId, LogPosition, Lsn, Offset, Revision, SpaceTime, Term,
    command::{CommandError, Commands, Framed, Outcome},
};

use crate::{NoLog, disk_with};

/// Values longer than this stay in the log.
const INLINE_BYTES: usize = 16;

/// Everything that was ever applied, one payload after the other.
#[derive(Debug, Default)]
struct Segment(Mutex<Vec<u8>>);

impl Segment {
    fn push(&self, payload: &[u8]) -> LogPosition {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = bytes.len() as u32;
        bytes.extend_from_slice(payload);
        LogPosition { generation: Generation(1), offset }
    }
}

impl Blobs for Segment {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = blob.offset as usize;
        let found = bytes.get(at..at + blob.len as usize).filter(|_| blob.generation == Generation(1));
        found.map(Bytes::copy_from_slice).ok_or_else(|| BlobUnreadable("no such place".to_owned()))
    }
}

/// A machine to be fed.
#[derive(Debug)]
pub struct Bench {
    /// The machine.
    pub machine: Machine,
    backend: Arc<dyn Backend>,
    segment: Arc<Segment>,
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// An empty one.
    ///
    /// # Panics
    /// If the disk refuses: it has no reason to.
    #[must_use]
    pub fn new() -> Self {
        let backend = MemoryBackend::open(disk_with("", &[]), MemoryOptions::default(), Arc::new(NoLog));
        Self::over(Arc::new(backend.expect("an empty disk")), Arc::default())
    }

    fn over(backend: Arc<dyn Backend>, segment: Arc<Segment>) -> Self {
        let options = MachineOptions { inline_value_bytes: INLINE_BYTES };
        let machine = Machine::open(backend.clone(), options).expect("what was applied opens");
        Self { machine: machine.with_blobs(segment.clone()), backend, segment }
    }

    /// As after a restart.
    #[must_use]
    pub fn reopened(self) -> Self {
        Self::over(self.backend, self.segment)
    }

    /// Applies one command.
    ///
    /// # Panics
    /// If it does not encode.
    pub fn command(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) {
        let mut framed = Framed::new();
        framed.encode(encode).expect("a valid command");
        self.entry(framed.bytes(), 1);
    }

    /// Applies an entry that is stamped so much after the one before.
    ///
    /// # Panics
    /// If it stops the machine, or if not each command has an outcome.
    pub fn entry(&self, payload: &[u8], later: u64) -> Vec<Outcome> {
        let applied = self.machine.applied();
        let entry = Entry {
            term: Term(1),
            index: applied.index.next(),
            time: SpaceTime(applied.time.0.saturating_add(later)),
            payload,
            at: self.segment.push(payload),
            next_lsn: applied.lsn.next(),
        };
        let mut outcomes = Vec::new();
        self.machine.apply(&entry, &mut outcomes).expect("no entry stops the machine");
        assert_eq!(outcomes.len(), Commands::new(payload).count(), "one outcome a command");
        outcomes
    }

    /// Applies a move.
    ///
    /// # Panics
    /// If it stops the machine.
    pub fn relocate(&self, payload: &[u8]) -> LocalOutcome {
        let lsn = self.machine.applied().lsn;
        let at = self.segment.push(payload);
        self.machine.apply_move(payload, at, Lsn(lsn.0 + 1)).expect("no move stops the machine")
    }

    /// Every row.
    ///
    /// # Panics
    /// If the backend fails.
    #[must_use]
    pub fn rows(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        let all = (Bound::Unbounded, Bound::Unbounded);
        let scanned = self.backend.view().scan(all.0, all.1, Direction::Forward, &mut |key, row| {
            rows.push((key.to_vec(), row.to_vec()));
            ControlFlow::Continue(())
        });
        scanned.expect("memory can be read");
        rows
    }

    /// What readers are told, in words.
    ///
    /// # Panics
    /// If something that was applied can't be read.
    #[must_use]
    pub fn read_all(&self) -> Vec<String> {
        let (machine, mut seen) = (&self.machine, Vec::new());
        let now = machine.applied().time;
        let snapshot = machine.read_view();
        for (id, row) in machine.keyspaces() {
            seen.push(format!("{row:?} {:?}", machine.keyspace_counts(id)));
            let scanned = snapshot.scan(id, &ScanRange::default(), |pair| {
                seen.push(format!("{pair:?}"));
                ControlFlow::Continue(())
            });
            scanned.expect("pairs");
            for back in 0..4 {
                seen.push(read_past(&snapshot, id, Revision(machine.applied().revision.0.saturating_sub(back))));
            }
        }
        for lease in snapshot.leases(None, 1000).expect("leases") {
            seen.push(format!("{lease:?} {:?}", snapshot.lease_keys(lease.id, None, 1000).expect("keys of a lease")));
        }
        for info in machine.streams() {
            let found = machine.batches_from(info.id, info.start, 1000, u64::MAX);
            seen.push(format!("{info:?} {found:?} {:?}", machine.producers(info.id).expect("producers")));
            let _ = machine.offset_at_or_after(info.id, SpaceTime(2)).expect("a place");
            let _ = machine.batches_from(info.id, Offset(u64::MAX), 1, 1);
        }
        for id in machine.groups(None).expect("groups") {
            let info = machine.group(id, now).expect("a group");
            seen.push(format!("{info:?} {:?}", machine.group_ready(id, now).expect("a group")));
            seen.push(format!("{:?}", machine.dead_letters(id, None).expect("dead letters")));
        }
        seen.push(format!("{:?}", machine.retention_due(SpaceTime(u64::MAX)).expect("figures can be read")));
        seen.push(format!("{:?} {:?}", machine.reclaim_due(), machine.compaction_candidates()));
        seen.push(format!("{:?}", machine.expiry_due(now).expect("deadlines")));
        let stale = machine.stale_rows(&mut StaleCursor::default(), 1000).expect("rows");
        seen.push(format!("{stale:?} {:?}", machine.history_floor().expect("a floor")));
        let verdicts = machine.verdicts(Index(0), 1000, 1 << 20).expect("verdicts");
        seen.push(format!("{verdicts:?} {:?}", machine.liveness()));
        seen
    }
}

/// What a keyspace held at a revision, and what its keys were, in words.
fn read_past(snapshot: &ReadView, keyspace: KeyspaceId, revision: Revision) -> String {
    let mut seen = String::new();
    let mut keys = vec![b"a".to_vec()];
    let past = match snapshot.past(keyspace, revision, SpaceTime(0)) {
        Ok(past) => past,
        Err(HistoryError::Machine(error)) => panic!("{error}"),
        Err(error) => return error.to_string(),
    };
    let scanned = past.scan(&ScanRange::default(), &mut |pair| {
        seen.push_str(&format!("{pair:?}"));
        keys.push(pair.key.to_vec());
        ControlFlow::Continue(())
    });
    let scanned = is_past(scanned);
    for key in keys {
        let got = is_past(past.get(&key));
        let versions = snapshot.versions(keyspace, &key, None, 9).expect("versions");
        seen.push_str(&format!("{got:?} {versions:?}"));
    }
    format!("{seen} {scanned:?}")
}

/// What is not kept is an answer; what can't be read is none.
fn is_past<T>(read: Result<T, HistoryError>) -> Result<T, String> {
    read.map_err(|error| match error {
        HistoryError::Machine(error) => panic!("{error}"),
        error => error.to_string(),
    })
}
