//! Upper bounds on the work of a command, computed from the command's bytes alone. Work is counted in
//! [steps](crate::steps) of about 100 ns.
//!
//! Owns: the upper bound ([`max_steps`]), by which the proposer decides how many commands it puts into one log entry.
//! So a log entry takes at most about the time and memory of the most expensive permitted command. Does not own the
//! limit on a single command ([`MAX_COMMAND_STEPS`]). The state machine enforces this limit, and counts the work that
//! the command actually causes.
//!
//! Invariants:
//! * The bound of a command that scans is the maximum. Such a command is alone in its entry, so its scans never pass
//!   rows that earlier commands of the entry have removed.
//! * A bound that is too low never affects an outcome, only the time that a log entry takes.
//! * A command on a hash or a stream whose key holds a string is charged for the string, but does not read it. The bound
//!   does not count this charge.

use crate::{
    codec::{Malformed, Reader},
    command::{
        commit::{BlindPut, Commit},
        condition::Expect,
        groups::{Fetch, GroupCommand, Settle},
        kinds::Command,
        redis::{HEAD_BYTES, REDIS, REDIS_JOINT, argument},
        time::TimeCommand,
        transaction::Transaction,
        versions::unwrap,
        write::Write,
    },
    limits::{
        DEFAULT_INLINE_VALUE_BYTES, MAX_ATTEMPT_RECORDS, MAX_COMMAND_STEPS, MAX_GROUP_PENDING, MAX_HISTORY_REVISIONS,
        MAX_VALUE_BYTES,
    },
    steps::{
        DELIVERED_RECORD, GET, MAX_FLOAT_DIGITS, OPERATION, READ, ROW, SCAN, SETTLED_ATTEMPT, SETTLED_RUN, WRITE,
        items, parsed_float, read_bytes, written_bytes, written_float, written_runs,
    },
};

/// Price of reading a value of the maximum size, in steps (units of work).
const READ_VALUE: u64 = READ + read_bytes(MAX_VALUE_BYTES);
/// Price of reading a value of the maximum size and writing it again, in steps (units of work).
const CHANGE_VALUE: u64 = READ_VALUE + written_bytes(MAX_VALUE_BYTES);
/// Price in steps (units of work) of a write of a key, without the price of its bytes. It covers the new row, the
/// replaced row, and the index rows of the old and new deadlines and leases.
const WRITE_KEY: u64 = OPERATION + 7 * READ + 8 * WRITE;
/// Price in steps (units of work) of a lookup of a key or a field, without the price of the value's bytes.
const LOOK_UP: u64 = OPERATION + 7 * READ;
/// Price in steps (units of work) that a write costs in addition if its keyspace keeps a history. The write then keeps
/// the replaced value, reads the versions of the key, and removes some of them. The price covers a replaced value of up
/// to [`DEFAULT_INLINE_VALUE_BYTES`]. A longer value mostly stays where it is in the log, so keeping it takes no work.
/// A proposer that knows the length of the replaced value adds the price of its bytes.
const KEEP_VERSION: u64 =
    2 * READ + SCAN + MAX_HISTORY_REVISIONS as u64 * ROW + 64 * WRITE + written_bytes(DEFAULT_INLINE_VALUE_BYTES);
/// Price in steps (units of work) that a touch in a commit costs in addition to a write, because it reads the value and
/// writes it again. The price covers a value of up to [`DEFAULT_INLINE_VALUE_BYTES`]; a longer value mostly stays in
/// the log.
const TOUCH: u64 = READ + read_bytes(DEFAULT_INLINE_VALUE_BYTES) + written_bytes(DEFAULT_INLINE_VALUE_BYTES);
/// Price in steps (units of work) of a command about a stream, a group or a lease, without the price of its bytes.
const FLAT: u64 = 1000;
/// Price in steps (units of work) of a command that acks or nacks records or extends their ack deadlines, without the
/// price of each attempt (delivery) that it names. It includes writing the row with the consumer group's counters.
const SETTLE: u64 = 100;
/// Price in steps (units of work) of adding two floating-point numbers: parsing both and writing their sum.
const FLOAT: u64 = 2 * parsed_float(MAX_FLOAT_DIGITS) + written_float(MAX_FLOAT_DIGITS) + read_bytes(MAX_FLOAT_DIGITS);
/// Price in steps (units of work) of a command on a Redis stream, without the price of its bytes. It includes the
/// removal of some rows of destroyed consumer groups.
const STREAM: u64 = 6000;

