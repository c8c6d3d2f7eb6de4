//! Leadership of a single node over its space (Raft group), which the log records as a Raft leadership with one voter.
//!
//! For a new space the node writes the membership at index 0, and the vote that makes its one voter leader of term 1.
//! In an existing space the node continues in the term in which it led, or votes for itself in the next term.
//!
//! Invariants: terms never decrease; two different entries never have the same term and index if another node can have
//! seen one of them. So a node with learners begins a new term: a learner may have received an entry that this node has
//! lost. A node with truncated entries in its log also begins a new term: other nodes may have the truncated entries,
//! whose indexes are used again.

use std::{collections::BTreeSet, io::IoSlice};

use thalweg_log::{Draft, Log, Purpose, RecordKind, format::MAX_NUMBER};
use thalweg_state::{machine::Machine, membership::LogId};
use thalweg_types::{Durability, Index, NodeId, SpaceId, SpaceTime, Term};

use crate::{
    error::OpenError,
    membership::{Membership, Vote},
    valid::Valid,
};

/// Raft term of the first leader of a space (Raft group).
const FIRST_TERM: Term = Term(1);

/// Makes this node the leader of a space (Raft group) and returns the Raft term in which it leads. The state must have
/// applied the whole log.
pub(crate) fn take_lead(
    log: &Log,
    machine: &Machine,
    (space, node): (SpaceId, NodeId),
    time: SpaceTime,
) -> Result<Term, OpenError> {
    let applied = machine.applied();
    if applied.lsn.0 == 0 {
        return found_space(log, machine, (space, node), time);
    }
    let membership = machine.membership()?.ok_or(OpenError::NoMembership { what: "membership" })?;
    let malformed = |what| OpenError::Malformed { lsn: applied.lsn, what };
    let membership = Membership::decode(&membership.payload).ok_or_else(|| malformed("membership"))?;
    if membership.sole_voter() != Some(node) {
        return Err(OpenError::NotAlone { voters: membership.voters().into_iter().collect() });
    }
    let vote = machine.vote()?.ok_or(OpenError::NoMembership { what: "vote" })?;
    let vote = Vote::decode(&vote).ok_or_else(|| malformed("vote"))?;
    let last_term = vote.term.max(applied.term);
    // The next term or index would wrap to 0. Only a forged backup that an earlier build restored has such numbers.
    if last_term.0.max(applied.index.0) >= MAX_NUMBER {
        return Err(malformed("a term and an index below 2^62"));
    }
    let leads = vote.node == node && vote.committed && vote.term >= applied.term;
    let is_only_holder = membership.members().len() == 1 && !Valid::of(log, space).has_truncations();
    if leads && is_only_holder {
        return Ok(vote.term);
    }
    let term = last_term.next();
    let payload = Vote { term, node, committed: true }.encode();
    let payload_parts = [IoSlice::new(&payload)];
    let draft = Draft { space, kind: RecordKind::Vote, term, index: Index::ZERO, time, payload: &payload_parts };
    let appended = log.append(&[draft], Durability::Disk, Purpose::Reclaim)?;
    machine.apply_vote(&payload, appended.next)?;
    Ok(term)
}

fn found_space(
    log: &Log,
    machine: &Machine,
    (space, node): (SpaceId, NodeId),
    time: SpaceTime,
) -> Result<Term, OpenError> {
    let membership = Membership::of_one(node).encode();
    let vote = Vote { term: FIRST_TERM, node, committed: true }.encode();
    let (membership_part, vote_part) = ([IoSlice::new(&membership)], [IoSlice::new(&vote)]);
    let draft = |kind, term, payload| Draft { space, kind, term, index: Index::ZERO, time, payload };
    let drafts =
        [draft(RecordKind::Membership, Term::ZERO, &membership_part), draft(RecordKind::Vote, FIRST_TERM, &vote_part)];
    let appended = log.append(&drafts, Durability::Disk, Purpose::Reclaim)?;
    let id = LogId { term: Term::ZERO, index: Index::ZERO };
    machine.apply_membership(id, time, &membership, &BTreeSet::new(), appended.first.next())?;
    machine.apply_vote(&vote, appended.next)?;
    Ok(FIRST_TERM)
}
