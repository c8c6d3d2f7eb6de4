//! Lookup of the sizes of values that the commands of a batch use, before the batch is proposed.
//!
//! Owns: an estimate, in steps of work, of the values that reads return, and that commands such as `EXPIRE` and
//! `APPEND` write again. The bytes of a batch do not show how long these values are. Without the estimate, each of
//! these commands would count as if its value had the maximum size. A few such commands fill a log entry. So each
//! pipelined batch with one of them would be alone in its entry, and four such entries would use up the work that is
//! permitted for one fsync. Does not own the lengths of the values within the batch ([`ValueSteps`]), or the bound that
//! the proposer computes from the estimate ([`max_steps_with`](thalweg_types::command::max_steps_with)).
//!
//! Invariants:
//! * An estimate never affects a reply. Another client may replace a value by a larger one before the batch is applied.
//!   The log entry then takes longer, by at most the budget of a batch.
//! * A batch causes at most [`MAX_LOOKUPS`] lookups. A batch that uses more values gets no estimate.

use thalweg_redis::{Read, StoreError, ValueSteps};
use thalweg_types::{
    command::ValueUse,
    steps::{READ, SHORT_READ},
};

use crate::commands::Commands;

/// Maximum number of values whose sizes are looked up for one batch.
const MAX_LOOKUPS: usize = 256;
const _: () = assert!(MAX_LOOKUPS as u64 * 2 * READ < SHORT_READ, "values in memory are looked up within a short read");

/// Lookups of the sizes of the values that the commands of a batch use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueLookups<'a>(&'a Commands);

impl<'a> ValueLookups<'a> {
    /// Returns the lookups for a batch; `None` if its commands use no values, or more than [`MAX_LOOKUPS`].
    pub(crate) fn of(commands: &'a Commands) -> Option<Self> {
        // Most batches have no such command, and their arguments need not be visited.
        if !commands.list().any(|command| ValueUse::of(command.name.as_bytes()).is_some()) {
            return None;
        }
        let mut lookups = 0;
        commands.each(|command, arguments| {
            lookups += match ValueUse::of(command.name.as_bytes()) {
                None => 0,
                // The number of lookups, for the key and its fields, equals the number of arguments after the name.
                Some(ValueUse::ReadKeys | ValueUse::ReadFields) => arguments.len() - 1,
                Some(ValueUse::Rename | ValueUse::Copy | ValueUse::AddToString | ValueUse::AddToField) => 2,
                Some(_) => 1,
            };
        });
        (lookups <= MAX_LOOKUPS).then_some(Self(commands))
    }

    /// Returns the maximum steps of work for the values that the commands use, computed from the present values in
    /// `view`. `keeps_history` is true if the keyspace keeps former values of its keys.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn steps(self, view: &dyn Read, keeps_history: bool) -> Result<u64, StoreError> {
        let (mut values, mut steps) = (ValueSteps::new(keeps_history), Ok(0_u64));
        self.0.each(|command, arguments| {
            if let Ok(before) = steps {
                steps = values.of_next(view, command, arguments).map(|more| before.saturating_add(more));
            }
        });
        steps
    }
}

#[cfg(test)]
mod tests {
    use thalweg_redis::{execute, model::Model};
    use thalweg_types::steps::{read_bytes, written_bytes};

    use super::*;

    fn batch(list: &[&[&[u8]]]) -> Commands {
        let mut commands = Commands::default();
        for arguments in list {
            commands.push(thalweg_redis::find(arguments[0]).unwrap(), arguments.iter().copied());
        }
        commands
    }

    #[test]
    fn the_steps_of_a_batch_are_those_of_all_values_that_its_commands_use() {
        let (mut model, value) = (Model::default(), vec![b'v'; 1 << 20]);
        execute(&mut model, &[b"set", b"k", &value]).unwrap();
        let commands = batch(&[
            &[b"set", b"l", b"v"],
            &[b"get", b"k"],
            &[b"expire", b"k", b"60"],
            &[b"rename", b"k", b"l"],
            &[b"persist", b"l"],
        ]);
        let steps = ValueLookups::of(&commands).unwrap().steps(&model, false).unwrap();
        let all = 4 * read_bytes(1 << 20) + 3 * written_bytes(1 << 20);
        assert!((all..all + 100).contains(&steps), "{steps}");
    }

    #[test]
    fn a_batch_that_uses_no_values_or_very_many_has_no_estimate() {
        assert!(ValueLookups::of(&batch(&[&[b"set", b"k", b"v"], &[b"incr", b"k"]])).is_none());
        for one in [&[&b"get"[..], b"k"][..], &[b"expire", b"k", b"60"]] {
            assert!(ValueLookups::of(&batch(&[one; MAX_LOOKUPS])).is_some());
            assert!(ValueLookups::of(&batch(&[one; MAX_LOOKUPS + 1])).is_none());
        }
        let keys = [&b"mget"[..]].into_iter().chain([&b"k"[..]; 10_000]).collect::<Vec<_>>();
        assert!(ValueLookups::of(&batch(&[&keys])).is_none());
    }
}