// `FLAT` covers rewriting the rows of two attempts, because every fetch may have to rewrite as many.
const _: () = assert!(written_runs(2 * MAX_ATTEMPT_RECORDS as u64) <= FLAT);

/// Returns the maximum number of steps that a command of the log can take, computed from its bytes. `keeps_history` is
/// true if any keyspace of the database keeps overwritten values, which makes writes more expensive.
#[must_use]
pub fn max_steps(command: &[u8], keeps_history: bool) -> u64 {
    max_steps_with(command, keeps_history, None)
}

/// Returns the maximum number of steps (units of work) like [`max_steps`], for a proposer that may know the lengths of
/// the stored values that the command reads.
///
/// `value_reads` is the price of reading all of them: values that [Redis commands](ValueUse) use, that the gets of a
/// transaction return, that touches write again, and that a history keeps when they are replaced. `None` means that the
/// proposer does not know the lengths. This function then assumes the maximum length for values that the command
/// returns, and for values that a Redis command or a transaction writes again. For other values it assumes
/// [`DEFAULT_INLINE_VALUE_BYTES`].
#[must_use]
pub fn max_steps_with(command: &[u8], keeps_history: bool, value_reads: Option<u64>) -> u64 {
    let command = unwrap(command).bytes;
    let write = WRITE_KEY + if keeps_history { KEEP_VERSION } else { 0 };
    let steps = if let Some(put) = BlindPut::decode(command) {
        Some((write + read_bytes(put.value.len())).saturating_add(value_reads.unwrap_or(0)))
    } else if matches!(command.first(), Some(&(REDIS | REDIS_JOINT))) {
        of_redis(command, write, value_reads).ok()
    } else {
        match Command::decode(command) {
            Ok(Command::Commit(commit)) => of_commit(&commit, write, value_reads).ok().flatten(),
            Ok(Command::Transaction(transaction)) => of_transaction(&transaction, write, value_reads).ok().flatten(),
            Ok(
                Command::Sweep { .. }
                | Command::PruneVersions { .. }
                | Command::ForgetProducers { .. }
                | Command::DropKeyspace { .. }
                // The groups of the stream may hold many attempts, each with a row of its own.
                | Command::TrimStream { .. }
                | Command::EnforceRetention { .. }
                | Command::DeleteStream { .. }
                | Command::Group(
                    GroupCommand::Seek { .. } | GroupCommand::Delete { .. } | GroupCommand::Reclaim { .. },
                )
                | Command::Time(TimeCommand::Revoke { .. } | TimeCommand::Expire { .. } | TimeCommand::Forget { .. }),
            ) => None,
            Ok(Command::Group(GroupCommand::Settle(settle))) => Some(SETTLE + of_settle(&settle)),
            Ok(Command::Group(GroupCommand::Extend { attempts, .. })) => {
                let attempts = attempts.len() as u64;
                Some(SETTLE + SETTLED_ATTEMPT * attempts + written_runs(max_runs(attempts)))
            }
            Ok(Command::Group(GroupCommand::Fetch(fetch))) => Some(FLAT + of_fetch(&fetch)),
            Ok(_) => Some(FLAT),
            // A malformed command costs its bytes.
            Err(_) => Some(0),
        }
    };
    let all = steps.map_or(MAX_COMMAND_STEPS, |steps| steps.saturating_add(read_bytes(command.len())));
    all.min(MAX_COMMAND_STEPS)
}

/// Returns the maximum number of runs (stored ranges of consecutive records) of `attempts` attempts of a consumer group
/// together. An attempt is one delivery of records. Each run has at least one record, so the limits on records also
/// limit the runs.
fn max_runs(attempts: u64) -> u64 {
    attempts.saturating_mul(u64::from(MAX_ATTEMPT_RECORDS)).min(u64::from(MAX_GROUP_PENDING))
}

