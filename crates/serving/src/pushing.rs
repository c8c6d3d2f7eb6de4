//! Pushes of consumer groups to clients, for all protocols, on a node alone and on a member of a cluster.
//!
//! Owns: the fetches of a push, its end when another node becomes the leader, and the return of its records when it
//! ends. Does not own: the format of deliveries, and the credit of a connection.
//!
//! A push fetches as a client does ([`fetching`](crate::fetching)): lookups and reads that take long or wait for the
//! disk run on other threads, and a delivery that is being committed when the push ends goes back to its group.
//!
//! On a member of a cluster, a push ends with [`PushEnd::Moved`] when another node has become the leader, or when a
//! delivery could not be committed because there was no leader. The receiver then requests a push again, and acks the
//! records that it already has. These records stay with the receiver until their ack deadline, even if it disconnects
//! because the leader changed or the node stops. Otherwise the group would deliver them again while the receiver still
//! works on them.

use std::{fmt, future::pending, pin::Pin, sync::Arc, time::Duration};

use http::StatusCode;
use thalweg_engine::{Delivery, GroupError, Push, PushWaits, WriteError};
use thalweg_types::{Action, Attempt};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    admission::Account,
    app::App,
    cluster::LeaderWatch,
    error::ApiError,
    fetching::{FetchError, Fetcher, HeldRecords},
};

/// Time after which a push (a subscription to a group's records) tries again if there was no memory for more records
/// without an ack or nack.
const ADMISSION_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time that a push (a subscription to a group's records) still waits for a delivery that is being committed
/// when another node has become the leader.
const LAST_DELIVERY: Duration = Duration::from_secs(1);

/// Time at which a group delivers the records that a receiver has neither acked nor nacked again, after the receiver's
/// push (its subscription to the group's records) has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnRecords {
    /// The group redelivers the unsettled records immediately, unless the receiver continues on this or another member
    /// of the cluster.
    AtEnd,
    /// The group redelivers the unsettled records after their ack deadline.
    AtDeadline,
}

/// Reason why a push (a subscription to a group's records) has ended.
#[derive(Debug)]
pub enum PushEnd {
    /// Another node leads the cluster. The receiver requests a new push, and keeps the records that it holds.
    Moved,
    /// The push has ended because the node stops.
    Stopping,
    /// The group or its stream is gone, or a delivery failed.
    Failed(ApiError),
}

impl PushEnd {
    /// Returns the error that a receiver gets after the leadership has moved.
    #[must_use]
    pub fn moved() -> ApiError {
        let message =
            "the leadership has moved to another node: push again, there or here; the records that you hold stay yours";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "moved", Action::Retry, message)
    }
}

/// A push: a subscription to a group's records for one receiver. When it is dropped, records without an ack or nack
/// return to the group if the receiver has chosen [`ReturnRecords::AtEnd`].
#[derive(Debug)]
pub struct ServedPush {
    fetches: PushFetches,
    returns: ReturnRecords,
    /// Watch on the leader and on the stop of the node; `None` on a node alone.
    member: Option<MemberWatch>,
}

/// Future of a fetch whose delivery a push (a subscription to a group's records) will send next.
type Fetching = Pin<Box<dyn Future<Output = Result<(Delivery, HeldRecords), FetchError>> + Send>>;

/// The deliveries of a push (a subscription to a group's records): the wait for records within the receiver's credit,
/// and the fetch in progress.
struct PushFetches {
    app: Arc<App>,
    account: Arc<Account>,
    push: Push,
    /// Fetch in progress. Dropping the future of [`next`](Self::next) keeps this fetch, so that its delivery is not
    /// lost.
    fetching: Option<Fetching>,
}

impl fmt::Debug for PushFetches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushFetches").field("push", &self.push).finish_non_exhaustive()
    }
}

impl PushFetches {
    /// Waits for the next delivery; returns `None` when the database closes. Cancel safe.
    async fn next(&mut self) -> Result<Option<Delivery>, FetchError> {
        loop {
            if let Some(delivery) = self.finish().await? {
                return Ok(Some(delivery));
            }
            let Some(request) = self.push.next_request(tokio::time::sleep).await? else { return Ok(None) };
            let (app, account) = (Arc::clone(&self.app), Arc::clone(&self.account));
            let (group, level) = (self.push.group().clone(), self.push.level());
            self.fetching = Some(Box::pin(async move {
                let fetcher = Fetcher { app: &app, account: &account, db: &app.db, group: &group, level, begun: None };
                match fetcher.fetch(&request).await {
                    Err(FetchError::NoRoom) => {
                        tokio::time::sleep(ADMISSION_PAUSE).await;
                        Ok((Delivery::none(level), HeldRecords::none(&app, &group)))
                    }
                    fetched => fetched,
                }
            }));
        }
    }

