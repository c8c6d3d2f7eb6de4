//! Data of an open database that all its handles share.
//!
//! Owns: proposing a command of the calling thread, and reading values that stay in the log. Does not own: the
//! handles, and the work of the background thread, which other modules add as methods of [`Inner`].

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_replica::{Committed, Origin, ProposeError, Wake};
use thalweg_snapshot::{Counters, Pins};
use thalweg_state::keyspaces::StoredValue;
use thalweg_types::{
    BlobRef, Durability, KeyspaceId, Revision, Term,
    budget::{self, BudgetSpent},
    command::{Framed, Outcome},
    steps::read_bytes,
};

use crate::{
    ack::Ack,
    digests::Digests,
    error::{ReadError, WriteError, holds, refusal},
    fetch_gate::FetchGate,
    install_slot::InstallPermit,
    maintenance_counts::Maintenance,
    open::Opened,
    options::Options,
    scrub::Scrub,
    value_reads,
};

/// Data of an open database that all its handles share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Scrub of the log and the state. It is declared first, so it is dropped, and ends, before the directory is
    /// released.
    pub(crate) scrub: Scrub,
    pub(crate) open: Opened,
    pub(crate) options: Options,
    pub(crate) totals: Mutex<Maintenance>,
    /// Count of open snapshots. While it is above 0, no log segment is freed, unless the disk is full.
    pub(crate) snapshots: Arc<Pins>,
    pub(crate) snapshot_counters: Arc<Counters>,
    /// Permit for installing a snapshot: at most one install runs at a time.
    pub(crate) installs: Arc<InstallPermit>,
    /// Number of state views taken for Redis commands since the database was opened.
    pub(crate) redis_views: AtomicU64,
    /// Decides if the rows that commands will read are looked up before the commands are proposed.
    pub(crate) fetch_gate: FetchGate,
    /// Message of the error in the last round of maintenance; `None` if that round succeeded.
    pub(crate) maintenance_error: Mutex<Option<String>>,
    pub(crate) digests: Digests,
    /// Index of the first entry that a live follower still needs from the log; `u64::MAX` if none does.
    pub(crate) follower_floor: AtomicU64,
    /// Most serious reason so far for which this member has stopped serving.
    pub(crate) stopped: OnceLock<Mutex<String>>,
    pub(crate) closed: AtomicBool,
    /// True once the last handle of the database is dropped. Only threads that are about to end use the data then.
    pub(crate) is_released: AtomicBool,
}

impl Inner {
    pub(crate) fn free_bytes(&self) -> u64 {
        self.open.disk.free_bytes().unwrap_or(u64::MAX)
    }