/// Returns the maximum price of an ack or nack in steps (units of work). Does not include the price of a commit's write
/// that contains the ack or nack.
fn of_settle(settle: &Settle<'_>) -> u64 {
    settle.steps() + SETTLED_RUN * max_runs(settle.settlements.iter().count() as u64)
}

/// Returns the maximum price of a fetch in steps (units of work), without [`FLAT`]. `FLAT` already covers two kinds of
/// rows that a fetch writes: the row with the group's counters, and the rows of up to two earlier deliveries from which
/// the fetch takes only some of the records.
fn of_fetch(fetch: &Fetch<'_>) -> u64 {
    DELIVERED_RECORD * (u64::from(fetch.max) + u64::from(fetch.max_dead())) + SETTLED_RUN * fetch.keys.len() as u64
}

/// Returns the maximum number of steps (units of work) of a commit. Returns `None` if a condition scans a range,
/// because the number of keys in the range is not known from the commit's bytes.
fn of_commit(commit: &Commit<'_>, write: u64, value_reads: Option<u64>) -> Result<Option<u64>, Malformed> {
    let mut steps: u64 = 0;
    for condition in commit.conditions() {
        match condition?.expect {
            Expect::Unchanged(_) => return Ok(None),
            Expect::Value(value) => steps += OPERATION + 2 * READ + 2 * read_bytes(value.len()),
            _ => steps += OPERATION + 2 * READ,
        }
    }
    for write in commit.writes()? {
        match write? {
            Write::Settle(settle) => steps += of_settle(&settle),
            Write::Touch { .. } if value_reads.is_none() => steps += TOUCH,
            _ => {}
        }
    }
    // Appends of producers read and write a few rows more than puts.
    steps += u64::from(commit.write_count()) * (write + 8 * WRITE);
    Ok(Some(steps.saturating_add(value_reads.unwrap_or(0))))
}

/// Returns the maximum number of steps (units of work) of a transaction. Returns `None` if it scans a range, because
/// the number of keys in the range is not known from the transaction's bytes.
fn of_transaction(
    transaction: &Transaction<'_>,
    write: u64,
    value_reads: Option<u64>,
) -> Result<Option<u64>, Malformed> {
    let mut steps = value_reads.unwrap_or(0);
    let value = if value_reads.is_some() { READ } else { READ_VALUE };
    for condition in transaction.conditions() {
        match condition?.expect {
            Expect::Unchanged(_) => return Ok(None),
            Expect::Value(value) => steps += OPERATION + 2 * READ + 2 * read_bytes(value.len()),
            _ => steps += OPERATION + 2 * READ,
        }
    }
    for operation in transaction.branches()?.into_iter().flatten() {
        match operation? {
            Write::Scan { .. } | Write::DeletePrefix { .. } => return Ok(None),
            Write::Get { .. } => steps = steps.saturating_add(OPERATION + GET + value),
            // A touch rewrites a value of any length. An addition to a counter reads only values that are short enough
            // for a number.
            Write::Touch { .. } => {
                let rewrite = if value_reads.is_some() { 0 } else { CHANGE_VALUE };
                steps = steps.saturating_add(write + rewrite);
            }
            Write::Settle(settle) => steps = steps.saturating_add(write + of_settle(&settle)),
            _ => steps = steps.saturating_add(write),
        }
    }
    Ok(Some(steps))
}

