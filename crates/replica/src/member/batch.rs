//! Proposals that become one entry of a space (Raft group), on their way through consensus.
//!
//! Owns: the guarantee that each proposal of the batch is answered. Does not own: consensus, which completes or fails
//! the batch.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_types::{Durability, Term, command::Outcome};

use crate::{
    error::ProposeError,
    pending::{Pending, payload_of, purpose_of},
    queue::learn,
    slot::Committed,
};

/// Maximum length in bytes of the text that names the requests of a batch. For further requests the text only states
/// their number.
const MAX_NAMES_BYTES: usize = 1024;

/// Proposals that become one entry of a space (Raft group). A batch that is dropped answers all of them with
/// [`ProposeError::OutcomeUnknown`].
#[derive(Debug)]
#[must_use = "dropping a batch tells its proposers that the outcome is unknown"]
pub struct Batch {
    proposals: Vec<Pending>,
    payload: Bytes,
    /// Term in which the node led when it checked the proposals; `None` if it did not lead.
    term: Option<Term>,
    /// Monotonic time in microseconds. Proposers whose timeout passed up to this time have been answered; 0 at first.
    expired_micros: u64,
    /// Monotonic time at which the proposals were taken from the queue; zero if it is not known.
    taken_at: Duration,
}

impl Batch {
    pub(crate) fn new(proposals: Vec<Pending>, term: Option<Term>) -> Self {
        let payload = payload_of(&proposals).into_owned().into();
        Self { proposals, payload, term, expired_micros: 0, taken_at: Duration::ZERO }
    }

    /// Notes the time at which the proposals were taken from the queue.
    pub(crate) fn taken(mut self, at: Duration) -> Self {
        self.taken_at = at;
        self
    }

    /// Monotonic time at which the proposals were taken from the queue; `None` if it is not known.
    pub(crate) fn taken_at(&self) -> Option<Duration> {
        Some(self.taken_at).filter(|at| !at.is_zero())
    }

    /// Monotonic times at which the proposals were queued.
    pub(crate) fn queued_at(&self) -> impl Iterator<Item = Duration> {
        self.proposals.iter().map(|pending| pending.queued_at)
    }

    /// Term in which this node led when it checked the batch's proposals; `None` if it did not lead. The node must not
    /// write the batch in another term.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// Prepares a batch for another leader, after consensus has refused it unwritten. Proposals that require this node
    /// to lead in a certain term get `error`. Returns a batch of the other proposals; `None` if there are none.
    #[must_use]
    pub fn for_any_leader(self, error: &ProposeError) -> Option<Self> {
        if self.proposals.iter().all(|pending| pending.term.is_none()) {
            return Some(self);
        }
        let kept = refuse(self.into_proposals(), |pending| pending.term.is_some(), || error.clone());
        (!kept.is_empty()).then(|| Self::new(kept, None))
    }

    /// Takes the proposals out of the batch. The caller ensures that none of the proposals was written to the log.
    pub(crate) fn into_proposals(mut self) -> Vec<Pending> {
        std::mem::take(&mut self.proposals)
    }

