//! The position up to which a node has applied its group's entries, for those that wait for it.
//!
//! Owns: the waiters. Does not own: the position itself, which is the state's.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use openraft::{
    async_runtime::{AsyncRuntime, OneshotSender},
    type_config::{
        TypeConfigExt,
        alias::{InstantOf, OneshotSenderOf},
    },
};
use thalweg_types::Index;

use crate::types::Types;

struct State<Rt: AsyncRuntime> {
    /// Last applied entry; `None` before the first one.
    applied: Option<Index>,
    /// Those that wait, by the entry that they wait for and a number.
    waiting: BTreeMap<(Index, u64), OneshotSenderOf<Types<Rt>, ()>>,
    last: u64,
}

/// The applied position of a node; a clone refers to the same one.
pub(crate) struct AppliedWatch<Rt: AsyncRuntime>(Rc<RefCell<State<Rt>>>);

impl<Rt: AsyncRuntime> Clone for AppliedWatch<Rt> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

/// Removes a waiter that gave up.
struct Waiting<'a, Rt: AsyncRuntime>(&'a AppliedWatch<Rt>, (Index, u64));

impl<Rt: AsyncRuntime> Drop for Waiting<'_, Rt> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().waiting.remove(&self.1);
    }
}

impl<Rt: AsyncRuntime> AppliedWatch<Rt> {
    pub fn new(applied: Option<Index>) -> Self {
        Self(Rc::new(RefCell::new(State { applied, waiting: BTreeMap::new(), last: 0 })))
    }

    pub fn get(&self) -> Option<Index> {
        self.0.borrow().applied
    }

    /// Notes that entries up to `index` are applied.
    pub fn raise(&self, index: Index) {
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

    /// Waits until entry `index` is applied. Returns false if that takes until the deadline.
    pub async fn reached(&self, index: Index, deadline: InstantOf<Types<Rt>>) -> bool {
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