/// Way in which a Redis command uses values that are already stored. The command itself does not contain these values,
/// so its bytes do not show their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueUse {
    /// The command returns the string at a key (its first argument), and writes nothing.
    ReadKey,
    /// The command returns the strings at several keys (all its arguments), and writes nothing.
    ReadKeys,
    /// The command returns fields of a hash, and writes nothing. Its first argument is the key of the hash.
    ReadFields,
    /// The command returns the string at a key (its first argument), and replaces or deletes it.
    Replace,
    /// The command changes the deadline of a key (its first argument), for which it writes the key's value again.
    SetDeadline,
    /// The command returns the string at a key (its first argument). If it changes the key's deadline, it also writes
    /// the string again.
    ReadAndSetDeadline,
    /// The command appends its second argument to the string at a key (its first argument).
    Append,
    /// The command replaces a part of the string at a key. Its arguments are the key, the byte offset of the part, and
    /// the new bytes.
    SetRange,
    /// The command moves the value of one key (its first argument) to another key (its second argument).
    Rename,
    /// The command copies the value of one key (its first argument) to another key (its second argument).
    Copy,
    /// The Redis command adds a floating-point number to the number in the string at a key. Its arguments are the key
    /// and the number to add.
    AddToString,
    /// The command adds a number to a field of a hash. Its arguments are the key of the hash, the field, and the number
    /// to add.
    AddToField,
}

impl ValueUse {
    /// Returns the use of stored values by the Redis command with this name, which must be in lower case. Returns
    /// `None` if knowing the lengths of stored values does not change the command's bound.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"get" | b"getrange" | b"substr" => Self::ReadKey,
            b"mget" => Self::ReadKeys,
            b"hget" | b"hstrlen" | b"hmget" => Self::ReadFields,
            b"getdel" | b"getset" => Self::Replace,
            b"expire" | b"pexpire" | b"expireat" | b"pexpireat" | b"persist" => Self::SetDeadline,
            b"getex" => Self::ReadAndSetDeadline,
            b"append" => Self::Append,
            b"setrange" => Self::SetRange,
            b"rename" | b"renamenx" => Self::Rename,
            b"copy" => Self::Copy,
            b"incrbyfloat" => Self::AddToString,
            b"hincrby" | b"hincrbyfloat" => Self::AddToField,
            _ => return None,
        })
    }

    /// Returns true if commands with this use of values write nothing.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, Self::ReadKey | Self::ReadKeys | Self::ReadFields)
    }
}

/// Returns the maximum number of steps (units of work) of a batch of Redis commands.
fn of_redis(command: &[u8], write: u64, value_reads: Option<u64>) -> Result<u64, Malformed> {
    let mut reader = Reader::at(command, HEAD_BYTES - 8);
    let (watched, commands) = (reader.u32("watched key count")?, reader.u32("command count")?);
    for _ in 0..watched {
        argument(&mut reader)?;
        reader.u64("version")?;
    }
    let mut steps = (u64::from(watched) * 2 * READ).saturating_add(value_reads.unwrap_or(0));
    for _ in 0..commands {
        if steps >= MAX_COMMAND_STEPS {
            return Ok(MAX_COMMAND_STEPS);
        }
        let arguments = reader.u32("argument count")?.saturating_sub(1);
        let name = argument(&mut reader)?;
        // Most commands that reach the log set a key without options. Such a command writes one key.
        let own = if arguments == 2 && name.eq_ignore_ascii_case(b"set") {
            let bytes = argument(&mut reader)?.len() + argument(&mut reader)?.len();
            OPERATION + READ + write + items(2) + written_bytes(bytes)
        } else {
            Bound::of(name, value_reads.is_some()).steps(&mut reader, arguments, write)?
        };
        steps = steps.saturating_add(own);
    }
    Ok(steps)
}

/// Rule by which the maximum number of steps (units of work) of a Redis command is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The command reads at most this number of values of maximum size, whatever its arguments are.
    Values(u64),
    /// The command reads values and writes nothing. The caller has already counted the steps (units of work) of these
    /// reads.
    KnownReads,
    /// The command reads a value of maximum size and writes one.
    Change,
    /// The command adds two floating-point numbers, which may have thousands of digits.
    Float,
    /// Each argument may make the command read one value, so the number of arguments determines the bound.
    Arguments,
    /// The option `COUNT` determines the bound: the command reads at most `COUNT` values of each stream. The streams
    /// are named after the option `STREAMS`; without it, the command reads one stream. Without `COUNT`, the number of
    /// values is unlimited. The number in this variant is the number of arguments before the options.
    CountBehind(u32),
    /// The options after the key determine the bound. If the command has one of the listed options, it reads one value
    /// of maximum size; otherwise it reads no value.
    Options(&'static [&'static [u8]]),
    /// The command changes a Redis stream and reads no value. If it has one of the listed options after the key, it
    /// also scans entries, and only [`MAX_COMMAND_STEPS`] limits its steps (units of work). Otherwise its only scan
    /// removes a few rows of a destroyed consumer group.
    Stream(&'static [&'static [u8]]),
    /// The command's arguments do not limit its steps (units of work): only [`MAX_COMMAND_STEPS`] does.
    Any,
}

