//! Linearizability checker: searches for one order that explains all answers to concurrent clients.
//!
//! Owns: the search, and the models of a register and of a set of accounts. Does not own: histories, or the check with
//! a known order of all writes (`oracle`).
//!
//! A history is a list of operations on one object, each with its begin and its end. An operation that took effect did
//! so between these two moments. The check processes these moments in order and keeps every *configuration* that is
//! possible so far: the object's state, and the set of pending operations that have already taken effect. When an
//! operation ends and a configuration does not contain its effect yet, the check applies the operation, after any
//! selection of the other pending operations. If no configuration is left, no order explains the history.
//!
//! This is the just-in-time linearization of G. Lowe, "Testing for linearizability" (Concurrency and Computation:
//! Practice and Experience 29(4), 2017), which improves on J. M. Wing and C. Gong, "Testing and verifying concurrent
//! objects" (Journal of Parallel and Distributed Computing 17, 1993). Keys are checked one by one: a history is
//! linearizable if the history of each object is (M. Herlihy and J. M. Wing, 1990).
//!
//! An operation without an answer may have taken effect at any time from its start to the moment at which its server
//! was dead, or not at all. The longer a history, the more such operations it has, and each doubles the possible
//! configurations. Two rules keep the number of configurations small:
//! - A configuration is dropped if another one has the same state, the same answered operations, and a subset of its
//!   operations without an answer. The missing operations can still take effect later, or never.
//! - Before an ended operation, the check applies only operations that do not commute with it or with another operation
//!   applied before it. All other operations can take effect afterwards as well.

pub mod bank;
pub mod keys;
pub mod register;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Debug,
};

/// Sequential specification of an object: the effect of each operation if operations run one after the other.
pub trait Model {
    /// State of the modelled object.
    type State: Clone + Ord + Debug;
    /// An operation with its answer, or without one if the answer was lost.
    type Operation: Debug;

    /// Returns the state after the operation, or `None` if its answer is impossible in this state.
    fn step(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;

    /// Returns true if the order of the two operations changes neither their answers nor the state. The result false is
    /// always safe, but makes the search longer.
    fn commute(one: &Self::Operation, other: &Self::Operation) -> bool {
        let _ = (one, other);
        false
    }
}

/// Knowledge of a client about the outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAnswer {
    /// The operation was answered, so it has taken effect.
    Answered,
    /// The answer was lost; the operation may have taken effect.
    Nothing,
}

/// Operation of a history, which took effect between `begin` and `end`. All moments are distinct, except `u64::MAX`,
/// the end of operations that may take effect at any later time.
#[derive(Clone, Debug)]
pub struct Timed<O> {
    /// Moment at which the client sent the request.
    pub begin: u64,
    /// Moment of the answer, or the last moment at which an operation without an answer can have taken effect.
    pub end: u64,
    /// Knowledge of the client about the outcome of the operation.
    pub client_answer: ClientAnswer,
    /// The operation, with its answer if there was one.
    pub operation: O,
}

/// Error for a history that no order of operations explains. The check found no possible state of the object after the
/// end of `operation`.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexplained<S> {
    /// Index of the operation in the history after whose end no state is possible.
    pub operation: usize,
    /// Possible states of the object before the end of that operation.
    pub states: Vec<S>,
}

/// Operations, by their indexes in the history, in ascending order.
type Operations = Vec<usize>;

/// Set of the configurations that are possible at one moment. A configuration consists of a state of the object and the
/// pending operations that have taken effect. A key of the map `sets` is a state together with those operations in
/// effect that have an answer. The value of a key has one set for each configuration: the operations in effect without
/// an answer. No set of a key contains another set of the same key.
struct Configurations<S> {
    sets: BTreeMap<(S, Operations), Vec<Operations>>,
    count: usize,
}

impl<S: Clone + Ord> Configurations<S> {
    fn new() -> Self {
        Self { sets: BTreeMap::new(), count: 0 }
    }

    /// Adds a configuration: the state `state`, the operations in effect with an answer (`answered`), and those without
    /// one (`lost`). Does nothing if an existing configuration permits all outcomes that the new one permits. Returns
    /// true if it was added.
    fn add(&mut self, state: S, answered: Operations, lost: Operations) -> bool {
        let sets = self.sets.entry((state, answered)).or_default();
        if sets.iter().any(|other| is_subset(other, &lost)) {
            return false;
        }
        let before = sets.len();
        sets.retain(|other| !is_subset(&lost, other));
        sets.push(lost);
        self.count = self.count + sets.len() - before;
        true
    }

    fn all(&self) -> impl Iterator<Item = (&S, &Operations, &Operations)> {
        self.sets.iter().flat_map(|((state, answered), sets)| sets.iter().map(move |lost| (state, answered, lost)))
    }
}

