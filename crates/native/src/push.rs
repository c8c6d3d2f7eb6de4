//! Pushes of consumer groups: one delivery per step.
//!
//! Owns: a push of the engine, and releasing its deliveries when the subscription ends. Does not own: credit and
//! limits (`subscription`), and the bytes of a delivery (`deliveries`).
//!
//! On a member of a cluster, a push ends with `moved` when another node has become the leader, or when a delivery could
//! not be committed for want of a leader. The receiver then requests a new push, and acks the records that it holds,
//! which stay assigned to it until their deadline. The same applies if the receiver leaves because of the new leader,
//! or because the node stops. If the records were returned to the group, they would be delivered again while the
//! receiver still works on them.

use std::{future::pending, time::Duration};

use thalweg_engine::{self as engine, GroupError, WriteError};
use thalweg_serving::{app::App, cluster::LeaderWatch, limits::NATIVE_PAGE_BYTES};
use thalweg_wire::{Kind, Release};
use tokio::{sync::watch, time::timeout};

use super::{
    deliveries::{DeliveryFrame, delivery_limits},
    failure,
    step::{StepLimits, StepResult, WhenEmpty},
};

/// Longest time for which the end of a push waits for a delivery that is being committed while the leader changes.
const LAST_DELIVERY: Duration = Duration::from_secs(1);

/// A push: a subscription that delivers records to a member of a consumer group.
#[derive(Debug)]
pub(crate) struct PushSource {
    push: engine::Push,
    release: Release,
    /// Watch on the leader and on the stop of the node; `None` on a node alone.
    member: Option<MemberWatch>,
}

/// Watch on what makes receivers of a member of a cluster continue elsewhere.
#[derive(Debug)]
struct MemberWatch {
    leader: LeaderWatch,
    /// True once a delivery could not be committed for want of a leader.
    lost_leader: bool,
    stopping: watch::Receiver<bool>,
}

impl MemberWatch {
    fn of(app: &App) -> Option<Self> {
        let leader = LeaderWatch::new(app.cluster.as_ref()?.handle.clone());
        Some(Self { leader, lost_leader: false, stopping: app.stopping.clone() })
    }

    /// Returns true if the receiver continues on this or another node with the records that it holds.
    fn continues(&mut self) -> bool {
        self.lost_leader || *self.stopping.borrow() || self.leader.has_changed()
    }
}

/// Returns true for errors of a delivery that a change of the leader causes.
fn is_of_leader(error: &GroupError) -> bool {
    matches!(
        error,
        GroupError::Write(WriteError::NotLeader { .. } | WriteError::NoLeader | WriteError::OutcomeUnknown { .. })
    )
}

impl Drop for PushSource {
    fn drop(&mut self) {
        let continues = self.member.as_mut().is_some_and(MemberWatch::continues);
        if self.release == Release::AtOnce && !continues {
            // If the release can't be queued, the deliveries expire on their own deadline.
            let _ = self.push.return_records("the subscription of the receiver ended");
        }
    }
}

impl PushSource {
    /// Creates the subscription from a push that the engine has begun. With `release`, records that are unsettled at
    /// its end are returned to the group immediately, unless the receiver continues on another node.
    #[must_use]
    pub(crate) fn new(app: &App, push: engine::Push, release: Release) -> Self {
        Self { push, release, member: MemberWatch::of(app) }
    }

    /// Waits for the next delivery, and returns it as the result of the step. The delivery stays within the bounds of
    /// the step.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        if wanted.when_empty == WhenEmpty::Return {
            // Records not delivered yet can go to the next member; none of them belong to this one.
            return StepResult::Nothing;
        }
        let (most_bytes, most_records) = delivery_limits(wanted.max_frame_bytes);
        let (credit_records, credit_bytes) = wanted.credit;
        self.push.limit_delivery(wanted.max_messages.min(credit_records).min(most_records.into()));
        self.push.limit_delivery_bytes(credit_bytes.min(most_bytes).min(NATIVE_PAGE_BYTES));
        let moved = async {
            match &mut self.member {
                Some(member) => member.leader.change().await,
                None => pending().await,
            }
        };
        let delivery = tokio::select! {
            biased;
            () = wanted.stop.notified() => return StepResult::Nothing,
            delivery = self.push.next(tokio::time::sleep) => delivery,
            () = moved => match timeout(LAST_DELIVERY, self.push.finish_delivery()).await {
                Ok(Ok(None)) | Err(_) => return StepResult::Ended(failure::moved()),
                Ok(last) => last,
            },
        };
        match delivery {
            Err(error) => match &mut self.member {
                Some(member) if is_of_leader(&error) => {
                    member.lost_leader = true;
                    StepResult::Ended(failure::moved())
                }
                _ => StepResult::Ended(error.into()),
            },
            Ok(None) => StepResult::Ended(failure::stopping()),
            Ok(Some(delivery)) => match DeliveryFrame::of(delivery) {
                Ok(delivered) => found(delivered, &wanted).await,
                Err(failure) => StepResult::Ended(failure),
            },
        }
    }
}

/// Waits until there is memory for a delivery, and converts the delivery into a push frame.
async fn found(delivered: DeliveryFrame, wanted: &StepLimits) -> StepResult {
    let runs = || delivered.parts.iter().flat_map(|(_, runs)| runs);
    let records = runs().map(|run| u64::from(run.count)).sum();
    let bytes = runs().map(|run| run.bytes.len() as u64).sum();
    let room = wanted.wait_for_room(bytes).await;
    StepResult::frame(records, bytes, move |out, id| delivered.put(out, Kind::Pushed, id, room))
}