/// Length in bytes of the longest name among the Redis commands for which this module computes an upper bound on the
/// steps (units of work).
const MAX_NAME_BYTES: usize = 16;

impl Bound {
    /// Returns the rule for the command with this name. `are_values_known` is true if the caller has already counted
    /// the steps (units of work) of the stored values that [commands use](ValueUse).
    fn of(name: &[u8], are_values_known: bool) -> Self {
        let mut lower = [0; MAX_NAME_BYTES];
        let Some(lower) = lower.get_mut(..name.len()) else { return Self::Any };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        if are_values_known && let Some(value_use) = ValueUse::of(lower) {
            return match value_use {
                _ if value_use.is_read() => Self::KnownReads,
                _ => Self::Values(0),
            };
        }
        match &*lower {
            b"setex" | b"psetex" | b"setnx" | b"mset" | b"msetnx" | b"incr" | b"decr" | b"incrby" | b"decrby"
            | b"del" | b"unlink" | b"exists" | b"touch" | b"ttl" | b"pttl" | b"expiretime" | b"pexpiretime"
            | b"type" | b"strlen" | b"hset" | b"hsetnx" | b"hmset" | b"hdel" | b"hlen" | b"hexists" | b"xlen"
            | b"ping" | b"select" | b"multi" | b"exec" => Self::Values(0),
            b"get" | b"getdel" | b"getset" | b"getrange" | b"substr" | b"hget" | b"hstrlen" | b"hincrby"
            | b"hincrbyfloat" => Self::Values(1),
            b"append" | b"setrange" | b"rename" | b"renamenx" | b"getex" | b"expire" | b"pexpire" | b"expireat"
            | b"pexpireat" | b"persist" => Self::Change,
            b"incrbyfloat" => Self::Float,
            b"mget" | b"hmget" => Self::Arguments,
            b"xread" => Self::CountBehind(0),
            b"xrange" | b"xrevrange" => Self::CountBehind(3),
            b"set" => Self::Options(&[b"get"]),
            // Trimming scans entries and returns none of them.
            b"xadd" => Self::Stream(&[b"maxlen", b"minid"]),
            b"xack" | b"xdel" => Self::Stream(&[]),
            _ => Self::Any,
        }
    }

    /// Returns the maximum number of steps (units of work) of the command. Reads the arguments after the command's name
    /// from `reader`; `arguments` is their number. `write` is the price of a write of a key, in steps.
    fn steps(self, reader: &mut Reader<'_>, arguments: u32, write: u64) -> Result<u64, Malformed> {
        let (mut options, mut bytes) = (Options::default(), 0);
        for number in 0..arguments {
            let argument = argument(reader)?;
            bytes += argument.len();
            match self {
                Self::Options(names) | Self::Stream(names) if number > 0 => {
                    // A zero byte ends an option, as in Redis.
                    let option = argument.split(|byte| *byte == 0).next().unwrap_or_default();
                    options.is_found |= names.iter().any(|name| option.eq_ignore_ascii_case(name));
                }
                Self::CountBehind(first) if number >= first => options.visit(argument, arguments - number - 1),
                _ => {}
            }
        }
        let values = |values: u64| Some(values.saturating_mul(READ_VALUE));
        let beyond = match self {
            Self::Values(count) => values(count),
            Self::KnownReads => Some(0),
            Self::Change => Some(CHANGE_VALUE),
            Self::Float => Some(FLOAT),
            Self::Arguments => values(u64::from(arguments)),
            Self::CountBehind(_) => options.count.and_then(|count| {
                let streams = options.streams.unwrap_or(1) as u64;
                values((count as u64).saturating_mul(streams)).map(|steps| steps.saturating_add(streams * SCAN))
            }),
            Self::Options(_) => values(u64::from(options.is_found)),
            Self::Stream(_) => (!options.is_found).then_some(STREAM),
            Self::Any => None,
        };
        let Some(beyond) = beyond else { return Ok(MAX_COMMAND_STEPS) };
        let each = if self == Self::KnownReads { LOOK_UP } else { write };
        let own = u64::from(arguments) * each + items(arguments as usize) + written_bytes(bytes);
        Ok(beyond.saturating_add(OPERATION + READ + own))
    }
}

