//! Names of the consensus types that the simulation uses: those of `raft` and openraft, over the simulated runtime.

use thalweg_types::SpaceId;

use crate::runtime::SimRuntime;

/// Set of types with which openraft runs in the simulated cluster.
pub type Types = thalweg_raft::Types<SimRuntime>;
/// Consensus on a simulated node.
pub type SimConsensus = thalweg_raft::Consensus<SimRuntime>;
/// Id of the replicated database (space) of the simulated nodes.
pub const SPACE: SpaceId = SpaceId::ZERO;