fn is_subset(small: &[usize], large: &[usize]) -> bool {
    small.len() <= large.len() && small.iter().all(|item| large.binary_search(item).is_ok())
}

fn with(set: &[usize], item: usize) -> Operations {
    let mut set = set.to_vec();
    let at = set.partition_point(|other| *other < item);
    set.insert(at, item);
    set
}

fn without(set: &[usize], item: usize) -> Operations {
    set.iter().copied().filter(|other| *other != item).collect()
}

/// Checks that one order of the operations on an object explains all answers in its history. `initial` is the object's
/// state before the first operation.
pub fn check<M: Model>(initial: M::State, history: &[Timed<M::Operation>]) -> Result<(), Unexplained<M::State>> {
    check_within::<M>(initial, history, usize::MAX).unwrap_or(Ok(()))
}

/// Checks the history of one object like [`check`], with bounded memory. Returns `None` without a verdict if the search
/// needs more than `max_configurations` configurations (possible states with the operations that have taken effect).
pub fn check_within<M: Model>(
    initial: M::State,
    history: &[Timed<M::Operation>],
    max_configurations: usize,
) -> Option<Result<(), Unexplained<M::State>>> {
    let mut moments: Vec<(u64, usize)> =
        history.iter().enumerate().flat_map(|(at, timed)| [(timed.begin, at), (timed.end, at)]).collect();
    moments.sort_unstable();
    let mut possible = Configurations::new();
    possible.add(initial, Vec::new(), Vec::new());
    let mut pending = Vec::new();
    for (moment, at) in moments {
        let timed = &history[at];
        if moment == timed.begin {
            assert!(timed.begin < timed.end, "an operation ends before it begins");
            pending.push(at);
            continue;
        }
        if moment == u64::MAX {
            // This operation never ends, and no answered operation ends later.
            break;
        }
        let next = ended::<M>(&possible, history, &pending, at, max_configurations)?;
        if next.count == 0 {
            let mut states: Vec<_> = possible.sets.into_keys().map(|(state, _)| state).collect();
            states.dedup();
            return Some(Err(Unexplained { operation: at, states }));
        }
        possible = next;
        pending.retain(|other| *other != at);
    }
    Some(Ok(()))
}

/// Returns the operation with the index `at`, and the pending operations that the search may have to apply before it.
fn relevant<M: Model>(history: &[Timed<M::Operation>], pending: &[usize], at: usize) -> Operations {
    let mut found = vec![at];
    let mut left: Vec<usize> = pending.iter().copied().filter(|other| *other != at).collect();
    let mut next = 0;
    while let Some(one) = found.get(next).copied() {
        let (commuting, conflicting): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|other| M::commute(&history[one].operation, &history[*other].operation));
        left = commuting;
        found.extend(conflicting);
        next += 1;
    }
    found
}

/// Returns the configurations (possible states with the operations in effect) after operation `at` has ended. Returns
/// `None` if there are more than `max_configurations`.
fn ended<M: Model>(
    possible: &Configurations<M::State>,
    history: &[Timed<M::Operation>],
    pending: &[usize],
    at: usize,
    max_configurations: usize,
) -> Option<Configurations<M::State>> {
    let (mut next, mut seen) = (Configurations::new(), Configurations::new());
    let is_lost = |operation: usize| history[operation].client_answer == ClientAnswer::Nothing;
    let relevant = relevant::<M>(history, pending, at);
    // Configurations with fewer operations come first, because they make those with more operations unnecessary.
    let mut open: VecDeque<_> =
        possible.all().map(|(state, answered, lost)| (state.clone(), answered.clone(), lost.clone())).collect();
    while let Some((state, answered, lost)) = open.pop_front() {
        let set = if is_lost(at) { &lost } else { &answered };
        if set.binary_search(&at).is_ok() {
            match is_lost(at) {
                true => next.add(state, answered, without(&lost, at)),
                false => next.add(state, without(&answered, at), lost),
            };
            continue;
        }
        if is_lost(at) {
            // A lost operation may never have happened. The effects of other pending operations are decided when those
            // end.
            next.add(state.clone(), answered.clone(), lost.clone());
        }
        for &other in &relevant {
            let set = if is_lost(other) { &lost } else { &answered };
            if set.binary_search(&other).is_ok() {
                continue;
            }
            let Some(state) = M::step(&state, &history[other].operation) else { continue };
            let (answered, lost) = match is_lost(other) {
                true => (answered.clone(), with(&lost, other)),
                false => (with(&answered, other), lost.clone()),
            };
            if seen.add(state.clone(), answered.clone(), lost.clone()) {
                open.push_back((state, answered, lost));
            }
        }
        if open.len() > max_configurations || next.count > max_configurations {
            return None;
        }
    }
    Some(next)
}
