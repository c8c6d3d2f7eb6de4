//! openraft's types in the simulation.

use thalweg_types::SpaceId;

use crate::runtime::SimRuntime;

/// Type configuration of the simulated cluster.
pub type Types = thalweg_raft::Types<SimRuntime>;
/// Consensus on a simulated node.
pub type SimConsensus = thalweg_raft::Consensus<SimRuntime>;
/// The space that the nodes replicate.
pub const SPACE: SpaceId = SpaceId::ZERO;
