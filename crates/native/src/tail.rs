//! Tails: subscriptions to the records of a stream. Each step sends one page of records.
//!
//! Owns: the position of a tail, and waiting for new records. Does not own: credit and limits (`subscription`), and the
//! bytes of a page (`records`).

use std::sync::Arc;

use thalweg_engine::Stream;
use thalweg_serving::{app::App, limits::NATIVE_PAGE_BYTES};
use thalweg_types::{
    Offset,
    budget::{Budget, Spent},
};
use thalweg_wire::Kind;

use super::{
    blocking::run_again,
    failure::{self, Failure},
    records::{Page, RecordsFrame, room_for_records},
    replies::FrameMemory,
    step::{StepLimits, StepResult, WhenEmpty},
};

/// A tail of a stream, which supplies the frames of a subscription.
#[derive(Debug)]
pub(crate) struct Tail {
    app: Arc<App>,
    stream: Stream,
    next: Offset,
    /// True if the last page did not reach the end of the stream, so that the next read may block on the disk.
    behind: bool,
}

impl Tail {
    /// Creates a tail that begins at offset `next`; `behind` is true if the stream already has records there.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>, stream: Stream, next: Offset, behind: bool) -> Self {
        Self { app: Arc::clone(app), stream, next, behind }
    }

    /// Returns the offset at which a later tail can resume.
    #[must_use]
    pub(crate) fn next(&self) -> Offset {
        self.next
    }

    /// Runs one step: waits until the stream has records to send, and returns a page of them.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        loop {
            let from = self.next;
            match self.look(&wanted).await {
                Err(failure) => return StepResult::Ended(failure),
                Ok(Some(shown)) => match wanted.room_for(shown.bytes()) {
                    Some(room) => return found(shown, room),
                    None => {
                        // The page is dropped and read again when there is memory, so that a waiting tail holds none.
                        drop(shown);
                        (self.next, self.behind) = (from, true);
                        match wanted.pause().await {
                            true => return StepResult::Nothing,
                            false => continue,
                        }
                    }
                },
                Ok(None) if wanted.when_empty == WhenEmpty::Return => return StepResult::Nothing,
                Ok(None) => {}
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

    /// Reads a page of records; `None` if there are none. The read runs on the channel's thread at the end of the
    /// stream, where records are in memory, and otherwise on a thread that may block.
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
        let shown = match if self.behind { Err(Spent::Steps) } else { read() } {
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

/// Converts a page of records into the result of a tail's step.
fn found(shown: RecordsFrame, room: FrameMemory) -> StepResult {
    let records = shown.runs.iter().map(|run| u64::from(run.count)).sum();
    StepResult::frame(records, shown.bytes(), move |out, id| shown.put(out, Kind::Tailed, id, room))
}
