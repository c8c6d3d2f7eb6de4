//! State of the elections that a node starts without waiting for an election timeout.
//!
//! Owns: the facts about the node's earlier requests for votes, and the lengths of its pauses. Does not own: the
//! requests (`elections`).

use std::{cell::Cell, ops::Range};

use openraft::{async_runtime::AsyncRuntime, type_config::alias::InstantOf};
use thalweg_types::NodeId;

use crate::types::Types;

/// Lengths of the pause between two requests for votes, in microseconds.
pub(crate) const PAUSE_MICROS: Range<u64> = 10_000..40_000;

/// State of the elections that one node starts without waiting for an election timeout.
pub(crate) struct Elections<Rt: AsyncRuntime> {
    /// True while a task tries to replace a deaf leader (one that does not hear this node): it waits until the lease
    /// that this node has given ends, or asks for votes.
    pub is_replacing: Cell<bool>,
    /// Time at which this node last answered another node's pre-vote request with yes; `None` if it never did.
    pub granted_at: Cell<Option<InstantOf<Types<Rt>>>>,
    /// Time at which this node, as a candidate, last noticed that the votes were split and decided to ask again; `None`
    /// if this never happened.
    pub split_at: Cell<Option<InstantOf<Types<Rt>>>>,
    /// Number of pauses between requests for votes that this node has made so far.
    pauses: Cell<u64>,
}

impl<Rt: AsyncRuntime> Default for Elections<Rt> {
    fn default() -> Self {
        Self {
            is_replacing: Cell::default(),
            granted_at: Cell::default(),
            split_at: Cell::default(),
            pauses: Cell::default(),
        }
    }
}

impl<Rt: AsyncRuntime> Elections<Rt> {
    /// Returns the length of the node's next pause in microseconds, a pseudorandom number within [`PAUSE_MICROS`]. The
    /// number follows from the node's id and its count of earlier pauses, so two nodes hardly ever ask at the same
    /// moment twice.
    pub(crate) fn next_pause_micros(&self, node: NodeId) -> u64 {
        let number = self.pauses.get();
        self.pauses.set(number + 1);
        pause_micros(node, number)
    }
}

fn pause_micros(node: NodeId, number: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    let mut mixed = node.0.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    PAUSE_MICROS.start + mixed % (PAUSE_MICROS.end - PAUSE_MICROS.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_within_their_range_and_differ_between_nodes() {
        let of = |node| (0..100).map(|number| pause_micros(NodeId(node), number)).collect::<Vec<_>>();
        let (one, two) = (of(1), of(2));
        assert!(one.iter().chain(&two).all(|pause| PAUSE_MICROS.contains(pause)));
        // A request and its answers take a few milliseconds.
        let close = one.iter().zip(&two).filter(|(one, two)| one.abs_diff(**two) < 2_000).count();
        assert!(close < 40, "{close} of 100 pauses of two nodes end at about the same time");
    }
}
