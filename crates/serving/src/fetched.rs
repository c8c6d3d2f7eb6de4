//! Reads of the database rows that a write needs, before the write is proposed. Applying the write then finds the rows
//! in memory, so that no commit waits for the disk.
//!
//! Owns: the transfer of these reads to the [readers](crate::readers) if the rows are not in memory. Does not own: the
//! choice of the rows, or the decision to look them up (`row_fetch` of the engine).
//!
//! Only the client of the write waits for its rows. If the client disconnects during this wait, the write is not
//! proposed.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use thalweg_engine::{AsyncDatabase, Database, RowsOf};
use thalweg_types::budget::Budget;

use crate::{
    admission::Account,
    app::App,
    readers::{PendingRead, Readers},
};

/// Reads the rows that the writes of one client will need, before the writes are proposed.
#[derive(Clone, Copy, Debug)]
pub struct RowFetcher<'a> {
    /// Threads that read rows that are not in memory.
    pub readers: &'a Arc<Readers>,
    /// Account of the client whose writes need the rows. The client's reads take turns with those of other clients.
    pub account: &'a Arc<Account>,
    /// Maximum work of the first attempt to read the rows. The thread that serves the client makes this attempt.
    pub budget: Budget,
}

/// Reads of rows that are in progress on other threads. Dropping this value cancels the reads that have not begun.
#[derive(Debug, Default)]
#[must_use = "the write is proposed after the reads"]
pub struct FetchingRows(Vec<PendingRead<()>>);

impl RowFetcher<'_> {
    /// Begins to read the rows that writes will need. Returns `None` if all rows are in memory already, or are expected
    /// to be.
    pub fn begin(&self, db: &Database, of: RowsOf<'_>) -> Option<FetchingRows> {
        let fetch = db.row_fetch(self.budget, of)?;
        let spent = fetch.spent();
        let read = |part: thalweg_engine::RowFetch| self.readers.run_again(spent, self.account, 0, move || part.read());
        Some(FetchingRows(fetch.split().into_iter().map(read).collect()))
    }
}

impl FetchingRows {
    /// Returns true if all reads of rows have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Polls the reads. Ready when all of them have ended. Errors are ignored: applying the write will report them.
    pub fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(read) = self.0.last_mut() {
            let _ = ready!(Pin::new(read).poll(cx));
            self.0.pop();
        }
        Poll::Ready(())
    }

    /// Waits until all reads have ended. Errors are ignored: applying the write will report them.
    pub async fn done(mut self) {
        poll_fn(|cx| self.poll_done(cx)).await;
    }
}

/// Reads the rows that writes of the client of `account` will need when they are applied. The caller proposes the
/// writes afterwards.
pub async fn fetch_rows(app: &App, account: &Arc<Account>, db: &AsyncDatabase, of: RowsOf<'_>) {
    let fetcher = RowFetcher { readers: &app.readers, account, budget: Budget::RESIDENT };
    if let Some(fetching) = fetcher.begin(db.blocking(), of) {
        fetching.done().await;
    }
}
