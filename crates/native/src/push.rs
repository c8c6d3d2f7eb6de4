//! Pushes of consumer groups: one delivery per step.
//!
//! Owns: a push of the engine, and releasing its deliveries when the subscription ends. Does not own: credit and
//! limits (`subscription`), and the bytes of a delivery (`deliveries`).

use thalweg_engine as engine;
use thalweg_serving::limits::NATIVE_PAGE_BYTES;
use thalweg_wire::{Kind, Release};

use super::{
    deliveries::{DeliveryFrame, delivery_limits},
    failure,
    step::{StepLimits, StepResult, WhenEmpty},
};

/// A push: a subscription that delivers records to a member of a consumer group.
#[derive(Debug)]
pub(crate) struct PushSource {
    push: engine::Push,
    release: Release,
}

impl Drop for PushSource {
    fn drop(&mut self) {
        if self.release == Release::AtOnce {
            // If the release can't be queued, the deliveries expire on their own deadline.
            let _ = self.push.return_records("the subscription of the receiver ended");
        }
    }
}

impl PushSource {
    /// Creates the subscription from a push that the engine has begun. With `release`, records that are unsettled at
    /// its end are returned to the group immediately.
    #[must_use]
    pub(crate) fn new(push: engine::Push, release: Release) -> Self {
        Self { push, release }
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
        let delivery = tokio::select! {
            biased;
            () = wanted.stop.notified() => return StepResult::Nothing,
            delivery = self.push.next(tokio::time::sleep) => delivery,
        };
        match delivery {
            Err(error) => StepResult::Ended(error.into()),
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
