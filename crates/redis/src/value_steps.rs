//! Estimates, before a batch of commands is in the log, the steps of work that reading and writing its values will
//! take.
//!
//! Owns: the lengths of values, as a view has them and as earlier commands of the batch may change them. If a command
//! returns a value, or writes it again with another deadline, the bytes of the batch do not show its length. Without
//! this module, each such value would count with the maximum size. Does not own: the use that each command makes of
//! values ([`ValueUse`]), and the bound to which these steps are added
//! ([`max_steps_with`](thalweg_types::command::max_steps_with)).
//!
//! Invariant: the steps are an upper bound, even if some of the commands take no effect. So a length never becomes
//! smaller in the course of a batch, and a value that moves to another key may also still be at its old key.

use std::collections::HashMap;

use bytes::Bytes;
use thalweg_types::{
    command::ValueUse,
    limits::{MAX_COMMAND_STEPS, MAX_VALUE_BYTES},
    steps::{MAX_FLOAT_DIGITS, READ, read_bytes, written_bytes},
};

use crate::{
    command::{Command, Run},
    flags::Flags,
    long_double::{addition, max_digits, max_text_bytes},
    store::{KeyValue, Kind, Read, StoreError, Value},
};

/// Maximum bytes that a command writes in a value in addition to its arguments: the meta of a collection, or an
/// integer.
const ADDED_BYTES: usize = 80;
/// Maximum length in bytes of a string that is read because it may be a number. A longer string counts as the longest
/// possible number.
const MAX_LOOKED_UP_BYTES: usize = 64;

/// Changes that the commands of a batch may have made to a key.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// Length in bytes of the longest value that the commands have stored under the key or in one of its fields.
    longest: usize,
    /// Number of bytes that the commands have appended to the value.
    appended: usize,
    /// Maximum digits before the decimal point of the numbers that the commands have stored under the key or in its
    /// fields.
    digits: usize,
    parts: Parts,
}

/// Parts (fields, entries) that a key may have. Each variant includes the parts of the earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Parts {
    /// The parts (fields or entries) that the key had before the batch.
    #[default]
    Stored,
    /// The parts (fields or entries) that the key had before the batch, and those that commands of the batch have
    /// written.
    Written,
    /// The parts stored before the batch, those written by it, and those of another key whose value it moved or copied
    /// here.
    Moved,
}

/// Size of the value of a key, as a command of the batch may find it.
#[derive(Clone, Copy, Debug)]
struct ValueLen {
    /// Maximum length in bytes of the string, or of the collection's meta.
    len: usize,
    /// True if the value may be a hash or a stream, which has parts (fields or entries).
    may_have_parts: bool,
}

/// Computes the steps of work for the values that the commands of a batch use, one command after the other.
#[derive(Debug, Default)]
pub struct ValueSteps<'a> {
    keeps_history: bool,
    changes: HashMap<&'a [u8], Changes>,
}

impl<'a> ValueSteps<'a> {
    /// Begins a batch for a keyspace. `keeps_history` is true if the keyspace keeps former values. Keeping them also
    /// costs steps.
    #[must_use]
    pub fn new(keeps_history: bool) -> Self {
        Self { keeps_history, changes: HashMap::new() }
    }

