//! Reads that run on threads which serve no connections, because these reads take long or may wait for the disk.

use std::sync::Arc;

use thalweg_serving::{admission::Account, app::App};
use thalweg_types::budget::BudgetSpent;

use super::failure::Failure;

/// Runs `read` on a thread for long reads, so that it does not delay other connections of the calling thread. `read`
/// needs about `bytes` bytes of memory. The threads for long reads serve client addresses in turn, and the connections
/// of each address in turn.
pub(crate) async fn run_blocking<T: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    bytes: usize,
    read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    app.readers.run(account, bytes, read).await.unwrap_or_else(|error| Err(Failure::of(&error)))
}

/// Runs a read again on another thread, because its first attempt on the channel's thread reached the limit on its
/// work; `spent` says which limit. If the read needs the disk and then turns out to be long, `read` is called twice.
/// Only a long read requests about `bytes` bytes of memory.
pub(crate) async fn run_again<T: Send + 'static>(
    app: &App,
    spent: BudgetSpent,
    account: &Arc<Account>,
    bytes: usize,
    read: impl FnMut() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    app.readers.run_again(spent, account, bytes, read).await.unwrap_or_else(|error| Err(Failure::of(&error)))
}
