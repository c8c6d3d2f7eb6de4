//! Reads that may touch the disk or take long, on the threads for such reads.

use std::sync::Arc;

use thalweg_serving::{admission::Account, app::App};

use super::failure::Failure;

/// Runs `read`, which requests about `bytes` bytes of memory, on a thread for long reads, so that it does not delay the
/// other connections of the calling thread. Clients get their turns on these threads by address and by connection.
pub(crate) async fn run_blocking<T: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    bytes: usize,
    read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match app.readers.run(account, bytes, read).await {
        Ok(read) => read,
        Err(error) => Err(Failure::of(&error)),
    }
}
