//! Sizes of the values that the reads of a batch return, looked up before the batch is proposed.
//!
//! Owns: the estimate of those reads in steps. Without it each read counts as one of a value of maximum size, because
//! the bytes of a batch do not show how much its reads return. Five such reads fill an entry, so each pipelined batch
//! of reads and writes would be an entry alone, and four of them would use up an fsync. Does not own the bound that the
//! proposer computes from the estimate ([`max_steps_with`](thalweg_types::command::max_steps_with)).
//!
//! Invariants:
//! * An estimate never affects a reply. A value that another client replaces by a larger one before the batch is
//!   applied makes the entry take longer, by at most the budget of a batch's reads.
//! * A batch causes at most [`MAX_LOOKUPS`] lookups. One with more reads has no estimate.

use thalweg_redis::{Read, StoreError, Value};
use thalweg_types::{
    command::{ValueReads, reads_values},
    steps::{READ, read_bytes},
};

use crate::commands::Commands;

/// Maximum number of lookups for a batch.
const MAX_LOOKUPS: usize = 64;

/// A value that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadValue<'a> {
    key: &'a [u8],
    /// Field of a hash, if the read returns one.
    field: Option<&'a [u8]>,
    /// Total length in bytes of the arguments of earlier commands of the batch, which may have become part of the
    /// value.
    brought: usize,
}

/// Values that the reads of a batch return.
#[derive(Debug, Default)]
pub(crate) struct ValueLookups<'a> {
    values: Vec<ReadValue<'a>>,
}

impl<'a> ValueLookups<'a> {
    /// Collects the values that the reads of a batch return. Returns `None` if there are none, or more than
    /// [`MAX_LOOKUPS`].
    pub(crate) fn of(commands: &'a Commands) -> Option<Self> {
        // The arguments of most batches need not be visited.
        if !commands.list().any(|command| reads_values(command.name.as_bytes()).is_some()) {
            return None;
        }
        let (mut values, mut brought) = (Vec::new(), 0);
        commands.each(|command, arguments| {
            let [_, rest @ ..] = arguments else { return };
            // One more than the maximum is kept, as a sign that there are more.
            let room = MAX_LOOKUPS + 1 - values.len();
            let value = |key, field| ReadValue { key, field, brought };
            match (reads_values(command.name.as_bytes()), rest) {
                (Some(ValueReads::Key), [key, ..]) => values.extend(Some(value(*key, None)).into_iter().take(room)),
                (Some(ValueReads::Keys), keys) => {
                    values.extend(keys.iter().take(room).map(|key| value(*key, None)));
                }
                (Some(ValueReads::Fields), [key, fields @ ..]) => {
                    values.extend(fields.iter().take(room).map(|field| value(*key, Some(*field))));
                }
                _ => brought += rest.iter().map(|argument| argument.len()).sum::<usize>(),
            }
        });
        (!values.is_empty() && values.len() <= MAX_LOOKUPS).then_some(Self { values })
    }

    /// Returns the steps that the reads take, computed from the values in a view. A value that the batch writes itself
    /// is at most as long as the former value plus the bytes of the batch. Commands that make longer values have their
    /// own bound.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    pub(crate) fn steps(&self, view: &dyn Read) -> Result<u64, StoreError> {
        let mut steps = 0;
        for &ReadValue { key, field, brought } in &self.values {
            let stored = match field {
                None => view.look(key)?.map_or(0, |info| info.len),
                Some(field) => match view.get_short(key, 0)?.flatten().map(|found| found.value) {
                    Some(Value::Collection(collection)) => {
                        view.part(collection.id, field)?.map_or(0, |part| part.len())
                    }
                    _ => 0,
                },
            };
            steps += READ + read_bytes(stored + brought);
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookups(list: &[&[&[u8]]]) -> Commands {
        let mut commands = Commands::default();
        for arguments in list {
            commands.push(thalweg_redis::find(arguments[0]).unwrap(), arguments.iter().copied());
        }
        commands
    }

    #[test]
    fn values_of_reads_are_collected_with_the_bytes_before_them() {
        let commands = lookups(&[
            &[b"set", b"k", b"123"],
            &[b"get", b"k"],
            &[b"mget", b"a", b"b"],
            &[b"append", b"k", b"4"],
            &[b"hmget", b"h", b"f", b"g"],
        ]);
        let value = |key: &'static [u8], field, brought| ReadValue { key, field, brought };
        assert_eq!(
            ValueLookups::of(&commands).unwrap().values,
            [
                value(b"k", None, 4),
                value(b"a", None, 4),
                value(b"b", None, 4),
                value(b"h", Some(&b"f"[..]), 6),
                value(b"h", Some(&b"g"[..]), 6),
            ]
        );
    }

    #[test]
    fn a_batch_without_reads_or_with_very_many_has_no_estimate() {
        assert!(ValueLookups::of(&lookups(&[&[b"set", b"k", b"v"], &[b"getdel", b"k"]])).is_none());
        let get: &[&[u8]] = &[b"get", b"k"];
        assert!(ValueLookups::of(&lookups(&[get; MAX_LOOKUPS])).is_some());
        assert!(ValueLookups::of(&lookups(&[get; MAX_LOOKUPS + 1])).is_none());
        let keys = [&b"mget"[..]].into_iter().chain([&b"k"[..]; 10_000]).collect::<Vec<_>>();
        assert!(ValueLookups::of(&lookups(&[&keys])).is_none());
    }
}
