//! Fetching from a consumer group: the lookups before a fetch is proposed, waiting for records, and reading the
//! delivered records.
//!
//! Owns: `FetchRequest`, the facts about the stream that a fetch command contains, the wait of a blocked thread, and
//! the acks of records that are gone and nacks of records beyond the byte limit. Does not own: waiting as a future
//! (`asynchronous`), or the decoding of delivered records (`delivery`).
//!
//! A fetch is a command: when its entry is applied, the state machine decides which records are delivered. The engine
//! proposes a fetch only when the state reports that it would deliver records, so waiting members cost nothing.
//!
//! Bound: at most [`MAX_WAITING_FETCHES`](thalweg_types::limits::MAX_WAITING_FETCHES) fetches wait at a time. A further
//! fetch that would have to wait is rejected.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_types::{
    Durability, GroupId, Offset,
    budget::{self, BudgetSpent},
    command::{
        CommandError, Outcome,
        groups::{
            Fetched, GroupOrder, GroupOutcome, Redelivery, Settlement, encode_ack, encode_fetch, encode_nack, key_hash,
        },
    },
    limits::{MAX_FETCH_KEYS, MAX_FETCH_RECORDS},
};

use super::{Delivery, Group, GroupError, Ready, delivery::Reading, group_outcome};
use crate::{
    ack::{check_outcome_known, unexpected},
    error::{ReadError, WriteError},
    tails::Waiter,
};

/// Maximum number of batches examined to estimate how many records fit into the byte limit of a fetch.
const MAX_BATCHES_AHEAD: usize = 1024;

/// Parameters of a fetch from a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Name of the member that fetches, chosen by the caller and shown by [`Group::info`].
    pub member: String,
    /// Maximum number of records to deliver, at most [`MAX_FETCH_RECORDS`].
    pub max_records: u32,
    /// Maximum number of bytes of keys, headers and payloads to deliver. At least one record is delivered, however
    /// large it is.
    pub max_bytes: u64,
    /// Longest time to wait for the first record; with zero the fetch does not wait.
    pub wait: Duration,
}

impl Default for FetchRequest {
    fn default() -> Self {
        Self { member: "default".to_owned(), max_records: 100, max_bytes: 4 << 20, wait: Duration::ZERO }
    }
}

impl Group {
    /// Delivers records to a member. Records that were returned to the group come first, then new records. The delivery
    /// is empty if no records arrived within the waiting time of the request, or if the database closed.
    pub fn fetch(&self, request: &FetchRequest) -> Result<Delivery, GroupError> {
        check_outcome_known(true, self.db.durability())?;
        let until = Instant::now().checked_add(request.wait);
        let mut waiting = None;
        loop {
            match self.ready()? {
                Ready::Now => {
                    let delivery = self.fetch_once(request)?;
                    if !delivery.is_empty() {
                        return Ok(delivery);
                    }
                }
                // A fetch with a wait of zero does not count as waiting.
                Ready::In(_) if request.wait.is_zero() => return Ok(Delivery::none(self.db.durability())),
                Ready::In(due) => {
                    if waiting.is_none() {
                        waiting = Some(self.db.inner.open.waits.enter().ok_or(GroupError::TooManyWaiting)?);
                    }
                    if !self.park(due, until)? {
                        return Ok(Delivery::none(self.db.durability()));
                    }
                }
            }
            if until.is_some_and(|until| Instant::now() >= until) && self.ready()? != Ready::Now {
                return Ok(Delivery::none(self.db.durability()));
            }
        }
    }

