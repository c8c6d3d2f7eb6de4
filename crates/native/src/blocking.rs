//! Reads that may touch the disk, on threads that may block.

use thalweg_types::Action;

use super::failure::Failure;

/// Runs `read` on a thread that may block, so that a disk read does not delay the other connections of the calling
/// thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        Err(error) => Err(Failure::new("internal", Action::Stop, error.to_string())),
    }
}
