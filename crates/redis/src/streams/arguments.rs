//! Small helpers for arguments of this family.

use crate::{
    command::Stop,
    errors::{self, c_string, printable},
    number::parse_integer,
};

/// Whether an argument is that word, in whatever case.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// An integer; what is none answers `otherwise`.
pub(super) fn integer_or(argument: &[u8], otherwise: &'static str) -> Result<i64, Stop> {
    parse_integer(argument).ok_or(Stop::error(otherwise))
}

/// An argument as errors repeat it.
pub(super) fn shown(argument: &[u8]) -> String {
    printable(c_string(argument))
}

/// A subcommand with options that are not its own.
pub(super) fn wrong_subcommand(command: &'static str, subcommand: &[u8]) -> Stop {
    errors::wrong_subcommand(command, subcommand).into()
}
