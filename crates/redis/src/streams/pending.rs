//! Pending lists of groups and consumers: entries that were delivered but not acknowledged. Also the commands `XACK`
//! and `XPENDING`.
//!
//! Owns: the consistency of the rows of pending entries (rows 5 and 6 of the layout) with the counters of groups and
//! consumers.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use thalweg_types::limits::MAX_REDIS_STREAM_ROWS;

use super::{
    arguments::{is, shown},
    groups,
    id::EntryId,
    layout::{self, Consumer, Group, NOTHING, Pending},
    stream::Stream,
    visit::{Flow, Order, visit_parts},
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd, SYNTAX, refused},
    number::integer,
    store::{CollectionId, Read, Store, StoreError},
};

/// A group whose pending entries a command changes. [`Self::close`] writes the changed rows of the group and of its
/// consumers once.
#[derive(Debug)]
pub(super) struct Ledger {
    pub group: Group,
    at: CollectionId,
    consumers: BTreeMap<u64, Consumer>,
}

impl Ledger {
    pub(super) fn open(stream: &Stream, group: Group) -> Self {
        Self { group, at: stream.at, consumers: BTreeMap::new() }
    }

    /// Returns a consumer of the group, so that the caller can change it. [`Self::close`] writes the consumer's
    /// row.
    pub(super) fn consumer(&mut self, read: &dyn Read, number: u64) -> Result<&mut Consumer, StoreError> {
        if !self.consumers.contains_key(&number) {
            let row = read.part(self.at, &layout::consumer(number))?;
            let row = row.ok_or_else(|| layout::damaged("consumer", b""))?;
            self.consumers.insert(number, Consumer::decode(&row)?);
        }
        Ok(self.consumers.get_mut(&number).expect("inserted above"))
    }

    /// Drops the changes of a consumer, so that [`Self::close`] does not write the consumer's row.
    pub(super) fn forget(&mut self, number: u64) {
        self.consumers.remove(&number);
    }

    /// Returns the pending state of an entry; `None` if the entry is not pending in the group.
    pub(super) fn find(&self, read: &dyn Read, id: EntryId) -> Result<Option<Pending>, StoreError> {
        let row = read.part(self.at, &layout::pending(self.group.number, id))?;
        row.map(|row| Pending::decode(&row)).transpose()
    }

    /// Assigns an entry to a consumer, or changes the time and number of its deliveries. `old` is the previous pending
    /// state of the entry; `None` if it was not pending.
    pub(super) fn put<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        id: EntryId,
        old: Option<Pending>,
        new: Pending,
    ) -> Result<(), StoreError> {
        if old.map(|old| old.consumer) != Some(new.consumer) {
            match old {
                Some(old) => {
                    store.delete_part(self.at, &layout::pending_with(old.consumer, id))?;
                    layout::decrement(&mut self.consumer(&*store, old.consumer)?.pending)?;
                }
                None => layout::increment(&mut self.group.pending),
            }
            store.put_part(self.at, &layout::pending_with(new.consumer, id), NOTHING)?;
            layout::increment(&mut self.consumer(&*store, new.consumer)?.pending);
        }
        store.put_part(self.at, &layout::pending(self.group.number, id), &new.encode())
    }

    /// Removes an entry from the pending entries of the group and of its consumer.
    pub(super) fn remove<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        id: EntryId,
        old: Pending,
    ) -> Result<(), StoreError> {
        store.delete_part(self.at, &layout::pending(self.group.number, id))?;
        store.delete_part(self.at, &layout::pending_with(old.consumer, id))?;
        layout::decrement(&mut self.group.pending)?;
        layout::decrement(&mut self.consumer(&*store, old.consumer)?.pending)?;
        Ok(())
    }

    /// Writes the rows of the changed consumers, and the row of the group.
    pub(super) fn close<'a>(self, store: &mut dyn Store<'a>, name: &[u8]) -> Result<(), StoreError> {
        for (number, consumer) in self.consumers {
            store.put_part(self.at, &layout::consumer(number), &consumer.encode())?;
        }
        store.put_part(self.at, &layout::group(name), &self.group.encode())
    }
}

