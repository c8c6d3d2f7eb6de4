//! The check of the beginning of a history without its committed entries.
//!
//! Owns: the translation of reads and writes into operations of the checker in `linear`. Does not own: the search.
//!
//! For keys, the check proves the same as the oracle, but uses only the clients' requests and answers. So it finds a
//! bug that makes the committed entries and the answers wrong in the same way. Keys that an operation uses together
//! form one object.

use std::collections::BTreeMap;

use thalweg_types::command::Outcome;

use crate::{
    history::{Action, Answer, End, Key, Operation},
    linear::{
        ClientAnswer, Timed, check_within,
        keys::{Answer as KeysAnswer, Keys, Request},
    },
};

/// Number of operations, from the beginning of a history, that the check without the committed log entries covers.
pub const MAX_OPERATIONS: usize = 2_000;
/// Maximum number of configurations (possible states with the operations in effect) of an object at one moment. With
/// more, the object is left undecided.
const MAX_CONFIGURATIONS: usize = 50_000;

/// Result of the check of the beginning of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    /// Number of operations on objects whose answers the check has found possible.
    pub checked: usize,
    /// Number of operations on objects for which the check would have taken too long, so it has no verdict on them.
    pub undecided: usize,
    /// Descriptions of findings that are impossible in a correct cluster; empty if there are none.
    pub violations: Vec<String>,
}

/// Checks the reads and writes among the first operations of a history.
#[must_use]
pub fn check(operations: &[Operation]) -> SearchResult {
    let part = &operations[..operations.len().min(MAX_OPERATIONS)];
    // An answer after the checked part counts as unknown.
    let horizon = operations.get(MAX_OPERATIONS).map_or(u64::MAX, |next| next.begin);
    let mut objects = Objects::default();
    part.iter().for_each(|operation| objects.join(&keys_of(&operation.action)));
    let mut histories: BTreeMap<Key, Vec<&Operation>> = BTreeMap::new();
    for operation in part {
        if let Some(key) = keys_of(&operation.action).first() {
            histories.entry(objects.of(*key)).or_default().push(operation);
        }
    }
    let mut found = SearchResult::default();
    for (object, operations) in histories {
        check_object(object, &operations, horizon, &mut found);
    }
    found
}

fn keys_of(action: &Action) -> Vec<Key> {
    match action {
        Action::Read { keys, .. } => keys.clone(),
        Action::Write { expect, put, .. } => expect.iter().chain(put).map(|(key, _)| *key).collect(),
        _ => Vec::new(),
    }
}

/// Union-find structure of the keys that operations use together: each key maps to another key of its object, or to
/// itself.
#[derive(Default)]
struct Objects(BTreeMap<Key, Key>);

impl Objects {
    /// Returns the key that represents the object of `key`.
    fn of(&self, mut key: Key) -> Key {
        while let Some(other) = self.0.get(&key).filter(|other| **other != key) {
            key = *other;
        }
        key
    }

    fn join(&mut self, keys: &[Key]) {
        for pair in keys.windows(2) {
            let (one, other) = (self.of(pair[0]), self.of(pair[1]));
            self.0.insert(one, other);
        }
    }
}

fn check_object(object: Key, operations: &[&Operation], horizon: u64, found: &mut SearchResult) {
    let mut numbers: BTreeMap<Key, usize> = BTreeMap::new();
    for key in operations.iter().flat_map(|operation| keys_of(&operation.action)) {
        let next = numbers.len();
        numbers.entry(key).or_insert(next);
    }
    let history: Vec<_> = operations.iter().filter_map(|operation| timed(operation, &numbers, horizon)).collect();
    match check_within::<Keys>(vec![None; numbers.len()], &history, MAX_CONFIGURATIONS) {
        None => found.undecided += history.len(),
        Some(Ok(())) => found.checked += history.len(),
        Some(Err(unexplained)) => {
            let Timed { begin, end, operation, .. } = &history[unexplained.operation];
            let text = format!("the object of key {object} in no possible state explains {operation:?}");
            found.violations.push(format!("{text} from moment {begin} to {end}, one of: {:?}", unexplained.states));
        }
    }
}

fn timed(
    operation: &Operation,
    numbers: &BTreeMap<Key, usize>,
    horizon: u64,
) -> Option<Timed<<Keys as crate::linear::Model>::Operation>> {
    let pairs = |pairs: &[(Key, Option<u64>)]| pairs.iter().map(|(key, value)| (numbers[key], *value)).collect();
    let request = match &operation.action {
        Action::Read { level, .. } if !level.is_recent() => return None,
        Action::Read { keys, .. } => Request::Read(keys.iter().map(|key| numbers[key]).collect()),
        Action::Write { expect, put, .. } => Request::Write { expect: pairs(expect), put: pairs(put) },
        _ => return None,
    };
    let answer = match &operation.end {
        End::Rejected => return None,
        End::Answered(moment, Answer::Values { values, .. }) if *moment < horizon => KeysAnswer::Values(values.clone()),
        End::Answered(moment, Answer::Outcome(Outcome::Committed { .. })) if *moment < horizon => KeysAnswer::Done,
        End::Answered(moment, Answer::Outcome(Outcome::ConditionFailed { .. })) if *moment < horizon => {
            KeysAnswer::Refused
        }
        _ if operation.action.is_read() => return None,
        _ => KeysAnswer::Lost,
    };
    let client_answer = if answer == KeysAnswer::Lost { ClientAnswer::Nothing } else { ClientAnswer::Answered };
    let end = if answer == KeysAnswer::Lost { u64::MAX } else { operation.ended() };
    Some(Timed { begin: operation.begin, end, client_answer, operation: (request, answer) })
}
