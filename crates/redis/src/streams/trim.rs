//! Trimming: options of `XADD` and `XTRIM`, and the `XTRIM` command.
//!
//! A trim with the option `~` (approximately) trims exactly, as if each node of Redis's tree held one entry. Redis's
//! rules permit this, and in Thalweg an exact trim costs no more. `LIMIT` bounds the number of removed entries, as in
//! Redis.
//!
//! Invariant: a command removes at most [`MAX_REDIS_STREAM_ROWS`] entries, and about 16 MiB of them. Later commands
//! remove the remaining entries.

use thalweg_types::limits::MAX_REDIS_STREAM_ROWS;

use super::{
    arguments::is,
    id::{EntryId, NewId},
    stream::Stream,
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd, SYNTAX, c_string, refused},
    number::integer,
    store::{Store, StoreError},
};

/// Maximum number of entries that a trim with `~` but without `LIMIT` removes. It equals the entries in a hundred nodes
/// of Redis's tree.
const DEFAULT_LIMIT: u64 = 100 * 100;

/// Entries that a trim keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The trim keeps this number of the newest entries.
    Newest(u64),
    /// The trim keeps the entry with this id, and all later ones.
    From(EntryId),
}

/// Parsed trim options of `XADD` or `XTRIM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    pub keep: Keep,
    /// Maximum number of entries that the trim removes.
    pub limit: u64,
}

impl Trim {
    /// Removes the entries of the stream that the options do not keep. Returns the number of removed entries.
    pub(super) fn apply<'a>(self, stream: &mut Stream, store: &mut dyn Store<'a>) -> Result<u64, StoreError> {
        let Self { keep, limit } = self;
        let has_too_many = match keep {
            Keep::Newest(len) => stream.meta.len > len,
            Keep::From(id) => stream.meta.len > 0 && stream.meta.first_id < id,
        };
        if !has_too_many {
            return Ok(0);
        }
        let mut gone = 0;
        stream.trim(store, &mut |left, id| {
            let goes = gone < limit
                && match keep {
                    Keep::Newest(len) => left > len,
                    Keep::From(first) => id < first,
                };
            gone += u64::from(goes);
            goes
        })
    }
}

/// Options of `XADD` and `XTRIM`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub trim: Option<Trim>,
    pub no_stream: bool,
    /// Id that the client requests for the new entry. Used only for `XADD`.
    pub id: NewId,
    /// Position, among the command's arguments, of the first argument after the options.
    pub end: usize,
}

/// Command whose options are parsed: `XADD` or `XTRIM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrimCommand {
    Add,
    Trim,
}

impl Options {
    pub(super) fn parse(arguments: &[&[u8]], of: TrimCommand) -> Result<Self, CommandEnd> {
        let mut options = Self { trim: None, no_stream: false, id: NewId::Next, end: arguments.len() };
        let (mut keep, mut is_about, mut limit) = (None, false, None);
        let mut at = 2;
        while let Some(&argument) = arguments.get(at) {
            let more = arguments.len() - 1 - at;
            if of == TrimCommand::Add && c_string(argument) == b"*" {
                options.end = at + 1;
                break;
            } else if (is(argument, "maxlen") || is(argument, "minid")) && more > 0 {
                if keep.is_some() {
                    let text = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible";
                    return Err(CommandEnd::error(text));
                }
                let (next, has_sign) = (c_string(arguments[at + 1]), more >= 2);
                is_about = has_sign && next == b"~";
                at += 1 + usize::from(has_sign && (next == b"~" || next == b"="));
                keep = Some(parse_keep(argument, arguments[at])?);
            } else if is(argument, "limit") && more > 0 {
                at += 1;
                let given = integer(arguments[at])?;
                limit =
                    Some(u64::try_from(given).map_err(|_| CommandEnd::error("ERR The LIMIT argument must be >= 0."))?);
            } else if of == TrimCommand::Add && is(argument, "nomkstream") {
                options.no_stream = true;
            } else if of == TrimCommand::Add {
                options.id = NewId::parse(argument)?;
                options.end = at + 1;
                break;
            } else {
                return Err(refused(SYNTAX));
            }
            at += 1;
        }
        options.trim = trim(keep, is_about, limit, of)?;
        Ok(options)
    }
}

fn parse_keep(option: &[u8], argument: &[u8]) -> Result<Keep, CommandEnd> {
    if is(option, "minid") {
        return EntryId::strict(argument, 0).map(Keep::From);
    }
    let len = integer(argument)?;
    let len = u64::try_from(len).map_err(|_| CommandEnd::error("ERR The MAXLEN argument must be >= 0."))?;
    Ok(Keep::Newest(len))
}

fn trim(keep: Option<Keep>, is_about: bool, limit: Option<u64>, of: TrimCommand) -> Result<Option<Trim>, CommandEnd> {
    let text = match (keep, limit) {
        (None, Some(1..)) => "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        (None, _) if of == TrimCommand::Trim => "ERR syntax error, XTRIM must be called with a trimming strategy",
        (_, Some(_)) if !is_about => "ERR syntax error, LIMIT cannot be used without the special ~ option",
        (None, _) => return Ok(None),
        (Some(keep), limit) => {
            let limit = match limit {
                None if is_about => DEFAULT_LIMIT,
                None | Some(0) => u64::MAX,
                Some(limit) => limit,
            };
            return Ok(Some(Trim { keep, limit: limit.min(MAX_REDIS_STREAM_ROWS) }));
        }
    };
    Err(CommandEnd::error(text))
}

/// `XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count]`: removes the oldest entries of a stream.
pub(super) fn xtrim<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let options = Options::parse(arguments, TrimCommand::Trim)?;
    let key = arguments[1];
    let (Some(trim), Some(mut stream)) = (options.trim, Stream::find(&*store, key)?) else {
        return Ok(Reply::Integer(0));
    };
    let gone = trim.apply(&mut stream, store)?;
    if gone > 0 {
        stream.save(store, key)?;
    }
    Ok(Reply::Integer(gone as i64))
}
