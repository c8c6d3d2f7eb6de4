//! Push: the engine delivers a consumer group's records as they arrive, within the receiver's credit.
//!
//! A receiver states once how many records and bytes it may hold unsettled: its credit. A delivery uses up credit. The
//! credit comes back when records are acked or returned, or when their ack deadline passes. A busy receiver is
//! therefore sent no more records, and a fast receiver never waits.
//!
//! Owns: the account of used credit ([`Ledger`]) and the waiting. Does not own: timers (they are an argument), or the
//! check that a receiver is still connected. The records of a receiver that has disconnected are redelivered after
//! their ack deadline, or after a call of [`Push::return_records`]. A caller that must not wait for the disk performs
//! the fetches itself ([`Push::next_request`]).
//!
//! Bounds: [`MAX_CREDIT_RECORDS`] and [`MAX_CREDIT_BYTES`]. A delivery begins while some credit is left, and carries at
//! least one record. So the last delivery may exceed the credit's bytes by one record.

use std::{
    future::{self, Future},
    ops::ControlFlow,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use thalweg_state::groups::HeldAttempt;
use thalweg_types::{
    Attempt, Durability, Offset, SpaceTime,
    command::groups::{Redelivery, Settlement},
    limits::{MAX_CREDIT_BYTES, MAX_CREDIT_RECORDS, MAX_FETCH_RECORDS},
};

use super::{Delivery, FetchRequest, Group, GroupError, delivery::record_bytes, due::DeliveryDue};
use crate::{
    ack::check_outcome_known,
    async_database::{AsyncDatabase, Registration},
    error::ReadError,
    tails::Waiter,
};

/// Number of records and bytes that a receiver may hold unsettled (neither acked nor returned).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Maximum number of unsettled records, between 1 and [`MAX_CREDIT_RECORDS`].
    pub records: u32,
    /// Maximum bytes of keys, headers and payloads of unsettled records, at most [`MAX_CREDIT_BYTES`].
    pub bytes: u64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { records: 100, bytes: 4 << 20 }
    }
}

/// Parameters for pushing the records of a consumer group to one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushRequest {
    /// Name of the member as which the receiver takes part in the group.
    pub member: String,
    /// Number of records and bytes that the member may hold unsettled.
    pub credit: Credit,
    /// Maximum number of bytes of one delivery, which bounds its memory.
    pub max_delivery_bytes: u64,
}

/// Future of a fetch in progress.
type Fetching = Pin<Box<dyn Future<Output = Result<Delivery, GroupError>> + Send>>;

/// A push: a subscription that delivers a consumer group's records to one receiver. See the module's documentation.
pub struct Push {
    db: AsyncDatabase,
    group: Group,
    request: FetchRequest,
    max_delivery_bytes: u64,
    max_delivery_records: u32,
    level: Durability,
    ledger: Ledger,
    /// Fetch in progress. It is kept if the future of [`next`](Self::next) is dropped, so that its delivery is not
    /// lost.
    fetching: Option<Fetching>,
}

/// Reason why a push (a subscription to a group's records) delivers none now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushWait {
    /// The consumer group has no records to deliver.
    ForRecords,
    /// The receiver has no credit left: it holds its maximum of unsettled records or bytes.
    ForCredit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PushStep {
    /// The group has records to deliver. The receiver's credit permits this number of records and of bytes.
    Deliver(u32, u64),
    /// No delivery is possible before this time (`None`: ever), unless records are settled, appended or returned.
    Wait(PushWait, Option<SpaceTime>),
    Closed,
}

impl AsyncDatabase {
    /// Begins to push a group's records to a member. Each delivery is a fetch command that reaches the durability
    /// `level`.
    ///
    /// # Errors
    /// The level is `none`, at which the delivered records would be unknown.
    pub fn push(&self, group: &Group, request: PushRequest, level: Durability) -> Result<Push, GroupError> {
        check_outcome_known(true, level)?;
        let PushRequest { member, credit, max_delivery_bytes } = request;
        Ok(Push {
            db: self.clone(),
            group: group.clone(),
            request: FetchRequest { member, ..FetchRequest::default() },
            max_delivery_bytes: max_delivery_bytes.max(1),
            max_delivery_records: MAX_FETCH_RECORDS,
            level,
            ledger: Ledger::new(credit),
            fetching: None,
        })
    }
}

