//! The index up to which a node has applied committed entries, and the outcomes of commands that the node has forwarded
//! to the leader.
//!
//! Owns: the tasks that wait for the position, and the outcomes that are kept for proposers of forwarded commands. Does
//! not own: the position itself, which belongs to the state.
//!
//! While commands of this node are on their way to the leader, this node does not know the index of their entry, only
//! the entry's payload. So it keeps the outcomes of each applied entry with this payload. It keeps at most [`MAX_KEPT`]
//! entries' outcomes, with at most [`ConsensusOptions::max_outcome_bytes`], or one entry's that are larger. Beyond
//! these bounds it drops the oldest outcomes. Their proposers then get the error that the outcome is unknown, although
//! the commands are committed. For entries of other nodes, this node performs reads and keeps outcomes only if their
//! payload equals one of its own.
//!
//! [`ConsensusOptions::max_outcome_bytes`]: crate::ConsensusOptions::max_outcome_bytes

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use openraft::{
    async_runtime::{AsyncRuntime, OneshotSender},
    type_config::{
        TypeConfigExt,
        alias::{InstantOf, OneshotSenderOf},
    },
};
use thalweg_types::{Index, command::Outcome};

use crate::types::{Response, Types};

/// Maximum number of entries whose outcomes this node keeps for proposers of forwarded commands.
const MAX_KEPT: usize = 1024;

struct State<Rt: AsyncRuntime> {
    /// Index of the last applied entry; `None` before the first one.
    applied: Option<Index>,
    /// Tasks that wait until an entry is applied. The key is the index of the entry and a number that makes the key
    /// unique.
    waiting: BTreeMap<(Index, u64), OneshotSenderOf<Types<Rt>, ()>>,
    last: u64,
    /// Outcomes of the newest applied entries with a payload for which a proposer of this node waits, each with its
    /// size in bytes.
    kept: BTreeMap<Index, (Response, usize)>,
    /// Total size in bytes of the outcomes in `kept`.
    kept_bytes: usize,
    /// Maximum of `kept_bytes`; one entry's outcomes may exceed it. A proposer takes its outcomes as soon as the leader
    /// has answered, so the bound is only reached if the leader answers late.
    max_kept_bytes: usize,
    /// Payloads of the entries whose outcomes are kept, each with the number of proposers that wait for it.
    awaited: BTreeMap<Bytes, usize>,
}

/// The applied position of a node. Clones refer to the same position.
pub(crate) struct AppliedWatch<Rt: AsyncRuntime>(Rc<RefCell<State<Rt>>>);

impl<Rt: AsyncRuntime> Clone for AppliedWatch<Rt> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// Guard of a task that waits until an entry is applied. Dropping it removes the task from the list of waiting tasks.
struct Waiting<'a, Rt: AsyncRuntime>(&'a AppliedWatch<Rt>, (Index, u64));

impl<Rt: AsyncRuntime> Drop for Waiting<'_, Rt> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().waiting.remove(&self.1);
    }
}

/// Guard: while it exists, the node keeps the outcomes of the entries that it applies and that have one given payload.
pub(crate) struct KeptOutcomes<Rt: AsyncRuntime> {
    applied: AppliedWatch<Rt>,
    payload: Bytes,
}

impl<Rt: AsyncRuntime> KeptOutcomes<Rt> {
    /// Takes the outcomes of the entry at `index`; `None` if they are not kept.
    pub(crate) fn take(&self, index: Index) -> Option<Response> {
        let mut state = self.applied.0.borrow_mut();
        let (response, bytes) = state.kept.remove(&index)?;
        state.kept_bytes -= bytes;
        Some(response)
    }
}

impl<Rt: AsyncRuntime> Drop for KeptOutcomes<Rt> {
    fn drop(&mut self) {
        let mut state = self.applied.0.borrow_mut();
        match state.awaited.get_mut(&self.payload) {
            Some(proposers @ 2..) => *proposers -= 1,
            _ => _ = state.awaited.remove(&self.payload),
        }
        if state.awaited.is_empty() {
            state.kept.clear();
            state.kept_bytes = 0;
        }
    }
}

impl<Rt: AsyncRuntime> AppliedWatch<Rt> {
    pub(crate) fn new(applied: Option<Index>, max_kept_bytes: usize) -> Self {
        Self(Rc::new(RefCell::new(State {
            applied,
            waiting: BTreeMap::new(),
            last: 0,
            kept: BTreeMap::new(),
            kept_bytes: 0,
            max_kept_bytes,
            awaited: BTreeMap::new(),
        })))
    }

    pub(crate) fn get(&self) -> Option<Index> {
        self.0.borrow().applied
    }

    /// Notes that this node has applied all entries up to `index`, and wakes the tasks that wait for them.
    pub(crate) fn raise(&self, index: Index) {
        let mut state = self.0.borrow_mut();
        if state.applied >= Some(index) {
            return;
        }
        state.applied = Some(index);
        let later = state.waiting.split_off(&(index.next(), 0));
        let reached = std::mem::replace(&mut state.waiting, later);
        drop(state);
        for waiter in reached.into_values() {
            // The waiting task may have given up.
            let _ = waiter.send(());
        }
    }

    /// Keeps the outcomes of entries with this payload, from now on until the caller drops the returned guard.
    pub(crate) fn keep_outcomes(&self, payload: Bytes) -> KeptOutcomes<Rt> {
        *self.0.borrow_mut().awaited.entry(payload.clone()).or_insert(0) += 1;
        KeptOutcomes { applied: self.clone(), payload }
    }

