//! Bounds on the bytes that a Redis command in the log can make the state machine read and write besides its own
//! bytes.
//!
//! Owns: an upper bound computed from the bytes alone ([`max_redis_bytes`]). The proposer of log entries uses this
//! bound, so that applying an entry of many commands does not need gigabytes of memory for replies and rows. Does not
//! own the bounds on a single command; the state machine enforces them when it carries out the command, independently
//! of the other commands in the entry.

use crate::{
    codec::{Malformed, Reader},
    command::{
        redis::{HEAD_BYTES, REDIS, argument},
        versions::unwrap,
    },
    limits::{MAX_REDIS_READ_BYTES, MAX_REDIS_WRITTEN_BYTES, MAX_VALUE_BYTES},
};

/// Returns the maximum number of bytes that a command of the log can read and write besides its own bytes. Returns 0
/// for commands without Redis commands, and for bytes that do not decode.
#[must_use]
pub fn max_redis_bytes(command: &[u8]) -> usize {
    let command = unwrap(command).bytes;
    if command.first() != Some(&REDIS) {
        return 0;
    }
    sum_of_bounds(command).unwrap_or(0).min(MAX_REDIS_READ_BYTES + MAX_REDIS_WRITTEN_BYTES)
}

fn sum_of_bounds(command: &[u8]) -> Result<usize, Malformed> {
    let mut reader = Reader::at(command, HEAD_BYTES - 8);
    let (watched, commands) = (reader.u32("watched key count")?, reader.u32("command count")?);
    for _ in 0..watched {
        argument(&mut reader)?;
        reader.u64("version")?;
    }
    let mut bytes: usize = 0;
    for _ in 0..commands {
        let arguments = reader.u32("argument count")?.saturating_sub(1);
        let bound = Bound::of(argument(&mut reader)?);
        bytes = bytes.saturating_add(bound.bytes(&mut reader, arguments)?);
    }
    Ok(bytes)
}

/// Rule by which the maximum number of bytes that a Redis command reads and writes is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// The command reads or writes at most this number of values of maximum size, whatever its arguments are.
    Values(usize),
    /// Each argument may make the command read one value, so the number of arguments determines the bound.
    Arguments,
    /// The option `COUNT` determines the bound. It can follow after this number of arguments. The command reads at most
    /// that many values of each stream named after `STREAMS`, or of its one key. Without the option the number of
    /// values is unlimited.
    CountBehind(u32),
    /// The options after the first two arguments determine the bound: one value if one of these options is present,
    /// otherwise no value.
    Options(&'static [&'static [u8]]),
    /// No special bound: only [`MAX_REDIS_READ_BYTES`], the bound of all commands together, applies.
    Any,
}

/// Length in bytes of the longest name of a Redis command that has a bound of its own.
const MAX_NAME_BYTES: usize = 16;

impl Bound {
    fn of(name: &[u8]) -> Self {
        let mut lower = [0; MAX_NAME_BYTES];
        let Some(lower) = lower.get_mut(..name.len()) else { return Self::Any };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        match &*lower {
            b"setex" | b"psetex" | b"setnx" | b"mset" | b"msetnx" | b"incr" | b"decr" | b"incrby" | b"decrby"
            | b"incrbyfloat" | b"del" | b"unlink" | b"exists" | b"touch" | b"ttl" | b"pttl" | b"expiretime"
            | b"pexpiretime" | b"type" | b"strlen" | b"hset" | b"hsetnx" | b"hmset" | b"hdel" | b"hlen"
            | b"hexists" | b"hstrlen" | b"hincrby" | b"hincrbyfloat" | b"xlen" | b"xack" | b"xdel" | b"xgroup"
            | b"xsetid" | b"ping" | b"select" | b"flushdb" | b"flushall" => Self::Values(0),
            b"get" | b"getdel" | b"getex" | b"getset" | b"getrange" | b"substr" | b"hget" | b"expire" | b"pexpire"
            | b"expireat" | b"pexpireat" | b"persist" | b"xtrim" => Self::Values(1),
            // The previous value and the new one.
            b"append" | b"setrange" | b"rename" | b"renamenx" => Self::Values(2),
            b"mget" | b"hmget" => Self::Arguments,
            b"xread" => Self::CountBehind(0),
            b"xreadgroup" | b"xrange" | b"xrevrange" => Self::CountBehind(3),
            b"xautoclaim" => Self::CountBehind(5),
            // Each id may belong to an entry.
            b"xclaim" => Self::Arguments,
            b"set" => Self::Options(&[b"get"]),
            // Trimming reads entries and returns none of them.
            b"xadd" => Self::Options(&[b"maxlen", b"minid"]),
            _ => Self::Any,
        }
    }

