//! Is there one order that explains what concurrent clients were told?
//!
//! A history is a list of operations on one object, each with the two moments between which it must have taken
//! effect, if it did. The check goes through these moments in order and keeps every *configuration* that is
//! possible so far: the object's state, and which of the operations under way have taken effect already. When an
//! operation ends that has not, it is made to, after any of the others under way; where no configuration is
//! left, nothing explains the history.
//!
//! That is the just-in-time linearization of G. Lowe, "Testing for linearizability" (Concurrency and
//! Computation: Practice and Experience 29(4), 2017), which improves on J. M. Wing and C. Gong, "Testing and
//! verifying concurrent objects" (Journal of Parallel and Distributed Computing 17, 1993). Keys are checked one
//! by one: a history is linearizable if that of each object is (M. Herlihy and J. M. Wing, 1990).
//!
//! An operation that was never answered may have taken effect between its begin and its end (the moment at
//! which the server that it was sent to was dead), or not at all.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod bank;
pub mod clock;
pub mod register;

use std::{collections::BTreeSet, fmt::Debug};

/// What an object is.
pub trait Model {
    /// What it may be.
    type State: Clone + Ord + Debug;
    /// An operation, and what came of it if that is known.
    type Operation: Debug;

    /// The state afterwards, if the operation could have been answered as it was in this state.
    fn step(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;
}

/// Whether a client was told what came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was: it has taken effect.
    Answered,
    /// It was not: perhaps it has.
    Nothing,
}

/// An operation of a history: it took effect after `begin` and before `end`. No two moments are equal.
#[derive(Clone, Debug)]
pub struct Timed<O> {
    pub begin: u64,
    pub end: u64,
    pub told: Told,
    pub operation: O,
}

/// Most operations that may be under way at a time.
const MAX_UNDER_WAY: usize = 64;

/// Why a history can't be explained: by its operation with this index nothing was possible any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexplained<S> {
    pub operation: usize,
    /// What the object could have been before.
    pub states: Vec<S>,
}

/// A state, and which of the operations under way have taken effect, by the place they were given.
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

/// The configurations after the operation in a place has ended.
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
        // It never happened. What others under way do is decided when they end.
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