    /// Waits for the fetch in progress; returns `None` if there is none, or if it has delivered nothing. Cancel safe.
    async fn finish(&mut self) -> Result<Option<Delivery>, FetchError> {
        let Some(fetching) = &mut self.fetching else { return Ok(None) };
        let fetched = fetching.as_mut().await;
        self.fetching = None;
        let (delivery, held) = fetched?;
        if delivery.is_empty() {
            return Ok(None);
        }
        self.push.enter_delivery(&delivery)?;
        held.hand_over();
        Ok(Some(delivery))
    }
}

/// Detects the events after which a receiver of pushed group records continues on another member of the cluster.
#[derive(Debug)]
struct MemberWatch {
    leader: LeaderWatch,
    /// True once a delivery could not be committed because there was no leader.
    lost_leader: bool,
    /// Time until which the push still waits for a delivery that is being committed; `None` until another node leads.
    last_delivery_by: Option<Instant>,
    stopping: watch::Receiver<bool>,
}

impl MemberWatch {
    fn of(app: &App) -> Option<Self> {
        let leader = LeaderWatch::new(app.cluster.as_ref()?.handle.clone());
        Some(Self { leader, lost_leader: false, last_delivery_by: None, stopping: app.stopping.clone() })
    }

    /// Returns true if the receiver will continue, on this or another node, with the records that it has.
    fn continues(&mut self) -> bool {
        self.lost_leader || *self.stopping.borrow() || self.leader.has_changed()
    }

    /// Waits until another node leads the cluster. Returns the time until which the push still waits for a delivery
    /// that is being committed.
    async fn move_away(&mut self) -> Instant {
        self.leader.change().await;
        *self.last_delivery_by.get_or_insert_with(|| Instant::now() + LAST_DELIVERY)
    }
}

/// Returns true if this error of a delivery can come from a change of the cluster's leader.
fn is_of_leader(error: &FetchError) -> bool {
    let FetchError::Group(GroupError::Write(error)) = error else { return false };
    matches!(error, WriteError::NotLeader { .. } | WriteError::NoLeader | WriteError::OutcomeUnknown { .. })
}

impl Drop for ServedPush {
    fn drop(&mut self) {
        let continues = self.member.as_mut().is_some_and(MemberWatch::continues);
        if self.returns == ReturnRecords::AtEnd && !continues {
            // If the return cannot be queued, the ack deadline of the records passes.
            let _ = self.fetches.push.return_records("the push to the receiver ended");
        }
    }
}

impl ServedPush {
    /// Serves a push that the engine has begun for the client of `account`. The push waits while there is no memory for
    /// more unsettled records.
    #[must_use]
    pub fn new(app: &Arc<App>, account: &Arc<Account>, push: Push, returns: ReturnRecords) -> Self {
        let fetches = PushFetches { app: Arc::clone(app), account: Arc::clone(account), push, fetching: None };
        Self { fetches, returns, member: MemberWatch::of(app) }
    }

    /// Limits the records and bytes of later deliveries. Each delivery still carries at least one record.
    pub fn limit_delivery(&mut self, max_records: u64, max_bytes: u64) {
        self.fetches.push.limit_delivery(max_records);
        self.fetches.push.limit_delivery_bytes(max_bytes);
    }

    /// Returns the records of a delivery to their group because there is no memory for the reply that would contain
    /// them. They do not count as delivered. If this fails, the ack deadline of the records passes.
    pub fn return_delivery(&self, attempt: Attempt) {
        self.fetches.push.return_delivery(attempt);
    }

    /// Returns the reason why the push waits, such as missing credit; `None` if it need not wait.
    pub fn waits(&mut self) -> Result<Option<PushWaits>, GroupError> {
        self.fetches.push.waits()
    }

    /// Waits for the next delivery, or for the end of the push. Cancel safe.
    pub async fn next(&mut self) -> Result<Delivery, PushEnd> {
        let has_moved = self.member.as_mut().is_some_and(|member| member.leader.has_changed());
        let moved = async {
            match &mut self.member {
                Some(member) => member.move_away().await,
                None => pending().await,
            }
        };
        let delivery = tokio::select! {
            biased;
            // A push that has moved begins no delivery; it only waits for the one that is being committed.
            delivery = self.fetches.next(), if !has_moved => delivery,
            until = moved => match timeout_at(until, self.fetches.finish()).await {
                Ok(Ok(None)) | Err(_) => return Err(PushEnd::Moved),
                Ok(last) => last,
            },
        };
        match delivery {
            Ok(Some(delivery)) => Ok(delivery),
            Ok(None) => Err(PushEnd::Stopping),
            Err(error) => Err(match &mut self.member {
                Some(member) if is_of_leader(&error) => {
                    member.lost_leader = true;
                    PushEnd::Moved
                }
                _ => PushEnd::Failed(error.into()),
            }),
        }
    }
}
