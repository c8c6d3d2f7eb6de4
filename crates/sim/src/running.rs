//! One run of a simulated node, from its start to its next crash: its database as a member of the cluster, and its
//! consensus.
//!
//! Owns: proposals and reads on the node, and the reports of its applied entries to `truth` and `logs`. Does not own:
//! starting the node (`node`).

use std::{
    io,
    rc::Rc,
    sync::{Arc, OnceLock},
    time::Duration,
};

use thalweg_disk::{Disk as _, SimDisk};
use thalweg_engine::{Database, snapshot::SnapshotOptions};
use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_raft::{BarrierError, LogReader};
use thalweg_replica::{Committed, Member, Observer, Origin, ProposeError, Wake};
use thalweg_state::{digest::state_digest, keyspaces::StoredValue, machine::Machine, membership::LogId};
use thalweg_store::Applied;
use thalweg_types::{
    Durability, Index, Lsn, Offset, Revision, Term,
    command::{Command, Commands, Outcome, Write},
    record::Records,
};

use crate::{
    commands::{KEYSPACE, STREAM, framed, key_bytes, number_of},
    history::{Key, Level},
    logs::Logs,
    plant::Plant,
    runtime::ProcessId,
    truth::Truth,
    types::SimConsensus,
};

/// Time after which a node stops trying to serve a read.
const READ_WITHIN: Duration = Duration::from_millis(600);

/// Number of log entries after which the simulation compares the digests of the nodes' whole states again.
const DIGEST_INTERVAL: u64 = 1024;
/// Number of batches of the stream that are read at a time.
const PAGE_BATCHES: usize = 256;

/// One run of a simulated node, from its start to its next crash. Clones refer to the same run.
#[derive(Clone)]
pub struct Running(Rc<Parts>);

struct Parts {
    db: Database,
    member: Member,
    consensus: SimConsensus,
    plant: Option<Plant>,
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn digest_of(machine: &Machine) -> io::Result<(u64, u128)> {
    let state = state_digest(&*machine.backend().view(), &mut |_| {}).map_err(failed)?;
    Ok((state.applied.index.0, state.digest.0))
}

impl Running {
    /// Creates the handle of a node that has started.
    #[must_use]
    pub fn new(db: Database, member: Member, consensus: SimConsensus, plant: Option<Plant>) -> Self {
        Self(Rc::new(Parts { db, member, consensus, plant }))
    }

    /// Returns the node's database.
    #[must_use]
    pub fn db(&self) -> &Database {
        &self.0.db
    }

    /// Returns true if a write or an fsync of the node's log has failed, so that the log accepts no more entries.
    #[must_use]
    pub fn has_failed_log(&self) -> bool {
        self.0.member.log().failure().is_some()
    }

    /// Returns the node's consensus.
    #[must_use]
    pub fn consensus(&self) -> &SimConsensus {
        &self.0.consensus
    }

    /// Returns true if the node believes that it leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.0.member.leads()
    }

