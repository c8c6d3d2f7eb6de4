//! Optimistic transactions: each reads from one consistent view, gathers writes, and commits if nothing that it has
//! read has changed since it began.
//!
//! Owns: the read set and the writes gathered so far. The read set has the keys read (with their revisions, also for
//! absent keys) and the ranges scanned. A transaction holds no lock. If two transactions conflict, the first to commit
//! wins; the other gets an error that names the conflicting key, and must begin again. A new key in a scanned range is
//! a conflict, like a changed key, so committed transactions are serializable.

mod scan;

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    ops::ControlFlow,
};

use bytes::Bytes;
use thalweg_state::keyspaces::{ReadView, StoredValue};
use thalweg_types::{
    Action, Classified, Durability, KeyspaceId, LeaseId, Revision, StreamId,
    command::{CommandError, CommitBuilder, Deadline, Expect},
    record::RecordBatch,
};

use crate::{
    ack::Ack,
    async_database::AsyncDatabase,
    database::Database,
    error::{ReadError, WriteError, holds},
    keyspace::{Entry, Keyspace},
    optimistic::scan::{Key, ReadRange},
    scan_range::ScanRange,
    stream::Stream,
};

/// Error returned when an optimistic transaction does not commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Another client changed a key after this transaction read it. Nothing happened.
    #[error("key {} of keyspace {keyspace} was changed by another client since it was read: retry", key.escape_ascii())]
    Conflict {
        /// Id of the keyspace of the changed key.
        keyspace: KeyspaceId,
        /// Key that another client changed.
        key: Vec<u8>,
        /// Revision of the key when this transaction read it; `None` if the key had no value.
        read: Option<Revision>,
        /// Present revision of the key; `None` if the key has no value.
        actual: Option<Revision>,
    },
    /// Another client changed a range that this transaction had scanned, but the range now looks as it did before, so
    /// no changed key can be named. Nothing happened.
    #[error("scanned keys of keyspace {keyspace} from {} on were changed by another client: retry", start.escape_ascii())]
    RangeConflict {
        /// Id of the keyspace of the changed range.
        keyspace: KeyspaceId,
        /// First key of the range that the transaction had scanned.
        start: Vec<u8>,
    },
    /// The commit failed for a reason other than a conflict.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Classified for TransactionError {
    fn code(&self) -> &'static str {
        match self {
            Self::Conflict { .. } | Self::RangeConflict { .. } => "transaction_conflict",
            Self::Write(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Conflict { .. } | Self::RangeConflict { .. } => Action::Retry,
            Self::Write(error) => error.action(),
        }
    }
}

impl From<CommandError> for TransactionError {
    fn from(error: CommandError) -> Self {
        Self::Write(error.into())
    }
}

/// An optimistic transaction in progress; see [`Database::begin`]. Dropping it changes no data.
#[derive(Debug)]
pub struct Transaction {
    db: Database,
    snapshot: ReadView,
    /// Keys that the transaction has read, with their revisions; `None` for a key without a value.
    reads: BTreeMap<Key, Option<Revision>>,
    /// Ranges that the transaction has scanned.
    ranges: Vec<ReadRange>,
    /// New values of the keys that the commit will write; `None` deletes the key.
    writes: BTreeMap<Key, Option<Bytes>>,
    /// Deadlines and leases of the written keys that have any.
    ends: BTreeMap<Key, (Deadline, Option<LeaseId>)>,
    appends: Vec<(StreamId, RecordBatch)>,
}

impl Database {
    /// Begins an optimistic transaction. Its reads show the present state. The transaction keeps the data of this
    /// state alive until it ends.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction {
            db: self.clone(),
            snapshot: self.inner.open.machine.read_view(),
            reads: BTreeMap::new(),
            ranges: Vec::new(),
            writes: BTreeMap::new(),
            ends: BTreeMap::new(),
            appends: Vec::new(),
        }
    }
}

impl AsyncDatabase {
    /// Commits a transaction that was [begun](Database::begin) on the [blocking](Self::blocking) interface; see
    /// [`Transaction::commit`]. After a conflict the future reads the state, to find the key that has changed.
    pub fn commit_transaction(
        &self,
        transaction: Transaction,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, TransactionError>> + Send + use<> {
        let proposed = transaction.as_commit().map(|commit| self.commit(&commit, level));
        async move { proposed?.await.map_err(|error| transaction.refused(error)) }
    }
}

impl Transaction {
    /// Returns a key's value: the value that this transaction has set, or else that at the beginning of the
    /// transaction.
    pub fn get(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if let Some(written) = self.writes.get(&(keyspace.id(), key.to_vec())) {
            return Ok(written.clone());
        }
        Ok(self.get_entry(keyspace, key)?.map(|entry| entry.value))
    }

    /// Returns the value and the revision that a key had when the transaction began.
    pub fn get_entry(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        let id = keyspace.id();
        let found = self.snapshot.get(id, key)?;
        self.reads.insert((id, key.to_vec()), found.as_ref().map(|stored| stored.revision));
        let Some(stored) = found else { return Ok(None) };
        let value = match stored.value {
            StoredValue::Inline(value) => value,
            StoredValue::Collection(collection) => return Err(holds(&collection)),
            StoredValue::Blob(blob) => self.db.inner.resolve(id, key, stored.revision, blob)?,
        };
        Ok(Some(Entry { value, revision: stored.revision, expiry: stored.expiry }))
    }

