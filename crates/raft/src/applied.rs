//! The position up to which a node has applied its space's entries, for tasks that wait for it, and the outcomes of
//! entries whose commands this node has forwarded.
//!
//! Owns: the waiters, and the outcomes that are kept for them. Does not own: the position itself, which belongs to the
//! state.
//!
//! While commands of this node are on their way to the leader, this node does not know their index, so it keeps the
//! outcomes of all entries that it applies, [`MAX_KEPT`] at most.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use openraft::{
    async_runtime::{AsyncRuntime, OneshotSender},
    type_config::{
        TypeConfigExt,
        alias::{InstantOf, OneshotSenderOf},
    },
};
use thalweg_types::Index;

use crate::types::{Response, Types};

/// Maximum number of entries whose outcomes are kept.
const MAX_KEPT: usize = 1024;

struct State<Rt: AsyncRuntime> {
    /// Last applied entry; `None` before the first one.
    applied: Option<Index>,
    /// Tasks that wait, by the index of the awaited entry and a number.
    waiting: BTreeMap<(Index, u64), OneshotSenderOf<Types<Rt>, ()>>,
    last: u64,
    /// Outcomes of the latest entries, while `keepers` is above 0.
    kept: BTreeMap<Index, Response>,
    keepers: usize,
}

/// The applied position of a node; a clone refers to the same one.
pub(crate) struct AppliedWatch<Rt: AsyncRuntime>(Rc<RefCell<State<Rt>>>);

impl<Rt: AsyncRuntime> Clone for AppliedWatch<Rt> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// Guard that removes a waiter when its task stops waiting.
struct Waiting<'a, Rt: AsyncRuntime>(&'a AppliedWatch<Rt>, (Index, u64));

impl<Rt: AsyncRuntime> Drop for Waiting<'_, Rt> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().waiting.remove(&self.1);
    }
}

/// Outcomes of the entries that were applied since this value was created.
pub(crate) struct KeptOutcomes<Rt: AsyncRuntime>(AppliedWatch<Rt>);

impl<Rt: AsyncRuntime> KeptOutcomes<Rt> {
    /// Takes the outcomes of an entry; `None` if they are not kept.
    pub(crate) fn take(&self, index: Index) -> Option<Response> {
        self.0.0.borrow_mut().kept.remove(&index)
    }
}

impl<Rt: AsyncRuntime> Drop for KeptOutcomes<Rt> {
    fn drop(&mut self) {
        let mut state = self.0.0.borrow_mut();
        state.keepers -= 1;
        if state.keepers == 0 {
            state.kept.clear();
        }
    }
}

impl<Rt: AsyncRuntime> AppliedWatch<Rt> {
    pub(crate) fn new(applied: Option<Index>) -> Self {
        Self(Rc::new(RefCell::new(State {
            applied,
            waiting: BTreeMap::new(),
            last: 0,
            kept: BTreeMap::new(),
            keepers: 0,
        })))
    }

    pub(crate) fn get(&self) -> Option<Index> {
        self.0.borrow().applied
    }

    /// Notes that entries up to `index` are applied.
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
            // The waiter may have given up.
            let _ = waiter.send(());
        }
    }

    /// Keeps the outcomes of the entries that are applied from now on, until the returned value is dropped.
    pub(crate) fn keep_outcomes(&self) -> KeptOutcomes<Rt> {
        self.0.borrow_mut().keepers += 1;
        KeptOutcomes(self.clone())
    }

    /// Returns true if a proposer of this node may take the outcomes of an entry that is applied now.
    pub(crate) fn keeps_outcomes(&self) -> bool {
        self.0.borrow().keepers > 0
    }

    /// Notes the outcomes of an entry that is being applied.
    pub(crate) fn note_outcomes(&self, index: Index, response: &Response) {
        let mut state = self.0.borrow_mut();
        if state.keepers == 0 || response.outcomes.is_empty() {
            return;
        }
        state.kept.insert(index, response.clone());
        if state.kept.len() > MAX_KEPT {
            state.kept.pop_first();
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

/// Returns the instant `after` from now.
pub(crate) fn deadline<Rt: AsyncRuntime>(after: Duration) -> InstantOf<Types<Rt>> {
    Types::<Rt>::now() + after
}