    /// Returns the index of the last log entry that the node has applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.0.member.machine().applied().index.0
    }

    /// Computes the digest of the node's whole state. Returns the index of the last log entry in the state, and the
    /// digest.
    pub fn digest(&self) -> io::Result<(u64, u128)> {
        digest_of(self.0.member.machine())
    }

    /// Takes a snapshot of the node's state. Returns all bytes of the snapshot.
    pub fn snapshot(&self) -> io::Result<Vec<u8>> {
        let snapshot = self.0.db.snapshot(&SnapshotOptions::default()).map_err(failed)?;
        snapshot.into_bytes().map_err(failed)
    }

    /// Returns the term in which the node believes that it leads; `None` if it does not lead.
    #[must_use]
    pub fn led_term(&self) -> Option<Term> {
        self.0.member.leadership().led_term()
    }

    /// Proposes a command on this node. With a `term`, consensus writes the command only while the node leads in this
    /// term.
    pub async fn propose(&self, command: &[u8], term: Option<Term>) -> Result<Committed, ProposeError> {
        let term = term.filter(|_| self.0.plant != Some(Plant::OtherTerm));
        let (purpose, origin) = (thalweg_log::Purpose::Data, Origin { term, ..Origin::default() });
        let member = &self.0.member;
        member.propose_async_from(origin, framed(command), Durability::Quorum, purpose, Wake::Now)?.await
    }

    /// Reads keys at one point in time, as recent as `level` requires. Returns the revision of that point and the
    /// values.
    pub async fn read(&self, keys: &[Key], level: Level) -> Result<io::Result<(u64, Vec<Option<u64>>)>, BarrierError> {
        let consensus = &self.0.consensus;
        match level {
            Level::Linearizable if self.0.plant == Some(Plant::UncheckedRead) => {
                if !self.0.member.leads() {
                    return Err(BarrierError::NoLeader);
                }
            }
            Level::Linearizable => _ = consensus.read_linearizable(READ_WITHIN).await?,
            Level::Lease => _ = consensus.read_lease(READ_WITHIN).await?,
            Level::AtLeast(revision) => consensus.read_at_least(Revision(revision), READ_WITHIN).await?,
            Level::Stale => {}
        }
        Ok(self.read_now(keys))
    }

    /// Reads the whole stream from the node's log. Returns the records in order.
    pub fn stream(&self) -> io::Result<Vec<u64>> {
        let (machine, log) = (self.0.member.machine(), self.0.member.log());
        let mut records = Vec::new();
        loop {
            let from = Offset(records.len() as u64);
            let page = machine.batches_from(STREAM, from, PAGE_BATCHES, u64::MAX).map_err(failed)?;
            for batch in &page.batches {
                if batch.first.0 != records.len() as u64 {
                    return Err(failed(format!("a batch begins at {}, not at {}", batch.first, records.len())));
                }
                let bytes = log.read_blob(&batch.blob).map_err(failed)?;
                for record in Records::new(&bytes) {
                    let payload = record.map_err(failed)?.payload;
                    let number = payload.try_into().map(u64::from_le_bytes).map_err(failed)?;
                    records.push(number);
                }
            }
            if records.len() as u64 >= page.next.0 || page.batches.is_empty() {
                return Ok(records);
            }
        }
    }

    /// Returns the records of appends that the node has written but not applied. Empty without the planted bug
    /// `UncommittedTail`, which makes subscribers to the stream see these records.
    pub(crate) fn uncommitted_records(&self) -> Vec<u64> {
        if self.0.plant != Some(Plant::UncommittedTail) {
            return Vec::new();
        }
        let (next, reader) = (Index(self.applied() + 1), self.0.consensus.reader());
        let mut entries = reader.records(next, Index(u64::MAX), usize::MAX).unwrap_or_default();
        entries.retain(|entry| entry.kind == RecordKind::Entry);
        entries
            .iter()
            .flat_map(|entry| Commands::new(&entry.payload).flatten())
            .flat_map(|(_, command)| appended(command))
            .collect()
    }

    fn read_now(&self, keys: &[Key]) -> io::Result<(u64, Vec<Option<u64>>)> {
        let view = self.0.member.machine().read_view();
        let values = keys.iter().map(|key| {
            let stored = view.get(KEYSPACE, &key_bytes(*key)).map_err(failed)?;
            let bytes = match stored.map(|stored| stored.value) {
                Some(StoredValue::Inline(bytes)) => bytes,
                Some(StoredValue::Blob(blob)) => self.0.member.log().read_blob(&blob).map_err(failed)?,
                Some(other) => return Err(failed(format!("the value is {other:?}"))),
                None => return Ok(None),
            };
            number_of(&bytes).map(Some).ok_or_else(|| failed(format!("the value is {bytes:?}")))
        });
        Ok((view.applied().revision.0, values.collect::<io::Result<_>>()?))
    }
}

/// Returns the records that a command appends if it succeeds.
fn appended(command: &[u8]) -> Vec<u64> {
    let Ok(Command::Commit(commit)) = Command::decode(command) else { return Vec::new() };
    let Ok(writes) = commit.writes() else { return Vec::new() };
    let mut numbers = Vec::new();
    for write in writes.flatten() {
        if let Write::Append { batch, .. } = write {
            let records = Records::new(batch).flatten();
            numbers.extend(records.filter_map(|record| record.payload.try_into().map(u64::from_le_bytes).ok()));
        }
    }
    numbers
}

/// Observer that reports the log entries that a node applies.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) node: ProcessId,
    pub(crate) disk: SimDisk,
    /// True if the node's files may be damaged, so that reads of them may fail.
    pub(crate) is_damaged: bool,
    pub(crate) log: Log,
    pub(crate) machine: Arc<Machine>,
    pub(crate) reader: OnceLock<LogReader>,
    pub(crate) truth: Truth,
    pub(crate) logs: Logs,
}

impl Reports {
    /// Returns true if the power of the node's disk is off.
    fn is_powerless(&self) -> bool {
        self.disk.free_bytes().is_err()
    }

    /// Reads the record of the last applied entry from the node's log. Returns `None` if the log does not have it.
    fn record(&self, state: Applied) -> Option<LogRecord> {
        let cached = self.reader.get().and_then(|reader| {
            let records = reader.records(state.index, Index(state.index.0 + 1), usize::MAX).ok()?;
            records.into_iter().next()
        });
        cached.filter(|record| record.lsn.next() == state.lsn).or_else(|| {
            let mut records = self.log.records_from(Lsn(state.lsn.0 - 1)).ok()?;
            records.next()?.ok()
        })
    }
}

impl Observer for Reports {
    fn applied(&self, outcomes: &[Outcome]) {
        let state = self.machine.applied();
        match self.record(state) {
            Some(record) => {
                self.truth.applied(self.node, &record, outcomes, state);
                self.logs.applied(self.node, LogId { term: record.term, index: record.index });
            }
            None if self.is_damaged || self.is_powerless() => {}
            None => self.truth.violation(self.node, format!("entry {} is applied, and cannot be read", state.index)),
        }
        // Damaged files may be unreadable. So may the file of redb after the disk was full.
        if state.index.0.is_multiple_of(DIGEST_INTERVAL)
            && let Ok((index, digest)) = digest_of(&self.machine)
        {
            self.truth.digest(self.node, index, digest);
        }
    }
}
