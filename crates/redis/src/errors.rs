//! Error replies of commands (exactly those of Redis 7.0, and a few of Thalweg's own), and the type of a command's
//! early end.
//!
//! Thalweg's own errors report limits that Redis does not have, or that Redis checks in other places. `docs/redis.md`
//! lists them.

use std::borrow::Cow;

use thalweg_types::limits::MAX_KEY_BYTES;

use crate::{Reply, store::StoreError};

/// Reason why a command ends without its normal reply.
#[derive(Debug)]
pub enum CommandEnd {
    /// The client made a mistake. Contains the error reply for the client.
    Refused(Reply),
    /// The store failed, so the command has no reply.
    Failed(StoreError),
}

impl CommandEnd {
    /// Ends a command with an error reply: creates a [`Self::Refused`] with the text.
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(Reply::error(text))
    }
}

impl From<StoreError> for CommandEnd {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(reply) => Self::Refused(reply),
            error @ StoreError::Failed(_) => Self::Failed(error),
        }
    }
}

impl From<Reply> for CommandEnd {
    fn from(reply: Reply) -> Self {
        Self::Refused(reply)
    }
}

/// Result of executing a command: its reply, or the reason why the command ended early.
pub type Answer = Result<Reply, CommandEnd>;

/// Error text: the key holds another kind of value than the command works on.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// Error text: options are unknown, incomplete, or exclude each other.
pub const SYNTAX: &str = "ERR syntax error";
/// Error text: an argument or a stored value is not an integer.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// Error text: an argument or a stored value is not a number.
pub const NOT_A_FLOAT: &str = "ERR value is not a valid float";
/// Error text: the result of an increment exceeds the range of a 64-bit integer.
pub const OVERFLOW: &str = "ERR increment or decrement would overflow";
/// Error text: the result of an increment is not a finite number.
pub const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";
/// Error text: a value would be longer than [`MAX_VALUE_BYTES`](thalweg_types::limits::MAX_VALUE_BYTES).
pub const TOO_LARGE: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
/// Error text: the key must exist, but does not.
pub const NO_SUCH_KEY: &str = "ERR no such key";
/// Error text: the client sent a command on hashes or streams to a cache, which stores only strings. Redis has no
/// such error.
pub const STRINGS_ONLY: &str = "ERR this database is a cache, which holds strings only: use a keyspace instead";
/// Error text: the reply would exceed [`MAX_REDIS_REPLY_BYTES`](thalweg_types::limits::MAX_REDIS_REPLY_BYTES).
/// Redis has no such error.
pub const REPLY_TOO_LARGE: &str =
    "ERR the reply would be too large: request fewer items at a time, for example with SCAN, HSCAN or ranges";
/// Error text: the values of this reply do not fit into the memory for replies, because other replies wait for clients.
pub const NO_REPLY_ROOM: &str = "BUSY too many bytes of replies wait for clients: retry later";

/// Ends a command with an error reply: returns the [`CommandEnd`] with this error text.
pub(crate) fn refused(text: &'static str) -> CommandEnd {
    CommandEnd::Refused(Reply::Error(Cow::Borrowed(text)))
}

/// Error reply: a key or the name of a field exceeds [`MAX_KEY_BYTES`]. Redis has no such error.
pub(crate) fn key_too_long() -> Reply {
    Reply::error(format!("ERR keys and fields are at most {MAX_KEY_BYTES} bytes long"))
}

/// Error reply: the number of arguments of a command is wrong.
#[must_use]
pub fn wrong_arity(command: &str) -> Reply {
    Reply::error(format!("ERR wrong number of arguments for '{command}' command"))
}

/// Error reply: a time to live is not positive, or its deadline is too late to represent. `args` are the command's
/// arguments.
pub(crate) fn bad_expire_time(args: &[&[u8]]) -> CommandEnd {
    CommandEnd::error(format!("ERR invalid expire time in '{}' command", own_name(args)))
}

/// Error reply: an option or a pair of arguments is incomplete. `args` are the command's arguments.
pub(crate) fn incomplete(args: &[&[u8]]) -> CommandEnd {
    wrong_arity(&own_name(args)).into()
}

/// Returns the name of the command in lower case, as the table of commands has it.
fn own_name(args: &[&[u8]]) -> String {
    args.first().map_or(String::new(), |name| String::from_utf8_lossy(name).to_ascii_lowercase())
}

/// Maximum bytes of a name that an error reply quotes. In the reply "unknown command", it is the maximum of all quoted
/// arguments together.
const MAX_REPEATED_BYTES: usize = 128;

/// Error reply: the command does not exist.
#[must_use]
pub fn unknown_command(args: &[&[u8]]) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let mut text = b"unknown command '".to_vec();
    text.extend_from_slice(c_string(cut(name, MAX_REPEATED_BYTES)));
    text.extend_from_slice(b"', with args beginning with: ");
    let begin = text.len();
    for argument in args.iter().skip(1) {
        let repeated = text.len() - begin;
        if repeated >= MAX_REPEATED_BYTES {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(c_string(cut(argument, MAX_REPEATED_BYTES - repeated)));
        text.extend_from_slice(b"' ");
    }
    Reply::error(format!("ERR {}", printable(&text)))
}

/// Error reply: the command has no such subcommand.
#[must_use]
pub fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Reply {
    let mut text = b"unknown subcommand '".to_vec();
    text.extend_from_slice(c_string(cut(subcommand, MAX_REPEATED_BYTES)));
    text.extend_from_slice(format!("'. Try {command} HELP.").as_bytes());
    Reply::error(format!("ERR {}", printable(&text)))
}

/// Error reply: an option is not permitted for this subcommand.
#[must_use]
pub fn wrong_subcommand(command: &str, subcommand: &[u8]) -> Reply {
    let subcommand = printable(c_string(cut(subcommand, MAX_REPEATED_BYTES)));
    Reply::error(format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try {command} HELP."))
}

/// Error reply: an option of `HELLO` is unknown or incomplete. The reply truncates the option; Redis quotes all of it.
#[must_use]
pub fn hello_option(option: &[u8]) -> Reply {
    let option = printable(c_string(cut(option, MAX_REPEATED_BYTES)));
    Reply::error(format!("ERR Syntax error in HELLO option '{option}'"))
}

/// Converts bytes of a client to text for an error reply. Line breaks become spaces, because a line break would end the
/// reply.
#[must_use]
pub fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}

/// Returns the bytes before the first zero byte, or all bytes if there is none.
pub(crate) fn c_string(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn cut(text: &[u8], max_bytes: usize) -> &[u8] {
    &text[..text.len().min(max_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_error_repeats_has_a_bound_and_no_line_breaks() {
        let repeats = |option: &str| Reply::error(format!("ERR Syntax error in HELLO option '{option}'"));
        let longest = "x".repeat(MAX_REPEATED_BYTES);
        assert_eq!(hello_option(longest.as_bytes()), repeats(&longest));
        assert_eq!(hello_option(format!("{longest}y").as_bytes()), repeats(&longest));
        assert_eq!(hello_option(&vec![b'x'; 1 << 20]), repeats(&longest));
        assert_eq!(hello_option(b"a\r\nb\0c"), repeats("a  b"));
    }
}
