//! The commands SET and GETEX with their options, and SETEX and PSETEX.

use crate::{
    Reply,
    errors::{Answer, CommandEnd, SYNTAX, refused},
    expiry::{TimeOrigin, Unit, deadline, is},
    store::Store,
    value::{bulk_or_null, put_argument, string, string_info},
};

/// Option of SET or GETEX that concerns the deadline of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry<'a> {
    /// The command has no option that concerns the deadline.
    Unspecified,
    /// The option KEEPTTL: the key keeps its deadline.
    Keep,
    /// The option PERSIST: the key loses its deadline.
    Persist,
    /// One of the options EX, PX, EXAT and PXAT, with its argument: the key gets this deadline.
    At(Unit, TimeOrigin, &'a [u8]),
}

/// Condition under which SET writes: always, or only if the key is absent or present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetCondition {
    Always,
    Absent,
    Present,
}

/// Options of SET and GETEX. Each command leaves the options of the other at their defaults.
#[derive(Debug)]
struct Options<'a> {
    expiry: Expiry<'a>,
    when: SetCondition,
    get: bool,
}

/// Command whose options are parsed: SET or GETEX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionCommand {
    Set,
    GetEx,
}

impl<'a> Options<'a> {
    fn parse(of: OptionCommand, args: &[&'a [u8]]) -> Result<Self, CommandEnd> {
        let mut options = Self { expiry: Expiry::Unspecified, when: SetCondition::Always, get: false };
        let mut rest = args;
        while let [option, after @ ..] = rest {
            rest = if options.flag(of, option) {
                after
            } else {
                let [argument, after @ ..] = after else { return Err(refused(SYNTAX)) };
                options.time(option, argument)?;
                after
            };
        }
        Ok(options)
    }

    /// Accepts an option of SET or GETEX that has no argument. Returns false if the command `of` has no such option, or
    /// if the option contradicts an earlier one.
    fn flag(&mut self, of: OptionCommand, option: &[u8]) -> bool {
        let unsaid_or = |same: Expiry<'_>, said: Expiry<'_>| said == Expiry::Unspecified || said == same;
        match of {
            OptionCommand::Set if is(option, "nx") && self.when != SetCondition::Present => {
                self.when = SetCondition::Absent;
            }
            OptionCommand::Set if is(option, "xx") && self.when != SetCondition::Absent => {
                self.when = SetCondition::Present;
            }
            OptionCommand::Set if is(option, "get") => self.get = true,
            OptionCommand::Set if is(option, "keepttl") && unsaid_or(Expiry::Keep, self.expiry) => {
                self.expiry = Expiry::Keep;
            }
            OptionCommand::GetEx if is(option, "persist") && unsaid_or(Expiry::Persist, self.expiry) => {
                self.expiry = Expiry::Persist;
            }
            _ => return false,
        }
        true
    }

    /// Accepts an option EX, PX, EXAT or PXAT with its argument. A repetition of the same option replaces its earlier
    /// argument; after a different option about the deadline, the option is an error.
    fn time(&mut self, option: &[u8], argument: &'a [u8]) -> Result<(), CommandEnd> {
        let (unit, since) = match option {
            _ if is(option, "ex") => (Unit::Seconds, TimeOrigin::Now),
            _ if is(option, "px") => (Unit::Milliseconds, TimeOrigin::Now),
            _ if is(option, "exat") => (Unit::Seconds, TimeOrigin::Epoch),
            _ if is(option, "pxat") => (Unit::Milliseconds, TimeOrigin::Epoch),
            _ => return Err(refused(SYNTAX)),
        };
        match self.expiry {
            Expiry::Unspecified => {}
            Expiry::At(other_unit, other_since, _) if (other_unit, other_since) == (unit, since) => {}
            Expiry::At(..) | Expiry::Keep | Expiry::Persist => return Err(refused(SYNTAX)),
        }
        self.expiry = Expiry::At(unit, since, argument);
        Ok(())
    }

    /// Returns the deadline that the options request, in milliseconds since the Unix epoch; `None` if they request no
    /// deadline.
    fn deadline(&self, now: u64, args: &[&[u8]]) -> Result<Option<u64>, CommandEnd> {
        match self.expiry {
            Expiry::At(unit, since, argument) => deadline(argument, unit, since, now, args).map(Some),
            Expiry::Unspecified | Expiry::Keep | Expiry::Persist => Ok(None),
        }
    }
}

pub(super) fn set<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (key, value) = (args[1], args[2]);
    if args.len() == 3 {
        put_argument(store, key, value, None)?;
        return Ok(Reply::Ok);
    }
    let options = Options::parse(OptionCommand::Set, &args[3..])?;
    let mut deadline = options.deadline(store.now(), args)?;
    let old = if options.get { Some(string(store, key)?) } else { None };
    if options.when != SetCondition::Always || options.expiry == Expiry::Keep {
        let look = store.look(key)?;
        let met = match options.when {
            SetCondition::Always => true,
            SetCondition::Absent => look.is_none(),
            SetCondition::Present => look.is_some(),
        };
        if !met {
            return Ok(old.map_or(Reply::Null, bulk_or_null));
        }
        if options.expiry == Expiry::Keep {
            deadline = look.and_then(|look| look.deadline);
        }
    }
    put_argument(store, key, value, deadline)?;
    Ok(old.map_or(Reply::Ok, bulk_or_null))
}

/// SETEX and PSETEX: write a string with a time to live.
pub(super) fn set_for<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]], unit: Unit) -> Answer {
    let deadline = deadline(args[2], unit, TimeOrigin::Now, store.now(), args)?;
    put_argument(store, args[1], args[3], Some(deadline))?;
    Ok(Reply::Ok)
}

pub(super) fn getex<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let options = Options::parse(OptionCommand::GetEx, &args[2..])?;
    let found = string(store, args[1])?;
    if found.is_none() {
        return Ok(Reply::Null);
    }
    let deadline = options.deadline(store.now(), args)?;
    let persists =
        options.expiry == Expiry::Persist && string_info(store, args[1])?.is_some_and(|look| look.deadline.is_some());
    if deadline.is_some() || persists {
        store.set_deadline(args[1], deadline)?;
    }
    Ok(bulk_or_null(found))
}
