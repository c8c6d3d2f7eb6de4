//! Model of several keys as one object, with reads of some keys and conditional writes.

use super::Model;

/// Number of a key in the object, and the key's value; `None` if the key does not exist.
pub type Pair = (usize, Option<u64>);

/// Request of a client that reads or writes some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read of keys at one point in time.
    Read(Vec<usize>),
    /// Write that happens only if keys have expected values.
    Write {
        /// Keys with the values that they must have; `None` if a key must not exist.
        expect: Vec<Pair>,
        /// Keys with their new values; `None` deletes a key.
        put: Vec<Pair>,
    },
}

/// Answer to a request that reads or writes some keys of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write happened.
    Done,
    /// The keys did not have the expected values, so nothing was written.
    Refused,
    /// The keys of the read had these values.
    Values(Vec<Option<u64>>),
    /// The answer was lost, so the outcome is unknown.
    Lost,
}

/// Model of several keys whose values are numbers. The state is the value of each key.
#[derive(Debug)]
pub enum Keys {}

impl Request {
    fn written(&self) -> impl Iterator<Item = usize> {
        let put = if let Self::Write { put, .. } = self { &put[..] } else { &[] };
        put.iter().map(|(key, _)| *key)
    }

    fn touches(&self, key: usize) -> bool {
        match self {
            Self::Read(keys) => keys.contains(&key),
            Self::Write { expect, put } => expect.iter().chain(put).any(|(other, _)| *other == key),
        }
    }
}

impl Model for Keys {
    type State = Vec<Option<u64>>;
    type Operation = (Request, Answer);

    fn step(state: &Self::State, (request, answer): &(Request, Answer)) -> Option<Self::State> {
        let (expect, put) = match request {
            Request::Read(keys) => {
                let Answer::Values(values) = answer else { return None };
                let is_so = keys.iter().zip(values).all(|(key, value)| state[*key] == *value);
                return is_so.then(|| state.clone());
            }
            Request::Write { expect, put } => (expect, put),
        };
        let holds = expect.iter().all(|(key, value)| state[*key] == *value);
        let after = || {
            let mut after = state.clone();
            put.iter().for_each(|(key, value)| after[*key] = *value);
            after
        };
        match answer {
            Answer::Done => holds.then(after),
            Answer::Refused => (!holds).then(|| state.clone()),
            Answer::Lost => Some(if holds { after() } else { state.clone() }),
            Answer::Values(_) => None,
        }
    }

    fn commute((one, _): &(Request, Answer), (other, _): &(Request, Answer)) -> bool {
        !one.written().any(|key| other.touches(key)) && !other.written().any(|key| one.touches(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{ClientAnswer, Timed, check};

    fn timed(begin: u64, end: u64, request: Request, answer: Answer) -> Timed<(Request, Answer)> {
        let client_answer = if answer == Answer::Lost { ClientAnswer::Nothing } else { ClientAnswer::Answered };
        Timed { begin, end, client_answer, operation: (request, answer) }
    }

    fn put(pairs: &[Pair]) -> Request {
        Request::Write { expect: Vec::new(), put: pairs.to_vec() }
    }

    fn read(keys: &[usize]) -> Request {
        Request::Read(keys.to_vec())
    }

    fn is_explained(history: &[Timed<(Request, Answer)>]) -> bool {
        check::<Keys>(vec![None; 3], history).is_ok()
    }

    #[test]
    fn transactions_happen_at_one_point_in_time() {
        let both = timed(1, 10, put(&[(0, Some(1)), (1, Some(1))]), Answer::Done);
        let saw =
            |begin, values: [Option<u64>; 2]| timed(begin, begin + 1, read(&[0, 1]), Answer::Values(values.to_vec()));
        assert!(is_explained(&[both.clone(), saw(2, [None; 2]), saw(4, [Some(1); 2])]));
        assert!(!is_explained(&[both.clone(), saw(2, [Some(1), None])]), "half of a transaction");
        assert!(!is_explained(&[both, saw(2, [Some(1); 2]), saw(4, [None; 2])]), "undone");
        // The two writes concern different keys. Both orders are possible, but all readers must see the same order.
        let writes =
            || [timed(1, 20, put(&[(0, Some(1))]), Answer::Done), timed(2, 21, put(&[(1, Some(2))]), Answer::Done)];
        let with = |reads: [Timed<_>; 2]| is_explained(&writes().into_iter().chain(reads).collect::<Vec<_>>());
        assert!(with([saw(3, [Some(1), None]), saw(5, [Some(1), Some(2)])]));
        assert!(!with([saw(3, [Some(1), None]), saw(5, [None, Some(2)])]));
    }

    #[test]
    fn operations_without_an_answer_pile_up_and_the_search_stays_short() {
        // Each of the lost writes may still take effect. The reads see some of them, in another order than that of
        // their requests.
        let mut history: Vec<_> =
            (0..120).map(|number| timed(number + 1, u64::MAX, put(&[(0, Some(number))]), Answer::Lost)).collect();
        let saw = |at: u64, value| timed(1000 + 2 * at, 1001 + 2 * at, read(&[0]), Answer::Values(vec![Some(value)]));
        history.extend((0..50).map(|at| saw(at, 119 - 2 * at)));
        assert!(is_explained(&history));
        history.push(saw(200, 119));
        assert!(!is_explained(&history), "this value was replaced, and its write happened only once");
    }
}
