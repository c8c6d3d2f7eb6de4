//! A space (Raft group) on this node: alone, or as one of several members.
//!
//! Owns: the choice between the two variants. Does not own: their behaviour (`solo`, `member`).

use std::sync::Arc;

use thalweg_log::Purpose;
use thalweg_state::machine::LocalOutcome;
use thalweg_types::{
    Durability, Index, SpaceTime, Term,
    command::{Framed, Outcome},
};

use crate::{
    client::{Client, Origin},
    counts::ReplicaStats,
    error::ProposeError,
    member::{Leadership, Member},
    slot::{Committed, Proposal},
    solo::{Observer, Solo, Wake},
};

/// A space (Raft group) on this node, either alone or as a member of a cluster. A clone is cheap and refers to the same
/// space.
#[derive(Clone, Debug)]
pub enum Replica {
    /// This node is the Raft group's only voter, and decides without messages.
    Alone(Solo),
    /// This node is one of several members of the Raft group.
    Member(Member),
}

macro_rules! both {
    ($self:ident, $replica:ident => $call:expr) => {
        match $self {
            Self::Alone($replica) => $call,
            Self::Member($replica) => $call,
        }
    };
}

impl Replica {
    /// Returns true if this node may propose on behalf of the space (Raft group). A node alone always may.
    #[must_use]
    #[inline]
    pub fn leads(&self) -> bool {
        match self {
            Self::Alone(_) => true,
            Self::Member(member) => member.leads(),
        }
    }

    /// Returns the leadership of the space (Raft group) as far as this node knows it.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        match self {
            Self::Alone(solo) => Leadership::Leader { term: solo.term() },
            Self::Member(member) => member.leadership(),
        }
    }

    /// Returns the replica if it is a member of a cluster; `None` on a node alone.
    #[must_use]
    pub fn member(&self) -> Option<&Member> {
        match self {
            Self::Alone(_) => None,
            Self::Member(member) => Some(member),
        }
    }

    /// Sets the observer that is called for applied log entries. Only the first call has an effect.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        both!(self, replica => replica.observe(observer));
    }

    /// Proposes an encoded command and blocks until the command has reached durability `level`. On a member, blocks
    /// until a majority of the members has the command on disk.
    pub fn propose(&self, command: &Framed, level: Durability, purpose: Purpose) -> Result<Committed, ProposeError> {
        both!(self, replica => replica.propose(command, level, purpose))
    }

    /// Proposes a command like [`propose`](Self::propose), and calls `then` with the reached level and the outcome. If
    /// the command has to wait in the queue, `value_reads` is called first. It returns the cost in steps (units of
    /// work) of the stored values that the command reads or replaces; see
    /// [`Origin::value_reads`](crate::Origin::value_reads).
    #[inline]
    pub fn propose_then<T>(
        &self,
        command: &Framed,
        level: Durability,
        purpose: Purpose,
        value_reads: impl FnOnce() -> Option<u64>,
        then: impl FnOnce(Durability, Option<&mut Outcome>) -> T,
    ) -> Result<T, ProposeError> {
        both!(self, replica => replica.propose_then(command, level, purpose, value_reads, then))
    }

    /// Proposes an encoded command without blocking. The returned future resolves to the result.
    #[inline]
    pub fn propose_async(
        &self,
        command: Framed,
        level: Durability,
        purpose: Purpose,
    ) -> Result<Proposal, ProposeError> {
        both!(self, replica => replica.propose_async(command, level, purpose))
    }

    /// Proposes a command of a client without blocking. `wake` determines when the committing thread is woken if the
    /// command has to wait for this thread.
    #[inline]
    pub fn propose_async_for(
        &self,
        client: Option<Arc<Client>>,
        command: Framed,
        level: Durability,
        purpose: Purpose,
        wake: Wake,
    ) -> Result<Proposal, ProposeError> {
        both!(self, replica => replica.propose_async_for(client, command, level, purpose, wake))
    }

    /// Proposes a command like [`propose_async_for`](Self::propose_async_for), with the client, the limits and the
    /// requirements in `origin`.
    #[inline]
    pub fn propose_async_from(
        &self,
        origin: Origin,
        command: Framed,
        level: Durability,
        purpose: Purpose,
        wake: Wake,
    ) -> Result<Proposal, ProposeError> {
        match self {
            Self::Alone(solo) => solo.propose_async_from(origin, command, level, purpose, wake),
            Self::Member(member) => member.propose_async_from(origin, command, level, purpose, wake),
        }
    }

    /// Wakes the thread that commits queued commands.
    #[inline]
    pub fn commit_queued(&self) {
        both!(self, replica => replica.commit_queued());
    }

    /// Commits ready commands of the queue on the calling thread if no wait is needed before the commit. A member only
    /// wakes its consensus.
    #[inline]
    pub fn commit_queued_here(&self) {
        match self {
            Self::Alone(solo) => solo.commit_queued_here(),
            Self::Member(member) => member.commit_queued(),
        }
    }

    /// Logs and applies a move of bytes within this node's log. On a member, the call waits until the entries before
    /// the move are applied.
    pub fn relocate(&self, payload: &[u8]) -> Result<LocalOutcome, ProposeError> {
        both!(self, replica => replica.relocate(payload))
    }

    /// Writes a record to the log which states that entries up to `index`, which has Raft term `term`, may be missing.
    pub fn note_purged(&self, term: Term, index: Index) -> Result<(), ProposeError> {
        both!(self, replica => replica.note_purged(term, index))
    }

    /// Returns the current time of the space (Raft group).
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        both!(self, replica => replica.now())
    }

    /// Returns the reason why the space (Raft group) rejects proposals; `None` if the space accepts proposals.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        both!(self, replica => replica.failure())
    }

    /// Returns the statistics of the space (Raft group).
    #[must_use]
    pub fn stats(&self) -> ReplicaStats {
        both!(self, replica => replica.stats())
    }

    /// Closes the space (Raft group): it accepts no further proposals.
    pub fn close(&self) {
        both!(self, replica => replica.close());
    }
}
