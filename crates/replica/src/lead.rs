//! How a node alone comes to lead its space, in the way of a one-voter group.
//!
//! A new space is founded: the membership at index 0, and the vote that makes its one voter leader of
//! term 1. In an old one the node goes on in the term in which it led, or votes itself into the next.
//!
//! Invariants: terms never go back; two different entries never have the same term and index where
//! another node can have seen one of them. That is why a node that others learn from begins a new term:
//! an entry may have reached a learner and not have survived here. So does one in whose log entries were taken back:
//! others may hold those, under the indexes that are given again.

use std::io::IoSlice;

use thalweg_log::{Draft, Log, Purpose, RecordKind};
use thalweg_state::{machine::Machine, membership::LogId};
use thalweg_types::{Durability, Index, SpaceTime, Term};

use crate::{
    error::OpenError,
    group::{Membership, Vote},
    solo::SoloOptions,
    valid::Valid,
};

/// The term of the first leader of a space.
const FIRST_TERM: Term = Term(1);

/// Makes this node leader; returns its term. The state must be up to the log.
pub(crate) fn take_lead(
    log: &Log,
    machine: &Machine,
    options: &SoloOptions,
    time: SpaceTime,
) -> Result<Term, OpenError> {
    let applied = machine.applied();
    if applied.lsn.0 == 0 {
        return found(log, machine, options, time);
    }
    let membership = machine.membership()?.ok_or(OpenError::NoGroup { what: "membership" })?;
    let malformed = |what| OpenError::Malformed { lsn: applied.lsn, what };
    let membership = Membership::decode(&membership.payload).ok_or_else(|| malformed("membership"))?;
    if membership.sole_voter() != Some(options.node) {
        return Err(OpenError::NotAlone { voters: membership.voters().into_iter().collect() });
    }
    let vote = machine.vote()?.ok_or(OpenError::NoGroup { what: "vote" })?;
    let vote = Vote::decode(&vote).ok_or_else(|| malformed("vote"))?;
    let leads = vote.node == options.node && vote.committed && vote.term >= applied.term;
    let is_only_holder = membership.members().len() == 1 && !Valid::of(log, options.space).has_truncations();
    if leads && is_only_holder {
        return Ok(vote.term);
    }
    let term = vote.term.max(applied.term).next();
    let payload = Vote { term, node: options.node, committed: true }.encode();
    let payload_parts = [IoSlice::new(&payload)];
    let draft =
        Draft { space: options.space, kind: RecordKind::Vote, term, index: Index::ZERO, time, payload: &payload_parts };
    let appended = log.append(&[draft], Durability::Disk, Purpose::Reclaim)?;
    machine.apply_vote(&payload, appended.next)?;
    Ok(term)
}

fn found(log: &Log, machine: &Machine, options: &SoloOptions, time: SpaceTime) -> Result<Term, OpenError> {
    let membership = Membership::of_one(options.node).encode();
    let vote = Vote { term: FIRST_TERM, node: options.node, committed: true }.encode();
    let (membership_part, vote_part) = ([IoSlice::new(&membership)], [IoSlice::new(&vote)]);
    let draft = |kind, term, payload| Draft { space: options.space, kind, term, index: Index::ZERO, time, payload };
    let drafts =
        [draft(RecordKind::Membership, Term::ZERO, &membership_part), draft(RecordKind::Vote, FIRST_TERM, &vote_part)];
    let appended = log.append(&drafts, Durability::Disk, Purpose::Reclaim)?;
    let id = LogId { term: Term::ZERO, index: Index::ZERO };
    machine.apply_membership(id, time, &membership, appended.first.next())?;
    machine.apply_vote(&vote, appended.next)?;
    Ok(FIRST_TERM)
}
