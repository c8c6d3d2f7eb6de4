//! Repetition of writes that a member of a cluster has sent to a keyspace or stream that no longer exists, because the
//! member's state was out of date.
//!
//! A request names the keyspace or stream, and the member looks up its id in its own state, without a barrier. If the
//! object was deleted and created again through another node, the member may find the id of the deleted object. The
//! state machine then rejects the write without a change. The member waits until its state is up to date, looks up the
//! name again, and repeats the write once.
//!
//! Owns: the decision to repeat a write, and the second lookup. Does not own: the writes. A handler keeps the bytes of
//! its write until the first answer if [`may_lag`] returns true.

use thalweg_engine::{Keyspace, Stream};
use thalweg_serving::{app::App, error::ApiError};

use crate::{call::Call, read_gate};

/// Returns true if this node's state may lack changes that were acknowledged: it is a member of a cluster, and another
/// node leads.
pub(crate) fn may_lag(app: &App) -> bool {
    app.cluster.as_ref().is_some_and(|cluster| !cluster.handle.leads())
}

/// Returns true if a write was rejected because its keyspace no longer exists.
pub(crate) fn lacks_keyspace<T>(written: &Result<T, ApiError>) -> bool {
    matches!(written, Err(error) if error.code == "no_such_keyspace")
}

/// Looks up a keyspace again to repeat a write, after this node has caught up. Creates the keyspace if it does not
/// exist.
pub(crate) async fn keyspace_again(app: &App, call: &Call, name: &str) -> Result<Keyspace, ApiError> {
    Box::pin(read_gate::catch_up(app, call)).await?;
    call.keyspace(app, name).await
}

/// Looks up a stream again to repeat an append, after this node has caught up. Creates the stream if it does not exist.
pub(crate) async fn stream_again(app: &App, call: &Call, name: &str) -> Result<Stream, ApiError> {
    Box::pin(read_gate::catch_up(app, call)).await?;
    call.stream(app, name).await
}
