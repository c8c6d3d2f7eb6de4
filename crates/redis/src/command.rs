//! The table of commands: names, how many arguments, which are keys, and the function that does it.
//!
//! Each family of commands has a module with a table of its own; [`find`] looks through all of them.

use std::{borrow::Cow, sync::LazyLock};

use crate::{
    Reply,
    errors::{unknown_subcommand, wrong_arity},
    flags::Flags,
    store::{Read, Store, StoreError},
};

/// Why a command ends early.
#[derive(Debug)]
pub enum Stop {
    /// The client did something wrong: this is its reply.
    Refused(Reply),
    /// The store failed.
    Failed(StoreError),
}

impl Stop {
    /// An error reply.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(Reply::error(text))
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(reply) => Self::Refused(reply),
            error @ StoreError::Failed(_) => Self::Failed(error),
        }
    }
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Self::Refused(reply)
    }
}

/// What the function of a command gives.
pub type Answer = Result<Reply, Stop>;

/// Who does a command. Functions get all arguments, the name first, after their number was checked.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// Reads only.
    Read(fn(&dyn Read, &[&[u8]]) -> Answer),
    /// Writes, or may.
    Write(for<'a> fn(&mut dyn Store<'a>, &[&'a [u8]]) -> Answer),
    /// The connection: transactions, subscriptions, settings.
    Session,
}

/// Which arguments are keys, as `COMMAND` says it: from `first` to `last` (negative: counted from the end) by `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first, from 1; 0: none, or they are found in another way.
    pub first: i16,
    /// The last.
    pub last: i16,
    /// One of how many.
    pub step: i16,
    /// The word behind which they are, and as many other arguments behind them.
    pub behind: Option<&'static str>,
}

impl Keys {
    /// No keys.
    pub const NONE: Self = Self { first: 0, last: 0, step: 0, behind: None };
    /// The first argument.
    pub const ONE: Self = Self { first: 1, last: 1, step: 1, behind: None };
    /// All arguments.
    pub const ALL: Self = Self { first: 1, last: -1, step: 1, behind: None };
    /// Every other argument.
    pub const PAIRS: Self = Self { first: 1, last: -1, step: 2, behind: None };
    /// The first two arguments.
    pub const TWO: Self = Self { first: 1, last: 2, step: 1, behind: None };
    /// The first argument of a subcommand.
    pub const SECOND: Self = Self { first: 2, last: 2, step: 1, behind: None };

    /// Those behind `STREAMS`.
    pub const BEHIND_STREAMS: Self = Self { behind: Some("streams"), ..Self::NONE };

    /// Those among arguments that they are in.
    fn among<'a, 'k>(self, args: &'a [&'k [u8]]) -> impl Iterator<Item = &'k [u8]> + use<'a, 'k> {
        let first = usize::try_from(self.first).unwrap_or_default();
        let end = match usize::try_from(self.last) {
            Ok(last) => (last + 1).min(args.len()),
            Err(_) => (args.len() + 1).saturating_sub(usize::from(self.last.unsigned_abs())),
        };
        let named = match self.behind {
            Some(word) => behind(word, args),
            None if first == 0 => &[],
            None => args.get(first..end).unwrap_or_default(),
        };
        named.iter().step_by(usize::try_from(self.step).unwrap_or_default().max(1)).copied()
    }
}

/// Half of the arguments behind the first of that name.
fn behind<'a, 'k>(word: &str, args: &'a [&'k [u8]]) -> &'a [&'k [u8]] {
    let at = args.iter().position(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    let rest = at.map_or(&[][..], |at| &args[at + 1..]);
    &rest[..rest.len() / 2]
}

/// A command of a container: of one whose first argument says what it does.
#[derive(Clone, Copy, Debug)]
pub struct Subcommand {
    /// With the container's, in lower case: `xgroup|create`.
    pub name: &'static str,
    /// How many arguments with both names; negative: at least so many.
    pub arity: i16,
    /// What `COMMAND` says of it.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: Keys,
}

impl Subcommand {
    /// One without keys.
    pub(crate) const fn new(name: &'static str, arity: i16, flags: Flags) -> Self {
        Self { name, arity, flags, keys: Keys::NONE }
    }

    /// One of which the first argument is a key.
    pub(crate) const fn of_key(name: &'static str, arity: i16, flags: Flags) -> Self {
        Self { name, arity, flags, keys: Keys::SECOND }
    }

    /// Its own name, without the container's.
    #[must_use]
    pub fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }
}

