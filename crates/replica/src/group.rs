//! What a one-voter Raft group keeps besides entries: its membership and its vote.
//!
//! ```text
//! membership := count u32 | (node u64)*      payload of a log record of kind membership
//! vote       := term u64 | node u64 | committed u8
//! ```
//! Little-endian. A directory begins with the membership at index 0 of term 0, which is what a Raft
//! group writes when it is initialised, and the vote that made its one voter leader of term 1.

use thalweg_types::{NodeId, Term, record::Reader};

/// Who votes in a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The voters, ascending.
    pub voters: Vec<NodeId>,
}

impl Membership {
    /// A group of one.
    #[must_use]
    pub fn of_one(node: NodeId) -> Self {
        Self { voters: vec![node] }
    }

    /// The payload of its record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.voters.len());
        out.extend_from_slice(&u32::try_from(self.voters.len()).unwrap_or(u32::MAX).to_le_bytes());
        for node in &self.voters {
            out.extend_from_slice(&node.0.to_le_bytes());
        }
        out
    }

    /// Reads the payload of its record.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(payload, 0);
        let count = reader.u32("count").ok()? as usize;
        if payload.len() != 4 + 8 * count {
            return None;
        }
        let voters = (0..count).map(|_| reader.u64("node").map(NodeId)).collect::<Result<_, _>>().ok()?;
        Some(Self { voters })
    }
}

/// The vote of a node in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The term voted in.
    pub term: Term,
    /// For whom.
    pub node: NodeId,
    /// Whether a quorum granted it: that node leads.
    pub committed: bool,
}

impl Vote {
    /// The payload of its record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.push(u8::from(self.committed));
        out
    }

    /// Reads the payload of its record.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(payload, 0);
        let term = Term(reader.u64("term").ok()?);
        let node = NodeId(reader.u64("node").ok()?);
        let committed = match reader.u8("committed").ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        reader.is_empty().then_some(Self { term, node, committed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_pinned_and_come_back() {
        let membership = Membership::of_one(NodeId(7));
        assert_eq!(membership.encode(), [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Membership::decode(&membership.encode()), Some(membership));
        let vote = Vote { term: Term(1), node: NodeId(2), committed: true };
        assert_eq!(vote.encode(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Vote::decode(&vote.encode()), Some(vote));
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(Membership::decode(&[255; 12]), None);
        assert_eq!(Membership::decode(&[]), None);
        assert_eq!(Vote::decode(&[2; 17]), None);
        assert_eq!(Vote::decode(&[0; 18]), None);
    }
}
