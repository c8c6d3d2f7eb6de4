//! Push: deliveries that come by themselves, as far as the receiver's credit goes.
//!
//! A receiver says once how much it may hold unsettled, in records and in bytes. A delivery takes of that
//! credit; what is acked, given back or lapses returns to it. So a receiver that works on what it has is
//! sent nothing more, and one that is fast is never waited for.
//!
//! Owns: the account ([`Ledger`]) and the waiting. Does not own timers (they are an argument), nor what
//! happens when a receiver goes away: what it holds lapses at its deadline, unless
//! [`Push::give_back`] is called.
//!
//! Bounds: [`MAX_CREDIT_RECORDS`] and [`MAX_CREDIT_BYTES`]; a delivery begins while some credit is left and
//! carries at least one record, so the last one may exceed the bytes by a record.

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
    command::groups::{Again, Settlement},
    limits::{MAX_CREDIT_BYTES, MAX_CREDIT_RECORDS, MAX_FETCH_RECORDS},
};

use super::{Delivery, FetchRequest, Group, GroupError, delivery::record_bytes};
use crate::{
    async_database::{AsyncDatabase, Registration},
    database::check_outcome_known,
    error::ReadError,
    tails::Waiter,
};

/// What a receiver may hold unsettled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// At most so many records, at least 1 and at most [`MAX_CREDIT_RECORDS`].
    pub records: u32,
    /// At most so many bytes of keys, headers and payloads, and at most [`MAX_CREDIT_BYTES`].
    pub bytes: u64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { records: 100, bytes: 4 << 20 }
    }
}

/// To whom deliveries are pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushRequest {
    /// The member's name.
    pub member: String,
    /// What it may hold unsettled.
    pub credit: Credit,
    /// Most bytes of one delivery: what is in memory on its way.
    pub max_delivery_bytes: u64,
}

/// A fetch under way.
type Fetching = Pin<Box<dyn Future<Output = Result<Delivery, GroupError>> + Send>>;

/// Deliveries to one receiver. See the module's documentation.
pub struct Push {
    db: AsyncDatabase,
    group: Group,
    request: FetchRequest,
    max_delivery_bytes: u64,
    max_delivery_records: u32,
    level: Durability,
    ledger: Ledger,
    /// Kept over a cancelled [`next`](Self::next), so that no delivery is lost with it.
    fetching: Option<Fetching>,
}

/// Why a push waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Nothing is there to be delivered.
    ForRecords,
    /// The receiver holds all that it may.
    ForCredit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// So many records and bytes may be delivered, and something is there.
    Deliver(u32, u64),
    /// Not before this time, unless somebody settles, appends or gives back.
    Wait(Waits, Option<SpaceTime>),
    Closed,
}

impl AsyncDatabase {
    /// Begins to push a group's records to a member. Each delivery is a fetch that reaches `level`.
    ///
    /// # Errors
    /// At level `none` nobody would know what was delivered.
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
    /// The next delivery; `None` when the database closes. `sleep` makes a timer.
    ///
    /// It may be dropped before it is ready, and called again: nothing is lost.
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
                    self.ledger.enter(&delivery)?;
                    return Ok(Some(delivery));
                }
            }
            match self.look()? {
                Look::Closed => return Ok(None),
                Look::Deliver(records, bytes) => {
                    self.request.max_records = records.min(self.max_delivery_records);
                    self.request.max_bytes = bytes.min(self.max_delivery_bytes);
                    self.fetching = Some(Box::pin(self.db.fetch(&self.group, &self.request, self.level)));
                }
                Look::Wait(_, due) => {
                    let now = self.group.db.inner.open.solo.now();
                    let timer = due.map(|due| sleep(Duration::from_micros(due.0.saturating_sub(now.0))));
                    self.wait(due, timer).await?;
                }
            }
        }
    }

    /// The next delivery brings at most so many records, unless it is under way.
    pub fn limit_delivery(&mut self, max_records: u64) {
        self.max_delivery_records = u32::try_from(max_records).unwrap_or(u32::MAX).clamp(1, MAX_FETCH_RECORDS);
    }

    /// The next delivery brings at most so many bytes, or one record, unless it is under way.
    pub fn limit_delivery_bytes(&mut self, max_bytes: u64) {
        self.max_delivery_bytes = max_bytes.max(1);
    }

    /// What the receiver may hold unsettled.
    #[must_use]
    pub fn credit(&self) -> Credit {
        self.ledger.credit
    }

    /// What it waits for, if it does.
    pub fn waits(&mut self) -> Result<Option<Waits>, GroupError> {
        Ok(match self.look()? {
            Look::Wait(waits, _) => Some(waits),
            Look::Deliver(..) | Look::Closed => None,
        })
    }

    /// Gives back what the receiver has not settled, because it is gone. The deliveries count, so a record that
    /// its receivers die of ends as a dead letter. Nobody need wait for it: what is not given back lapses.
    pub fn give_back(&mut self, reason: &str) -> Result<(), GroupError> {
        let held = self.group.held(&self.ledger.attempts())?;
        let settlements: Vec<_> =
            held.iter().filter(|held| !held.runs.is_empty()).map(|held| Settlement::all(held.attempt)).collect();
        if !settlements.is_empty() {
            let again = Again::After(Duration::ZERO);
            drop(self.db.nack_group(&self.group, &settlements, again, reason, Durability::Os));
        }
        self.ledger.clear();
        Ok(())
    }

    fn look(&mut self) -> Result<Look, GroupError> {
        if self.group.db.inner.open.tails.is_closed() {
            return Ok(Look::Closed);
        }
        let held = self.group.held(&self.ledger.attempts())?;
        self.ledger.settle(&held);
        let lapses = held.iter().filter(|held| !held.runs.is_empty()).map(|held| held.deadline).min();
        match (self.ledger.free(), self.group.due()?) {
            (Some((records, bytes)), Due::Now) => Ok(Look::Deliver(records, bytes)),
            (Some(_), Due::At(due)) => Ok(Look::Wait(Waits::ForRecords, due)),
            (None, _) => Ok(Look::Wait(Waits::ForCredit, lapses)),
        }
    }

    /// Until another look may show something else.
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
            // Looked at after the registration: what comes later wakes.
            match self.look() {
                Ok(Look::Wait(_, still_due)) if still_due == due => {}
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

/// What a receiver holds unsettled, against what it may.
#[derive(Debug)]
struct Ledger {
    credit: Credit,
    /// By attempt, each with the sizes of its unsettled records by offset; none is empty.
    held: Vec<(Attempt, Vec<(Offset, u64)>)>,
    /// Sums over `held`.
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

    /// How many records and bytes may still be delivered; `None` if nothing may.
    fn free(&self) -> Option<(u32, u64)> {
        let records = u64::from(self.credit.records).checked_sub(self.records).filter(|records| *records > 0)?;
        let bytes = self.credit.bytes.checked_sub(self.bytes).filter(|bytes| *bytes > 0)?;
        // Not above the credit, which is a u32.
        Some((records as u32, bytes))
    }

    fn enter(&mut self, delivery: &Delivery) -> Result<(), ReadError> {
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

    /// Strikes what is not held any more. `still` is about the attempts of `held`, in their order.
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

/// When a fetch would bring something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// `None` if nothing comes free by itself.
    At(Option<SpaceTime>),
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