/// Options of a Redis command that determine the upper bound on its steps (units of work).
#[derive(Debug, Default)]
struct Options {
    is_found: bool,
    count: Option<usize>,
    /// True if the next argument is the value of the option `COUNT`.
    is_count_next: bool,
    /// Number of streams that the command names; `None` until the option `STREAMS` has been read, which ends the
    /// options.
    streams: Option<usize>,
}

impl Options {
    /// Evaluates one argument of the command; `left` is the number of arguments after it.
    fn visit(&mut self, argument: &[u8], left: u32) {
        if self.streams.is_some() {
            return;
        }
        if std::mem::take(&mut self.is_count_next) {
            // `XREAD` has no limit with 0 entries.
            let count = std::str::from_utf8(argument).ok().and_then(|text| text.parse::<usize>().ok());
            self.count = count.filter(|count| *count > 0);
        } else if argument.eq_ignore_ascii_case(b"count") {
            self.is_count_next = true;
        } else if argument.eq_ignore_ascii_case(b"streams") {
            // The names of the streams come first, then the same number of ids.
            self.streams = Some(left as usize / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        command::{
            CommitBuilder, Deadline, RedisBuilder, ScanOperation, TransactionBuilder, encode_put, encode_sweep,
            encode_versioned,
            groups::{OffsetRun, Settlement, encode_ack, encode_extend, encode_fetch},
        },
        ids::{Attempt, GroupId, KeyspaceId, Offset},
    };

    const KS: KeyspaceId = KeyspaceId(1);

    fn command(commands: &[&[&[u8]]]) -> Vec<u8> {
        let mut builder = RedisBuilder::new(KS);
        commands.iter().for_each(|args| _ = builder.push(args).unwrap());
        builder.finish()
    }

    /// Returns the number of values of maximum size that would take as many steps (units of work) as the upper bound of
    /// the Redis command `args`. Returns `None` if the command's arguments do not limit its steps.
    fn values(args: &[&[u8]]) -> Option<u64> {
        let steps = max_steps(&command(&[args]), false);
        (steps < MAX_COMMAND_STEPS).then_some(steps / READ_VALUE)
    }

    #[test]
    fn reads_and_writes_of_redis_commands_are_bounded_by_their_bytes() {
        assert_eq!(values(&[b"SET", b"get", b"v"]), Some(0), "a key is not an option");
        assert_eq!(values(&[b"set", b"k", b"v", b"Get"]), Some(1));
        assert_eq!(values(&[b"set", b"k", b"v", b"get\0"]), Some(1));
        assert_eq!(values(&[b"incr", b"get"]), Some(0));
        let float = max_steps(&command(&[&[b"INCRBYFLOAT", b"k", b"1e4900"]]), false);
        assert!((FLOAT..FLOAT + 300).contains(&float), "{float}");
        assert_eq!(values(&[b"XADD", b"s", b"*", b"f", b"v"]), Some(0));
        assert_eq!(values(&[b"XADD", b"s", b"MAXLEN", b"1", b"*", b"f", b"v"]), None);
        assert_eq!(values(&[b"append", b"k", b"v"]), Some(3), "a change costs more than three reads");
        assert_eq!(values(&[b"MGET", b"a", b"b", b"c"]), Some(3));
        assert_eq!(values(&[b"XREAD", b"COUNT", b"3", b"STREAMS", b"s", b"0"]), Some(3));
        assert_eq!(values(&[b"XREAD", b"COUNT", b"2", b"STREAMS", b"s", b"t", b"0", b"0"]), Some(4));
        for unlimited in [
            &[&b"XRANGE"[..], b"s", b"-", b"+", b"COUNT", b"-1"][..],
            &[b"XRANGE", b"s", b"-", b"+", b"COUNT", b"99999999999999999"],
            &[b"XREAD", b"COUNT", b"0", b"STREAMS", b"s", b"0"],
            &[b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", b"s", b">"],
            &[b"KEYS", b"*"],
            &[b"FLUSHALL"],
            &[b"nobody-knows-a-command-of-this-name"],
        ] {
            assert_eq!(values(unlimited), None, "{unlimited:?}");
        }
    }

    #[test]
    fn known_values_replace_the_bound_of_commands_that_use_values_and_of_nothing_else() {
        let bound = |args: &[&[u8]], known| max_steps_with(&command(&[args]), false, known);
        for value_use in [
            &[&b"GET"[..], b"k"][..],
            &[b"mget", b"k", b"l"],
            &[b"HGET", b"h", b"f"],
            &[b"getrange", b"k", b"0", b"1"],
            &[b"GETDEL", b"k"],
            &[b"getex", b"k", b"ex", b"60"],
            &[b"EXPIRE", b"k", b"60", b"nx"],
            &[b"persist", b"k"],
            &[b"append", b"k", b"v"],
            &[b"setrange", b"k", b"9", b"v"],
            &[b"RENAME", b"k", b"l"],
            &[b"copy", b"k", b"l", b"replace"],
            &[b"hincrby", b"h", b"f", b"1"],
            &[b"HINCRBYFLOAT", b"h", b"f", b"1"],
        ] {
            let (unknown, known) = (bound(value_use, None), bound(value_use, Some(100)));
            assert!(unknown > READ_VALUE && known > 100 && known < 1_000, "{value_use:?}: {known}");
            assert_eq!(bound(value_use, Some(0)) + 100, known);
        }
        let float: &[&[u8]] = &[b"IncrByFloat", b"k", b"1"];
        assert_eq!(bound(float, None) - bound(float, Some(9)), FLOAT - 9, "numbers of the maximum length are added");
        for other in [&[&b"set"[..], b"k", b"v", b"get"][..], &[b"incrby", b"k", b"1"], &[b"hgetall", b"h"]] {
            assert_eq!(bound(other, Some(0)), bound(other, None), "{other:?}");
        }
        assert_eq!(bound(&[b"get", b"k"], Some(u64::MAX)), MAX_COMMAND_STEPS);
    }

    #[test]
    fn bounds_add_up_to_at_most_the_steps_of_one_command() {
        let get: &[&[u8]] = &[b"Get", b"k"];
        let [one, two] = [&[get][..], &[get, get]].map(|commands| max_steps(&command(commands), false));
        assert_eq!(2 * one, two);
        assert_eq!(max_steps(&command(&[&[b"KEYS", b"*"], &[b"SCAN", b"0"]]), false), MAX_COMMAND_STEPS);
        assert!(max_steps(b"", false) < 10 && max_steps(b"\x40\0", false) <= MAX_COMMAND_STEPS);
        assert!(max_steps(&command(&[get]), true) > one, "a write would keep a version");
    }

    #[test]
    fn commits_and_transactions_are_bounded_by_their_parts_and_scans_are_not_bounded() {
        let encoded = |build: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            build(&mut out);
            max_steps(&out, false)
        };
        let put = encoded(&|out| encode_put(out, KS, b"k", b"v").unwrap());
        assert!(put < 200, "{put}");
        let mut commit = CommitBuilder::new();
        (0..10).for_each(|_| _ = commit.put(KS, b"k", b"v").unwrap());
        let puts = encoded(&|out| commit.encode(out));
        assert!(puts > 5 * put && puts < 20 * put, "{puts}");
        let mut reads = TransactionBuilder::new();
        reads.then().get(KS, b"k").unwrap().get(KS, b"l").unwrap();
        let gets = encoded(&|out| reads.encode(out).unwrap());
        assert!(gets > 2 * READ_VALUE && gets < 3 * READ_VALUE);
        let mut encoded_reads = Vec::new();
        reads.encode(&mut encoded_reads).unwrap();
        let known = max_steps_with(&encoded_reads, false, Some(500));
        assert!(known > 500 && known < 1_000, "{known}");
        reads.otherwise().scan(KS, &ScanOperation::default()).unwrap();
        assert_eq!(encoded(&|out| reads.encode(out).unwrap()), MAX_COMMAND_STEPS);
        assert_eq!(encoded(&|out| encode_sweep(out, 10)), MAX_COMMAND_STEPS);
    }

    #[test]
    fn values_that_are_touched_or_kept_are_counted() {
        let steps = |touches: bool, keeps_history: bool, known: Option<u64>| {
            let mut commit = CommitBuilder::new();
            match touches {
                true => commit.touch(KS, b"k", Deadline::Never).unwrap(),
                false => commit.put(KS, b"k", b"v").unwrap().put(KS, b"l", b"v").unwrap(),
            };
            let mut out = Vec::new();
            commit.encode(&mut out);
            max_steps_with(&out, keeps_history, known)
        };
        let short = written_bytes(DEFAULT_INLINE_VALUE_BYTES);
        assert_eq!(steps(true, false, None) - steps(true, false, Some(0)), TOUCH);
        assert_eq!(steps(true, false, Some(9)) - steps(true, false, Some(0)), 9);
        assert!(steps(false, true, None) - steps(false, false, None) > 2 * short, "two values are kept");
        assert_eq!(steps(false, true, Some(7)) - steps(false, true, None), 7);
        assert_eq!(steps(false, true, Some(u64::MAX)), MAX_COMMAND_STEPS);

        let mut put = Vec::new();
        encode_put(&mut put, KS, b"k", b"v").unwrap();
        let [unknown, known, most] = [None, Some(9), Some(u64::MAX)].map(|known| max_steps_with(&put, true, known));
        assert_eq!((known - unknown, most), (9, MAX_COMMAND_STEPS), "a single put replaces a value, too");

        let mut touch = TransactionBuilder::new();
        touch.then().touch(KS, b"k", Deadline::Never).unwrap();
        let mut out = Vec::new();
        touch.encode(&mut out).unwrap();
        let [unknown, known] = [None, Some(9)].map(|known| max_steps_with(&out, false, known));
        assert_eq!(unknown - known, CHANGE_VALUE - 9);
    }

    #[test]
    fn commands_about_groups_cost_what_the_attempts_that_they_name_may_hold() {
        let bound = |build: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            build(&mut out);
            max_steps(&out, false) - read_bytes(out.len())
        };
        let ack = |attempts: u64, ranges: u64| {
            let runs = || (0..ranges).map(|number| OffsetRun::one(Offset(2 * number))).collect();
            let settlements: Vec<_> =
                (0..attempts).map(|number| Settlement { attempt: Attempt(number), runs: runs() }).collect();
            bound(&|out| encode_ack(out, GroupId(1), &settlements).unwrap())
        };
        assert_eq!((ack(1, 0), ack(1, 5), ack(10, 1)), (2_106, 2_121, 20_190));
        assert_eq!(ack(1_000, 1), SETTLE + 9 * 1_000 + 2 * 100_000, "a group has no more records");
        let fetch = |max, keys: &[u64]| bound(&|out| encode_fetch(out, GroupId(1), max, Offset(0), keys, "m").unwrap());
        assert_eq!((fetch(1, &[]), fetch(1_000, &[]), fetch(1, &[7; 4_096])), (1_404, 9_000, 9_596));
        let extend = |attempts| {
            let attempts = vec![Attempt(1); attempts];
            bound(&|out| encode_extend(out, GroupId(1), Duration::ZERO, &attempts).unwrap())
        };
        assert_eq!((extend(1), extend(1_000)), (606, 56_100));
    }

    #[test]
    fn a_command_of_a_later_version_counts_as_its_inner_command() {
        let (mut wrapped, get) = (Vec::new(), command(&[&[b"get", b"k"]]));
        encode_versioned(&mut wrapped, 2, |out| out.extend_from_slice(&get));
        assert_eq!(max_steps(&wrapped, false), max_steps(&get, false));
    }
}
