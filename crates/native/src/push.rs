//! Pushes of consumer groups: one delivery per step. A step produces the next frame of a subscription.
//!
//! A delivery of one large record counts in the limit on the bytes of replies that wait for clients. If this limit is
//! reached, the record returns to the group, and does not count as delivered.
//!
//! Owns: the steps of a push as a subscription. Does not own: the fetches of a push, its end on a member of a cluster
//! and the return of its records (`serving::pushing`), credit and limits (`subscription`), and the bytes of a delivery
//! (`deliveries`).

use std::sync::Arc;

use thalweg_engine as engine;
use thalweg_serving::{
    admission::Account,
    app::App,
    limits::NATIVE_PAGE_BYTES,
    pushing::{PushEnd, ReturnRecords, ServedPush},
};
use thalweg_wire::{Kind, Release};

use super::{
    deliveries::{DeliveryFrame, delivery_limits},
    failure,
    replies::FrameMemory,
    step::{StepLimits, StepResult, WhenEmpty},
};

/// A push: a subscription that delivers records to a member of a consumer group.
#[derive(Debug)]
pub(crate) struct PushSource(ServedPush);

impl PushSource {
    /// Creates the subscription for a push that the engine has begun for the client of `account`. If `release` requests
    /// it, records that are neither acked nor nacked at the end of the push return to the group immediately, unless the
    /// receiver continues on another node.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>, account: &Arc<Account>, push: engine::Push, release: Release) -> Self {
        let returns = match release {
            Release::AtOnce => ReturnRecords::AtEnd,
            Release::AtDeadline => ReturnRecords::AtDeadline,
        };
        Self(ServedPush::new(app, account, push, returns))
    }

    /// Waits for the next delivery, and returns it as the next frame of the subscription. The delivery stays within the
    /// limits `wanted`.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        if wanted.when_empty == WhenEmpty::Return {
            // The group can deliver its next records to another member; this push has fetched none of them.
            return StepResult::Nothing;
        }
        let (most_bytes, most_records) = delivery_limits(wanted.max_frame_bytes);
        let (credit_records, credit_bytes) = wanted.credit;
        let max_records = wanted.max_messages.min(credit_records).min(most_records.into());
        self.0.limit_delivery(max_records, credit_bytes.min(most_bytes).min(NATIVE_PAGE_BYTES));
        loop {
            let delivery = tokio::select! {
                biased;
                () = wanted.stop.notified() => return StepResult::Nothing,
                delivery = self.0.next() => delivery,
            };
            let delivered = match delivery.map(DeliveryFrame::of) {
                Ok(Ok(delivered)) => delivered,
                Ok(Err(failure)) => return StepResult::Ended(failure),
                Err(PushEnd::Moved) => return StepResult::Ended(PushEnd::moved().into()),
                Err(PushEnd::Stopping) => return StepResult::Ended(failure::stopping()),
                Err(PushEnd::Failed(error)) => return StepResult::Ended(error.into()),
            };
            let bytes = records_bytes(&delivered);
            if let Some(room) = wanted.room_for(bytes) {
                return found(delivered, room);
            }
            // The push holds no records while it waits for memory. The reservation is not kept for the next delivery:
            // this may come much later, or contain another record.
            self.0.return_delivery(delivered.attempt);
            drop(delivered);
            if wanted.wait_for_room(bytes).await.is_none() {
                return StepResult::Nothing;
            }
        }
    }
}

fn records_bytes(delivered: &DeliveryFrame) -> u64 {
    delivered.parts.iter().flat_map(|(_, runs)| runs).map(|run| run.bytes.len() as u64).sum()
}

/// Converts a delivery of records into the next frame of a push (a subscription to a group's records).
fn found(delivered: DeliveryFrame, room: FrameMemory) -> StepResult {
    let records = delivered.parts.iter().flat_map(|(_, runs)| runs).map(|run| u64::from(run.count)).sum();
    let bytes = records_bytes(&delivered);
    StepResult::frame(records, bytes, move |out, id| delivered.put(out, Kind::Pushed, id, room))
}
