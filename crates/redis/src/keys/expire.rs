//! Commands that read, set and remove deadlines of keys.

use crate::{
    Reply,
    errors::{Answer, CommandEnd, bad_expire_time, c_string, printable, refused},
    expiry::{TimeOrigin, Unit, bounded, is},
    number::integer,
    store::{MAX_DEADLINE_MILLIS, Read, Store},
};

/// Replies with the deadline of a key, or with the time that is left until the deadline.
pub(super) fn reply_deadline(read: &dyn Read, args: &[&[u8]], unit: Unit, since: TimeOrigin) -> Answer {
    let Some(look) = read.look(args[1])? else { return Ok(Reply::Integer(-2)) };
    let Some(deadline) = look.deadline else { return Ok(Reply::Integer(-1)) };
    let millis = match since {
        TimeOrigin::Now => deadline.saturating_sub(read.now()),
        TimeOrigin::Epoch => deadline,
    };
    let count = match unit {
        Unit::Milliseconds => millis,
        Unit::Seconds => millis.saturating_add(500) / 1000,
    };
    Ok(Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX)))
}

/// Options NX, XX, GT and LT of EXPIRE. Each is a condition on the current deadline of a key; the new deadline is set
/// only if all conditions are met.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: &[&[u8]]) -> Result<Self, CommandEnd> {
        let mut conditions = Self::default();
        for option in args {
            match option {
                _ if is(option, "nx") => conditions.nx = true,
                _ if is(option, "xx") => conditions.xx = true,
                _ if is(option, "gt") => conditions.gt = true,
                _ if is(option, "lt") => conditions.lt = true,
                _ => return Err(CommandEnd::error(format!("ERR Unsupported option {}", printable(c_string(option))))),
            }
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            return Err(refused("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if conditions.gt && conditions.lt {
            return Err(refused("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Returns true if the conditions permit a key with the deadline `old` to get the deadline `new`, both in
    /// milliseconds since the Unix epoch. A missing deadline counts as infinite.
    fn are_met(self, old: Option<i64>, new: i64) -> bool {
        (!self.nx || old.is_none())
            && (!self.xx || old.is_some())
            && (!self.gt || old.is_some_and(|old| new > old))
            && (!self.lt || old.is_none_or(|old| new < old))
    }
}

/// Sets the deadline of a key. A deadline in the past deletes the key.
pub(super) fn set<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]], unit: Unit, since: TimeOrigin) -> Answer {
    let key = args[1];
    let conditions = Conditions::parse(&args[3..])?;
    let now = i64::try_from(store.now()).unwrap_or(i64::MAX);
    let new = unit.millis(integer(args[2])?, since, now).ok_or_else(|| bad_expire_time(args))?;
    let Some(look) = store.look(key)? else { return Ok(Reply::Integer(0)) };
    let old = look.deadline.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
    // The new deadline is compared in the form in which it would be stored.
    if !conditions.are_met(old, new.min(MAX_DEADLINE_MILLIS as i64)) {
        return Ok(Reply::Integer(0));
    }
    match u64::try_from(new) {
        Ok(deadline) if new > now => store.set_deadline(key, Some(bounded(deadline)))?,
        _ => {
            store.delete(key)?;
        }
    }
    Ok(Reply::Integer(1))
}

pub(super) fn persist<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    if store.look(args[1])?.is_none_or(|look| look.deadline.is_none()) {
        return Ok(Reply::Integer(0));
    }
    store.set_deadline(args[1], None)?;
    Ok(Reply::Integer(1))
}
