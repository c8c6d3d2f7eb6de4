//! Sizes of the values that a transaction returns, looked up before it is proposed.
//!
//! Owns: the estimate of a transaction's gets in steps. Without it each get counts as one of a value of maximum size,
//! because the bytes of a transaction do not show how much it returns, and only four transactions with a get share an
//! entry. Does not own the bound that the proposer computes from the estimate
//! ([`max_steps_with`](thalweg_types::command::max_steps_with)).
//!
//! Invariants:
//! * An estimate never affects an outcome. A value that another client replaces by a larger one before the transaction
//!   is applied makes the entry take longer.
//! * A transaction causes at most [`MAX_LOOKUPS`] lookups. One with more gets has no estimate.

use thalweg_state::machine::Machine;
use thalweg_types::{
    budget::Budget,
    command::{Command, Transaction, Write, unwrap},
    steps::read_bytes,
};

/// Maximum number of lookups for a transaction.
const MAX_LOOKUPS: usize = 64;

/// Returns the steps of the values that the gets of a command return, if the command is a transaction with gets, but
/// not with more than [`MAX_LOOKUPS`], and if the keys are in memory. A get of a key that the transaction writes itself
/// returns at most the bytes of the transaction.
pub(crate) fn of_transaction(machine: &Machine, command: &[u8]) -> Option<u64> {
    let command = unwrap(command).bytes;
    if !Transaction::is_one(command) {
        return None;
    }
    let Ok(Command::Transaction(transaction)) = Command::decode(command) else { return None };
    let (mut gets, mut keys) = (0, [None; MAX_LOOKUPS]);
    for operation in transaction.branches().ok()?.into_iter().flatten() {
        if let Write::Get { keyspace, key } = operation.ok()? {
            *keys.get_mut(gets)? = Some((keyspace, key));
            gets += 1;
        }
    }
    if gets == 0 {
        return None;
    }
    let view = machine.read_view();
    let look_up = || {
        keys.into_iter().flatten().try_fold(0, |steps, (keyspace, key)| {
            let stored = view.get(keyspace, key).ok()?.map_or(0, |stored| stored.value.as_ref().value_len());
            Some(steps + read_bytes(stored + command.len()))
        })
    };
    Budget::RESIDENT.perform(look_up).ok()?
}