fn fits(arity: i16, arguments: usize) -> bool {
    let wanted = usize::from(arity.unsigned_abs());
    if arity >= 0 { arguments == wanted } else { arguments >= wanted }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// In lower case.
    pub name: &'static str,
    /// How many arguments with the name; negative: at least so many.
    pub arity: i16,
    /// What `COMMAND` says of it.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: Keys,
    /// Who does it.
    pub run: Run,
    /// What its first argument may be, if it is a container of others.
    pub subcommands: &'static [Subcommand],
}

impl Command {
    /// One that only reads.
    pub(crate) const fn read(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        run: fn(&dyn Read, &[&[u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Read(run), subcommands: &[] }
    }

    /// One that writes, or may.
    pub(crate) const fn write(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        run: for<'a> fn(&mut dyn Store<'a>, &[&'a [u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Write(run), subcommands: &[] }
    }

    /// One of the connection.
    pub(crate) const fn session(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        subcommands: &'static [Subcommand],
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Session, subcommands }
    }

    /// The same as a container.
    pub(crate) const fn with(self, subcommands: &'static [Subcommand]) -> Self {
        Self { subcommands, ..self }
    }

    /// Whether it may be given so many arguments, the name included.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }

    /// The subcommand that arguments mean: none, if it is no container or there is no first argument.
    ///
    /// # Errors
    /// There is none of that name, or it takes another number of arguments: the reply.
    pub fn subcommand(&self, args: &[&[u8]]) -> Result<Option<&'static Subcommand>, Reply> {
        let (false, Some(given)) = (self.subcommands.is_empty(), args.get(1)) else { return Ok(None) };
        let named = |known: &&Subcommand| given.eq_ignore_ascii_case(known.own_name().as_bytes());
        let Some(found) = self.subcommands.iter().find(named) else {
            return Err(unknown_subcommand(&self.name.to_ascii_uppercase(), given));
        };
        if fits(found.arity, args.len()) { Ok(Some(found)) } else { Err(wrong_arity(found.name)) }
    }

    /// The keys among arguments that it may be given.
    pub fn keys_of<'a, 'k>(&self, args: &'a [&'k [u8]]) -> impl Iterator<Item = &'k [u8]> + use<'a, 'k> {
        let keys = match self.subcommand(args) {
            Ok(Some(subcommand)) => subcommand.keys,
            _ => self.keys,
        };
        keys.among(args)
    }

    /// The flags of what arguments mean that it may be given.
    #[must_use]
    pub fn flags_of(&self, args: &[&[u8]]) -> Flags {
        self.subcommand(args).ok().flatten().map_or(self.flags, |subcommand| subcommand.flags)
    }
}

/// Lines of help.
#[must_use]
pub fn help(lines: &[&'static str]) -> Reply {
    Reply::Array(lines.iter().map(|line| Reply::Simple(line)).collect())
}

/// The own name of the subcommand that arguments mean, which were checked; empty if there is none.
pub(crate) fn chosen(subcommands: &'static [Subcommand], args: &[&[u8]]) -> &'static str {
    let mut names = subcommands.iter().map(Subcommand::own_name);
    names.find(|name| args.get(1).is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()))).unwrap_or("")
}

/// The tables of all families.
#[rustfmt::skip]
const TABLES: &[&[Command]] = &[
    crate::channels::COMMANDS,
    crate::connection::COMMANDS,
    crate::hashes::COMMANDS,
    crate::keys::COMMANDS,
    crate::streams::COMMANDS,
    crate::strings::COMMANDS,
];

