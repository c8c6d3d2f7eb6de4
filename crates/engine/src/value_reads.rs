//! Estimates the work of a command that reads values, from their lengths, before the command is proposed.
//!
//! Owns: the estimate, in steps (units of work), for values that gets return, that touches (changes of deadlines) write
//! again, and that a history keeps. The bytes of a command do not show the lengths of these values. Without the
//! estimate, each returned value counts as one of maximum size, so only four transactions with a get share an entry. A
//! touch or a put would count too little if its key has a long value that is stored in the state. Does not own: the
//! bound that the proposer computes from the estimate ([`max_steps_with`](thalweg_types::command::max_steps_with)).
//!
//! Invariants:
//! * An estimate never affects an outcome. If another client replaces a value by a larger one before the command is
//!   applied, the entry takes longer.
//! * A command causes at most [`MAX_LOOKUPS`] lookups. A command that uses more values has no estimate. The state
//!   machine charges commands with several writes for their values, and bounds the sum.

use thalweg_state::machine::Machine;
use thalweg_types::{
    budget::Budget,
    codec::Malformed,
    command::{BlindPut, Command, Framed, Transaction, Write, unwrap, uses_revision},
    steps::{READ, read_bytes, written_bytes},
};

const MAX_LOOKUPS: usize = 64;

/// Use that a command makes of the value that its key has before the command.
#[derive(Clone, Copy, Debug)]
enum ValueUse {
    /// The command returns the value.
    Returned,
    /// The command writes the value again, with another deadline.
    Rewritten,
    /// The command replaces the value. A keyspace with history keeps it as a former value.
    Kept,
}

/// Estimates the steps of work for the values that a framed command uses, like [`of_command`].
pub(crate) fn of_framed(machine: &Machine, command: &Framed) -> Option<u64> {
    of_command(machine, command.bytes().get(4..).unwrap_or_default())
}

/// Estimates the steps (units of work) for the values that a commit or a transaction uses. `None` for other commands,
/// if there are no such values or more than [`MAX_LOOKUPS`], or if the rows of the keys are not in memory. Values that
/// are replaced are looked up only if some keyspace keeps former values.
fn of_command(machine: &Machine, command: &[u8]) -> Option<u64> {
    let (command, keeps_history) = (unwrap(command).bytes, machine.keeps_history());
    // These commands use no value, and are by far the most frequent ones.
    if !keeps_history && BlindPut::decode(command).is_some() {
        return None;
    }
    // Only commits use a revision. Other commands, such as long bursts of Redis commands, are not decoded here.
    if !Transaction::is_one(command) && !uses_revision(command) {
        return None;
    }
    match Command::decode(command).ok()? {
        Command::Commit(commit) if commit.write_count() as usize <= MAX_LOOKUPS => {
            look_up(machine, command, commit.writes().ok()?, keeps_history)
        }
        Command::Transaction(transaction) => {
            look_up(machine, command, transaction.branches().ok()?.into_iter().flatten(), keeps_history)
        }
        _ => None,
    }
}

fn look_up<'a>(
    machine: &Machine,
    command: &[u8],
    writes: impl Iterator<Item = Result<Write<'a>, Malformed>>,
    keeps_history: bool,
) -> Option<u64> {
    let (mut count, mut values) = (0, [None; MAX_LOOKUPS]);
    for write in writes {
        let value = match write.ok()? {
            Write::Get { keyspace, key } => (keyspace, key, ValueUse::Returned),
            Write::Touch { keyspace, key, .. } => (keyspace, key, ValueUse::Rewritten),
            Write::Put { keyspace, key, .. }
            | Write::PutUntil { keyspace, key, .. }
            | Write::Delete { keyspace, key }
            | Write::Add { keyspace, key, .. }
                if keeps_history =>
            {
                (keyspace, key, ValueUse::Kept)
            }
            _ => continue,
        };
        *values.get_mut(count)? = Some(value);
        count += 1;
    }
    if count == 0 {
        return None;
    }
    let view = machine.read_view();
    let steps = || {
        values.into_iter().flatten().try_fold(0, |steps, (keyspace, key, value_use)| {
            let stored = view.value_len(keyspace, key).ok()?.unwrap_or(0);
            // A value that the command writes itself is at most as long as the command.
            let bytes = stored + command.len();
            Some(
                steps
                    + match value_use {
                        ValueUse::Returned => read_bytes(bytes),
                        ValueUse::Rewritten => READ + read_bytes(bytes) + written_bytes(bytes),
                        ValueUse::Kept => written_bytes(stored),
                    },
            )
        })
    };
    Budget::RESIDENT.perform(steps).ok()?
}

#[cfg(test)]
mod tests {
    use thalweg_types::command::{
        CommitBuilder, Deadline, KeyspaceConfig, KeyspaceHistory, RedisBuilder, TransactionBuilder, encode_put,
    };

    use super::*;
    use crate::{
        Database,
        options::{BackendKind, Options},
    };

    /// Length of a long value in bytes.
    const LONG: usize = 1 << 20;

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn touched_returned_and_kept_values_count_with_their_lengths() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { backend: Some(BackendKind::Memory), ..Options::default() };
        let db = Database::open(dir.path(), options).unwrap();
        let keyspace = db.keyspace("plain").unwrap();
        let id = keyspace.id();
        keyspace.put(b"long", &vec![b'v'; LONG]).unwrap();
        let steps = |command: &[u8]| of_command(&db.inner.open.machine, command);

        let touch = |keys: &[&[u8]]| {
            let mut commit = CommitBuilder::new();
            keys.iter().for_each(|key| _ = commit.touch(id, key, Deadline::Never).unwrap());
            encoded(|out| commit.encode(out))
        };
        let rewritten = READ + read_bytes(LONG) + written_bytes(LONG);
        let touched = steps(&touch(&[b"long"])).unwrap();
        assert!((rewritten..rewritten + 10).contains(&touched), "{touched}");
        assert!(steps(&touch(&[b"short"])).unwrap() < 20);
        assert_eq!(steps(&touch(&[&b"long"[..]; MAX_LOOKUPS + 1])), None);

        let mut get = TransactionBuilder::new();
        get.then().get(id, b"long").unwrap().put(id, b"short", b"v").unwrap();
        let returned = steps(&encoded(|out| get.encode(out).unwrap())).unwrap();
        assert!((read_bytes(LONG)..read_bytes(LONG) + 10).contains(&returned), "{returned}");

        let put = encoded(|out| encode_put(out, id, b"long", b"v").unwrap());
        assert_eq!(steps(&put), None);
        let history = KeyspaceHistory { revisions: Some(4), age: None };
        db.create_keyspace("kept", &KeyspaceConfig { history, ..KeyspaceConfig::default() }).unwrap();
        assert_eq!(steps(&put), Some(written_bytes(LONG)));
        let mut burst = RedisBuilder::new(id);
        burst.push(&[b"set", b"long", b"v"]).unwrap();
        assert_eq!(steps(&burst.finish()), None);
    }
}