    /// Returns the pairs of a range as they were when the transaction began, merged with its own writes. If the range
    /// omits values, the values are empty, except for those that this transaction has set.
    ///
    /// The range counts as read: the commit fails if another client has changed a key in it or added a key to it. With
    /// a limit, only the part up to the last returned pair counts as read. All ranges of a transaction may have at
    /// most [`MAX_CONDITION_ROWS`](thalweg_types::limits::MAX_CONDITION_ROWS) rows together; with more, the commit
    /// fails.
    pub fn scan(&mut self, keyspace: &Keyspace, range: &ScanRange) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let unlimited = ScanRange { limit: None, ..range.clone() };
        let (pairs, read) = scan::scan(keyspace, range, &self.writes, |visit| {
            keyspace.scan_snapshot(&self.snapshot, &unlimited.stored(), visit)
        })?;
        self.ranges.extend(read.filter(|read| !self.ranges.contains(read)));
        Ok(pairs)
    }

    /// Notes that the commit of this transaction sets a key.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: impl Into<Bytes>) {
        self.ends.remove(&(keyspace.id(), key.to_vec()));
        self.writes.insert((keyspace.id(), key.to_vec()), Some(value.into()));
    }

    /// Notes that the commit of this transaction sets a key with a deadline, a lease or both. The value expires at the
    /// earlier of the two. The commit fails if the lease does not exist.
    pub fn put_until(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: impl Into<Bytes>,
        deadline: Deadline,
        lease: Option<LeaseId>,
    ) {
        self.put(keyspace, key, value);
        self.ends.insert((keyspace.id(), key.to_vec()), (deadline, lease));
    }

    /// Notes that the commit of this transaction removes a key.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.ends.remove(&(keyspace.id(), key.to_vec()));
        self.writes.insert((keyspace.id(), key.to_vec()), None);
    }

    /// Notes that the commit of this transaction appends records to a stream.
    pub fn append(&mut self, stream: &Stream, batch: RecordBatch) {
        self.appends.push((stream.id(), batch));
    }

    /// Commits at the handle's durability level, if no key or range that the transaction has read has changed since the
    /// transaction began. A transaction without writes is checked too, and also uses a revision.
    pub fn commit(self) -> Result<Ack, TransactionError> {
        let commit = self.as_commit()?;
        self.db.commit(&commit).map_err(|error| self.refused(error))
    }

    fn as_commit(&self) -> Result<CommitBuilder, CommandError> {
        let mut commit = CommitBuilder::new();
        for ((keyspace, key), read) in &self.reads {
            commit.expect(*keyspace, key, read.map_or(Expect::Absent, Expect::Revision))?;
        }
        let since = self.snapshot.applied().revision;
        for range in &self.ranges {
            commit.expect(range.keyspace, &range.start, Expect::Unchanged(range.unchanged(since)))?;
        }
        for (target, write) in &self.writes {
            let (keyspace, key) = target;
            match (write, self.ends.get(target)) {
                (Some(value), None) => commit.put(*keyspace, key, value)?,
                (Some(value), Some((deadline, lease))) => commit.put_until(*keyspace, key, value, *deadline, *lease)?,
                (None, _) => commit.delete(*keyspace, key)?,
            };
        }
        for (stream, batch) in &self.appends {
            commit.append(*stream, None, batch)?;
        }
        Ok(commit)
    }

    fn refused(&self, error: WriteError) -> TransactionError {
        match error {
            WriteError::ConditionFailed { condition, actual } => self.conflict(condition, actual),
            other => other.into(),
        }
    }

    /// Converts a failed condition to an error that names the changed key. `condition` is the index of the failed
    /// condition: first come those of the keys read, then those of the ranges.
    fn conflict(&self, condition: u32, actual: Option<Revision>) -> TransactionError {
        match self.reads.iter().nth(condition as usize) {
            Some(((keyspace, key), read)) => {
                TransactionError::Conflict { keyspace: *keyspace, key: key.clone(), read: *read, actual }
            }
            None => match self.ranges.get(condition as usize - self.reads.len()) {
                Some(range) => self.conflict_within(range),
                None => WriteError::ConditionFailed { condition, actual }.into(),
            },
        }
    }

    /// Returns an error that names a changed key of the range, or the range if no changed key is found.
    fn conflict_within(&self, range: &ReadRange) -> TransactionError {
        let ReadRange { keyspace, start, .. } = range;
        let changed = self.changed_within(range).ok().flatten();
        changed.unwrap_or_else(|| TransactionError::RangeConflict { keyspace: *keyspace, start: start.clone() })
    }

    fn changed_within(&self, range: &ReadRange) -> Result<Option<TransactionError>, ReadError> {
        let keyspace = Keyspace::new(self.db.clone(), range.keyspace);
        let scan = range.as_scan();
        let mut before: HashMap<Vec<u8>, Revision> = HashMap::new();
        keyspace.scan_snapshot(&self.snapshot, &scan.stored(), &mut |item| {
            before.insert(item.key.to_vec(), item.revision);
            ControlFlow::Continue(())
        })?;
        let mut changed = None;
        keyspace.scan(&scan, &mut |item| {
            let read = before.remove(item.key);
            if read == Some(item.revision) {
                return ControlFlow::Continue(());
            }
            changed = Some((item.key.to_vec(), read, Some(item.revision)));
            ControlFlow::Break(())
        })?;
        let gone = || before.into_iter().min().map(|(key, read)| (key, Some(read), None));
        let conflict = |(key, read, actual)| TransactionError::Conflict { keyspace: range.keyspace, key, read, actual };
        Ok(changed.or_else(gone).map(conflict))
    }
}