    /// Returns true if the database rejects new data for lack of space, or will do so when the segment in use is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.open.log.short_bytes() > 0
    }

    /// Returns false once the last handle of the database is dropped.
    pub(crate) fn has_handles(&self) -> bool {
        !self.is_released.load(Ordering::Acquire)
    }

    /// Returns an error if this member has stopped serving.
    #[inline]
    pub(crate) fn check_serving(&self) -> Result<(), WriteError> {
        if self.stopped.get().is_none() {
            return Ok(());
        }
        Err(WriteError::StoppedServing { reason: self.stop_reason().unwrap_or_default() })
    }

    /// Returns the reason why this member has stopped serving; `None` if it serves.
    pub(crate) fn stop_reason(&self) -> Option<String> {
        let reason = self.stopped.get()?;
        Some(reason.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Records the error of a round of maintenance for [`Stats`]; `None` records a success.
    pub(crate) fn record_maintenance(&self, error: Option<&WriteError>) {
        *self.maintenance_error.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }

    pub(crate) fn maintenance_error(&self) -> Option<String> {
        self.maintenance_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Encodes a command into the buffer of the calling thread, and proposes it. Blocks until the command has reached
    /// `level`.
    #[inline]
    pub(crate) fn propose<E>(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Committed, WriteError>
    where
        WriteError: From<E>,
    {
        self.check_serving()?;
        COMMAND.with_borrow_mut(|command| {
            command.encode(encode)?;
            let committed = self.propose_then(command, level, purpose, Committed::take);
            command.shrink(MAX_KEPT_COMMAND_BYTES);
            Ok(committed?)
        })
    }

    /// Proposes an encoded command. If the command must wait in the queue, estimates the cost of values that it reads.
    #[inline]
    fn propose_then<T>(
        &self,
        command: &Framed,
        level: Durability,
        purpose: Purpose,
        then: impl FnOnce(Durability, Option<&mut Outcome>) -> T,
    ) -> Result<T, ProposeError> {
        let value_reads = || value_reads::of_framed(&self.open.machine, command);
        self.open.replica.propose_then(command, level, purpose, value_reads, then)
    }

    /// Proposes a maintenance command that this node formed as the leader of `term`. If the term has changed, the
    /// command is refused and nothing is written. On a single node the first poll of the future commits the command, as
    /// [`propose`](Self::propose) does.
    pub(crate) async fn propose_work<E>(
        &self,
        term: Term,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Committed, WriteError>
    where
        WriteError: From<E>,
    {
        if self.open.replica.member().is_none() {
            return self.propose(level, purpose, encode);
        }
        self.check_serving()?;
        let mut command = Framed::new();
        command.encode(encode)?;
        let origin = Origin { term: Some(term), ..Origin::default() };
        Ok(self.open.replica.propose_async_from(origin, command, level, purpose, Wake::Now)?.await?)
    }

    /// Proposes a command whose successful outcome is an [`Ack`]; see [`propose`](Self::propose).
    #[inline]
    pub(crate) fn propose_for_ack<E>(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Ack, WriteError>
    where
        WriteError: From<E>,
    {
        self.check_serving()?;
        let mut ack = Ack { durability: level, revision: None, appends: Vec::new(), duplicate: false };
        COMMAND.with_borrow_mut(|command| {
            command.encode(encode)?;
            let proposed = self.propose_then(command, level, purpose, |durability, outcome| {
                ack.durability = durability;
                ack.take(outcome)
            });
            command.shrink(MAX_KEPT_COMMAND_BYTES);
            match proposed {
                Ok(None) => Ok(()),
                Ok(Some(outcome)) => refusal(outcome).map(drop),
                Err(error) => Err(<WriteError as From<ProposeError>>::from(error)),
            }
        })?;
        Ok(ack)
    }

    /// Reads the bytes of a value that stays in the log. If the segment is gone, the node has moved the bytes before it
    /// freed the segment; then the new pointer is looked up in the state. If the key has a newer revision by then, the
    /// value is read from the key's history, if it is kept there.
    pub(crate) fn resolve(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        blob: BlobRef,
    ) -> Result<Bytes, ReadError> {
        if budget::charge(read_bytes(blob.len as usize)).is_break() {
            return Err(ReadError::Io(BudgetSpent::Steps.to_string()));
        }
        let mut blob = blob;
        loop {
            match self.open.log.read_blob(&blob) {
                Err(thalweg_log::ReadError::Gone { .. }) => {}
                read => return Ok(read?),
            }
            // The value may have expired. It is not hidden here, because the view shows all keys that had not expired
            // when it was taken.
            let now = self.open.machine.stored(keyspace, key)?;
            match now {
                Some(stored) if stored.revision == revision => match stored.value {
                    StoredValue::Blob(moved) if moved != blob => blob = moved,
                    StoredValue::Blob(_) => {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {}", blob.generation)));
                    }
                    StoredValue::Inline(bytes) => return Ok(bytes),
                    StoredValue::Collection(collection) => return Err(holds(&collection)),
                },
                // The value has been replaced. It is still readable if the keyspace keeps history.
                _ => match self.open.machine.read_view().version(keyspace, key, revision)? {
                    Some(StoredValue::Blob(moved)) if moved != blob => blob = moved,
                    Some(StoredValue::Blob(_)) => {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {}", blob.generation)));
                    }
                    Some(StoredValue::Inline(bytes)) => return Ok(bytes),
                    Some(StoredValue::Collection(collection)) => return Err(holds(&collection)),
                    None => return Err(ReadError::ViewExpired),
                },
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.open.replica.close();
        self.open.tails.close();
        self.open.watches.close();
    }
}

/// Size in bytes above which a thread's command buffer is released after a call.
const MAX_KEPT_COMMAND_BYTES: usize = 256 * 1024;

thread_local! {
    static COMMAND: RefCell<Framed> = RefCell::default();
}
