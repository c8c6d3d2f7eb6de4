//! Description of a Redis command as data: its name, number of arguments, flags, positions of keys, subcommands, and
//! the function that executes it.
//!
//! Owns: the types of the table of commands, and the checks of given arguments against them: the number of arguments,
//! the positions of keys, and the selected subcommand. Does not own: the commands. Each family of commands has a module
//! with its own table, and [`table`](crate::table) joins the tables.

use crate::{
    Reply,
    errors::{Answer, unknown_subcommand, wrong_arity},
    expiry::is,
    flags::Flags,
    store::{Read, Store},
};

/// Implementation of a command. Its function receives all arguments, including the name, after the arity check.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// The command is implemented by a function that only reads the store.
    Read(fn(&dyn Read, &[&[u8]]) -> Answer),
    /// The command is implemented by a function that may write to the store.
    Write(for<'a> fn(&mut dyn Store<'a>, &[&'a [u8]]) -> Answer),
    /// The client's session implements the command, because it concerns transactions, subscriptions or settings, for
    /// example.
    Session,
}

/// Positions of the keys among the arguments, as the command `COMMAND` reports them: from `first` to `last` in
/// steps of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Position of the first key, counted from 1; 0 if no argument is a key, or if `behind` is set.
    pub first: i16,
    /// Position of the last key; a negative position counts from the last argument, which is -1.
    pub last: i16,
    /// Distance from one key to the next, in arguments.
    pub step: i16,
    /// Word that precedes the keys, such as `STREAMS`. The first half of the arguments after the word are keys.
    /// `None` if the keys have fixed positions.
    pub behind: Option<&'static str>,
}

impl Keys {
    /// No argument is a key.
    pub const NONE: Self = Self { first: 0, last: 0, step: 0, behind: None };
    /// The first argument is the key.
    pub const ONE: Self = Self { first: 1, last: 1, step: 1, behind: None };
    /// All arguments are keys.
    pub const ALL: Self = Self { first: 1, last: -1, step: 1, behind: None };
    /// Every second argument is a key, starting with the first argument.
    pub const PAIRS: Self = Self { first: 1, last: -1, step: 2, behind: None };
    /// The first two arguments are keys.
    pub const TWO: Self = Self { first: 1, last: 2, step: 1, behind: None };
    /// The argument after the name of the subcommand is the key.
    pub const SECOND: Self = Self { first: 2, last: 2, step: 1, behind: None };

    /// The first half of the arguments after `STREAMS` are keys.
    pub const BEHIND_STREAMS: Self = Self { behind: Some("streams"), ..Self::NONE };

    /// Returns the keys among a command's arguments.
    fn keys_in<'a, 'k>(self, args: &'a [&'k [u8]]) -> impl Iterator<Item = &'k [u8]> + use<'a, 'k> {
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

/// Returns the first half of the arguments after the option `word`. A value of an earlier option, such as the name of a
/// group or consumer, may be the same word, so these values are skipped.
fn behind<'a, 'k>(word: &str, args: &'a [&'k [u8]]) -> &'a [&'k [u8]] {
    let mut at = 1;
    while let Some(option) = args.get(at) {
        if is(option, word) {
            let rest = &args[at + 1..];
            return &rest[..rest.len() / 2];
        }
        // Skips the option and its values.
        at += match () {
            () if is(option, "group") => 3,
            () if is(option, "block") || is(option, "count") => 2,
            () => 1,
        };
    }
    &[]
}

/// A subcommand of a container command, selected by the container's first argument.
#[derive(Clone, Copy, Debug)]
pub struct Subcommand {
    /// Names of the container and of the subcommand, in lower case: `xgroup|create`.
    pub name: &'static str,
    /// Number of arguments, including the names of the container and of the subcommand; a negative number is a
    /// minimum.
    pub arity: i16,
    /// Flags of the subcommand, as the command `COMMAND` reports them.
    pub flags: Flags,
    /// Positions of the keys among the arguments.
    pub keys: Keys,
}

impl Subcommand {
    /// Creates a subcommand without keys.
    pub(crate) const fn new(name: &'static str, arity: i16, flags: Flags) -> Self {
        Self { name, arity, flags, keys: Keys::NONE }
    }

    /// Creates a subcommand whose first argument is a key.
    pub(crate) const fn of_key(name: &'static str, arity: i16, flags: Flags) -> Self {
        Self { name, arity, flags, keys: Keys::SECOND }
    }

    /// Creates the subcommand `HELP` of a container. It is permitted at any time.
    pub(crate) const fn help(name: &'static str, category: Flags) -> Self {
        Self::new(name, 2, category.and(Flags::LOADING).and(Flags::STALE))
    }

    /// Returns the subcommand's name without the container's name: `create` for `xgroup|create`.
    #[must_use]
    pub fn own_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, own)| own)
    }
}

fn fits(arity: i16, arguments: usize) -> bool {
    let wanted = usize::from(arity.unsigned_abs());
    if arity >= 0 { arguments == wanted } else { arguments >= wanted }
}