    /// Parks the thread until records may be available. Returns false if the time to wait is over or the database is
    /// closed.
    fn park(&self, due: Option<Duration>, until: Option<Instant>) -> Result<bool, GroupError> {
        let tails = &self.db.inner.open.tails;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if tails.is_closed() || left == Some(Duration::ZERO) {
            return Ok(false);
        }
        let ticket = tails.ticket();
        tails.register(self.stream, ticket, Waiter::Thread(thread::current()));
        // No event between the last check and the registration has woken this thread, so check again.
        if self.ready()? != Ready::Now && !tails.is_closed() {
            match left.into_iter().chain(due).min() {
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
        tails.unregister(self.stream, ticket);
        Ok(true)
    }

    fn fetch_once(&self, request: &FetchRequest) -> Result<Delivery, GroupError> {
        let prepared = PreparedFetch::new(self, request)?;
        let encode = |out: &mut Vec<u8>| prepared.encode(out);
        let committed = self.db.inner.propose(self.db.durability(), Purpose::Data, encode)?;
        let (fetched, durability) = fetched(committed)?;
        self.read(request, &fetched, durability, |purpose, encode| {
            self.db.inner.propose(Durability::Os, purpose, encode).map(drop)
        })
    }

    /// Estimates from the sizes of batches how many records from the offset `window` on fit into the byte limit. If the
    /// estimate is too high, the records beyond the limit go back to the group after the read.
    fn records_that_fit(&self, window: Offset, most: u32, request: &FetchRequest) -> u32 {
        let max_batches = (most as usize).min(MAX_BATCHES_AHEAD);
        let machine = &self.db.inner.open.machine;
        let Ok(found) = machine.batches_from(self.stream, window, max_batches, request.max_bytes) else { return most };
        let mut bytes = 0;
        for batch in &found.batches {
            let len = u64::from(batch.blob.len);
            if bytes + len > request.max_bytes {
                // The estimate assumes that the records of a batch are equally large.
                let share = u64::from(batch.count) * (request.max_bytes - bytes) / len;
                let fitting = batch.first.0.saturating_sub(window.0) + share;
                return most.min(u32::try_from(fitting).unwrap_or(most)).max(1);
            }
            bytes += len;
        }
        most
    }

    /// Returns the hashes of the keys of the records from the offset `window` on. Looks up more records than one fetch
    /// delivers, because some records may have to wait behind earlier records with the same key.
    fn keys_from(&self, window: Offset, most: u32, max_bytes: u64) -> Result<Vec<u64>, GroupError> {
        let wanted = (most as usize * 4).min(MAX_FETCH_KEYS);
        let page = match self.stream().read(window, wanted as u64, max_bytes) {
            // The stream was trimmed between two reads. The next attempt begins at the new start.
            Err(ReadError::Trimmed { .. }) => return Ok(Vec::new()),
            page => page?,
        };
        let mut keys = vec![0; page.next.0.saturating_sub(window.0).min(wanted as u64) as usize];
        page.for_each(&mut |offset, _, record| {
            let at = usize::try_from(offset.0.saturating_sub(window.0)).ok();
            if let Some(key) = at.and_then(|at| keys.get_mut(at)) {
                *key = record.key.map_or(0, key_hash);
            }
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// Reads the delivered records from the log. Records that no longer exist are acked, and those beyond the byte
    /// limit are returned to the group. `settle` proposes these acks and nacks; the caller need not wait for them.
    pub(crate) fn read(
        &self,
        request: &FetchRequest,
        fetched: &Fetched,
        durability: Durability,
        mut settle: impl FnMut(Purpose, &dyn Fn(&mut Vec<u8>) -> Result<(), CommandError>) -> Result<(), WriteError>,
    ) -> Result<Delivery, GroupError> {
        let mut reading = Reading::new(request.max_bytes);
        let stream = self.stream();
        for delivered in &fetched.deliveries {
            reading.read(&stream, delivered)?;
        }
        if budget::is_spent() {
            // If the budget was spent, the read ended early, and unread records would be taken for missing ones.
            return Err(ReadError::Io(BudgetSpent::Steps.to_string()).into());
        }
        let take = |runs: &mut Vec<_>| Settlement { attempt: fetched.attempt, runs: std::mem::take(runs) };
        if !reading.missing.is_empty() {
            let gone = [take(&mut reading.missing)];
            settle(Purpose::Reclaim, &|out| encode_ack(out, self.id, &gone))?;
        }
        if !reading.unread.is_empty() {
            let unread = [take(&mut reading.unread)];
            settle(Purpose::Reclaim, &|out| encode_nack(out, self.id, Redelivery::Uncounted, "", &unread))?;
        }
        Ok(reading.into_delivery(fetched.attempt, fetched.deadline, durability))
    }
}

/// A fetch whose lookups are done. The command needs facts that the stream shows but the state does not: the number of
/// records that fit into the byte limit or, in a group with order per key, the hashes of the next records' keys.
#[derive(Debug)]
pub struct PreparedFetch {
    pub(super) group: Group,
    pub(super) request: FetchRequest,
    max: u32,
    window: Offset,
    keys: Vec<u64>,
    /// Maximum number of records that the fetch delivers for the first time, and that then wait for an ack.
    new_records: u64,
}

impl PreparedFetch {
    /// Looks up the facts for a fetch in the index of the stream; in a group with order per key, also in the log.
    /// Lookups that spend the [budget](thalweg_types::budget) of the thread fail and may be repeated on another thread.
    ///
    /// # Errors
    /// The group or its stream is gone, or the log cannot be read.
    pub fn new(group: &Group, request: &FetchRequest) -> Result<Self, GroupError> {
        let machine = &group.db.inner.open.machine;
        let cursor = machine.group_cursor(group.id).map_err(ReadError::from)?;
        let (_, cursor, config) = cursor.ok_or(GroupError::NoSuchGroup(group.id))?;
        let stream = machine.stream(group.stream).ok_or(ReadError::NoSuchStream(group.stream))?;
        let window = cursor.max(stream.start);
        let most = request.max_records.clamp(1, MAX_FETCH_RECORDS);
        let (max, keys) = match config.order {
            GroupOrder::Competing => (group.records_that_fit(window, most, request), Vec::new()),
            GroupOrder::PerKey => (most, group.keys_from(window, most, request.max_bytes)?),
        };
        let new_records = match config.order {
            GroupOrder::Competing => u64::from(max).min(stream.next.0.saturating_sub(window.0)),
            // Records that are not delivered now wait behind others of their keys, and count too.
            GroupOrder::PerKey => keys.len() as u64,
        };
        Ok(Self { group: group.clone(), request: request.clone(), max, window, keys, new_records })
    }

    /// Id of the consumer group from which the fetch gets records.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group.id
    }

    /// Returns the maximum number of records that the fetch delivers for the first time, and that then wait for an ack.
    #[must_use]
    pub fn new_records(&self) -> u64 {
        self.new_records
    }

    /// Restricts the fetch to records that count as waiting for an ack already, so that it does not increase their
    /// number: records for redelivery, and records behind others with the same key. A member that is new to the group
    /// may join only if the group has fewer than `free_members` members. Returns false if it may not join, or if no
    /// such record can be delivered now.
    pub fn exclude_new(&mut self, free_members: usize) -> Result<bool, GroupError> {
        let open = &self.group.db.inner.open;
        let again = open.machine.deliverable_again(self.group.id, open.replica.now(), self.max);
        let again = again.map_err(ReadError::from)?;
        if again == 0 {
            return Ok(false);
        }
        let info = self.group.info()?;
        if info.config.order == GroupOrder::Competing {
            self.max = again;
        }
        self.keys.clear();
        self.new_records = 0;
        let members = &info.members;
        Ok(members.len() < free_members || members.iter().any(|member| member.name == self.request.member))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Result<(), CommandError> {
        encode_fetch(out, self.group.id, self.max, self.window, &self.keys, &self.request.member)
    }
}

/// Returns the records that a fetch command has delivered, and the durability level that it reached.
pub(crate) fn fetched(committed: Committed) -> Result<(Box<Fetched>, Durability), GroupError> {
    match group_outcome(committed)? {
        (durability, GroupOutcome::Fetched(fetched)) => Ok((fetched, durability)),
        (_, other) => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}
