//! openraft's log over ours.
//!
//! Owns: which entry lies at which LSN, the newest vote and the last purged entry; all found again by one
//! pass over the log at open. Does not own bytes: entries are read back from the log, whether openraft
//! wants them for a follower or for the state.
//!
//! Calls into the log block for an fsync; a server would hand them to a thread of their own.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io::{self, IoSlice},
    ops::RangeBounds,
    sync::{Arc, Mutex, MutexGuard},
};

use openraft::{
    EntryPayload, LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use thalweg_log::{Appended, Draft, Log, LogRecord, Purpose, RecordKind};
use thalweg_replica::Vote;
use thalweg_state::{machine::Machine, membership::LogId};
use thalweg_types::{Durability, Index, Lsn, SpaceId, SpaceTime, Term};

use crate::types::{RaftEntry, RaftLogId, RaftVote, Types, entry_of, log_id, raft_log_id, raft_vote, record_of, vote};

const SPACE: SpaceId = SpaceId::ZERO;

/// Where an entry lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub lsn: Lsn,
    pub term: Term,
    pub time: SpaceTime,
}

#[derive(Debug, Default)]
struct Known {
    /// Without gaps; the first is the one after `purged`.
    entries: BTreeMap<Index, Place>,
    vote: Option<Vote>,
    purged: Option<LogId>,
    /// Space time of the entry before the first of `entries`.
    time_before: SpaceTime,
    /// Records that are not entries and that the state has not passed, oldest first.
    others: Vec<Lsn>,
}

impl Known {
    fn last(&self) -> Option<LogId> {
        let last = self.entries.last_key_value().map(|(&index, place)| LogId { term: place.term, index });
        last.or(self.purged)
    }

    fn last_time(&self) -> SpaceTime {
        self.entries.last_key_value().map_or(self.time_before, |(_, place)| place.time)
    }

    fn purge(&mut self, id: LogId) {
        let kept = self.entries.split_off(&id.index.next());
        if let Some((_, last_purged)) = self.entries.last_key_value() {
            self.time_before = last_purged.time;
        }
        self.entries = kept;
        self.purged = self.purged.max(Some(id));
    }

    fn learn(&mut self, record: &LogRecord, applied: Lsn) -> io::Result<()> {
        let is_entry = match record.kind {
            RecordKind::Entry | RecordKind::Membership | RecordKind::Blank => {
                let place = Place { lsn: record.lsn, term: record.term, time: record.time };
                self.entries.insert(record.index, place);
                true
            }
            RecordKind::Vote => {
                self.vote = Some(Vote::decode(&record.payload).ok_or(io::ErrorKind::InvalidData)?);
                false
            }
            RecordKind::Truncate => {
                self.entries.split_off(&record.index);
                false
            }
            RecordKind::Purged => {
                self.purge(LogId { term: record.term, index: record.index });
                false
            }
            RecordKind::Move => false,
        };
        if !is_entry && record.lsn >= applied {
            self.others.push(record.lsn);
        }
        Ok(())
    }
}

/// The log of one space of one node; cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    log: Log,
    known: Arc<Mutex<Known>>,
}

