//! The table of commands: names, how many arguments, which are keys, and the function that does it.
//!
//! Each family of commands has a module with a table of its own; [`find`] looks through all of them.

use std::borrow::Cow;

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
        Self::Failed(error)
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
    /// Whether it may be given so many arguments, the name included.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { arguments == wanted } else { arguments >= wanted }
    }
}

/// The tables of all families.
const TABLES: &[&[Command]] = &[];

/// The command of that name, in whatever case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    TABLES.iter().flat_map(|table| table.iter()).find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}
