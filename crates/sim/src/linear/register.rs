//! Model of one key as an object with an optional value.
//!
//! No two writes use the same number as value, so each revision has one value.

use super::Model;

/// Request of a client for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads the value of the key.
    Get,
    /// Sets the key to this value.
    Put(u64),
    /// Deletes the key.
    Delete,
    /// Put that happens only if the key has the expected value; `None` expects that the key does not exist.
    Swap {
        /// Value that the key must have; `None` if the key must not exist.
        expect: Option<u64>,
        /// New value of the key.
        put: u64,
    },
    /// Delete that happens only if the key has this value.
    DeleteIf(u64),
}

/// Answer to a client's request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write happened.
    Done,
    /// The key did not have the expected value, so nothing was written.
    Refused,
    /// The key did not have the expected value, so nothing was written. The answer contains the value of the key.
    RefusedAt(Option<u64>),
    /// The read found this value; `None` if the key did not exist.
    Value(Option<u64>),
    /// The answer was lost, so the outcome is unknown.
    Lost,
}

/// Model of a key whose value is a number.
#[derive(Debug)]
pub enum Register {}

impl Model for Register {
    type State = Option<u64>;
    type Operation = (Action, Answer);

    fn step(state: &Option<u64>, (action, answer): &(Action, Answer)) -> Option<Option<u64>> {
        // `holds` is the result of the condition, `after` the state after the write.
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
