//! Helpers to parse arguments of stream commands.

pub(super) use crate::expiry::is;
use crate::{
    errors::{self, CommandEnd, c_string, printable},
    number::parse_integer,
};

/// Parses an argument as an integer. If the argument is not an integer, returns an error with the text `otherwise`.
pub(super) fn integer_or(argument: &[u8], otherwise: &'static str) -> Result<i64, CommandEnd> {
    parse_integer(argument).ok_or(CommandEnd::error(otherwise))
}

/// Converts an argument to text for an error reply.
pub(super) fn shown(argument: &[u8]) -> String {
    printable(c_string(argument))
}

/// Error for an option that is not permitted for this subcommand.
pub(super) fn wrong_subcommand(command: &'static str, subcommand: &[u8]) -> CommandEnd {
    errors::wrong_subcommand(command, subcommand).into()
}
