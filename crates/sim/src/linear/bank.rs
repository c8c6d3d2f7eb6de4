//! Check of transactions that move amounts between accounts: one serial order must explain all answers to clients.
//!
//! Owns: the types of transactions and their answers, the check, and its violations. Does not own: the transactions
//! that the simulation runs, or checks of single keys (the other modules of `linear`).
//!
//! Each transaction that changes balances also appends its number to a stream, so the order of all changes is known,
//! including those whose answer was lost. The check replays this order on a model of the accounts:
//! * a change happened on the balances that it expected, and led to the balances in its answer;
//! * a read, including the one of a rejection, saw the balances of one point in time;
//! * revisions increase along the order, and the order is consistent with real time (strict serializability): an
//!   operation that ended before another began precedes it.

use std::collections::HashMap;

/// A transaction between the moments `begin` and `end`.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Moment at which the client sent the transaction.
    pub begin: u64,
    /// Moment of the answer. For a change without an answer, the moment from which its server was certainly dead, so
    /// that the change cannot happen later.
    pub end: u64,
    /// The transaction with its answer.
    pub transaction: Transaction,
}

/// Number of an account, together with its balance, or with an amount by which its balance changes.
pub type Balance = (usize, i64);

/// A transaction and its answer.
#[derive(Clone, Debug)]
pub enum Transaction {
    /// A transaction that changed balances. Also a transaction without an answer, which may have changed them.
    Change {
        /// Number of the transaction, which it appends to the stream.
        id: u64,
        /// Amounts by which the transaction changes the balances of accounts.
        changes: Vec<Balance>,
        /// Balances that the accounts must have for the change to happen.
        expected: Vec<Balance>,
        /// Answer to the change; `None` if it was lost.
        outcome: Option<Change>,
    },
    /// A transaction that only read balances, or that was rejected and so changed nothing.
    Read {
        /// Balances that the read saw.
        saw: Vec<Balance>,
        /// Revision of the last change before the read.
        revision: u64,
        /// Expected balances that the rejected transaction reports as not met; empty for a plain read.
        refused: Vec<Balance>,
    },
}

/// Answer of the server to a transaction that changes balances.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the commit that changed the balances.
    pub revision: u64,
    /// Offset of the change's number in the stream.
    pub offset: u64,
    /// Balances of the accounts after the change, according to the answer.
    pub after: Vec<Balance>,
}

/// Reason why [`check`] finds that no serial order explains the clients' answers.
#[derive(Debug, PartialEq, Eq)]
pub enum BankViolation {
    /// The stream contains a number that no change in the history has, or contains a number twice.
    Stray {
        /// Number in the stream that no change in the history has, or that occurs twice in the stream.
        id: u64,
    },
    /// An acknowledged change is missing from the stream, or its number is at another offset than the answer says.
    Misplaced {
        /// Number of the change that is missing or misplaced.
        id: u64,
    },
    /// The revision of a change is not higher than the revision of the change before it in the stream.
    Revision {
        /// Number of the change whose revision is too low.
        id: u64,
    },
    /// A transaction changed the balances although they were not those that it expected.
    Expectation {
        /// Number of the change that should not have happened.
        id: u64,
    },
    /// The answer to a transaction states other balances than the accounts have after the transaction's change.
    Outcome {
        /// Number of the change with the wrong answer.
        id: u64,
    },
    /// The order of two changes in the stream contradicts real time: the second change had ended before the first one
    /// began.
    RealTime {
        /// Number of the change that is second in the stream, although it had ended before the first one began.
        id: u64,
    },
    /// The read saw balances that no state in its time span had. Or a rejected transaction reports an expected balance
    /// as not met although the account had it.
    Read {
        /// Index of the transaction with the impossible balances in the history.
        transaction: usize,
    },
    /// The read saw an earlier revision than a read that had ended before it began.
    ReadBack {
        /// Index of the later read in the history, the one that saw the earlier revision.
        transaction: usize,
    },
}

/// Returns the transactions that a violation concerns.
pub fn about<'a>(wrong: &BankViolation, history: &'a [Timed]) -> Vec<&'a Timed> {
    match wrong {
        BankViolation::Read { transaction } | BankViolation::ReadBack { transaction } => vec![&history[*transaction]],
        BankViolation::Stray { id }
        | BankViolation::Misplaced { id }
        | BankViolation::Revision { id }
        | BankViolation::Expectation { id }
        | BankViolation::Outcome { id }
        | BankViolation::RealTime { id } => {
            let is =
                |timed: &&Timed| matches!(&timed.transaction, Transaction::Change { id: other, .. } if other == id);
            history.iter().filter(is).collect()
        }
    }
}

struct OrderedChange<'a> {
    timed: &'a Timed,
    id: u64,
    revision: Option<u64>,
}