impl Push {
    /// Waits for the next delivery; returns `None` when the database closes. `sleep` creates a timer. Records are read
    /// on the calling thread, mostly from memory or the page cache.
    ///
    /// The caller may drop the future before it is ready, and call `next` again: no delivery is lost.
    ///
    /// # Errors
    /// The group or its stream is gone, or a fetch failed.
    pub async fn next<S: Future<Output = ()>>(
        &mut self,
        mut sleep: impl FnMut(Duration) -> S,
    ) -> Result<Option<Delivery>, GroupError> {
        loop {
            if let Some(fetching) = &mut self.fetching {
                let fetched = fetching.as_mut().await;
                self.fetching = None;
                let delivery = fetched?;
                if !delivery.is_empty() {
                    self.enter_delivery(&delivery)?;
                    return Ok(Some(delivery));
                }
            }
            let Some(request) = self.next_request(&mut sleep).await? else { return Ok(None) };
            self.fetching = Some(Box::pin(self.db.fetch(&self.group, &request, self.level)));
        }
    }

    /// Waits until the group has records to deliver and the receiver has credit, and returns the request for the next
    /// fetch; `None` when the database closes. A caller uses this instead of [`next`](Self::next) to choose the threads
    /// that read the log: it performs the fetch, and [enters](Self::enter_delivery) the delivery before it waits again.
    ///
    /// The caller may drop the future before it is ready, and call `next_request` again.
    ///
    /// # Errors
    /// The group or its stream is gone.
    pub async fn next_request<S: Future<Output = ()>>(
        &mut self,
        mut sleep: impl FnMut(Duration) -> S,
    ) -> Result<Option<FetchRequest>, GroupError> {
        loop {
            match self.next_step()? {
                PushStep::Closed => return Ok(None),
                PushStep::Deliver(records, bytes) => {
                    self.request.max_records = records.min(self.max_delivery_records);
                    self.request.max_bytes = bytes.min(self.max_delivery_bytes);
                    return Ok(Some(self.request.clone()));
                }
                PushStep::Wait(_, due) => {
                    let now = self.group.db.inner.open.replica.now();
                    let timer = due.map(|due| sleep(Duration::from_micros(due.0.saturating_sub(now.0))));
                    self.wait(due, timer).await?;
                }
            }
        }
    }

    /// Counts the records of a delivery against the receiver's credit until they are acked or nacked. The delivery must
    /// have records.
    ///
    /// # Errors
    /// The records do not decode.
    pub fn enter_delivery(&mut self, delivery: &Delivery) -> Result<(), GroupError> {
        Ok(self.ledger.add_delivery(delivery)?)
    }

    /// Returns the group whose records are pushed.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Durability level that each delivery reaches.
    #[must_use]
    pub fn level(&self) -> Durability {
        self.level
    }

    /// Limits the number of records in later deliveries; a delivery in progress is not affected.
    pub fn limit_delivery(&mut self, max_records: u64) {
        self.max_delivery_records = u32::try_from(max_records).unwrap_or(u32::MAX).clamp(1, MAX_FETCH_RECORDS);
    }

    /// Limits the bytes of records in later deliveries, which still carry at least one record; a delivery in progress
    /// is not affected.
    pub fn limit_delivery_bytes(&mut self, max_bytes: u64) {
        self.max_delivery_bytes = max_bytes.max(1);
    }

    /// Number of records and bytes that the receiver may hold unsettled.
    #[must_use]
    pub fn credit(&self) -> Credit {
        self.ledger.credit
    }

    /// Returns the reason why the push cannot deliver records now; `None` if it can.
    pub fn waits(&mut self) -> Result<Option<PushWait>, GroupError> {
        Ok(match self.next_step()? {
            PushStep::Wait(waits, _) => Some(waits),
            PushStep::Deliver(..) | PushStep::Closed => None,
        })
    }

