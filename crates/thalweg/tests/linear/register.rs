//! A key as an object: it has a value or none. Values are numbers that no two writes share, so a revision
//! stands for one value.

use super::Model;

/// What a client asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Get,
    Put(u64),
    Delete,
    /// Put if the key has this value, or none.
    Swap {
        expect: Option<u64>,
        put: u64,
    },
    /// Delete if the key has this value.
    DeleteIf(u64),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write happened.
    Done,
    /// The condition did not hold.
    Refused,
    /// The condition did not hold: the key had this value.
    RefusedAt(Option<u64>),
    /// The key had this value.
    Value(Option<u64>),
    /// Nobody knows.
    Lost,
}

/// The model.
#[derive(Debug)]
pub enum Register {}

impl Model for Register {
    type State = Option<u64>;
    type Operation = (Action, Answer);

    fn step(state: &Option<u64>, (action, answer): &(Action, Answer)) -> Option<Option<u64>> {
        // Whether the write takes place, and what the key is then.
        let (holds, after) = match *action {
            Action::Get => return matches!(answer, Answer::Value(value) if value == state).then_some(*state),
            Action::Put(value) => (true, Some(value)),
            Action::Delete => (true, None),
            Action::Swap { expect, put } => (*state == expect, Some(put)),
            Action::DeleteIf(value) => (*state == Some(value), None),
        };
        match answer {
            Answer::Done => holds.then_some(after),
            Answer::Refused => (!holds).then_some(*state),
            Answer::RefusedAt(value) => (!holds && value == state).then_some(*state),
            Answer::Lost => Some(if holds { after } else { *state }),
            Answer::Value(_) => None,
        }
    }
}
