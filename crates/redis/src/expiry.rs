//! Parsing of times to live and deadlines, shared by several families of commands.

use crate::{
    errors::{CommandEnd, bad_expire_time},
    number::integer,
    store::MAX_DEADLINE_MILLIS,
};

/// Unit of a time argument, such as the argument of EXPIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Converts a time argument to a deadline in milliseconds since the Unix epoch; `None` if the deadline exceeds
    /// the range of `i64`.
    pub(crate) fn millis(self, given: i64, since: TimeOrigin, now: i64) -> Option<i64> {
        let millis = match self {
            Self::Milliseconds => given,
            Self::Seconds => given.checked_mul(1000)?,
        };
        if since == TimeOrigin::Now { millis.checked_add(now) } else { Some(millis) }
    }
}

/// Time from which a time argument counts: the current time for a time to live, the Unix epoch for a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeOrigin {
    Now,
    Epoch,
}

/// Returns the deadline, in milliseconds since the Unix epoch, that a time option such as `EX 10` requests. The
/// argument of the option must be a positive number. `args` is the whole command, for the error reply.
pub(crate) fn deadline(
    argument: &[u8],
    unit: Unit,
    since: TimeOrigin,
    now: u64,
    args: &[&[u8]],
) -> Result<u64, CommandEnd> {
    let (given, now) = (integer(argument)?, i64::try_from(now).unwrap_or(i64::MAX));
    match unit.millis(given, since, now) {
        Some(deadline) if given > 0 && deadline > 0 => Ok(bounded(deadline.unsigned_abs())),
        _ => Err(bad_expire_time(args)),
    }
}

/// Returns the deadline, limited to the last deadline that can be stored.
pub(crate) fn bounded(deadline: u64) -> u64 {
    deadline.min(MAX_DEADLINE_MILLIS)
}

/// Returns true if an argument is the named option, in upper or lower case. As in Redis, a zero byte ends the
/// argument.
pub(crate) fn is(argument: &[u8], option: &str) -> bool {
    match argument.split_at_checked(option.len()) {
        Some((begin, rest)) => matches!(rest, [] | [0, ..]) && begin.eq_ignore_ascii_case(option.as_bytes()),
        None => false,
    }
}
