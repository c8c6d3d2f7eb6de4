//! Optimistic transactions: read from one consistent view, gather writes, and commit if nothing read has
//! changed since.
//!
//! Owns what was read (the read set: keys with their revisions, absent ones included, and the ranges that were
//! scanned) and the writes gathered so far. No lock is held in between: whoever commits first wins, and the other
//! is told which key it lost by, and begins anew. A key that another adds to a range that was scanned is a conflict
//! like one that he changes: what commits is serializable.

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
    async_database::AsyncDatabase,
    database::{Ack, Database},
    error::{ReadError, WriteError},
    keyspace::{Entry, Keyspace, ScanRange, holds},
    optimistic::scan::ReadRange,
    stream::Stream,
};

/// A transaction that did not commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Somebody else wrote a key after it was read; nothing happened.
    #[error("key {} of keyspace {keyspace} was changed by another since it was read: begin anew", key.escape_ascii())]
    Conflict {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: Vec<u8>,
        /// Its revision when it was read; `None` if it had no value.
        read: Option<Revision>,
        /// Its revision now.
        actual: Option<Revision>,
    },
    /// Somebody else changed what was scanned, and by now it looks as it did; nothing happened.
    #[error("keys of keyspace {keyspace} from {} on, which were scanned, were changed by another: begin anew", start.escape_ascii())]
    RangeConflict {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// Where the range begins.
        start: Vec<u8>,
    },
    /// The write failed for another reason.
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

type Key = (KeyspaceId, Vec<u8>);

/// A transaction under way; see [`Database::begin`]. Dropping it does nothing to the data.
#[derive(Debug)]
pub struct Transaction {
    db: Database,
    snapshot: ReadView,
    /// Keys read, and their revisions.
    reads: BTreeMap<Key, Option<Revision>>,
    /// Ranges scanned.
    ranges: Vec<ReadRange>,
    /// Keys written; `None` is deleted.
    writes: BTreeMap<Key, Option<Bytes>>,
    /// Of those written, the ones that end: when, and with which lease.
    ends: BTreeMap<Key, (Deadline, Option<LeaseId>)>,
    appends: Vec<(StreamId, RecordBatch)>,
}

impl Database {
    /// Begins an optimistic transaction: its reads are of this moment, and it keeps the view's data alive
    /// until it ends.
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
    /// Commits a transaction that was [begun](Database::begin) on the [blocking](Self::blocking) face; see
    /// [`Transaction::commit`]. One that is in conflict reads the state to name the key.
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
    /// A key's value: what this transaction made of it, or what it was when the transaction began.
    pub fn get(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if let Some(written) = self.writes.get(&(keyspace.id(), key.to_vec())) {
            return Ok(written.clone());
        }
        Ok(self.get_entry(keyspace, key)?.map(|entry| entry.value))
    }

    /// A key's value and revision when the transaction began.
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

    /// Pairs of a range: as they were when the transaction began, and what this transaction made of them. Values are
    /// empty if the range leaves them out, other than those that this transaction has set.
    ///
    /// What was scanned is read: a commit fails if another has changed it, or put a key into it. With a limit only
    /// so much counts as read as was given. All ranges of a transaction may come to
    /// [`MAX_CONDITION_ROWS`](thalweg_types::limits::MAX_CONDITION_ROWS) rows; with more the commit fails.
    pub fn scan(&mut self, keyspace: &Keyspace, range: &ScanRange) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let unlimited = ScanRange { limit: None, ..range.clone() };
        let (pairs, read) = scan::scan(keyspace, range, &self.writes, |visit| {
            keyspace.scan_snapshot(&self.snapshot, &unlimited.stored(), visit)
        })?;
        self.ranges.extend(read.filter(|read| !self.ranges.contains(read)));
        Ok(pairs)
    }

    /// Sets a key when the transaction commits.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: impl Into<Bytes>) {
        self.ends.remove(&(keyspace.id(), key.to_vec()));
        self.writes.insert((keyspace.id(), key.to_vec()), Some(value.into()));
    }

    /// Sets a key that lives until a deadline and, with a lease, at most as long as that, when the transaction
    /// commits. It does not if there is no such lease then.
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

    /// Removes a key when the transaction commits.
    pub fn delete(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.ends.remove(&(keyspace.id(), key.to_vec()));
        self.writes.insert((keyspace.id(), key.to_vec()), None);
    }

    /// Appends records when the transaction commits.
    pub fn append(&mut self, stream: &Stream, batch: RecordBatch) {
        self.appends.push((stream.id(), batch));
    }

    /// Commits at the handle's level if no key or range read has changed since the transaction began. One that
    /// wrote nothing is checked, too, and uses a revision.
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

    /// Conditions are in the order of the read set, then the ranges.
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

    /// Names a key of the range that is not as it was.
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