    /// Returns the records of one delivery to the group, because the caller cannot pass them on now. This delivery of
    /// the records is not counted. The caller need not wait for the result: records that are not returned can be
    /// redelivered after their ack deadline.
    pub fn return_delivery(&self, attempt: Attempt) {
        let settlements = [Settlement::all(attempt)];
        drop(self.db.nack_group(&self.group, &settlements, Redelivery::Uncounted, "", Durability::Os));
    }

    /// Returns all unsettled records to the group, because the receiver has disconnected. Their deliveries stay
    /// counted, so a record that crashes its receivers becomes a dead letter. The caller need not wait for the result:
    /// records that are not returned can be redelivered after their ack deadline.
    pub fn return_records(&mut self, reason: &str) -> Result<(), GroupError> {
        let held = self.group.held(&self.ledger.attempts())?;
        let settlements: Vec<_> =
            held.iter().filter(|held| !held.runs.is_empty()).map(|held| Settlement::all(held.attempt)).collect();
        if !settlements.is_empty() {
            let again = Redelivery::After(Duration::ZERO);
            drop(self.db.nack_group(&self.group, &settlements, again, reason, Durability::Os));
        }
        self.ledger.clear();
        Ok(())
    }

    fn next_step(&mut self) -> Result<PushStep, GroupError> {
        if self.group.db.inner.open.tails.is_closed() {
            return Ok(PushStep::Closed);
        }
        let held = self.group.held(&self.ledger.attempts())?;
        self.ledger.settle(&held);
        let lapses = held.iter().filter(|held| !held.runs.is_empty()).map(|held| held.deadline).min();
        match (self.ledger.free(), self.group.due()?) {
            (Some((records, bytes)), DeliveryDue::Now) => Ok(PushStep::Deliver(records, bytes)),
            (Some(_), DeliveryDue::At(due)) => Ok(PushStep::Wait(PushWait::ForRecords, due)),
            (None, _) => Ok(PushStep::Wait(PushWait::ForCredit, lapses)),
        }
    }

