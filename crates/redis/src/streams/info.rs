//! `XINFO`: reports on a stream, its groups and their consumers.
//!
//! Owns: the subcommands, the form of their replies, and the bound on the pending entries that a full report visits.
//! Does not own: the rows that they read (`groups`, `pending`, `stream`).
//!
//! Thalweg has no radix tree. `radix-tree-keys` and `radix-tree-nodes` are reported as if each tree node held one
//! entry.

use std::ops::ControlFlow;

use thalweg_types::limits::MAX_REDIS_STREAM_ROWS;

use super::{
    arguments::{is, wrong_subcommand},
    entries::collect,
    groups::{self, no_group},
    id::EntryId,
    layout::{Consumer, Group, Pending},
    pending,
    stream::Stream,
    visit::Order,
};
use crate::{
    Reply,
    command::{Subcommand, chosen, help},
    errors::{Answer, CommandEnd, NO_SUCH_KEY, REPLY_TOO_LARGE, refused},
    flags::Flags,
    number::integer,
    store::{Read, StoreError},
    value::ReplyBudget,
};

/// Help text of `XINFO`.
const HELP: &[&str] = &[
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
];

const READ: Flags = Flags::STREAM.and(Flags::READ_ONLY);

/// Subcommands of `XINFO`.
pub(super) const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand::of_key("xinfo|consumers", 4, READ),
    Subcommand::of_key("xinfo|groups", 3, READ),
    Subcommand::help("xinfo|help", Flags::STREAM),
    Subcommand::of_key("xinfo|stream", -3, READ),
];

/// Number of entries that `XINFO STREAM key FULL` shows if the client does not send the option COUNT.
const FULL_COUNT: u64 = 10;
/// Range of all entry ids, from the lowest to the highest.
const ALL: (EntryId, EntryId) = (EntryId::ZERO, EntryId::MAX);

/// `XINFO subcommand ...`: reports on a stream, its groups or their consumers.
pub(super) fn xinfo(read: &dyn Read, arguments: &[&[u8]]) -> Answer {
    let name = chosen(SUBCOMMANDS, arguments);
    if name == "help" {
        return Ok(help(HELP));
    }
    let stream = Stream::find(read, arguments[2])?.ok_or_else(|| refused(NO_SUCH_KEY))?;
    match name {
        "consumers" => {
            let group = groups::find(read, &stream, arguments[3])?;
            let group = group.ok_or_else(|| no_group(arguments[3], arguments[2]))?;
            Ok(consumers(read, &stream, &group)?)
        }
        "groups" => Ok(all_groups(read, &stream)?),
        _ => stream_report(read, &stream, arguments),
    }
}

fn entry(name: &'static str, value: Reply) -> (Reply, Reply) {
    (Reply::Bulk(name.as_bytes().into()), value)
}

fn count(count: u64) -> Reply {
    Reply::Integer(count as i64)
}

fn consumers(read: &dyn Read, stream: &Stream, group: &Group) -> Result<Reply, StoreError> {
    let consumers = groups::consumers(read, stream, group)?.into_iter().map(|(_, consumer)| {
        let Consumer { seen, pending, name } = consumer;
        let idle = (read.now() as i64).wrapping_sub(seen as i64).max(0);
        Reply::Map(vec![
            entry("name", Reply::Bulk(name)),
            entry("pending", count(pending)),
            entry("idle", Reply::Integer(idle)),
        ])
    });
    Ok(Reply::Array(consumers.collect()))
}

fn all_groups(read: &dyn Read, stream: &Stream) -> Result<Reply, StoreError> {
    let groups = groups::all(read, stream)?.into_iter().map(|(name, group)| {
        Reply::Map(vec![
            entry("name", Reply::Bulk(name)),
            entry("consumers", count(group.consumers)),
            entry("pending", count(group.pending)),
            entry("last-delivered-id", group.last_id.reply()),
            entry("entries-read", entries_read(&group)),
            entry("lag", lag(stream, &group)),
        ])
    });
    Ok(Reply::Array(groups.collect()))
}

fn entries_read(group: &Group) -> Reply {
    if group.read == -1 { Reply::Null } else { Reply::Integer(group.read) }
}

/// Returns the number of entries that the group has not received yet; null if this number is unknown.
fn lag(stream: &Stream, group: &Group) -> Reply {
    let added = stream.meta.added;
    if added == 0 {
        return Reply::Integer(0);
    }
    if group.read != -1 && !stream.has_gaps_from(group.last_id) {
        return Reply::Integer((added as i64).wrapping_sub(group.read));
    }
    let read = stream.added_up_to(group.last_id);
    read.map_or(Reply::Null, |read| Reply::Integer((added as i64).wrapping_sub(read as i64)))
}

