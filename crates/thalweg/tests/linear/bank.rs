//! Accounts that transactions move amounts between: is what all clients were told what one serial order gives?
//!
//! Each transaction that changes something also appends its number to a stream, so the order in which they happened
//! is known, those included whose answer was lost. The check goes through it with a model of the accounts:
//! * a change happened on the balances that it expected, and led to those that its client was told;
//! * a read saw the balances of one moment, and a refusal was one;
//! * revisions rise along the order, and the order is that of real time (strict serializability): what had ended
//!   before something else began comes before it.

use std::collections::HashMap;

/// A transaction, from `begin` to `end`.
#[derive(Clone, Debug)]
pub struct Timed {
    pub begin: u64,
    /// For a change that was never answered: when its server was dead.
    pub end: u64,
    pub transaction: Transaction,
}

/// Account and balance, or by how much it is changed.
pub type Balance = (usize, i64);

#[derive(Clone, Debug)]
pub enum Transaction {
    /// It changed something, or was lost.
    Change {
        id: u64,
        changes: Vec<Balance>,
        /// What it was conditional on.
        expected: Vec<Balance>,
        /// `None`: its answer was lost.
        told: Option<Change>,
    },
    /// It changed nothing.
    Read {
        saw: Vec<Balance>,
        /// The last one before it.
        revision: u64,
        /// What did not hold, if it was refused.
        refused: Vec<Balance>,
    },
}

/// What the client of a change was told.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    /// Of its number in the stream.
    pub offset: u64,
    /// The balances that it led to.
    pub after: Vec<Balance>,
}

/// What is wrong with a history.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The stream has the number of no change, or one twice.
    Stray { id: u64 },
    /// The client was told that it happened, and it is not there, or elsewhere.
    Misplaced { id: u64 },
    /// Its revision is not above that of the one before.
    Revision { id: u64 },
    /// It happened, but not on what it expected.
    Expectation { id: u64 },
    /// It was told other balances than it led to.
    Outcome { id: u64 },
    /// It came before something that had ended before it began.
    RealTime { id: u64 },
    /// At no moment that it could have seen were the balances so, or did what it was refused for not hold.
    Read { transaction: usize },
    /// Of two reads the later one saw an earlier revision.
    ReadBack { transaction: usize },
}

/// The transactions that a complaint is about.
pub fn about<'a>(wrong: &Wrong, history: &'a [Timed]) -> Vec<&'a Timed> {
    match wrong {
        Wrong::Read { transaction } | Wrong::ReadBack { transaction } => vec![&history[*transaction]],
        Wrong::Stray { id }
        | Wrong::Misplaced { id }
        | Wrong::Revision { id }
        | Wrong::Expectation { id }
        | Wrong::Outcome { id }
        | Wrong::RealTime { id } => {
            let is =
                |timed: &&Timed| matches!(&timed.transaction, Transaction::Change { id: other, .. } if other == id);
            history.iter().filter(is).collect()
        }
    }
}

struct Placed<'a> {
    timed: &'a Timed,
    id: u64,
    revision: Option<u64>,
}

/// Checks what clients were told against the stream of numbers.
pub fn check(opening: &[i64], order: &[u64], history: &[Timed]) -> Result<(), Wrong> {
    let placed = place(order, history)?;
    let states = replay(opening, &placed)?;
    check_real_time(&placed)?;
    let mut reads: Vec<_> = Vec::new();
    for (at, timed) in history.iter().enumerate() {
        let Transaction::Read { saw, revision, refused } = &timed.transaction else { continue };
        // Changes without an answer between two with one may be on either side of the revision.
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
            return Err(Wrong::Read { transaction: at });
        }
        reads.push((timed.begin, timed.end, *revision, at));
    }
    check_reads(reads)
}

/// The changes in the stream's order.
fn place<'a>(order: &[u64], history: &'a [Timed]) -> Result<Vec<Placed<'a>>, Wrong> {
    let mut changes: HashMap<u64, &Timed> = HashMap::new();
    for timed in history {
        if let Transaction::Change { id, .. } = &timed.transaction {
            changes.insert(*id, timed);
        }
    }
    let mut placed: Vec<Placed<'_>> = Vec::new();
    for (offset, id) in order.iter().enumerate() {
        let timed = changes.remove(id).ok_or(Wrong::Stray { id: *id })?;
        let Transaction::Change { told, .. } = &timed.transaction else { unreachable!("only changes are looked up") };
        if told.as_ref().is_some_and(|told| told.offset != offset as u64) {
            return Err(Wrong::Misplaced { id: *id });
        }
        let revision = told.as_ref().map(|told| told.revision);
        let last = placed.iter().rev().find_map(|change| change.revision);
        if revision.is_some_and(|revision| last.is_some_and(|last| revision <= last)) {
            return Err(Wrong::Revision { id: *id });
        }
        placed.push(Placed { timed, id: *id, revision });
    }
    let answered = |timed: &&Timed| matches!(&timed.transaction, Transaction::Change { told: Some(_), .. });
    match changes.into_values().find(answered).map(|timed| &timed.transaction) {
        Some(Transaction::Change { id, .. }) => Err(Wrong::Misplaced { id: *id }),
        _ => Ok(placed),
    }
}

/// The balances before the first change and after each.
fn replay(opening: &[i64], placed: &[Placed<'_>]) -> Result<Vec<Vec<i64>>, Wrong> {
    let mut states = vec![opening.to_vec()];
    for Placed { timed, id, .. } in placed {
        let Transaction::Change { changes, expected, told, .. } = &timed.transaction else { continue };
        let mut state = states.last().expect("the opening balances").clone();
        if expected.iter().any(|&(at, balance)| state[at] != balance) {
            return Err(Wrong::Expectation { id: *id });
        }
        changes.iter().for_each(|&(at, by)| state[at] += by);
        if told.iter().flat_map(|told| &told.after).any(|&(at, balance)| state[at] != balance) {
            return Err(Wrong::Outcome { id: *id });
        }
        states.push(state);
    }
    Ok(states)
}

/// No change comes after one that began when it had ended.
fn check_real_time(placed: &[Placed<'_>]) -> Result<(), Wrong> {
    let mut latest_begin = 0;
    for change in placed {
        if change.timed.end < latest_begin {
            return Err(Wrong::RealTime { id: change.id });
        }
        latest_begin = latest_begin.max(change.timed.begin);
    }
    Ok(())
}

fn check_reads(mut reads: Vec<(u64, u64, u64, usize)>) -> Result<(), Wrong> {
    let mut ends: Vec<_> = reads.iter().map(|&(_, end, revision, _)| (end, revision)).collect();
    ends.sort_unstable();
    reads.sort_unstable();
    let (mut ended, mut highest) = (ends.into_iter().peekable(), 0);
    for (begin, _, revision, transaction) in reads {
        while let Some((_, before)) = ended.next_if(|(end, _)| *end < begin) {
            highest = highest.max(before);
        }
        if revision < highest {
            return Err(Wrong::ReadBack { transaction });
        }
    }
    Ok(())
}