/// Visits the pending entries of a group whose ids are in an inclusive range, in ascending or descending order.
pub(super) fn visit(
    read: &dyn Read,
    stream: &Stream,
    group: &Group,
    (first, last): (EntryId, EntryId),
    order: Order,
    visit: &mut dyn FnMut(EntryId, Pending) -> Flow,
) -> Result<(), StoreError> {
    if group.pending == 0 || first > last {
        return Ok(());
    }
    let (lower, upper) = (layout::pending(group.number, first), layout::pending(group.number, last));
    visit_parts(read, stream.at, (Bound::Included(&lower), Bound::Included(&upper)), order, &mut |name, value| {
        visit(layout::id_of(name)?, Pending::decode(value)?)
    })
}

/// Returns at most `count` pending entries of a consumer, from an id on (inclusive).
pub(super) fn of_consumer(
    read: &dyn Read,
    stream: &Stream,
    group: &Group,
    number: u64,
    from: EntryId,
    count: Option<u64>,
) -> Result<Vec<(EntryId, Pending)>, StoreError> {
    let (lower, upper) = (layout::pending_with(number, from), layout::pending_with(number, EntryId::MAX));
    let range = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
    let mut ids = Vec::new();
    visit_parts(read, stream.at, range, Order::Ascending, &mut |name, _| {
        ids.push(layout::id_of(name)?);
        let is_enough = count == Some(ids.len() as u64);
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let row = |id| -> Result<_, StoreError> {
        let row = read.part(stream.at, &layout::pending(group.number, id))?;
        let row = row.ok_or_else(|| layout::damaged("pending entry", b""))?;
        Ok((id, Pending::decode(&row)?))
    };
    ids.into_iter().map(row).collect()
}

/// `XACK key group id [id ...]`: acknowledges entries, and returns how many were pending.
pub(super) fn xack<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let (key, name) = (arguments[1], arguments[2]);
    let Some((mut stream, group)) = groups::find_with_stream(&*store, key, name)? else {
        return Ok(Reply::Integer(0));
    };
    let ids = arguments[3..].iter().map(|id| EntryId::strict(id, 0)).collect::<Result<Vec<_>, _>>()?;
    let mut ledger = Ledger::open(&stream, group);
    let mut acked = 0;
    for id in ids {
        if let Some(pending) = ledger.find(&*store, id)? {
            ledger.remove(store, id, pending)?;
            acked += 1;
        }
    }
    if acked > 0 {
        ledger.close(store, name)?;
        stream.save_groups(store, key)?;
    }
    Ok(Reply::Integer(acked))
}

/// Options of an `XPENDING` command. They determine which pending entries it lists.
struct PendingQuery<'a> {
    ids: (EntryId, EntryId),
    count: u64,
    consumer: Option<&'a [u8]>,
    min_idle: i64,
}

/// `XPENDING key group [[IDLE min-idle-time] start end count [consumer]]`: summarises or lists pending entries.
pub(super) fn xpending(read: &dyn Read, arguments: &[&[u8]]) -> Answer {
    let wanted = match arguments.len() {
        3 => None,
        6..=9 => Some(parse(arguments)?),
        _ => return Err(refused(SYNTAX)),
    };
    let (key, name) = (arguments[1], arguments[2]);
    let (stream, group) = groups::find_with_stream(read, key, name)?.ok_or_else(|| no_key_or_group(key, name))?;
    match wanted {
        None => Ok(summary(read, &stream, &group)?),
        Some(wanted) => list(read, &stream, &group, &wanted),
    }
}

/// Error for a missing key or a missing group of a stream.
pub(super) fn no_key_or_group(key: &[u8], group: &[u8]) -> CommandEnd {
    CommandEnd::error(format!("NOGROUP No such key '{}' or consumer group '{}'", shown(key), shown(group)))
}

fn parse<'a>(arguments: &[&'a [u8]]) -> Result<PendingQuery<'a>, CommandEnd> {
    let (mut at, mut min_idle) = (3, 0);
    if is(arguments[3], "idle") {
        min_idle = integer(arguments[4])?;
        if arguments.len() < 8 {
            return Err(refused(SYNTAX));
        }
        at = 5;
    }
    let count = integer(arguments[at + 2])?.max(0) as u64;
    let ids = (EntryId::range_start(arguments[at])?, EntryId::range_end(arguments[at + 1])?);
    Ok(PendingQuery { ids, count, consumer: arguments.get(at + 3).copied(), min_idle })
}

