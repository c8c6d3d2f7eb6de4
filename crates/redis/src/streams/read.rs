//! `XREAD`, and the arguments that it shares with `XREADGROUP`.

use super::{
    arguments::{integer_or, is},
    entries::collect,
    id::EntryId,
    stream::Stream,
    visit::Order,
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd, SYNTAX, c_string, refused},
    number::integer,
    store::{Read, StoreError},
    value::ReplyBudget,
};

/// Parsed arguments of `XREAD` or `XREADGROUP`.
#[derive(Clone, Debug)]
pub(super) struct Reading<'a> {
    /// Names of the group and of the consumer; only for `XREADGROUP`.
    pub group: Option<(&'a [u8], &'a [u8])>,
    /// Maximum number of entries that the command returns from each stream; `None` for no limit.
    pub count: Option<u64>,
    /// Maximum time to wait for an entry, in milliseconds; 0 waits without a limit. `None` if the command does not
    /// wait.
    pub block: Option<u64>,
    /// True if entries do not become pending when they are delivered (option NOACK).
    pub no_ack: bool,
    pub keys: Vec<&'a [u8]>,
    pub ids: Vec<&'a [u8]>,
}

/// Start of a read of one stream: after a given id, or at the first entry that the consumer group has not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStart {
    /// Reads the entries with ids above this one. A command that reads for a group returns only those entries that are
    /// already pending with its consumer.
    After(EntryId),
    /// Reads entries that the group has not received yet.
    New,
}

impl<'a> Reading<'a> {
    pub(super) fn parse(arguments: &[&'a [u8]]) -> Result<Self, CommandEnd> {
        let with_group = is(arguments[0], "xreadgroup");
        let mut reading =
            Self { group: None, count: None, block: None, no_ack: false, keys: Vec::new(), ids: Vec::new() };
        let mut at = 1;
        while let Some(&option) = arguments.get(at) {
            let rest = &arguments[at + 1..];
            match rest {
                [argument, ..] if is(option, "block") => {
                    reading.block = Some(timeout(argument)?);
                    at += 1;
                }
                [argument, ..] if is(option, "count") => {
                    reading.count = u64::try_from(integer(argument)?).ok().filter(|count| *count > 0);
                    at += 1;
                }
                [_, ..] if is(option, "streams") => {
                    if !rest.len().is_multiple_of(2) {
                        return Err(unbalanced());
                    }
                    let (keys, ids) = rest.split_at(rest.len() / 2);
                    (reading.keys, reading.ids) = (keys.to_vec(), ids.to_vec());
                    break;
                }
                [group, consumer, ..] if is(option, "group") => {
                    allowed(with_group, "GROUP")?;
                    reading.group = Some((*group, *consumer));
                    at += 2;
                }
                _ if is(option, "noack") => {
                    allowed(with_group, "NOACK")?;
                    reading.no_ack = true;
                }
                _ => return Err(refused(SYNTAX)),
            }
            at += 1;
        }
        if reading.keys.is_empty() {
            return Err(refused(SYNTAX));
        }
        if with_group && reading.group.is_none() {
            return Err(CommandEnd::error("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(reading)
    }

    /// Returns the start of the read of one stream. `id` is the client's argument, and `last` is the last id of the
    /// stream.
    pub(super) fn from(&self, id: &[u8], last: EntryId) -> Result<ReadStart, CommandEnd> {
        let text = match (c_string(id), self.group.is_some()) {
            (b"$", false) => return Ok(ReadStart::After(last)),
            (b">", true) => return Ok(ReadStart::New),
            (b"$", true) => {
                "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this \
                 consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return \
                 an empty result set."
            }
            (b">", false) => {
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
            }
            (_, with_group) => {
                return Ok(match EntryId::strict(id, 0)? {
                    EntryId::MAX if with_group => ReadStart::New,
                    id => ReadStart::After(id),
                });
            }
        };
        Err(CommandEnd::error(text))
    }
}

fn timeout(argument: &[u8]) -> Result<u64, CommandEnd> {
    let given = integer_or(argument, "ERR timeout is not an integer or out of range")?;
    u64::try_from(given).map_err(|_| CommandEnd::error("ERR timeout is negative"))
}

fn unbalanced() -> CommandEnd {
    CommandEnd::error("ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.")
}

fn allowed(with_group: bool, option: &str) -> Result<(), CommandEnd> {
    if with_group {
        return Ok(());
    }
    let text = format!("ERR The {option} option is only supported by XREADGROUP. You called XREAD instead.");
    Err(CommandEnd::error(text))
}

/// `XREAD [COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]`: returns entries after the ids.
pub(super) fn xread(read: &dyn Read, arguments: &[&[u8]]) -> Answer {
    let reading = Reading::parse(arguments)?;
    let mut wanted = Vec::new();
    for (&key, &id) in reading.keys.iter().zip(&reading.ids) {
        let stream = Stream::find(read, key)?;
        let last = stream.as_ref().map_or(EntryId::ZERO, |stream| stream.meta.last_id);
        wanted.push((key, stream, reading.from(id, last)?));
    }
    let (mut budget, mut found) = (ReplyBudget::of(read), Vec::new());
    for (key, stream, from) in wanted {
        let (Some(stream), ReadStart::After(id)) = (stream, from) else { continue };
        let entries = after(read, &stream, id, reading.count, &mut budget)?;
        if !entries.is_empty() {
            found.push((Reply::bulk(key), Reply::Array(entries)));
        }
    }
    if found.is_empty() {
        // Returns the error if there are entries, but no room for the first of them.
        budget.check()?;
    }
    Ok(streams(found))
}

fn after(
    read: &dyn Read,
    stream: &Stream,
    id: EntryId,
    count: Option<u64>,
    budget: &mut ReplyBudget,
) -> Result<Vec<Reply>, CommandEnd> {
    match id.next() {
        Some(next) if next <= stream.meta.last_id && !budget.is_exceeded() => {
            collect(read, stream, (next, EntryId::MAX), Order::Ascending, count, budget)
        }
        _ => Ok(Vec::new()),
    }
}

/// Creates the reply of a command that has read several streams, from each stream's key and its entries. The reply is a
/// null array if no stream had entries.
pub(super) fn streams(found: Vec<(Reply, Reply)>) -> Reply {
    if found.is_empty() { Reply::NullArray } else { Reply::Pairs(found) }
}

/// Returns true if the stream of a key has entries after an id. The entries themselves are not read.
pub(super) fn has_entries(read: &dyn Read, key: &[u8], id: EntryId) -> Result<bool, StoreError> {
    match Stream::find(read, key) {
        Ok(stream) => stream.map_or(Ok(false), |stream| stream.has_after(read, id)),
        Err(CommandEnd::Failed(error)) => Err(error),
        // The key now has a value of another kind. It may become a stream again.
        Err(CommandEnd::Refused(_)) => Ok(false),
    }
}