/// Description of a Redis command: its name, its arguments and its implementation.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Name of the command in lower case.
    pub name: &'static str,
    /// Number of arguments, including the name of the command; a negative number is a minimum.
    pub arity: i16,
    /// Flags of the command, as the command `COMMAND` reports them.
    pub flags: Flags,
    /// Positions of the keys among the arguments.
    pub keys: Keys,
    /// Implementation of the command.
    pub run: Run,
    /// Subcommands, if the command is a container such as `XGROUP`; empty for other commands.
    pub subcommands: &'static [Subcommand],
    /// Number of the command, assigned by [`table`](crate::table). The command's subcommands have the numbers after it.
    pub(crate) number: u16,
}

impl Command {
    /// Creates a command that only reads.
    pub(crate) const fn read(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        run: fn(&dyn Read, &[&[u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Read(run), subcommands: &[], number: 0 }
    }

    /// Creates a command that may write.
    pub(crate) const fn write(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        run: for<'a> fn(&mut dyn Store<'a>, &[&'a [u8]]) -> Answer,
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Write(run), subcommands: &[], number: 0 }
    }

    /// Creates a command that the client's session implements, because the command needs more than the store.
    pub(crate) const fn session(
        name: &'static str,
        arity: i16,
        flags: Flags,
        keys: Keys,
        subcommands: &'static [Subcommand],
    ) -> Self {
        Self { name, arity, flags, keys, run: Run::Session, subcommands, number: 0 }
    }

    /// Makes the command a container: its first argument selects one of these subcommands.
    pub(crate) const fn with(self, subcommands: &'static [Subcommand]) -> Self {
        Self { subcommands, ..self }
    }

    /// Returns true if the command accepts that number of arguments, including the name.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }

    /// Returns the subcommand that the arguments select. `None` if this command is not a container, or if it has no
    /// arguments.
    ///
    /// # Errors
    /// Returns the error reply if there is no such subcommand, or if the subcommand does not accept the number of
    /// arguments.
    #[inline]
    pub fn subcommand(&self, args: &[&[u8]]) -> Result<Option<&'static Subcommand>, Reply> {
        if self.subcommands.is_empty() { Ok(None) } else { self.selected_subcommand(args) }
    }

    fn selected_subcommand(&self, args: &[&[u8]]) -> Result<Option<&'static Subcommand>, Reply> {
        let Some(given) = args.get(1) else { return Ok(None) };
        let named = |known: &&Subcommand| given.eq_ignore_ascii_case(known.own_name().as_bytes());
        let Some(found) = self.subcommands.iter().find(named) else {
            return Err(unknown_subcommand(&self.name.to_ascii_uppercase(), given));
        };
        if fits(found.arity, args.len()) { Ok(Some(found)) } else { Err(wrong_arity(found.name)) }
    }

    /// Number of this command, or of its subcommand that the arguments select: an index into
    /// [`table::full_names`](crate::table::full_names). The caller has checked the arguments.
    #[inline]
    #[must_use]
    pub fn number_of(&self, args: &[&[u8]]) -> usize {
        if self.subcommands.is_empty() { self.number.into() } else { self.number_of_subcommand(args) }
    }

    fn number_of_subcommand(&self, args: &[&[u8]]) -> usize {
        let named = |known: &Subcommand| {
            args.get(1).is_some_and(|given| given.eq_ignore_ascii_case(known.own_name().as_bytes()))
        };
        let at = self.subcommands.iter().position(named);
        usize::from(self.number) + at.map_or(0, |at| at + 1)
    }

    /// Returns the keys among the command's arguments. The caller has checked the number of arguments.
    #[inline]
    pub fn keys_of<'a, 'k>(&self, args: &'a [&'k [u8]]) -> impl Iterator<Item = &'k [u8]> + use<'a, 'k> {
        let keys = match self.subcommand(args) {
            Ok(Some(subcommand)) => subcommand.keys,
            _ => self.keys,
        };
        keys.keys_in(args)
    }

    /// Returns the flags of the command, or of the subcommand that the arguments select. The caller has checked the
    /// arguments.
    #[inline]
    #[must_use]
    pub fn flags_of(&self, args: &[&[u8]]) -> Flags {
        self.subcommand(args).ok().flatten().map_or(self.flags, |subcommand| subcommand.flags)
    }
}

/// Creates the reply to the subcommand `HELP` of a container command. `lines` describe the container's other
/// subcommands.
#[must_use]
pub fn help(lines: &[&'static str]) -> Reply {
    let lines = lines.iter().chain(&["HELP", "    Prints this help."]);
    Reply::Array(lines.map(|line| Reply::Simple(line)).collect())
}

/// Returns the name of the subcommand that the arguments select, without the container's name; empty if the
/// arguments select none. The caller has checked the arguments.
pub(crate) fn chosen(subcommands: &'static [Subcommand], args: &[&[u8]]) -> &'static str {
    let mut names = subcommands.iter().map(Subcommand::own_name);
    names.find(|name| args.get(1).is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()))).unwrap_or("")
}