fn summary(read: &dyn Read, stream: &Stream, group: &Group) -> Result<Reply, StoreError> {
    let mut edges = Vec::new();
    for order in [Order::Ascending, Order::Descending] {
        visit(read, stream, group, (EntryId::ZERO, EntryId::MAX), order, &mut |id, _| {
            edges.push(id.reply());
            Ok(ControlFlow::Break(()))
        })?;
    }
    let [first, last] = edges.try_into().unwrap_or([Reply::Null, Reply::Null]);
    let total = Reply::Integer(group.pending as i64);
    if group.pending == 0 {
        return Ok(Reply::Array(vec![total, first, last, Reply::NullArray]));
    }
    let consumers = groups::consumers(read, stream, group)?.into_iter().filter(|(_, consumer)| consumer.pending > 0);
    let shown = consumers.map(|(_, Consumer { pending, name, .. })| {
        Reply::Array(vec![Reply::Bulk(name), Reply::Bulk(pending.to_string().into())])
    });
    Ok(Reply::Array(vec![total, first, last, Reply::Array(shown.collect())]))
}

fn list(read: &dyn Read, stream: &Stream, group: &Group, wanted: &PendingQuery<'_>) -> Answer {
    let number = match wanted.consumer {
        Some(name) => match groups::consumer_number(read, stream, group, name)? {
            Some(number) => Some(number),
            None => return Ok(Reply::Array(Vec::new())),
        },
        None => None,
    };
    let (now, mut looked_at, mut found) = (read.now(), 0, Vec::new());
    let mut take = |id, pending: Pending| {
        looked_at += 1;
        if found.len() as u64 == wanted.count || looked_at > MAX_REDIS_STREAM_ROWS {
            return ControlFlow::Break(());
        }
        if wanted.min_idle <= 0 || idle(now, pending) >= wanted.min_idle {
            found.push((id, pending));
        }
        ControlFlow::Continue(())
    };
    match number {
        Some(number) => visit_consumer(read, stream, group, number, wanted.ids, &mut take)?,
        None => visit(read, stream, group, wanted.ids, Order::Ascending, &mut |id, pending| Ok(take(id, pending)))?,
    }
    if looked_at > MAX_REDIS_STREAM_ROWS && (found.len() as u64) < wanted.count {
        return Err(CommandEnd::error(format!(
            "ERR more than {MAX_REDIS_STREAM_ROWS} pending entries match: request fewer"
        )));
    }
    let mut ledger = Ledger::open(stream, *group);
    let shown = found.into_iter().map(|(id, pending)| {
        let name = ledger.consumer(read, pending.consumer)?.name.clone();
        let idle = Reply::Integer(idle(now, pending).max(0));
        let deliveries = Reply::Integer(pending.deliveries as i64);
        Ok(Reply::Array(vec![id.reply(), Reply::Bulk(name), idle, deliveries]))
    });
    Ok(Reply::Array(shown.collect::<Result<_, StoreError>>()?))
}

/// Visits the pending entries of a consumer within an id range, page by page.
fn visit_consumer(
    read: &dyn Read,
    stream: &Stream,
    group: &Group,
    number: u64,
    (mut from, last): (EntryId, EntryId),
    take: &mut dyn FnMut(EntryId, Pending) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    const PAGE: u64 = 256;
    loop {
        let page = of_consumer(read, stream, group, number, from, Some(PAGE))?;
        let is_last = (page.len() as u64) < PAGE;
        for (id, pending) in page {
            if id > last || take(id, pending).is_break() {
                return Ok(());
            }
            let Some(next) = id.next() else { return Ok(()) };
            from = next;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Returns the milliseconds since the last delivery of an entry. Negative if the clock has gone back since.
pub(super) fn idle(now: u64, pending: Pending) -> i64 {
    (now as i64).wrapping_sub(pending.delivered as i64)
}