fn stream_report(read: &dyn Read, stream: &Stream, arguments: &[&[u8]]) -> Answer {
    let full = match &arguments[3..] {
        [] => None,
        [full] if is(full, "full") => Some(FULL_COUNT),
        [full, option, given] if is(full, "full") && is(option, "count") => {
            Some(u64::try_from(integer(given)?).unwrap_or(FULL_COUNT))
        }
        _ => return Err(wrong_subcommand("XINFO", arguments[1])),
    };
    let meta = &stream.meta;
    let mut about = vec![
        entry("length", count(meta.len)),
        entry("radix-tree-keys", count(meta.len)),
        entry("radix-tree-nodes", count(meta.len.saturating_add(1))),
        entry("last-generated-id", meta.last_id.reply()),
        entry("max-deleted-entry-id", meta.max_deleted_id.reply()),
        entry("entries-added", count(meta.added)),
        entry("recorded-first-entry-id", meta.first_id.reply()),
    ];
    let Some(most) = full else {
        about.push(entry("groups", count(u64::from(meta.groups))));
        for (name, order) in [("first-entry", Order::Ascending), ("last-entry", Order::Descending)] {
            let shown = collect(read, stream, ALL, order, Some(1), &mut ReplyBudget::default())?;
            about.push(entry(name, shown.into_iter().next().unwrap_or(Reply::Null)));
        }
        return Ok(Reply::Map(about));
    };
    let mut full = FullReport {
        read,
        stream,
        most: if most == 0 { u64::MAX } else { most },
        budget: ReplyBudget::of(read),
        pending: 0,
    };
    let entries = collect(read, stream, ALL, Order::Ascending, Some(full.most), &mut full.budget)?;
    about.push(entry("entries", Reply::Array(entries)));
    let groups: Result<_, CommandEnd> =
        groups::all(read, stream)?.into_iter().map(|(name, group)| full.group(name, &group)).collect();
    about.push(entry("groups", Reply::Array(groups?)));
    full.budget.check()?;
    match full.pending > MAX_REDIS_STREAM_ROWS {
        true => Err(refused(REPLY_TOO_LARGE)),
        false => Ok(Reply::Map(about)),
    }
}

/// A report of `XINFO STREAM ... FULL` in progress.
struct FullReport<'s> {
    read: &'s dyn Read,
    stream: &'s Stream,
    most: u64,
    budget: ReplyBudget,
    /// Number of pending entries of consumer groups that the report has visited so far.
    pending: u64,
}

impl FullReport<'_> {
    fn group(&mut self, name: bytes::Bytes, group: &Group) -> Result<Reply, CommandEnd> {
        let consumers = groups::consumers(self.read, self.stream, group)?;
        let mut pending = Vec::new();
        let most = self.most.min(MAX_REDIS_STREAM_ROWS.saturating_sub(self.pending) + 1);
        pending::visit(self.read, self.stream, group, ALL, Order::Ascending, &mut |id, row| {
            let owner = consumers.iter().find(|(number, _)| *number == row.consumer);
            let owner = owner.map_or(Reply::Null, |(_, consumer)| Reply::Bulk(consumer.name.clone()));
            let Pending { delivered, deliveries, .. } = row;
            pending.push(Reply::Array(vec![id.reply(), owner, count(delivered), count(deliveries)]));
            Ok(if pending.len() as u64 == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        self.pending += pending.len() as u64;
        let consumers: Result<_, CommandEnd> =
            consumers.into_iter().map(|(number, consumer)| self.consumer(group, number, consumer)).collect();
        Ok(Reply::Map(vec![
            entry("name", Reply::Bulk(name)),
            entry("last-delivered-id", group.last_id.reply()),
            entry("entries-read", entries_read(group)),
            entry("lag", lag(self.stream, group)),
            entry("pel-count", count(group.pending)),
            entry("pending", Reply::Array(pending)),
            entry("consumers", Reply::Array(consumers?)),
        ]))
    }

    fn consumer(&mut self, group: &Group, number: u64, consumer: Consumer) -> Result<Reply, CommandEnd> {
        let most = self.most.min(MAX_REDIS_STREAM_ROWS.saturating_sub(self.pending) + 1);
        let rows = pending::of_consumer(self.read, self.stream, group, number, EntryId::ZERO, Some(most))?;
        self.pending += rows.len() as u64;
        let pending = rows.into_iter().map(|(id, Pending { delivered, deliveries, .. })| {
            Reply::Array(vec![id.reply(), count(delivered), count(deliveries)])
        });
        Ok(Reply::Map(vec![
            entry("name", Reply::Bulk(consumer.name)),
            entry("seen-time", count(consumer.seen)),
            entry("pel-count", count(consumer.pending)),
            entry("pending", Reply::Array(pending.collect())),
        ]))
    }
}