    /// Returns the maximum number of bytes that the command reads and writes. Reads its arguments, of which there are
    /// `arguments` after the command's name, from `reader`.
    fn bytes(self, reader: &mut Reader<'_>, arguments: u32) -> Result<usize, Malformed> {
        let mut options = Options::default();
        for number in 0..arguments {
            let argument = argument(reader)?;
            match self {
                Self::Options(names) if number > 0 => {
                    options.is_found |= names.iter().any(|name| argument.eq_ignore_ascii_case(name));
                }
                Self::CountBehind(first) if number >= first => options.visit(argument, arguments - number - 1),
                _ => {}
            }
        }
        let values = match self {
            Self::Values(values) => Some(values),
            Self::Arguments => Some(arguments as usize),
            Self::CountBehind(_) => options.count.map(|count| count.saturating_mul(options.streams.unwrap_or(1))),
            Self::Options(_) => Some(usize::from(options.is_found)),
            Self::Any => None,
        };
        let bytes = values.map(|values| values.saturating_mul(MAX_VALUE_BYTES));
        Ok(bytes.unwrap_or(usize::MAX).min(MAX_REDIS_READ_BYTES))
    }
}

/// Options found in the arguments of a Redis command.
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
            self.count = std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok());
        } else if argument.eq_ignore_ascii_case(b"count") {
            self.is_count_next = true;
        } else if argument.eq_ignore_ascii_case(b"streams") {
            // The names are followed by as many ids.
            self.streams = Some(left as usize / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::{RedisBuilder, encode_versioned},
        ids::KeyspaceId,
    };

    fn command(commands: &[&[&[u8]]]) -> Vec<u8> {
        let mut builder = RedisBuilder::new(KeyspaceId(1));
        builder.watch(b"watched", 7).unwrap();
        commands.iter().for_each(|args| _ = builder.push(args).unwrap());
        builder.finish()
    }

    fn values(args: &[&[u8]]) -> Option<usize> {
        let bytes = max_redis_bytes(&command(&[args]));
        assert!(bytes.is_multiple_of(MAX_VALUE_BYTES));
        (bytes < MAX_REDIS_READ_BYTES).then_some(bytes / MAX_VALUE_BYTES)
    }

    #[test]
    fn what_commands_can_read_and_write_is_bounded_by_their_bytes() {
        assert_eq!(values(&[b"SET", b"get", b"v"]), Some(0), "a key is not an option");
        assert_eq!(values(&[b"set", b"k", b"v", b"Get"]), Some(1));
        assert_eq!(values(&[b"incr", b"get"]), Some(0));
        assert_eq!(values(&[b"XADD", b"s", b"*", b"f", b"v"]), Some(0));
        assert_eq!(values(&[b"XADD", b"s", b"MAXLEN", b"1", b"*", b"f", b"v"]), Some(1));
        assert_eq!(values(&[b"XACK", b"s", b"g", b"1-1"]), Some(0));
        assert_eq!(values(&[b"append", b"k", b"v"]), Some(2));
        assert_eq!(values(&[b"MGET", b"a", b"b", b"c"]), Some(3));
        let read = |options: &[&'static [u8]], streams: &[&'static [u8]]| {
            let group: &[&[u8]] = &[b"XREADGROUP", b"GROUP", b"count", b"1"];
            values(&[group, options, &[b"STREAMS"], streams].concat())
        };
        assert_eq!(read(&[b"COUNT", b"2"], &[b"s", b">"]), Some(2));
        assert_eq!(read(&[b"NOACK", b"COUNT", b"2"], &[b"s", b"count", b">", b"1"]), Some(4));
        assert_eq!(read(&[], &[b"s", b">"]), None, "an unlimited number");
        assert_eq!(values(&[b"XREAD", b"COUNT", b"3", b"STREAMS", b"s", b"0"]), Some(3));
        assert_eq!(values(&[b"XRANGE", b"s", b"-", b"+", b"COUNT", b"-1"]), None);
        assert_eq!(values(&[b"XRANGE", b"s", b"-", b"+", b"COUNT", b"99999999999999999"]), None);
        assert_eq!(values(&[b"KEYS", b"*"]), None);
        assert_eq!(values(&[b"nobody-knows-a-command-of-this-name"]), None);
    }

    #[test]
    fn bounds_add_up_to_what_one_command_of_the_log_may_do() {
        let get: &[&[u8]] = &[b"Get", b"k"];
        assert_eq!(max_redis_bytes(&command(&[&[b"SET", b"k", b"v"], get, get])), 2 * MAX_VALUE_BYTES);
        let most = MAX_REDIS_READ_BYTES + MAX_REDIS_WRITTEN_BYTES;
        assert_eq!(max_redis_bytes(&command(&[&[b"KEYS", b"*"], &[b"SCAN", b"0"], &[b"COPY", b"k", b"l"]])), most);
        assert_eq!((max_redis_bytes(b""), max_redis_bytes(b"\x40\0"), max_redis_bytes(b"\x01\0\0\0")), (0, 0, 0));
    }

    #[test]
    fn a_command_of_a_later_version_counts_as_what_it_carries() {
        let mut wrapped = Vec::new();
        encode_versioned(&mut wrapped, 2, |out| out.extend_from_slice(&command(&[&[b"get", b"k"]])));
        assert_eq!(max_redis_bytes(&wrapped), MAX_VALUE_BYTES);
    }
}
