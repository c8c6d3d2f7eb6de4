//! Consumer groups for callers that must not block: futures for any runtime.
//!
//! Owns: the methods of `AsyncDatabase` about groups, and the delivered records that are not read yet. Does not own:
//! the lookups before a fetch and the reading of its records (`fetch`), or the conversion of outcomes, which the
//! blocking handle shares (`group`).
//!
//! As with the other writes of [`AsyncDatabase`], a request is queued when its method is called. Records are read when
//! the future is polled, mostly from memory or the page cache.

use std::{
    future::{self, Future},
    task::Poll,
    time::Duration,
};

use thalweg_log::Purpose;
use thalweg_replica::Proposal;
use thalweg_types::{
    Attempt, Durability, Offset,
    command::{
        CommandError,
        groups::{
            Fetched, GroupConfig, Redelivery, Settlement, encode_ack, encode_configure_group, encode_create_group,
            encode_delete_group, encode_extend, encode_nack, encode_seek,
        },
    },
};

use super::{
    Delivery, Extended, FetchRequest, Group, GroupError, GroupStart, PreparedFetch, Ready, SettlementResult, extended,
    fetch, seek_result, settled,
};
use crate::{
    ack::{Ack, ack, check_outcome_known},
    async_database::{AsyncDatabase, Registration},
    error::WriteError,
    stream::Stream,
    tails::Waiter,
};

/// Records that a fetch has delivered but not yet read from the log.
#[derive(Debug)]
pub struct UnreadDelivery {
    db: AsyncDatabase,
    group: Group,
    request: FetchRequest,
    fetched: Box<Fetched>,
    level: Durability,
}

impl UnreadDelivery {
    /// Returns the maximum number of bytes of records that the fetch requested. A single record may be larger.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.request.max_bytes
    }

    /// Returns the number of the delivery attempt, for acks and nacks; `None` if no records were delivered.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        (!self.fetched.deliveries.is_empty()).then_some(self.fetched.attempt)
    }

    /// Reads the records. A read that spends the [budget](thalweg_types::budget) of its thread returns an error,
    /// changes nothing, and may be repeated on another thread.
    pub fn read(&self) -> Result<Delivery, GroupError> {
        self.group.read(&self.request, &self.fetched, self.level, |purpose, encode| {
            // No caller waits for this settlement: if it fails, the records are only redelivered later.
            self.db.propose(Durability::Os, purpose, encode).map(drop)
        })
    }
}

impl AsyncDatabase {
    /// Returns the stream's consumer group with this name, and creates it if it is missing. The flag is true if this
    /// call created the group. A start given as a time is looked up on the calling thread, which may read the log.
    pub fn create_group(
        &self,
        stream: &Stream,
        name: &str,
        start: GroupStart,
        config: &GroupConfig,
    ) -> impl Future<Output = Result<(Group, bool), GroupError>> + Send + use<> {
        let level = self.blocking().durability().max(Durability::Os);
        let proposed = stream.resolve(start).map_err(GroupError::from).and_then(|start| {
            let encode = |out: &mut Vec<u8>| encode_create_group(out, stream.id(), name, start, config);
            Ok(self.propose(level, Purpose::Data, encode)?)
        });
        let stream = stream.clone();
        async move { stream.created_group(proposed?.await.map_err(WriteError::from)?) }
    }

    /// Fetches records once, without waiting for them: the field `wait` of the request is ignored. The delivery may be
    /// empty even if [`Group::ready`] returned [`Ready::Now`](super::Ready::Now), because another member may have
    /// fetched first.
    pub fn fetch(
        &self,
        group: &Group,
        request: &FetchRequest,
        level: Durability,
    ) -> impl Future<Output = Result<Delivery, GroupError>> + Send + use<> {
        let fetched = PreparedFetch::new(group, request).map(|prepared| self.fetch_prepared(prepared, level));
        async move { fetched?.await?.read() }
    }

    /// Fetches records like [`fetch`](Self::fetch), but with the lookups of a [`PreparedFetch`], and without reading
    /// the delivered records. So the caller chooses the threads that wait for the disk.
    pub fn fetch_prepared(
        &self,
        prepared: PreparedFetch,
        level: Durability,
    ) -> impl Future<Output = Result<UnreadDelivery, GroupError>> + Send + use<> {
        let proposed = self.propose_for_group(level, Purpose::Data, |out| prepared.encode(out));
        let db = self.clone();
        let PreparedFetch { group, request, .. } = prepared;
        async move {
            let committed = proposed?.await.map_err(WriteError::from)?;
            let (fetched, level) = fetch::fetched(committed)?;
            Ok(UnreadDelivery { db, group, request, fetched, level })
        }
    }

