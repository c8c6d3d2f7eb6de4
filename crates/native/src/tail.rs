//! Tails: subscriptions to the records of a stream. Each step sends one page of records.
//!
//! Owns: the position of a tail, and waiting for new records. Does not own: credit and limits (`subscription`), and the
//! bytes of a page (`records`).

use std::sync::Arc;

use thalweg_engine::Stream;
use thalweg_serving::{app::App, limits::NATIVE_PAGE_BYTES};
use thalweg_types::{
    Offset,
    budget::{Budget, BudgetSpent},
    limits::MAX_ENTRY_BYTES,
};
use thalweg_wire::{Kind, Position, Tailing};

use super::{
    blocking::run_again,
    failure::{self, Failure},
    records::{Page, RecordsFrame, room_for_records},
    replies::FrameMemory,
    step::{StepLimits, StepResult, WhenEmpty},
    stream_start::tailing,
};

/// A tail of a stream. It produces the frames of a subscription.
#[derive(Debug)]
pub(crate) struct Tail {
    app: Arc<App>,
    stream: Stream,
    next: Offset,
    /// True if the last page of records did not reach the end of the stream. The next read may then wait for the disk.
    behind: bool,
    /// Position at which the tail starts, as long as its offset is unknown; `None` afterwards.
    start: Option<UnknownStart>,
}

/// Start of a tail whose offset could not be found on the thread that serves the client, because the search takes long
/// or needs the disk.
#[derive(Clone, Debug)]
struct UnknownStart {
    from: Position,
    /// The limit that the search on the thread that serves the client reached: it took too long, or needed the disk.
    spent: BudgetSpent,
}

impl Tail {
    /// Creates a tail whose start is known. `reply` has already told the client the start.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>, stream: Stream, reply: &Tailing) -> Self {
        let (next, behind) = (reply.next, reply.next < reply.high_watermark);
        Self { app: Arc::clone(app), stream, next, behind, start: None }
    }

    /// Creates a tail that first finds the offset of its start `from`, and then sends the reply. The search on the
    /// channel's thread did not find it; `spent` says if it took too long or needed the disk.
    #[must_use]
    pub(crate) fn starting(app: &Arc<App>, stream: Stream, from: Position, spent: BudgetSpent) -> Self {
        let start = Some(UnknownStart { from, spent });
        Self { app: Arc::clone(app), stream, next: Offset(0), behind: true, start }
    }

    /// Returns the offset at which a later tail can resume; `None` before the tail's start is known.
    #[must_use]
    pub(crate) fn next(&self) -> Option<Offset> {
        self.start.is_none().then_some(self.next)
    }

    /// Waits until the stream has records to send, and returns a page of them as the subscription's next frame. If the
    /// tail's start is unknown, finds it and returns the reply that states it.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        if let Some(start) = self.start.clone() {
            return self.find_start(start, &wanted).await;
        }
        let (mut room, mut is_stopped) = (None, false);
        loop {
            let from = self.next;
            match self.look(&wanted).await {
                Err(failure) => return StepResult::Ended(failure),
                Ok(Some(shown)) => match room.take().or_else(|| wanted.room_for(shown.bytes())) {
                    Some(room) => return found(shown, room),
                    None => {
                        // The page is dropped, and read again when there is memory for it. So a waiting tail holds no
                        // page.
                        let bytes = shown.bytes();
                        drop(shown);
                        (self.next, self.behind) = (from, true);
                        room = wanted.wait_for_room(bytes).await;
                        if room.is_none() {
                            // A step that is stopped still sends the records that it has found, because a drain must
                            // not lose them.
                            (room, is_stopped) = (Some(FrameMemory::Exceed), true);
                        }
                        continue;
                    }
                },
                Ok(None) if is_stopped || wanted.when_empty == WhenEmpty::Return => return StepResult::Nothing,
                // The reservation is released while the tail waits for records.
                Ok(None) => room = None,
            }
            tokio::select! {
                biased;
                () = wanted.stop.notified() => return StepResult::Nothing,
                there = self.app.db.wait_for(self.stream.id(), self.next) => if !there {
                    return StepResult::Ended(self.stream_gone());
                },
            }
        }
    }

    async fn find_start(&mut self, start: UnknownStart, wanted: &StepLimits) -> StepResult {
        let (stream, UnknownStart { from, spent }) = (self.stream.clone(), start);
        let search = move || tailing(&stream, &from);
        let found = tokio::select! {
            biased;
            () = wanted.stop.notified() => return StepResult::Nothing,
            found = run_again(&self.app, spent, &wanted.account, MAX_ENTRY_BYTES, search) => found,
        };
        match found {
            Ok(reply) => {
                *self = Self::new(&self.app, self.stream.clone(), &reply);
                StepResult::frame(0, 0, move |out, id| out.reply(id, &reply))
            }
            Err(failure) => StepResult::Ended(failure),
        }
    }

    /// Reads a page of records; `None` if there are none. At the end of the stream, records are in memory, and the read
    /// runs on the channel's thread. Other reads run on a thread that may block.
    async fn look(&mut self, wanted: &StepLimits) -> Result<Option<RecordsFrame>, Failure> {
        let hard_max_bytes = room_for_records(wanted.max_frame_bytes);
        let (credit_records, credit_bytes) = wanted.credit;
        let page = Page {
            from: self.next,
            max_records: wanted.max_messages,
            max_bytes: NATIVE_PAGE_BYTES.min(credit_bytes).min(hard_max_bytes),
            enough_records: credit_records,
            hard_max_bytes,
        };
        let read = || Budget::RESIDENT.perform(|| page.read(&self.app, &self.stream));
        let shown = match if self.behind { Err(BudgetSpent::Steps) } else { read() } {
            Ok(shown) => shown?,
            Err(spent) => {
                let (app, stream) = (Arc::clone(&self.app), self.stream.clone());
                let bytes = usize::try_from(page.max_bytes).unwrap_or(usize::MAX);
                run_again(&self.app, spent, &wanted.account, bytes, move || page.read(&app, &stream)).await?
            }
        };
        self.next = shown.next;
        self.behind = shown.next < shown.high_watermark;
        Ok((!shown.runs.is_empty()).then_some(shown))
    }

    fn stream_gone(&self) -> Failure {
        match self.stream.info() {
            Ok(_) => failure::stopping(),
            Err(error) => error.into(),
        }
    }
}

