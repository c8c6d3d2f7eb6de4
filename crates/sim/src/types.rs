//! openraft's types in the simulation.

use openraft::vote::leader_id_std::CommittedLeaderId;
use thalweg_replica::NodeInfo;
use thalweg_types::SpaceId;

use crate::runtime::SimRuntime;

/// Type configuration of the simulated group.
pub type Types = thalweg_raft::Types<SimRuntime>;
/// Snapshots, which no simulated node takes yet.
pub type Snap = openraft::storage::Snapshot<CommittedLeaderId<u64>, u64, NodeInfo, ()>;
/// The space that the nodes replicate.
pub const SPACE: SpaceId = SpaceId::ZERO;