    /// Resolves when a fetch may deliver records, the group is deleted, or the database closes. The end of a record's
    /// ack deadline or redelivery delay does not resolve it, so race it against a timer from [`Group::ready`].
    pub fn group_ready(&self, group: &Group) -> impl Future<Output = Result<(), GroupError>> + Send + use<> {
        let registration = Registration::new(self.blocking(), group.stream);
        let group = group.clone();
        let mut waiting = None;
        future::poll_fn(move |context| {
            let open = &group.db.inner.open;
            registration.register(Waiter::Task(context.waker().clone()));
            match group.ready() {
                Ok(Ready::In(_)) if !open.tails.is_closed() => {}
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
            if waiting.is_none() {
                let Some(entered) = open.waits.enter() else {
                    return Poll::Ready(Err(GroupError::TooManyWaiting));
                };
                waiting = Some(entered);
            }
            Poll::Pending
        })
    }

    /// Acknowledges delivered records: they are processed and will not be redelivered.
    pub fn ack_group(
        &self,
        group: &Group,
        settlements: &[Settlement],
        level: Durability,
    ) -> impl Future<Output = Result<SettlementResult, GroupError>> + Send + use<> {
        let encode = |out: &mut Vec<u8>| encode_ack(out, group.id, settlements);
        let proposed = self.propose_for_group(level, Purpose::Reclaim, encode);
        async move { settled(proposed?.await.map_err(WriteError::from)?) }
    }

    /// Returns delivered records to the group, which redelivers them as `again` says.
    pub fn nack_group(
        &self,
        group: &Group,
        settlements: &[Settlement],
        again: Redelivery,
        reason: &str,
        level: Durability,
    ) -> impl Future<Output = Result<SettlementResult, GroupError>> + Send + use<> {
        let encode = |out: &mut Vec<u8>| encode_nack(out, group.id, again, reason, settlements);
        let proposed = self.propose_for_group(level, Purpose::Reclaim, encode);
        async move { settled(proposed?.await.map_err(WriteError::from)?) }
    }

    /// Sets the ack deadlines of delivery attempts to the time `by` from now.
    pub fn extend_group(
        &self,
        group: &Group,
        attempts: &[Attempt],
        by: Duration,
        level: Durability,
    ) -> impl Future<Output = Result<Extended, GroupError>> + Send + use<> {
        let encode = |out: &mut Vec<u8>| encode_extend(out, group.id, by, attempts);
        let proposed = self.propose_for_group(level, Purpose::Reclaim, encode);
        async move { extended(proposed?.await.map_err(WriteError::from)?) }
    }

    /// Moves the group's cursor (the next offset to deliver). The future resolves to the new cursor. A position given
    /// as a time is looked up on the calling thread, which may read the log.
    pub fn seek_group(
        &self,
        group: &Group,
        to: GroupStart,
        level: Durability,
    ) -> impl Future<Output = Result<Offset, GroupError>> + Send + use<> {
        let resolved = group.stream().resolve(to).map_err(GroupError::from);
        let proposed = resolved.and_then(|offset| {
            self.propose_for_group(level, Purpose::Reclaim, |out| {
                encode_seek(out, group.id, offset);
                Ok(())
            })
        });
        async move { seek_result(proposed?.await.map_err(WriteError::from)?) }
    }

    /// Replaces a group's configuration.
    pub fn configure_group(
        &self,
        group: &Group,
        config: &GroupConfig,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, GroupError>> + Send + use<> {
        let encode = |out: &mut Vec<u8>| encode_configure_group(out, group.id, config);
        let proposed = self.propose_for_group(level, Purpose::Reclaim, encode);
        async move { Ok(ack(proposed?.await.map_err(WriteError::from)?)?) }
    }

    /// Deletes a group.
    pub fn delete_group(
        &self,
        group: &Group,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, GroupError>> + Send + use<> {
        let proposed = self.propose_for_group(level, Purpose::Reclaim, |out| {
            encode_delete_group(out, group.id);
            Ok(())
        });
        async move { Ok(ack(proposed?.await.map_err(WriteError::from)?)?) }
    }

    fn propose_for_group(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<Proposal, GroupError> {
        check_outcome_known(true, level)?;
        Ok(self.propose(level, purpose, encode)?)
    }
}