/// Converts a page of records into the next frame of a tail.
fn found(shown: RecordsFrame, room: FrameMemory) -> StepResult {
    let records = shown.runs.iter().map(|run| u64::from(run.count)).sum();
    StepResult::frame(records, shown.bytes(), move |out, id| shown.put(out, Kind::Tailed, id, room))
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll, time::Duration};

    use thalweg_serving::{
        admission::{AddressKey, Admission},
        config::Config,
    };
    use thalweg_types::{limits::MAX_FRAME_BYTES, record::RecordBatch};
    use tokio::sync::Notify;

    use super::*;
    use crate::test_node::TestNode;

    #[tokio::test]
    async fn a_tail_that_waits_for_memory_sends_its_records_when_it_is_drained() {
        let node = TestNode::start().await;
        let app = &node.native.app;
        let stream = app.db.blocking().stream("s").unwrap();
        let mut batch = RecordBatch::new();
        batch.push_payload(&vec![7; 2 * NATIVE_PAGE_BYTES as usize]).unwrap();
        stream.append(&batch).unwrap();
        // This configuration has no memory for replies of this size.
        let mut config = Config::default();
        (config.max_reply_bytes_in_flight.0, config.share_reserve_percent) = (NATIVE_PAGE_BYTES, 0);
        let stop = Arc::new(Notify::new());
        let wanted = StepLimits {
            max_messages: u64::MAX,
            credit: (u64::MAX, u64::MAX),
            max_frame_bytes: MAX_FRAME_BYTES,
            when_empty: WhenEmpty::Wait,
            account: Admission::new(&config).account(AddressKey::LOCAL),
            stop: Arc::clone(&stop),
        };
        let reply = Tailing { next: Offset(0), high_watermark: Offset(1) };
        let mut tail = Tail::new(app, stream, &reply);
        let mut step = Box::pin(tail.step(wanted));
        assert!(poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await.is_pending(), "the page is read elsewhere");
        // Stops the step like a cancel that drains the subscription.
        stop.notify_one();
        let found = tokio::time::timeout(Duration::from_secs(60), step).await.unwrap();
        assert!(matches!(found, StepResult::Frame { messages: 1, .. }), "{found:?}");
    }
}