impl Store {
    /// Finds what the log holds, from its start; what has been freed is in the state.
    pub fn open(log: Log, machine: &Machine) -> io::Result<Self> {
        let stored = machine.vote().map_err(io::Error::other)?;
        let vote = stored.map(|vote| Vote::decode(&vote).ok_or(io::ErrorKind::InvalidData)).transpose()?;
        let purged = machine.purged().map_err(io::Error::other)?;
        let applied = machine.applied();
        let mut known = Known { vote, purged, time_before: applied.time, ..Known::default() };
        for record in log.records_from(log.start()).map_err(io::Error::other)? {
            let record = record.map_err(io::Error::other)?;
            if record.space == SPACE {
                known.learn(&record, applied.lsn)?;
            }
        }
        // Segments go whole, so entries that were purged may still be there.
        if let Some(purged) = known.purged {
            known.purge(purged);
        }
        Ok(Self { log, known: Arc::new(Mutex::new(known)) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no test panics while it holds the lock")
    }

    /// The record at an LSN.
    pub fn record(&self, lsn: Lsn) -> io::Result<LogRecord> {
        let mut records = self.log.records_from(lsn).map_err(io::Error::other)?;
        let record = records.next().ok_or(io::ErrorKind::NotFound)?.map_err(io::Error::other)?;
        if record.lsn == lsn { Ok(record) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The record of an entry.
    pub fn entry_record(&self, index: Index) -> io::Result<LogRecord> {
        let place = self.known().entries.get(&index).copied().ok_or(io::ErrorKind::NotFound)?;
        self.record(place.lsn)
    }

    /// Takes out the records below `lsn` that are not entries and that the state has yet to pass.
    pub fn others_before(&self, lsn: Lsn) -> Vec<Lsn> {
        let mut known = self.known();
        let before = known.others.partition_point(|other| *other < lsn);
        known.others.drain(..before).collect()
    }

    fn append_one(&self, known: &mut Known, kind: RecordKind, id: LogId, payload: &[u8]) -> io::Result<Appended> {
        let payload = [IoSlice::new(payload)];
        let time = known.last_time();
        let draft = Draft { space: SPACE, kind, term: id.term, index: id.index, time, payload: &payload };
        let appended = self.log.append(&[draft], Durability::Disk, Purpose::Reclaim).map_err(io::Error::other)?;
        known.others.push(appended.first);
        Ok(appended)
    }

    fn append_entries(&self, entries: &[RaftEntry]) -> io::Result<()> {
        let mut known = self.known();
        let mut time = known.last_time();
        let records = entries.iter().map(record_of).collect::<io::Result<Vec<_>>>()?;
        let parts: Vec<_> = records.iter().map(|(_, payload)| [IoSlice::new(payload)]).collect();
        let mut drafts = Vec::with_capacity(entries.len());
        for ((entry, (kind, _)), payload) in entries.iter().zip(&records).zip(&parts) {
            if let EntryPayload::Normal(commands) = &entry.payload {
                time = time.max(commands.time);
            }
            let LogId { term, index } = log_id(&entry.log_id);
            drafts.push(Draft { space: SPACE, kind: *kind, term, index, time, payload });
        }
        // Returns after the fsync: only then may anybody count these entries.
        let appended = self.log.append(&drafts, Durability::Disk, Purpose::Data).map_err(io::Error::other)?;
        for (draft, number) in drafts.iter().zip(0..) {
            let place = Place { lsn: appended.first.plus(number), term: draft.term, time: draft.time };
            let replaced = known.entries.insert(draft.index, place);
            assert!(replaced.is_none(), "entry {} was not truncated before", draft.index);
        }
        Ok(())
    }

    fn read(&self, range: impl RangeBounds<u64>) -> io::Result<Vec<RaftEntry>> {
        let bounds = (range.start_bound().map(|index| Index(*index)), range.end_bound().map(|index| Index(*index)));
        let places: Vec<Place> = self.known().entries.range(bounds).map(|(_, place)| *place).collect();
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        let mut wanted = places.iter().map(|place| place.lsn).peekable();
        let mut entries = Vec::with_capacity(places.len());
        for record in self.log.records_from(first.lsn).map_err(io::Error::other)? {
            let record = record.map_err(io::Error::other)?;
            if wanted.next_if_eq(&record.lsn).is_some() {
                entries.push(entry_of(&record)?);
            }
            if wanted.peek().is_none() {
                break;
            }
        }
        if entries.len() == places.len() { Ok(entries) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(range)
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.known().vote.map(raft_vote))
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let known = self.known();
        Ok(LogState { last_purged_log_id: known.purged.map(raft_log_id), last_log_id: known.last().map(raft_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, raft: &RaftVote) -> io::Result<()> {
        let vote = vote(raft);
        let mut known = self.known();
        let id = LogId { term: vote.term, index: Index::ZERO };
        self.append_one(&mut known, RecordKind::Vote, id, &vote.encode())?;
        known.vote = Some(vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        self.append_entries(&entries)?;
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        let index = last.map_or(Index::ZERO, |last| Index(last.index).next());
        let mut known = self.known();
        self.append_one(&mut known, RecordKind::Truncate, LogId { term: Term::ZERO, index }, &[])?;
        known.entries.split_off(&index);
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        let id = log_id(&upto);
        let mut known = self.known();
        self.append_one(&mut known, RecordKind::Purged, id, &[])?;
        known.purge(id);
        Ok(())
    }
}
