//! The table of commands: names, how many arguments, which are keys, and the function that does it.
//!
//! Each family of commands has a module with a table of its own; [`find`] looks through all of them.

use std::{borrow::Cow, sync::LazyLock};

use crate::{
    Reply,
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
}

impl Keys {
    /// No keys.
    pub const NONE: Self = Self { first: 0, last: 0, step: 0 };
    /// The first argument.
    pub const ONE: Self = Self { first: 1, last: 1, step: 1 };
    /// All arguments.
    pub const ALL: Self = Self { first: 1, last: -1, step: 1 };
    /// Every other argument.
    pub const PAIRS: Self = Self { first: 1, last: -1, step: 2 };
    /// The first two arguments.
    pub const TWO: Self = Self { first: 1, last: 2, step: 1 };
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// In lower case.
    pub name: &'static str,
    /// How many arguments with the name; negative: at least so many.
    pub arity: i16,
    /// Flags as `COMMAND` says them (`readonly`, `write`, `fast`, ...).
    pub flags: &'static [&'static str],
    /// Which arguments are keys.
    pub keys: Keys,
    /// Who does it.
    pub run: Run,
}

impl Command {
    /// One that only reads.
    pub(crate) const fn read(
        name: &'static str,
        arity: i16,
        flags: &'static [&'static str],
        keys: Keys,
        run: fn(&dyn Read, &[&[u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Read(run) }
    }

    /// One that writes, or may.
    pub(crate) const fn write(
        name: &'static str,
        arity: i16,
        flags: &'static [&'static str],
        keys: Keys,
        run: for<'a> fn(&mut dyn Store<'a>, &[&'a [u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Write(run) }
    }

    /// Whether it may be given so many arguments, the name included.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == wanted } else { arguments >= wanted }
    }
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
    fn every_command_is_found_by_its_name_in_any_case_and_no_two_have_the_same() {
        for command in all() {
            assert!(command.name.len() <= 24 && command.name.bytes().all(|byte| !byte.is_ascii_uppercase()));
            let found = |name: String| find(name.as_bytes()).map(std::ptr::from_ref);
            assert_eq!(found(command.name.to_owned()), Some(std::ptr::from_ref(command)), "{}", command.name);
            assert_eq!(found(command.name.to_uppercase()), Some(std::ptr::from_ref(command)), "{}", command.name);
        }
        assert!(find(b"").is_none() && find(b"no such command").is_none() && find(&[b'g'; 1000]).is_none());
    }
}