/// Checks the clients' answers against `order`: the numbers of the changes in the order of the stream. `opening`
/// contains the balances before the first change.
pub fn check(opening: &[i64], order: &[u64], history: &[Timed]) -> Result<(), BankViolation> {
    let placed = place(order, history)?;
    let states = replay(opening, &placed)?;
    check_real_time(&placed)?;
    let mut reads: Vec<_> = Vec::new();
    for (at, timed) in history.iter().enumerate() {
        let Transaction::Read { saw, revision, refused } = &timed.transaction else { continue };
        // A change without an answer has no known revision. Between two changes with answers, it may lie before or
        // after the read's revision.
        let least = placed.iter().rposition(|change| change.revision.is_some_and(|known| known <= *revision));
        let least = least.map_or(0, |last| last + 1);
        let most = placed.iter().position(|change| change.revision.is_some_and(|known| known > *revision));
        let least =
            least.max(placed.iter().rposition(|change| change.timed.end < timed.begin).map_or(0, |last| last + 1));
        let most = most.unwrap_or(placed.len());
        let most = most.min(placed.iter().position(|change| change.timed.begin > timed.end).unwrap_or(placed.len()));
        let holds = |state: &Vec<i64>, balances: &[Balance]| balances.iter().all(|&(at, balance)| state[at] == balance);
        let fits = |state: &Vec<i64>| holds(state, saw) && (refused.is_empty() || !holds(state, refused));
        if least > most || !states[least..=most].iter().any(fits) {
            return Err(BankViolation::Read { transaction: at });
        }
        reads.push((timed.begin, timed.end, *revision, at));
    }
    check_reads(reads)
}

/// Returns the changes in the order of the stream.
fn place<'a>(order: &[u64], history: &'a [Timed]) -> Result<Vec<OrderedChange<'a>>, BankViolation> {
    let mut changes: HashMap<u64, &Timed> = HashMap::new();
    for timed in history {
        if let Transaction::Change { id, .. } = &timed.transaction {
            changes.insert(*id, timed);
        }
    }
    let mut placed: Vec<OrderedChange<'_>> = Vec::new();
    for (offset, id) in order.iter().enumerate() {
        let timed = changes.remove(id).ok_or(BankViolation::Stray { id: *id })?;
        let Transaction::Change { outcome, .. } = &timed.transaction else {
            unreachable!("only changes are looked up")
        };
        if outcome.as_ref().is_some_and(|outcome| outcome.offset != offset as u64) {
            return Err(BankViolation::Misplaced { id: *id });
        }
        let revision = outcome.as_ref().map(|outcome| outcome.revision);
        let last = placed.iter().rev().find_map(|change| change.revision);
        if revision.is_some_and(|revision| last.is_some_and(|last| revision <= last)) {
            return Err(BankViolation::Revision { id: *id });
        }
        placed.push(OrderedChange { timed, id: *id, revision });
    }
    let answered = |timed: &&Timed| matches!(&timed.transaction, Transaction::Change { outcome: Some(_), .. });
    match changes.into_values().find(answered).map(|timed| &timed.transaction) {
        Some(Transaction::Change { id, .. }) => Err(BankViolation::Misplaced { id: *id }),
        _ => Ok(placed),
    }
}

/// Returns the balances before the first change and after each change.
fn replay(opening: &[i64], placed: &[OrderedChange<'_>]) -> Result<Vec<Vec<i64>>, BankViolation> {
    let mut states = vec![opening.to_vec()];
    for OrderedChange { timed, id, .. } in placed {
        let Transaction::Change { changes, expected, outcome, .. } = &timed.transaction else { continue };
        let mut state = states.last().expect("the opening balances").clone();
        if expected.iter().any(|&(at, balance)| state[at] != balance) {
            return Err(BankViolation::Expectation { id: *id });
        }
        changes.iter().for_each(|&(at, by)| state[at] += by);
        if outcome.iter().flat_map(|outcome| &outcome.after).any(|&(at, balance)| state[at] != balance) {
            return Err(BankViolation::Outcome { id: *id });
        }
        states.push(state);
    }
    Ok(states)
}

/// Checks the order of the changes against real time: a change must not have ended before a change that precedes it in
/// the stream began.
fn check_real_time(placed: &[OrderedChange<'_>]) -> Result<(), BankViolation> {
    let mut latest_begin = 0;
    for change in placed {
        if change.timed.end < latest_begin {
            return Err(BankViolation::RealTime { id: change.id });
        }
        latest_begin = latest_begin.max(change.timed.begin);
    }
    Ok(())
}

fn check_reads(mut reads: Vec<(u64, u64, u64, usize)>) -> Result<(), BankViolation> {
    let mut ends: Vec<_> = reads.iter().map(|&(_, end, revision, _)| (end, revision)).collect();
    ends.sort_unstable();
    reads.sort_unstable();
    let (mut ended, mut highest) = (ends.into_iter().peekable(), 0);
    for (begin, _, revision, transaction) in reads {
        while let Some((_, before)) = ended.next_if(|(end, _)| *end < begin) {
            highest = highest.max(before);
        }
        if revision < highest {
            return Err(BankViolation::ReadBack { transaction });
        }
    }
    Ok(())
}
