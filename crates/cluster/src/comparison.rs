//! Comparison of a node's running hashes with those of the other members.
//!
//! Owns: the rules by which a node differs from a majority. Does not own: the hashes (`engine`), or what follows (`tasks`).
//!
//! A running hash covers all entries before it, so a state that differs once differs at all later entries, until it is
//! replaced.

use std::collections::BTreeMap;

use thalweg_types::{Index, NodeId};

/// Another member, as far as the comparison needs it.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub node: NodeId,
    pub votes: bool,
    /// Running hashes, with the indexes of their entries; `None` if the member does not answer.
    pub marks: Option<Vec<(Index, u64)>>,
}

impl Compared {
    /// Returns the running hashes that differ from this node's.
    fn differing<'a>(&'a self, own: &'a BTreeMap<Index, u64>) -> impl Iterator<Item = (Index, u64)> + 'a {
        let marks = self.marks.iter().flatten().copied();
        marks.filter(|(index, hash)| own.get(index).is_some_and(|own| own != hash))
    }
}

/// Other members whose state after an entry differs from this node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Differing {
    pub after: Index,
    /// Number of the members that differ, from this node and maybe from each other.
    pub count: usize,
    /// Largest set of these members that agree with each other.
    pub agreeing: Vec<NodeId>,
}

/// Compares hashes. Returns the entry after which most members differ from this node; the first of several. `None` if all
/// hashes of the same entries are equal.
pub(crate) fn differing(own: &BTreeMap<Index, u64>, others: &[Compared]) -> Option<Differing> {
    let mut found: BTreeMap<Index, BTreeMap<u64, Vec<NodeId>>> = BTreeMap::new();
    for other in others {
        for (index, hash) in other.differing(own) {
            found.entry(index).or_default().entry(hash).or_default().push(other.node);
        }
    }
    let differing = found.into_iter().map(|(after, by_hash)| {
        let count = by_hash.values().map(Vec::len).sum();
        let agreeing = by_hash.into_values().max_by_key(Vec::len).unwrap_or_default();
        Differing { after, count, agreeing }
    });
    // Of equal elements, `max_by_key` returns the last one.
    differing.rev().max_by_key(|differing| (differing.count, differing.agreeing.len()))
}

/// Returns the members that answer and whose hashes are this node's, as far as both have them.
pub(crate) fn agreeing(own: &BTreeMap<Index, u64>, others: &[Compared]) -> Vec<NodeId> {
    let agrees = |other: &&Compared| other.marks.is_some() && other.differing(own).next().is_none();
    others.iter().filter(agrees).map(|other| other.node).collect()
}

/// Returns true if these members are a majority of all, and their voters one of the voters. The cluster then goes on while
/// this node and others repair their states at the same time: a node that is about to repair its own does not agree, or does
/// not give it. Of two such nodes, the one that asks later misses the other. So the members that the last one has found are a
/// majority without any of them.
pub(crate) fn can_go_on_alone(agreeing: &[NodeId], others: &[Compared], this_node_votes: bool) -> bool {
    let voters = others.iter().filter(|other| other.votes);
    let agreeing_voters = voters.clone().filter(|voter| agreeing.contains(&voter.node)).count();
    2 * agreeing.len() > others.len() + 1 && 2 * agreeing_voters > voters.count() + usize::from(this_node_votes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(of: &[(u64, u64)]) -> Vec<(Index, u64)> {
        of.iter().map(|(index, hash)| (Index(*index), *hash)).collect()
    }

    fn others(of: &[&[(u64, u64)]]) -> Vec<Compared> {
        let numbered = (2..).zip(of);
        numbered.map(|(node, of)| Compared { node: NodeId(node), votes: true, marks: Some(marks(of)) }).collect()
    }

    fn compared(own: &[(u64, u64)], of: &[&[(u64, u64)]]) -> Option<(u64, usize, Vec<u64>)> {
        let found = differing(&marks(own).into_iter().collect(), &others(of))?;
        Some((found.after.0, found.count, found.agreeing.into_iter().map(|node| node.0).collect()))
    }

    #[test]
    fn only_hashes_of_the_same_entries_are_compared() {
        assert_eq!(compared(&[(10, 1), (20, 2)], &[&[(10, 1), (30, 9)], &[(20, 2)]]), None);
        assert_eq!(compared(&[], &[&[(10, 1)], &[(10, 1)]]), None);
        assert_eq!(compared(&[(10, 1)], &[&[], &[]]), None);
    }

    #[test]
    fn members_that_answer_and_do_not_differ_agree() {
        let own = marks(&[(10, 1), (20, 2)]).into_iter().collect();
        let mut three = others(&[&[(10, 1), (30, 3)], &[(20, 3)], &[]]);
        assert_eq!(agreeing(&own, &three), [NodeId(2), NodeId(4)]);
        three[0].marks = None;
        assert_eq!(agreeing(&own, &three), [NodeId(4)]);
    }

    #[test]
    fn the_first_entry_at_which_most_members_differ_counts() {
        let own = &[(10, 1), (20, 2), (30, 3)];
        let two = &[(10, 1), (20, 5), (30, 6)];
        assert_eq!(compared(own, &[two, own]), Some((20, 1, vec![2])));
        assert_eq!(compared(own, &[two, two]), Some((20, 2, vec![2, 3])));
        assert_eq!(compared(own, &[two, &[(10, 1), (30, 6)]]), Some((30, 2, vec![2, 3])));
        assert_eq!(compared(own, &[two, &[(20, 7)], two]), Some((20, 3, vec![2, 4])), "two of three agree");
    }

    #[test]
    fn the_cluster_can_go_on_with_a_majority_that_agrees() {
        let can = |agreeing: &[u64], others: &[Compared], votes| {
            let agreeing: Vec<_> = agreeing.iter().copied().map(NodeId).collect();
            can_go_on_alone(&agreeing, others, votes)
        };
        let two = others(&[&[], &[]]);
        assert!(can(&[2, 3], &two, true));
        assert!(!can(&[2], &two, true), "one of three is no majority");
        let four = others(&[&[], &[], &[], &[]]);
        assert!(can(&[2, 4, 5], &four, true) && !can(&[2, 4], &four, true));
        let mut with_learners = four;
        with_learners.iter_mut().skip(2).for_each(|other| other.votes = false);
        assert!(!can(&[2, 4, 5], &with_learners, true), "one of three voters");
        assert!(can(&[2, 3, 4], &with_learners, true) && can(&[2, 3, 5], &with_learners, false));
    }
}