    /// Waits until the group may have records to deliver, or until the receiver may have credit again.
    async fn wait<S: Future<Output = ()>>(
        &mut self,
        due: Option<SpaceTime>,
        timer: Option<S>,
    ) -> Result<(), GroupError> {
        let registration = Registration::new(self.db.blocking(), self.group.stream);
        let _waiter = self.ledger.free().is_none().then(|| self.group.db.inner.open.machine.wake_at_settlements());
        let mut timer = pin!(timer);
        future::poll_fn(|context| {
            registration.register(Waiter::Task(context.waker().clone()));
            // Check after the registration: later events wake this task.
            match self.next_step() {
                Ok(PushStep::Wait(_, still_due)) if still_due == due => {}
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
            match timer.as_mut().as_pin_mut() {
                Some(timer) => timer.poll(context).map(Ok),
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl std::fmt::Debug for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Push").field("group", &self.group.id).field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

/// Account of the records that a receiver holds unsettled, compared with its credit.
#[derive(Debug)]
struct Ledger {
    credit: Credit,
    /// Offsets and sizes in bytes of each delivery attempt's records without ack or nack; no list is empty.
    held: Vec<(Attempt, Vec<(Offset, u64)>)>,
    /// Number of records in all lists of `held`, which are those that the receiver holds unsettled.
    records: u64,
    bytes: u64,
}

impl Ledger {
    fn new(credit: Credit) -> Self {
        let credit = Credit {
            records: credit.records.clamp(1, MAX_CREDIT_RECORDS),
            bytes: credit.bytes.clamp(1, MAX_CREDIT_BYTES),
        };
        Self { credit, held: Vec::new(), records: 0, bytes: 0 }
    }

    fn attempts(&self) -> Vec<Attempt> {
        self.held.iter().map(|(attempt, _)| *attempt).collect()
    }

    /// Returns the number of records and of bytes that the credit still permits; `None` if either is used up.
    fn free(&self) -> Option<(u32, u64)> {
        let records = u64::from(self.credit.records).checked_sub(self.records).filter(|records| *records > 0)?;
        let bytes = self.credit.bytes.checked_sub(self.bytes).filter(|bytes| *bytes > 0)?;
        // The number is at most the credit, which is a u32.
        Some((records as u32, bytes))
    }

    fn add_delivery(&mut self, delivery: &Delivery) -> Result<(), ReadError> {
        let mut sizes = Vec::new();
        delivery.for_each(&mut |message| {
            sizes.push((message.offset, record_bytes(message.record)));
            ControlFlow::Continue(())
        })?;
        self.enter_sizes(delivery.attempt, sizes);
        Ok(())
    }

    fn enter_sizes(&mut self, attempt: Attempt, sizes: Vec<(Offset, u64)>) {
        self.records += sizes.len() as u64;
        self.bytes += sizes.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.held.push((attempt, sizes));
    }

    /// Updates the account of unsettled records to those that the receiver still holds, and so frees the credit of the
    /// others. `still` lists these records for each attempt of `held`, in the same order.
    fn settle(&mut self, still: &[HeldAttempt]) {
        for ((attempt, sizes), still) in self.held.iter_mut().zip(still) {
            debug_assert_eq!(*attempt, still.attempt);
            if sizes.len() as u64 == still.records() {
                continue;
            }
            let mut runs = still.runs.iter().peekable();
            sizes.retain(|(offset, _)| {
                while runs.next_if(|run| run.end() <= *offset).is_some() {}
                runs.peek().is_some_and(|run| run.first <= *offset)
            });
        }
        self.held.retain(|(_, sizes)| !sizes.is_empty());
        let sizes = || self.held.iter().flat_map(|(_, sizes)| sizes);
        (self.records, self.bytes) = (sizes().count() as u64, sizes().map(|(_, bytes)| bytes).sum());
    }

    fn clear(&mut self) {
        self.held.clear();
        (self.records, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::command::groups::OffsetRun;

    use super::*;

    fn still(attempt: u64, runs: &[(u64, u32)]) -> HeldAttempt {
        let runs = runs.iter().map(|&(first, count)| OffsetRun { first: Offset(first), count }).collect();
        HeldAttempt { attempt: Attempt(attempt), deadline: SpaceTime(9), runs }
    }

    #[test]
    fn credit_is_taken_by_deliveries_and_comes_back_with_settlements() {
        let mut ledger = Ledger::new(Credit { records: 5, bytes: 100 });
        assert_eq!(ledger.free(), Some((5, 100)));
        ledger.enter_sizes(Attempt(1), vec![(Offset(0), 10), (Offset(1), 20), (Offset(4), 30)]);
        assert_eq!(ledger.free(), Some((2, 40)));
        ledger.enter_sizes(Attempt(2), vec![(Offset(5), 1), (Offset(6), 1)]);
        assert_eq!(ledger.free(), None, "five records");
        ledger.settle(&[still(1, &[(1, 1), (4, 1)]), still(2, &[(5, 2)])]);
        assert_eq!(ledger.free(), Some((1, 48)));
        ledger.settle(&[still(1, &[(4, 1)]), still(2, &[])]);
        assert_eq!((ledger.free(), ledger.attempts()), (Some((4, 70)), vec![Attempt(1)]));
        ledger.enter_sizes(Attempt(3), vec![(Offset(7), 90)]);
        assert_eq!(ledger.free(), None, "over the bytes, by one record");
        ledger.settle(&[still(1, &[]), still(3, &[])]);
        assert_eq!(ledger.free(), Some((5, 100)));
    }

    #[test]
    fn credit_has_bounds() {
        let free = |records, bytes| Ledger::new(Credit { records, bytes }).free();
        assert_eq!(free(0, 0), Some((1, 1)));
        assert_eq!(free(u32::MAX, u64::MAX), Some((MAX_CREDIT_RECORDS, MAX_CREDIT_BYTES)));
    }
}
