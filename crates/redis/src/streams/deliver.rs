//! `XREADGROUP`: delivers entries to a consumer. The entries stay pending until the consumer acknowledges them.
//!
//! Owns: the delivery of new entries, the repeated delivery of pending ones, and the group's position. Does not own:
//! the arguments, which `XREAD` shares (`read`), waiting (`block`), or the rows of pending entries (`pending`).
//!
//! Invariant: a delivery stops before it becomes too expensive, and leaves the remaining entries to the next command.
//! So a command without `COUNT` is not rejected ([`MAX_REDIS_STREAM_ROWS`],
//! [`MAX_REDIS_DELIVERY_STEPS`](thalweg_types::limits)).

use std::{collections::BTreeMap, ops::ControlFlow};

use thalweg_types::{
    limits::MAX_REDIS_STREAM_ROWS,
    steps::{READ, ROW, SCAN, WRITE},
};

use super::{
    arguments::shown,
    groups,
    id::EntryId,
    layout::{Group, Pending},
    pending::{self, Ledger},
    read::{ReadStart, Reading, streams},
    stream::{Stream, entry_reply},
    visit::Order,
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd},
    store::{Store, StoreError},
    value::{ReplyBudget, steps_to_read},
};

/// Steps of work for a delivery from one stream, without its entries: for the rows of the stream, the group and the
/// consumer.
const STREAM_STEPS: u64 = 2 * SCAN + 4 * READ + 4 * WRITE;
/// Steps of work for delivering a new entry: for its row, for the row that it may already have as a pending entry, and
/// for the rows of its new state.
const NEW_STEPS: u64 = 2 * ROW + 3 * WRITE + 1;
/// Steps of work for finding an entry that is pending with the consumer: for its rows in the consumer's list and in the
/// group's list of pending entries.
const FOUND_STEPS: u64 = ROW + READ;
/// Steps of work for delivering a pending entry again, after it was found: for its row, and for the row of its new
/// state.
const AGAIN_STEPS: u64 = READ + WRITE + 1;

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id [id ...]`:
/// delivers entries to a consumer of a group.
pub(super) fn xreadgroup<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let reading = Reading::parse(arguments)?;
    let (group, consumer) = reading.group.expect("parsed with a group");
    let mut wanted = Vec::new();
    for (&key, &id) in reading.keys.iter().zip(&reading.ids) {
        let found = groups::find_with_stream(&*store, key, group)?;
        let (stream, row) = found.ok_or_else(|| no_group(key, group))?;
        groups::check_consumer(&*store, &stream, &row, consumer)?;
        wanted.push((key, reading.from(id, EntryId::ZERO)?));
    }
    let (mut budget, mut found) = (ReplyBudget::default(), Vec::new());
    for (key, from) in wanted {
        let Some((stream, row)) = groups::find_with_stream(&*store, key, group)? else { continue };
        let is_served = match from {
            ReadStart::After(_) => true,
            // This check reads the entry, so it must have room in the budget.
            ReadStart::New => budget.has_room_for_largest() && stream.has_after(&*store, row.last_id)?,
        };
        if is_served {
            budget.work(STREAM_STEPS);
            let mut delivery = Delivery::begin(store, stream, group, row, consumer)?;
            let entries = match from {
                ReadStart::After(id) => delivery.again(store, id, reading.count, &mut budget)?,
                ReadStart::New => delivery.deliver_new(store, reading.count, reading.no_ack, &mut budget)?,
            };
            delivery.end(store, key)?;
            found.push((Reply::bulk(key), Reply::Array(entries)));
        }
    }
    Ok(streams(found))
}

/// Error of `XREADGROUP` for a missing key or group.
fn no_group(key: &[u8], group: &[u8]) -> CommandEnd {
    let (key, group) = (shown(key), shown(group));
    CommandEnd::error(format!(
        "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
    ))
}

/// A delivery of entries to one consumer, in progress.
struct Delivery<'n> {
    stream: Stream,
    group: &'n [u8],
    ledger: Ledger,
    consumer: u64,
    now: u64,
}

impl<'n> Delivery<'n> {
    /// Begins a delivery to a consumer. Creates the consumer if it does not exist.
    fn begin<'a>(
        store: &mut dyn Store<'a>,
        mut stream: Stream,
        group: &'n [u8],
        mut row: Group,
        consumer: &[u8],
    ) -> Result<Self, CommandEnd> {
        let number = match groups::consumer_number(&*store, &stream, &row, consumer)? {
            Some(number) => number,
            None => groups::create_consumer(store, &mut stream, &mut row, consumer)?.0,
        };
        let (mut ledger, now) = (Ledger::open(&stream, row), store.now());
        ledger.consumer(&*store, number)?.seen = now;
        Ok(Self { stream, group, ledger, consumer: number, now })
    }

    fn end<'a>(mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), StoreError> {
        self.ledger.close(store, self.group)?;
        self.stream.save_groups(store, key)
    }

    /// Delivers entries that the group has not received yet.
    fn deliver_new<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        count: Option<u64>,
        no_ack: bool,
        budget: &mut ReplyBudget,
    ) -> Result<Vec<Reply>, StoreError> {
        let count = count.unwrap_or(u64::MAX).min(MAX_REDIS_STREAM_ROWS);
        let Some(first) = self.ledger.group.last_id.next() else { return Ok(Vec::new()) };
        let (mut ids, mut entries) = (Vec::new(), Vec::new());
        self.stream.visit(&*store, (first, EntryId::MAX), Order::Ascending, &mut |id, value| {
            let entry = entry_reply(id, value)?;
            if entries.is_empty() {
                // The check for new entries has read this one already, so the steps count again.
                budget.work(steps_to_read(&entry));
            }
            if !budget.fits_delivery(&entry, NEW_STEPS) {
                return Ok(ControlFlow::Break(()));
            }
            ids.push(id);
            entries.push(entry);
            Ok(if entries.len() as u64 == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        for id in &ids {
            self.advance(*id);
        }
        if !no_ack {
            self.own(store, &ids)?;
        }
        Ok(entries)
    }

    /// Records that the group has received all entries up to `id`. Also updates the number of entries that the group
    /// has read. This number can become unknown if entries after `id` were deleted.
    fn advance(&mut self, id: EntryId) {
        let group = &mut self.ledger.group;
        if group.read >= 0 && !self.stream.has_gaps_from(id) {
            group.read = group.read.wrapping_add(1);
        } else if self.stream.meta.added > 0 {
            group.read = self.stream.added_up_to(id).map_or(-1, |read| read as i64);
        }
        group.last_id = id;
    }

    /// Records delivered entries as pending with the consumer. Some entries can already be pending, because `XGROUP
    /// SETID` can set the group back to an earlier entry.
    fn own<'a>(&mut self, store: &mut dyn Store<'a>, ids: &[EntryId]) -> Result<(), StoreError> {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return Ok(()) };
        let mut olds = BTreeMap::new();
        pending::visit(&*store, &self.stream, &self.ledger.group, (first, last), Order::Ascending, &mut |id, old| {
            olds.insert(id, old);
            Ok(ControlFlow::Continue(()))
        })?;
        let new = Pending { consumer: self.consumer, delivered: self.now, deliveries: 1 };
        for id in ids {
            self.ledger.put(store, *id, olds.get(id).copied(), new)?;
        }
        Ok(())
    }

    /// Delivers entries after `id` again that are already pending with the consumer.
    fn again<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        after: EntryId,
        count: Option<u64>,
        budget: &mut ReplyBudget,
    ) -> Result<Vec<Reply>, StoreError> {
        let count = count.unwrap_or(u64::MAX).min(MAX_REDIS_STREAM_ROWS);
        let Some(from) = after.next() else { return Ok(Vec::new()) };
        let olds = pending::of_consumer(&*store, &self.stream, &self.ledger.group, self.consumer, from, Some(count))?;
        budget.work(FOUND_STEPS * olds.len() as u64);
        let mut entries = Vec::new();
        for (id, old) in olds {
            let entry = self.stream.entry(&*store, id)?;
            let is_there = entry.is_some();
            let entry = entry.unwrap_or_else(|| Reply::Array(vec![id.reply(), Reply::NullArray]));
            if !budget.fits_delivery(&entry, AGAIN_STEPS) {
                break;
            }
            entries.push(entry);
            if is_there {
                let new = Pending { delivered: self.now, deliveries: old.deliveries.wrapping_add(1), ..old };
                self.ledger.put(store, id, Some(old), new)?;
            }
        }
        Ok(entries)
    }
}
