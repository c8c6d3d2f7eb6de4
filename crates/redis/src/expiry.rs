//! Parsing of times to live and deadlines, for several families of commands.

use crate::{
    errors::{CommandEnd, bad_expire_time},
    number::integer,
    store::MAX_DEADLINE_MILLIS,
};

/// Unit of a time argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Converts a time argument to milliseconds since the epoch; `None` if that exceeds the range.
    pub(crate) fn millis(self, given: i64, since: Since, now: i64) -> Option<i64> {
        let millis = match self {
            Self::Milliseconds => given,
            Self::Seconds => given.checked_mul(1000)?,
        };
        if since == Since::Now { millis.checked_add(now) } else { Some(millis) }
    }
}

/// Origin of a time argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    Now,
    Epoch,
}

/// Returns the deadline of a key that the command `args` writes with such an option. The argument must be a positive
/// number.
pub(crate) fn deadline(argument: &[u8], unit: Unit, since: Since, now: u64, args: &[&[u8]]) -> Result<u64, CommandEnd> {
    let (given, now) = (integer(argument)?, i64::try_from(now).unwrap_or(i64::MAX));
    match unit.millis(given, since, now) {
        Some(deadline) if given > 0 && deadline > 0 => Ok(bounded(deadline.unsigned_abs())),
        _ => Err(bad_expire_time(args)),
    }
}

/// Limits a deadline to the last representable one.
pub(crate) fn bounded(deadline: u64) -> u64 {
    deadline.min(MAX_DEADLINE_MILLIS)
}

/// Returns true if an argument is that option, in any case. As in Redis, the argument ends at a zero byte.
pub(crate) fn is(argument: &[u8], option: &str) -> bool {
    match argument.split_at_checked(option.len()) {
        Some((begin, rest)) => matches!(rest, [] | [0, ..]) && begin.eq_ignore_ascii_case(option.as_bytes()),
        None => false,
    }
}
