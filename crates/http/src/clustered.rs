//! Checks and waits before a request is handled on a node that is a member of a cluster.
//!
//! Owns: the check of the administrators' token, and the choice of the wait. The wait depends on the operation's
//! [`Consistency`]: how recent the node's state must be. Does not own: the wait itself (`read_gate`), and the
//! operations.
//!
//! Invariant: a node without a cluster does not run this code.

use http::header;
use thalweg_serving::cluster::{Cluster, ClusterError};

use crate::{
    call::{Answer, Call},
    dispatch::{Consistency, Operation, dispatch},
    read_gate,
    shared::Http,
};

/// Handles a request on a member of a cluster. Before, it checks the administrators' token and waits until the node's
/// state is recent enough, if the operation requires this.
pub(crate) async fn answer(operation: Operation, cluster: &Cluster, http: &Http, call: &mut Call) -> Answer {
    if operation.needs_admin() {
        check_token(cluster, call)?;
    }
    match operation.consistency() {
        Consistency::Read => {
            let shown = read_gate::may_read(cluster, &http.app, call).await?;
            Ok(read_gate::showing(dispatch(operation, http, call).await?, Some(shown)))
        }
        Consistency::Names => {
            read_gate::may_look_up(cluster, call).await?;
            dispatch(operation, http, call).await
        }
        Consistency::Body | Consistency::Local => dispatch(operation, http, call).await,
    }
}

/// Checks the administrators' token of a request.
fn check_token(cluster: &Cluster, call: &Call) -> Result<(), ClusterError> {
    let presented = call.header(&header::AUTHORIZATION).ok_or(ClusterError::TokenMissing)?;
    let (scheme, token) = presented.split_at_checked(7).ok_or(ClusterError::TokenMissing)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return Err(ClusterError::TokenMissing);
    }
    if cluster.credentials.permits(token.trim_ascii()) { Ok(()) } else { Err(ClusterError::TokenWrong) }
}