    /// Returns the maximum steps of work for the values that the next command of the batch uses. `view` has the state
    /// before the batch, and [`admit`](crate::admit) has accepted the arguments.
    ///
    /// # Errors
    /// Returns an error if the view cannot be read, or if the budget of the read is spent.
    pub fn of_next(&mut self, view: &dyn Read, command: &Command, args: &[&'a [u8]]) -> Result<u64, StoreError> {
        let argument = |at: usize| args.get(at).copied().unwrap_or_default();
        let (key, second) = (argument(1), argument(2));
        let steps = match ValueUse::of(command.name.as_bytes()) {
            None => {
                self.note_write(command, args);
                return Ok(0);
            }
            Some(ValueUse::ReadKey) => read(self.find(view, key)?.len),
            Some(ValueUse::ReadKeys) => self.read_all(&args[1..], |all, key| Ok(all.find(view, key)?.len))?,
            Some(ValueUse::ReadFields) => {
                let fields = args.get(2..).unwrap_or_default();
                read(self.find(view, key)?.len)
                    + self.read_all(fields, |all, field| Ok(all.field(view, key, field)?.0))?
            }
            Some(ValueUse::Replace) => {
                let len = self.find(view, key)?.len;
                self.note_write(command, args);
                read(len) + self.kept(len)
            }
            Some(ValueUse::SetDeadline) => {
                let len = self.find(view, key)?.len;
                read(len) + written_bytes(len)
            }
            Some(ValueUse::ReadAndSetDeadline) => {
                let len = self.find(view, key)?.len;
                2 * read(len) + written_bytes(len)
            }
            Some(ValueUse::Append) => {
                let len = self.find(view, key)?.len;
                self.change(key, Changes { appended: second.len(), digits: MAX_FLOAT_DIGITS, ..Changes::default() });
                read(len) + written_bytes(len + second.len()) + self.kept(len)
            }
            Some(ValueUse::SetRange) => {
                let len = self.find(view, key)?.len;
                // If the offset is not a number, or is too large, the command changes nothing.
                let offset = std::str::from_utf8(second).ok().and_then(|text| text.parse::<usize>().ok());
                let end = offset.unwrap_or(0).saturating_add(argument(3).len()).min(MAX_VALUE_BYTES);
                self.change(key, Changes { longest: end, digits: MAX_FLOAT_DIGITS, ..Changes::default() });
                read(len) + written_bytes(len.max(end)) + self.kept(len)
            }
            Some(ValueUse::Rename) => self.move_value(view, key, second)?.0,
            Some(ValueUse::Copy) => match self.move_value(view, key, second)? {
                (steps, false) => steps,
                // All parts are copied, so the maximum steps are assumed.
                (_, true) => MAX_COMMAND_STEPS,
            },
            Some(ValueUse::AddToString) => self.add_to_string(view, key, second)?,
            Some(ValueUse::AddToField) => {
                let (len, digits) = self.field(view, key, second)?;
                let (steps, longest, digits) = match command.name {
                    "hincrbyfloat" => sum(digits, argument(3)),
                    _ => (0, ADDED_BYTES, ADDED_BYTES),
                };
                let steps = steps + read(self.find(view, key)?.len) + read(len);
                self.change(key, Changes { longest, digits, parts: Parts::Written, ..Changes::default() });
                steps + written_bytes(longest)
            }
        };
        Ok(steps)
    }

    /// Returns the steps of work of reading the values of several keys. `len` returns the length of each value in
    /// bytes.
    fn read_all(
        &self,
        names: &[&[u8]],
        len: impl Fn(&Self, &[u8]) -> Result<usize, StoreError>,
    ) -> Result<u64, StoreError> {
        names.iter().try_fold(0, |steps, name| Ok::<_, StoreError>(steps + read(len(self, name)?)))
    }

    /// Returns the steps of work of moving or copying a value from one key to another, without its parts (fields or
    /// entries). The returned flag is true if the value may have parts.
    fn move_value(&mut self, view: &dyn Read, from: &[u8], to: &'a [u8]) -> Result<(u64, bool), StoreError> {
        let ValueLen { len, may_have_parts } = self.find(view, from)?;
        let replaced = if self.keeps_history { self.find(view, to)?.len } else { 0 };
        let parts = if may_have_parts { Parts::Moved } else { Parts::Stored };
        self.change(to, Changes { longest: len, digits: MAX_FLOAT_DIGITS, parts, ..Changes::default() });
        Ok((read(len) + written_bytes(len) + self.kept(len) + self.kept(replaced), may_have_parts))
    }

    /// Records the changes that a command makes to keys, as far as they do not depend on the stored values of the keys.
    fn note_write(&mut self, command: &Command, args: &[&'a [u8]]) {
        if !matches!(command.run, Run::Write(_)) || matches!(command.name, "del" | "unlink" | "getdel") {
            return;
        }
        let longest = args[1..].iter().fold(ADDED_BYTES, |bytes, argument| bytes.saturating_add(argument.len()));
        let digits = args[1..].iter().fold(ADDED_BYTES, |digits, argument| digits.max(max_digits(argument)));
        let parts = if command.flags.contains(Flags::STRING) { Parts::Stored } else { Parts::Written };
        let change = Changes { longest, digits, parts, ..Changes::default() };
        command.keys_of(args).for_each(|key| self.change(key, change));
    }

    /// Returns the maximum steps of work of adding `number` to the number in the string at `key`. Records this change
    /// of the key.
    fn add_to_string(&mut self, view: &dyn Read, key: &'a [u8], number: &[u8]) -> Result<u64, StoreError> {
        // A longer string is not a number, and the command does not read it.
        let len = self.find(view, key)?.len.min(MAX_FLOAT_DIGITS);
        let stored = match view.get_short(key, MAX_LOOKED_UP_BYTES)? {
            Some(Some(KeyValue { value: Value::String(text), .. })) => max_digits(&text),
            Some(None) => MAX_FLOAT_DIGITS,
            Some(Some(_)) | None => 0,
        };
        let (steps, longest, digits) = sum(stored.max(self.changes_of(key).digits), number);
        self.change(key, Changes { longest, digits, ..Changes::default() });
        Ok(steps + read(len) + written_bytes(longest) + self.kept(len))
    }

    /// Combines the changes that a command makes to a key with those that earlier commands of the batch made to it.
    fn change(&mut self, key: &'a [u8], new: Changes) {
        let changes = self.changes.entry(key).or_default();
        changes.longest = changes.longest.max(new.longest);
        changes.appended = changes.appended.saturating_add(new.appended);
        changes.digits = changes.digits.max(new.digits);
        changes.parts = changes.parts.max(new.parts);
    }

    fn changes_of(&self, key: &[u8]) -> Changes {
        self.changes.get(key).copied().unwrap_or_default()
    }

    fn find(&self, view: &dyn Read, key: &[u8]) -> Result<ValueLen, StoreError> {
        let Changes { longest, appended, parts, .. } = self.changes_of(key);
        let stored = view.look(key)?;
        let may_have_parts = parts != Parts::Stored || stored.is_some_and(|info| info.kind != Kind::String);
        let longest = longest.max(stored.map_or(0, |info| info.len));
        let len = longest.saturating_add(appended).min(MAX_VALUE_BYTES);
        Ok(ValueLen { len, may_have_parts })
    }

    /// Returns the maximum length in bytes of a field of a hash, and the maximum [digits](max_digits) of the number in
    /// it.
    fn field(&self, view: &dyn Read, key: &[u8], field: &[u8]) -> Result<(usize, usize), StoreError> {
        let Changes { longest, digits, parts, .. } = self.changes_of(key);
        if parts == Parts::Moved {
            return Ok((MAX_VALUE_BYTES, MAX_FLOAT_DIGITS));
        }
        let stored = match view.get_short(key, 0)?.flatten().map(|found| found.value) {
            Some(Value::Collection(collection)) => view.part(collection.id, field)?.unwrap_or_default(),
            Some(Value::String(_)) | None => Bytes::new(),
        };
        Ok((stored.len().max(longest).min(MAX_VALUE_BYTES), digits.max(max_digits(&stored))))
    }

    /// Returns the steps of work of keeping a former value of `len` bytes in the keyspace's history; 0 if it has no
    /// history.
    fn kept(&self, len: usize) -> u64 {
        if self.keeps_history { written_bytes(len) } else { 0 }
    }
}

/// Returns the steps of work of reading a value of `len` bytes.
fn read(len: usize) -> u64 {
    READ + read_bytes(len)
}

/// Returns three maxima for the sum of a number with at most `digits` digits and the number in the text `number`: the
/// steps of work of the addition, the length of the sum in bytes, and the digits of the sum.
fn sum(digits: usize, number: &[u8]) -> (u64, usize, usize) {
    let (steps, digits) = addition(digits, max_digits(number));
    (steps, max_text_bytes(digits), digits)
}

#[cfg(test)]
mod tests {
    use thalweg_types::steps::{parsed_float, written_float};

    use super::*;
    use crate::{execute, find, model::Model};

    /// Length in bytes of the long values in these tests.
    const LONG: usize = 1 << 20;

    /// Returns the steps of work for the values that each command of a batch uses. In the state before the batch, the
    /// key `s` holds a long string, and the key `h` a hash with the long field `f`.
    fn steps(keeps_history: bool, batch: &[&[&[u8]]]) -> Vec<u64> {
        let (mut model, value) = (Model::default(), vec![b'v'; LONG]);
        execute(&mut model, &[b"set", b"s", &value]).unwrap();
        execute(&mut model, &[b"hset", b"h", b"f", &value, b"g", b"1"]).unwrap();
        let mut steps = ValueSteps::new(keeps_history);
        batch.iter().map(|args| steps.of_next(&model, find(args[0]).unwrap(), args).unwrap()).collect()
    }

    fn last(batch: &[&[&[u8]]]) -> u64 {
        *steps(false, batch).last().unwrap()
    }

    #[test]
    fn values_count_with_their_lengths() {
        let (read, written) = (read_bytes(LONG), written_bytes(LONG));
        let long_values: &[(&[&[u8]], u64)] = &[
            (&[b"get", b"s"], read),
            (&[b"mget", b"none", b"s"], read),
            (&[b"hmget", b"h", b"f", b"g"], read),
            (&[b"hget", b"s", b"f"], read),
            (&[b"getdel", b"s"], read),
            (&[b"expire", b"s", b"60"], read + written),
            (&[b"getex", b"s", b"persist"], 2 * read + written),
            (&[b"append", b"s", b"v"], read + written),
            (&[b"setrange", b"s", b"1", b"v"], read + written),
            (&[b"rename", b"s", b"t"], read + written),
            (&[b"copy", b"s", b"t"], read + written),
            (&[b"hincrby", b"h", b"f", b"1"], read),
        ];
        for &(args, long) in long_values {
            let taken = last(&[args]);
            assert!((long..long + 100).contains(&taken), "{args:?}: {taken}");
        }
        let short_values: &[&[&[u8]]] = &[
            &[b"expire", b"none", b"60"],
            &[b"expire", b"h", b"60"],
            &[b"rename", b"h", b"t"],
            &[b"hincrby", b"h", b"g", b"1"],
            &[b"hincrbyfloat", b"h", b"g", b"1.5"],
            &[b"incrbyfloat", b"none", b"1.5"],
            &[b"getex", b"none"],
            &[b"del", b"s"],
            &[b"set", b"s", b"v"],
        ];
        for &short in short_values {
            assert!(last(&[short]) < 100, "{short:?}");
        }
        assert_eq!(last(&[&[b"copy", b"h", b"t"]]), MAX_COMMAND_STEPS, "all fields are copied");
        let kept = steps(true, &[&[b"append", b"s", b"v"], &[b"rename", b"none", b"s"]]);
        assert!(kept[0] >= read + 2 * written && kept[1] >= written, "{kept:?}");
    }

    #[test]
    fn additions_of_floating_point_numbers_count_with_their_digits() {
        let add: &[&[u8]] = &[b"incrbyfloat", b"n", b"1.5"];
        let add_to_field: &[&[u8]] = &[b"hincrbyfloat", b"n", b"f", b"1.5"];
        let few = steps(false, &[add; 128]).into_iter().chain(steps(false, &[add_to_field; 128]));
        assert!(few.max().unwrap() < 50, "sums of short numbers are short");
        assert!(last(&[&[b"set", b"n", b"17.25", b"ex", b"60"], add]) < 50);
        let many = written_float(4_900);
        let long: &[&[&[&[u8]]]] = &[
            &[&[b"incrbyfloat", b"n", b"1e4900"]],
            &[&[b"incrbyfloat", b"n", b"0x1p16300"]],
            &[&[b"set", b"n", b"1e4900"], add],
            &[&[b"set", b"n", b"1e"], &[b"append", b"n", b"4900"], add],
            &[&[b"set", b"n", b"1e1900"], &[b"setrange", b"n", b"2", b"4"], add],
            &[&[b"incrbyfloat", b"n", b"1e4900"], add],
            &[&[b"set", b"m", b"1e4900"], &[b"rename", b"m", b"n"], add],
            &[&[b"hset", b"n", b"f", b"1e4900"], add_to_field],
            &[&[b"hset", b"m", b"f", b"1e4900"], &[b"rename", b"m", b"n"], add_to_field],
        ];
        for &batch in long {
            assert!(last(batch) >= many, "{batch:?}");
        }
        // The string `s` and the field `f` are too long to be numbers.
        assert!(last(&[&[b"incrbyfloat", b"s", b"1"]]) < 2 * parsed_float(MAX_FLOAT_DIGITS) + 2 * many);
    }

    #[test]
    fn earlier_commands_of_the_batch_can_make_values_longer() {
        let (value, expire) = (vec![b'v'; LONG], read_bytes(LONG) + written_bytes(LONG));
        let offset = LONG.to_string();
        let change: &[&[u8]] = &[b"expire", b"k", b"60"];
        let lengthened: &[&[&[&[u8]]]] = &[
            &[&[b"set", b"k", &value]],
            &[&[b"set", b"k", &value], &[b"del", b"k"]],
            &[&[b"mset", b"a", b"1", b"k", &value]],
            &[&[b"append", b"k", &value]],
            &[&[b"setrange", b"k", offset.as_bytes(), b"v"]],
            &[&[b"getset", b"k", &value]],
            &[&[b"rename", b"s", b"k"]],
            &[&[b"copy", b"s", b"k"]],
            &[&[b"rename", b"s", b"t"], &[b"copy", b"t", b"u"], &[b"renamenx", b"u", b"k"]],
        ];
        for &before in lengthened {
            let taken = last(&[before, &[change]].concat());
            assert!((expire..expire + 100).contains(&taken), "{before:?}: {taken}");
        }
        let twice = last(&[&[b"rename", b"s", b"k"], &[b"append", b"k", &value], change]);
        assert!(twice > 2 * expire - 10, "{twice}");
        assert!(last(&[&[b"append", b"k", &value], &[b"append", b"l", b"v"], &[b"expire", b"l", b"60"]]) < 100);
        assert!(last(&[&[b"setrange", b"k", b"-1", b"v"], change]) < 100);

        let field: &[&[u8]] = &[b"hget", b"k", b"f"];
        assert!(last(&[&[b"hset", b"k", b"f", &value], field]) >= read_bytes(LONG));
        assert!(last(&[&[b"rename", b"h", b"k"], field]) >= read_bytes(MAX_VALUE_BYTES), "the field is not looked up");
        let with_parts: &[&[&[u8]]] = &[&[b"hset", b"k", b"f", b"v"], &[b"rename", b"h", b"k"]];
        for &before in with_parts {
            assert_eq!(last(&[before, &[b"copy", b"k", b"t"]]), MAX_COMMAND_STEPS, "{before:?}");
        }
    }
}