    /// Returns true if a proposer of this node may take the outcomes of an entry that is applied now. `payload` is that
    /// of the entry; `None` if it is not in memory.
    pub(crate) fn keeps_outcomes(&self, payload: Option<&[u8]>) -> bool {
        let state = self.0.borrow();
        payload.map_or(!state.awaited.is_empty(), |payload| state.awaited.contains_key(payload))
    }

    /// Keeps the outcomes of an entry that has just been applied.
    pub(crate) fn note_outcomes(&self, index: Index, response: &Response) {
        let mut state = self.0.borrow_mut();
        if response.outcomes.is_empty() {
            return;
        }
        let of_outcome = |outcome: &Outcome| size_of::<Outcome>() + outcome.held_bytes();
        let bytes = response.outcomes.iter().map(of_outcome).sum();
        state.kept_bytes += bytes;
        if let Some((_, replaced)) = state.kept.insert(index, (response.clone(), bytes)) {
            state.kept_bytes -= replaced;
        }
        while state.kept.len() > MAX_KEPT || state.kept_bytes > state.max_kept_bytes && state.kept.len() > 1 {
            if let Some((_, (_, bytes))) = state.kept.pop_first() {
                state.kept_bytes -= bytes;
            }
        }
    }

    /// Waits until entry `index` is applied. Returns false if the deadline passes first.
    pub(crate) async fn reached(&self, index: Index, deadline: InstantOf<Types<Rt>>) -> bool {
        let (key, receiver) = {
            let mut state = self.0.borrow_mut();
            if state.applied >= Some(index) {
                return true;
            }
            state.last += 1;
            let (sender, receiver) = Types::<Rt>::oneshot();
            let key = (index, state.last);
            state.waiting.insert(key, sender);
            (key, receiver)
        };
        let _waiting = Waiting(self, key);
        matches!(Types::<Rt>::timeout_at(deadline, receiver).await, Ok(Ok(())))
    }
}

/// Returns the instant that lies `after` in the future.
pub(crate) fn deadline<Rt: AsyncRuntime>(after: Duration) -> InstantOf<Types<Rt>> {
    Types::<Rt>::now() + after
}

#[cfg(test)]
mod tests {
    use openraft_rt_tokio::TokioRuntime;
    use thalweg_types::reply::Reply;

    use super::*;

    const MAX_KEPT_BYTES: usize = 1 << 20;

    #[test]
    fn outcomes_are_kept_for_entries_with_an_awaited_payload() {
        let applied = AppliedWatch::<TokioRuntime>::new(None, MAX_KEPT_BYTES);
        assert!(!applied.keeps_outcomes(Some(b"mine")) && !applied.keeps_outcomes(None));
        let first = applied.keep_outcomes(Bytes::from_static(b"mine"));
        let second = applied.keep_outcomes(Bytes::from_static(b"mine"));
        assert!(applied.keeps_outcomes(Some(b"mine")) && !applied.keeps_outcomes(Some(b"theirs")));
        assert!(applied.keeps_outcomes(None), "a payload that is not in memory may be the awaited one");
        let response = Response { outcomes: vec![Outcome::Redis(None)], steps: 1, times: None };
        applied.note_outcomes(Index(7), &response);
        applied.note_outcomes(Index(8), &Response { outcomes: Vec::new(), steps: 1, times: None });
        drop(first);
        assert!(applied.keeps_outcomes(Some(b"mine")));
        assert_eq!(second.take(Index(7)).map(|taken| taken.steps), Some(1));
        assert!(second.take(Index(7)).is_none() && second.take(Index(8)).is_none());
        applied.note_outcomes(Index(9), &response);
        drop(second);
        assert!(!applied.keeps_outcomes(None) && applied.0.borrow().kept.is_empty());
    }

    #[test]
    fn kept_outcomes_are_bounded_in_bytes_and_the_oldest_go_first() {
        let applied = AppliedWatch::<TokioRuntime>::new(None, MAX_KEPT_BYTES);
        let waiting = applied.keep_outcomes(Bytes::from_static(b"mine"));
        let response = |len: usize| {
            let replies = vec![Reply::Bulk(vec![7; len].into())];
            Response { outcomes: vec![Outcome::Redis(Some(replies))], steps: 1, times: None }
        };
        let indexes = || applied.0.borrow().kept.keys().map(|index| index.0).collect::<Vec<_>>();
        let third = response(MAX_KEPT_BYTES / 3);
        (1..=4).for_each(|index| applied.note_outcomes(Index(index), &third));
        assert_eq!(indexes(), [3, 4]);
        assert!(waiting.take(Index(1)).is_none() && waiting.take(Index(3)).is_some());
        applied.note_outcomes(Index(5), &third);
        assert_eq!(indexes(), [4, 5], "what is taken counts no more");
        applied.note_outcomes(Index(6), &response(MAX_KEPT_BYTES + 1));
        assert_eq!(indexes(), [6], "one entry may exceed the bound");
        applied.note_outcomes(Index(7), &response(1));
        assert_eq!(indexes(), [7]);
        let state = applied.0.borrow();
        assert_eq!(state.kept_bytes, state.kept.values().map(|(_, bytes)| bytes).sum::<usize>());
    }
}