    /// Returns the bytes of the batch's log entry: the framed commands.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Returns the purpose that the log is told when it appends the entry. An entry whose commands all free space may
    /// use the part of the disk that is reserved for such writes.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        purpose_of(&self.proposals)
    }

    /// Returns the names of the batch's requests for log lines, joined by commas; empty if none has a name. Names that
    /// would make the text longer than 1 KiB are counted instead.
    #[must_use]
    pub fn requests(&self) -> String {
        let mut text = String::new();
        let mut left_out = 0_usize;
        for name in self.proposals.iter().filter_map(|pending| pending.request.as_deref()) {
            if text.len() + name.len() > MAX_NAMES_BYTES {
                left_out += 1;
                continue;
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(name);
        }
        if left_out > 0 {
            let _ = write!(text, ", and {left_out} more");
        }
        text
    }

    /// Returns the latest monotonic time at which a proposer of the batch stops waiting for its answer.
    pub(crate) fn last_expiry(&self) -> Duration {
        let last = self.proposals.iter().map(|pending| pending.expires_micros).max();
        Duration::from_micros(last.unwrap_or(0))
    }

    /// Returns the earliest monotonic time at which a waiting proposer of the batch gives up; `None` if
    /// [`expire`](Self::expire) has answered all proposers.
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        let expiries = self.proposals.iter().map(|pending| pending.expires_micros);
        expiries.filter(|expires| *expires > self.expired_micros).min().map(Duration::from_micros)
    }

    /// Sends an error to the proposers whose timeout has passed at `now_micros`. Their commands stay in the batch,
    /// because they are part of its log entry.
    pub(crate) fn expire(&mut self, now_micros: u64, error: &ProposeError) {
        self.expired_micros = self.expired_micros.max(now_micros);
        for pending in self.proposals.iter_mut().filter(|pending| pending.expires_micros <= now_micros) {
            pending.answer(Err(error.clone()));
        }
    }

    /// Answers all proposals with the outcomes of their commands, after the entry was committed and applied. `steps` is
    /// the number of steps (units of work) that applying them took, if it is known.
    pub fn complete(mut self, outcomes: Vec<Outcome>, steps: Option<u64>) {
        if outcomes.len() != self.proposals.len() {
            let (found, expected) = (outcomes.len(), self.proposals.len());
            return self.fail(&ProposeError::State(format!("{found} outcomes for {expected} commands")));
        }
        if let Some(steps) = steps {
            learn(&self.proposals, steps);
        }
        for (mut pending, outcome) in self.proposals.drain(..).zip(outcomes) {
            pending.answer(Ok(Committed { durability: Durability::Quorum, outcome: Some(outcome) }));
        }
    }

    /// Answers all proposals of the batch with an error.
    pub fn fail(mut self, error: &ProposeError) {
        fail_all(self.proposals.drain(..), error);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let reason = "consensus has ended before the command was committed".to_owned();
        fail_all(self.proposals.drain(..), &ProposeError::OutcomeUnknown { reason });
    }
}

/// Sends an error as the answer to each proposal for which `applies` returns true. Returns the other proposals.
pub(crate) fn refuse(
    proposals: Vec<Pending>,
    applies: impl Fn(&Pending) -> bool,
    error: impl FnOnce() -> ProposeError,
) -> Vec<Pending> {
    if !proposals.iter().any(&applies) {
        return proposals;
    }
    let (refused, kept): (Vec<_>, Vec<_>) = proposals.into_iter().partition(applies);
    fail_all(refused, &error());
    kept
}

/// Answers each of these proposals with an error.
pub(crate) fn fail_all(proposals: impl IntoIterator<Item = Pending>, error: &ProposeError) {
    proposals.into_iter().for_each(|mut pending| pending.answer(Err(error.clone())));
}

#[cfg(test)]
mod tests {
    use thalweg_types::{
        KeyspaceId,
        command::{Framed, encode_put},
    };

    use super::*;

    fn named(name: Option<&str>) -> Pending {
        let mut command = Framed::new();
        command.encode(|out| encode_put(out, KeyspaceId(1), b"k", b"v")).unwrap();
        let mut pending = Pending::new(command, Durability::Disk, Purpose::Data, None, None);
        pending.request = name.map(Into::into);
        pending
    }

    #[test]
    fn a_batch_names_its_requests() {
        let requests = |proposals| Batch::new(proposals, None).requests();
        assert_eq!(requests(vec![named(None)]), "");
        assert_eq!(requests(vec![named(Some("a")), named(None), named(Some("b"))]), "a, b");
        let long = "n".repeat(64);
        let names = requests((0..100).map(|_| named(Some(&long))).collect());
        assert!(names.starts_with(&format!("{long}, {long}, ")) && names.len() < 2 * MAX_NAMES_BYTES, "{names}");
        let listed = names.matches(&long).count();
        assert!(names.ends_with(&format!(", and {} more", 100 - listed)), "{names}");
    }
}
