//! The client's request for the members of the cluster.

use thalweg_wire as wire;

use crate::{
    client::{Client, RequestOptions},
    error::Error,
    membership::{ClusterMembers, members_of},
};

impl Client {
    /// Requests the members of the cluster from the node to which the client is connected. Fails with `not_clustered`
    /// if the node runs alone.
    pub async fn members(&self) -> Result<ClusterMembers, Error> {
        self.request(RequestOptions::QUICK, wire::ReadMembers {}, members_of).await
    }
}