/// All commands, family by family.
pub fn all() -> impl Iterator<Item = &'static Command> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// Places for commands by the hash of their name; a power of two, several times as many as there are commands.
const PLACES: usize = 1024;

/// Commands by name: each is in the first free place from its hash on.
static BY_NAME: LazyLock<Box<[Option<&'static Command>; PLACES]>> = LazyLock::new(|| {
    let mut places = Box::new([None; PLACES]);
    for command in all() {
        let mut at = place_of(command.name.as_bytes());
        while places[at].is_some() {
            at = (at + 1) % PLACES;
        }
        places[at] = Some(command);
    }
    places
});

/// Letters of both cases fall together; so do a few other characters, which only costs a comparison.
fn place_of(name: &[u8]) -> usize {
    let hash = name.iter().fold(name.len(), |hash, byte| hash.wrapping_mul(31) + usize::from(byte | 0x20));
    (hash ^ hash >> 10) % PLACES
}

/// A command as `COMMAND INFO` names it, and the subcommand if it is one (`xgroup|create`).
#[must_use]
pub fn find_full(name: &[u8]) -> Option<(&'static Command, Option<&'static Subcommand>)> {
    let Some(bar) = name.iter().position(|byte| *byte == b'|') else { return Some((find(name)?, None)) };
    let command = find(&name[..bar])?;
    let subcommand = command.subcommands.iter().find(|known| name.eq_ignore_ascii_case(known.name.as_bytes()))?;
    Some((command, Some(subcommand)))
}

/// The command of that name, in whatever case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    // Longer than any: not worth hashing.
    if name.len() > 24 {
        return None;
    }
    let mut at = place_of(name);
    while let Some(command) = BY_NAME[at] {
        if name.eq_ignore_ascii_case(command.name.as_bytes()) {
            return Some(command);
        }
        at = (at + 1) % PLACES;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_a_command_has_them() {
        let keys = |line: &'static str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found: Vec<_> = find(args[0]).unwrap().keys_of(&args).map(|key| String::from_utf8_lossy(key)).collect();
            found.join(" ")
        };
        assert_eq!(keys("get a"), "a");
        assert_eq!(keys("mset a 1 b 2"), "a b");
        assert_eq!(keys("rename a b"), "a b");
        assert_eq!(keys("xgroup create a g 0"), "a");
        assert_eq!(keys("xgroup help"), "");
        assert_eq!(keys("xgroup nope a"), "");
        assert_eq!(keys("xread count 1 streams a b 1 2"), "a b");
        assert_eq!(keys("xreadgroup group g c streams a >"), "a");
        assert_eq!(keys("flushdb"), "");
    }

    #[test]
    fn every_command_is_found_by_its_name_in_any_case_and_no_two_have_the_same() {
        for command in all() {
            assert!(command.name.len() <= 24 && command.name.bytes().all(|byte| !byte.is_ascii_uppercase()));
            let found = |name: String| find(name.as_bytes()).map(std::ptr::from_ref);
            assert_eq!(found(command.name.to_owned()), Some(std::ptr::from_ref(command)), "{}", command.name);
            assert_eq!(found(command.name.to_uppercase()), Some(std::ptr::from_ref(command)), "{}", command.name);
        }
        for (command, subcommand) in all().flat_map(|command| command.subcommands.iter().map(move |of| (command, of))) {
            assert_eq!(subcommand.name, format!("{}|{}", command.name, subcommand.own_name()));
            let found = find_full(subcommand.name.to_uppercase().as_bytes());
            assert_eq!(found.and_then(|(_, of)| of).map(|of| of.name), Some(subcommand.name));
        }
        assert!(find_full(b"get|").is_none() && find_full(b"xgroup|nope").is_none() && find_full(b"|").is_none());
        assert!(find(b"").is_none() && find(b"no such command").is_none() && find(&[b'g'; 1000]).is_none());
    }
}
