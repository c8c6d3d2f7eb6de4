//! Commands on entries: `XADD`, `XLEN`, `XRANGE`, `XREVRANGE`, `XDEL`, `XSETID`.

use std::ops::ControlFlow;

use super::{
    arguments::is,
    id::{EntryId, NewId},
    stream::{Stream, entry_reply},
    trim::{Options, TrimCommand},
    visit::Order,
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd, NO_SUCH_KEY, SYNTAX, incomplete, refused},
    number::integer,
    store::{Read, Store},
    value::ReplyBudget,
};

/// `XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value [field value ...]`:
/// adds an entry, then trims the stream if requested.
pub(super) fn xadd<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let Options { trim, no_stream, id, end } = Options::parse(arguments, TrimCommand::Add)?;
    let fields = &arguments[end..];
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(incomplete(arguments));
    }
    if id == NewId::Is(EntryId::ZERO) {
        return Err(CommandEnd::error("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let key = arguments[1];
    let mut stream = match Stream::find(&*store, key)? {
        Some(stream) => stream,
        None if no_stream => return Ok(Reply::Null),
        None => Stream::create(store)?,
    };
    let id = stream.add(store, id, fields)?;
    if let Some(trim) = trim {
        trim.apply(&mut stream, store)?;
    }
    stream.save(store, key)?;
    Ok(id.reply())
}

/// `XLEN key`: returns the number of entries.
pub(super) fn xlen(read: &dyn Read, arguments: &[&[u8]]) -> Answer {
    let stream = Stream::find(read, arguments[1])?;
    Ok(Reply::Integer(stream.map_or(0, |stream| stream.meta.len as i64)))
}

/// `XRANGE key start end [COUNT count]` and `XREVRANGE key end start [COUNT count]`: return the entries of a range,
/// oldest or newest first.
pub(super) fn range(read: &dyn Read, arguments: &[&[u8]], order: Order) -> Answer {
    let (start, end) = if order == Order::Ascending { (2, 3) } else { (3, 2) };
    let ids = (EntryId::range_start(arguments[start])?, EntryId::range_end(arguments[end])?);
    let mut count = None;
    let mut options = arguments[4..].iter();
    while let Some(&option) = options.next() {
        match options.next() {
            Some(&argument) if is(option, "count") => count = Some(integer(argument)?.max(0) as u64),
            _ => return Err(refused(SYNTAX)),
        }
    }
    let Some(stream) = Stream::find(read, arguments[1])? else { return Ok(Reply::Array(Vec::new())) };
    if count == Some(0) {
        return Ok(Reply::NullArray);
    }
    let mut budget = ReplyBudget::of(read);
    let entries = collect(read, &stream, ids, order, count, &mut budget)?;
    budget.check()?;
    Ok(Reply::Array(entries))
}

/// Collects the entries of a stream within an id range as replies: at most `count` entries, and only as many as fit
/// into the reply.
pub(super) fn collect(
    read: &dyn Read,
    stream: &Stream,
    ids: (EntryId, EntryId),
    order: Order,
    count: Option<u64>,
    budget: &mut ReplyBudget,
) -> Result<Vec<Reply>, CommandEnd> {
    let mut entries = Vec::new();
    stream.visit(read, ids, order, &mut |id, value| {
        if !budget.has_room_for_row(value.len()) {
            return Ok(ControlFlow::Break(()));
        }
        let entry = entry_reply(id, value)?;
        if !budget.fits_part(&entry) {
            return Ok(ControlFlow::Break(()));
        }
        entries.push(entry);
        let is_enough = count == Some(entries.len() as u64);
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(entries)
}

/// `XDEL key id [id ...]`: deletes entries, and returns how many existed.
pub(super) fn xdel<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let key = arguments[1];
    let Some(mut stream) = Stream::find(&*store, key)? else { return Ok(Reply::Integer(0)) };
    let ids = arguments[2..].iter().map(|id| EntryId::strict(id, 0)).collect::<Result<Vec<_>, _>>()?;
    let mut deleted = 0;
    for id in ids {
        deleted += i64::from(stream.delete(store, id)?);
    }
    if deleted > 0 {
        let first = stream.first_or_last(&*store, (EntryId::ZERO, EntryId::MAX), Order::Ascending)?;
        stream.meta.first_id = first.unwrap_or(EntryId::ZERO);
        stream.save(store, key)?;
    }
    Ok(Reply::Integer(deleted))
}

/// `XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]`: sets the last id and the
/// counters of a stream.
pub(super) fn xsetid<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let last_id = EntryId::strict(arguments[2], 0)?;
    let (mut added, mut max_deleted) = (None, EntryId::ZERO);
    let mut options = arguments[3..].iter();
    while let Some(&option) = options.next() {
        match options.next() {
            Some(&argument) if is(option, "entriesadded") => {
                let given = integer(argument)?;
                added =
                    Some(u64::try_from(given).map_err(|_| CommandEnd::error("ERR entries_added must be positive"))?);
            }
            Some(&argument) if is(option, "maxdeletedid") => {
                max_deleted = EntryId::strict(argument, 0)?;
                if last_id < max_deleted {
                    let text = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id";
                    return Err(CommandEnd::error(text));
                }
            }
            _ => return Err(refused(SYNTAX)),
        }
    }
    let key = arguments[1];
    let mut stream = Stream::find(&*store, key)?.ok_or_else(|| refused(NO_SUCH_KEY))?;
    if stream.meta.len > 0 {
        let top = stream.first_or_last(&*store, (EntryId::ZERO, EntryId::MAX), Order::Descending)?;
        if top.is_some_and(|top| last_id < top) {
            return Err(CommandEnd::error("ERR The ID specified in XSETID is smaller than the target stream top item"));
        }
        if added.is_some_and(|added| stream.meta.len > added) {
            let text = "ERR The entries_added specified in XSETID is smaller than the target stream length";
            return Err(CommandEnd::error(text));
        }
    }
    stream.meta.last_id = last_id;
    stream.meta.added = added.unwrap_or(stream.meta.added);
    if max_deleted != EntryId::ZERO {
        stream.meta.max_deleted_id = max_deleted;
    }
    stream.save_groups(store, key)?;
    Ok(Reply::Ok)
}
