//! Linearizability checker: searches for one order that explains all answers to concurrent clients.
//!
//! A history is a list of operations on one object, each with the two moments between which it took effect, if it did.
//! The check processes these moments in order and keeps every *configuration* that is possible so far: the object's
//! state, and the set of pending operations that have already taken effect. When an operation ends in a configuration
//! without its effect, the check applies it, after any of the other pending operations. If no configuration is left, no
//! order explains the history.
//!
//! This is the just-in-time linearization of G. Lowe, "Testing for linearizability" (Concurrency and Computation:
//! Practice and Experience 29(4), 2017), which improves on J. M. Wing and C. Gong, "Testing and verifying concurrent
//! objects" (Journal of Parallel and Distributed Computing 17, 1993). Keys are checked one by one: a history is
//! linearizable if the history of each object is (M. Herlihy and J. M. Wing, 1990).
//!
//! An operation without an answer may have taken effect between its start and its end (the moment at which its server
//! was dead), or not at all.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod bank;
pub mod clock;
pub mod register;

use std::{collections::BTreeSet, fmt::Debug};

/// Sequential specification of an object.
pub trait Model {
    /// State of the modelled object.
    type State: Clone + Ord + Debug;
    /// An operation, with its answer if that is known.
    type Operation: Debug;

    /// Returns the state after the operation, or `None` if its answer is impossible in this state.
    fn step(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;
}

/// Knowledge of a client about the outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The operation was answered, so it has taken effect.
    Answered,
    /// The answer was lost; the operation may have taken effect.
    Nothing,
}

/// Operation of a history, which took effect after `begin` and before `end`. All moments are distinct.
#[derive(Clone, Debug)]
pub struct Timed<O> {
    pub begin: u64,
    pub end: u64,
    pub told: Told,
    pub operation: O,
}

/// Maximum number of concurrent operations.
const MAX_UNDER_WAY: usize = 64;

/// Error for a history without an explanation: no configuration allows its operation with this index.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexplained<S> {
    pub operation: usize,
    /// Possible states of the object before that operation.
    pub states: Vec<S>,
}

/// A state, and the set of pending operations that have taken effect, as bits by their slots.
type Configuration<S> = (S, u64);

/// Checks the history of one object.
pub fn check<M: Model>(initial: M::State, history: &[Timed<M::Operation>]) -> Result<(), Unexplained<M::State>> {
    let mut moments: Vec<(u64, usize)> =
        history.iter().enumerate().flat_map(|(at, timed)| [(timed.begin, at), (timed.end, at)]).collect();
    moments.sort_unstable();
    let mut possible = BTreeSet::from([(initial, 0_u64)]);
    let mut places: [Option<usize>; MAX_UNDER_WAY] = [None; MAX_UNDER_WAY];
    for (moment, at) in moments {
        let timed = &history[at];
        if moment == timed.begin {
            assert!(timed.begin < timed.end, "an operation ends before it begins");
            let free = places.iter().position(Option::is_none).expect("fewer operations under way than places");
            places[free] = Some(at);
            continue;
        }
        let place = places.iter().position(|place| *place == Some(at)).expect("it has begun");
        let next = ended::<M>(&possible, history, &places, place);
        if next.is_empty() {
            let states: BTreeSet<_> = possible.into_iter().map(|(state, _)| state).collect();
            return Err(Unexplained { operation: at, states: states.into_iter().collect() });
        }
        (possible, places[place]) = (next, None);
    }
    Ok(())
}

/// Returns the configurations after the end of the operation in slot `place`.
fn ended<M: Model>(
    possible: &BTreeSet<Configuration<M::State>>,
    history: &[Timed<M::Operation>],
    places: &[Option<usize>],
    place: usize,
) -> BTreeSet<Configuration<M::State>> {
    let bit = 1_u64 << place;
    let timed = &history[places[place].expect("it is under way")];
    let (mut next, mut seen) = (BTreeSet::new(), BTreeSet::new());
    if timed.told == Told::Nothing {
        // The operation never happened. The effects of other pending operations are decided at their ends.
        next.extend(possible.iter().filter(|(_, done)| done & bit == 0).cloned());
    }
    let mut open: Vec<_> = possible.iter().cloned().collect();
    while let Some((state, done)) = open.pop() {
        if done & bit != 0 {
            next.insert((state, done & !bit));
            continue;
        }
        for (other, at) in places.iter().enumerate() {
            let (Some(at), false) = (at, done & (1 << other) != 0) else { continue };
            let Some(state) = M::step(&state, &history[*at].operation) else { continue };
            let configuration = (state, done | 1 << other);
            if seen.insert(configuration.clone()) {
                open.push(configuration);
            }
        }
    }
    next
}
