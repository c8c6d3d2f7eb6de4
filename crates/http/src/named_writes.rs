//! Writes to a keyspace or stream that a request names, on a member of a cluster whose state lags.
//!
//! The member looks up the name in its own state, without a barrier. If the object was deleted and created again
//! through another node, it finds the id of the deleted one, and the log refuses the write, which has changed nothing.
//! The member then waits until its state shows the present objects, looks up the name again, and repeats the write,
//! once.
//!
//! Owns: when a write is repeated, and the second lookup. Does not own: the writes, which keep their bytes until the
//! first answer if [`may_lag`] says so.

use thalweg_engine::{Keyspace, Stream};
use thalweg_serving::{app::App, error::ApiError};

use crate::{call::Call, read_gate};

/// Returns true if another node leads the cluster. Only then this node's state can lack changes that were acknowledged.
pub(crate) fn may_lag(app: &App) -> bool {
    app.cluster.as_ref().is_some_and(|cluster| !cluster.handle.leads())
}

/// Returns true if the log has refused a write because its keyspace no longer exists.
pub(crate) fn lacks_keyspace<T>(written: &Result<T, ApiError>) -> bool {
    matches!(written, Err(error) if error.code == "no_such_keyspace")
}

/// Finds a keyspace to write to a second time, and creates it if it does not exist.
pub(crate) async fn keyspace_again(app: &App, call: &Call, name: &str) -> Result<Keyspace, ApiError> {
    Box::pin(read_gate::catch_up(app, call)).await?;
    call.keyspace(app, name).await
}

/// Finds a stream to append to a second time, and creates it if it does not exist.
pub(crate) async fn stream_again(app: &App, call: &Call, name: &str) -> Result<Stream, ApiError> {
    Box::pin(read_gate::catch_up(app, call)).await?;
    call.stream(app, name).await
}
