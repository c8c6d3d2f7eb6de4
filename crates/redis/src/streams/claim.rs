//! `XCLAIM` and `XAUTOCLAIM`: assign pending entries to another consumer.
//!
//! Owns: the options of both commands, the search of `XAUTOCLAIM`, and the change of an entry's owner. Does not own:
//! the rows of pending entries and their counts (`pending`), or the rows of groups and consumers (`groups`).

use std::ops::ControlFlow;

use thalweg_types::{
    limits::MAX_REDIS_STREAM_ROWS,
    steps::{READ, ROW, WRITE},
};

use super::{
    arguments::{integer_or, is, shown},
    groups,
    id::EntryId,
    layout::{Group, Pending},
    pending::{self, Ledger, idle, no_key_or_group},
    stream::Stream,
    visit::Order,
};
use crate::{
    Reply,
    errors::{Answer, CommandEnd, SYNTAX, refused},
    store::{Read, Store},
    value::{ReplyBudget, steps_to_read},
};

/// Number of pending entries that `XAUTOCLAIM` may visit for each entry that its option COUNT permits it to claim.
const LOOKS: u64 = 10;

/// Options of `XCLAIM` and `XAUTOCLAIM`. They determine which entries are claimed, how the entries change, and how they
/// are returned.
#[derive(Clone, Copy, Debug)]
struct Claim {
    min_idle: i64,
    /// Time that is recorded as the last delivery of each claimed entry, in milliseconds since the Unix epoch.
    delivered: u64,
    deliveries: Option<u64>,
    just_id: bool,
}

/// An `XCLAIM` or `XAUTOCLAIM` command in progress: it assigns pending entries of one group to another consumer.
struct ClaimRun<'n> {
    stream: Stream,
    group: &'n [u8],
    ledger: Ledger,
    name: &'n [u8],
    /// Number that identifies the claiming consumer; `None` until the command claims an entry.
    consumer: Option<u64>,
    budget: ReplyBudget,
    is_changed: bool,
}

impl<'n> ClaimRun<'n> {
    fn begin(read: &dyn Read, key: &[u8], group: &'n [u8], name: &'n [u8]) -> Result<Self, CommandEnd> {
        let (stream, row) = groups::find_with_stream(read, key, group)?.ok_or_else(|| no_key_or_group(key, group))?;
        groups::check_consumer(read, &stream, &row, name)?;
        let ledger = Ledger::open(&stream, row);
        Ok(Self { stream, group, ledger, name, consumer: None, budget: ReplyBudget::default(), is_changed: false })
    }

    fn end<'a>(mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), CommandEnd> {
        if self.is_changed {
            self.ledger.close(store, self.group)?;
            self.stream.save_groups(store, key)?;
        }
        Ok(())
    }

    /// Returns the number that identifies the consumer for which the command claims entries. Creates the consumer if it
    /// does not exist.
    fn consumer<'a>(&mut self, store: &mut dyn Store<'a>) -> Result<u64, CommandEnd> {
        if let Some(number) = self.consumer {
            return Ok(number);
        }
        let group: &mut Group = &mut self.ledger.group;
        let number = match groups::consumer_number(&*store, &self.stream, group, self.name)? {
            Some(number) => number,
            None => groups::create_consumer(store, &mut self.stream, group, self.name)?.0,
        };
        let now = store.now();
        self.ledger.consumer(&*store, number)?.seen = now;
        self.consumer = Some(number);
        Ok(number)
    }

    /// Assigns an existing stream entry to the claiming consumer; `old` is the former pending state of the entry (its
    /// owner and deliveries).
    fn claim<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        id: EntryId,
        old: Option<Pending>,
        entry: Reply,
        claim: Claim,
    ) -> Result<Reply, CommandEnd> {
        let consumer = self.consumer(store)?;
        let before = old.map_or(1, |old| old.deliveries);
        let deliveries = match claim {
            Claim { deliveries: Some(deliveries), .. } => deliveries,
            Claim { just_id: true, .. } => before,
            _ => before.wrapping_add(1),
        };
        self.ledger.put(store, id, old, Pending { consumer, delivered: claim.delivered, deliveries })?;
        self.is_changed = true;
        Ok(if claim.just_id { id.reply() } else { entry })
    }
}

/// `XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME ms] [RETRYCOUNT count] [FORCE] [JUSTID]
/// [LASTID id]`: assigns the given pending entries to a consumer.
pub(super) fn xclaim<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let mut claiming = ClaimRun::begin(&*store, arguments[1], arguments[2], arguments[3])?;
    let min_idle = integer_or(arguments[4], "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
    let ids: Vec<_> = arguments[5..].iter().map_while(|id| EntryId::strict(id, 0).ok()).collect();
    let options = Options::parse(&arguments[5 + ids.len()..], store.now())?;
    let Options { delivered, deliveries, force, just_id, last_id } = options;
    if last_id > claiming.ledger.group.last_id {
        claiming.ledger.group.last_id = last_id;
        claiming.is_changed = true;
    }
    let claim = Claim { min_idle, delivered, deliveries, just_id };
    let mut claimed = Vec::new();
    for id in ids {
        let old = claiming.ledger.find(&*store, id)?;
        let Some(entry) = claiming.stream.entry(&*store, id)? else {
            if let Some(old) = old {
                claiming.ledger.remove(store, id, old)?;
                claiming.is_changed = true;
            }
            continue;
        };
        let is_claimed = match old {
            Some(old) => claim.min_idle == 0 || idle(store.now(), old) >= claim.min_idle,
            None => force,
        };
        if is_claimed {
            if !just_id && !claiming.budget.fits_part(&entry) {
                break;
            }
            claimed.push(claiming.claim(store, id, old, entry, claim)?);
        }
    }
    claiming.end(store, arguments[1])?;
    Ok(Reply::Array(claimed))
}

/// Options of `XCLAIM`.
struct Options {
    delivered: u64,
    deliveries: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: EntryId,
}

impl Options {
    fn parse(arguments: &[&[u8]], now: u64) -> Result<Self, CommandEnd> {
        let mut parsed =
            Self { delivered: now, deliveries: None, force: false, just_id: false, last_id: EntryId::ZERO };
        let mut delivered = -1;
        let mut options = arguments.iter();
        while let Some(&option) = options.next() {
            if is(option, "force") {
                parsed.force = true;
                continue;
            }
            if is(option, "justid") {
                parsed.just_id = true;
                continue;
            }
            match options.next() {
                Some(&argument) if is(option, "idle") => {
                    let idle = integer_or(argument, "ERR Invalid IDLE option argument for XCLAIM")?;
                    delivered = (now as i64).wrapping_sub(idle);
                }
                Some(&argument) if is(option, "time") => {
                    delivered = integer_or(argument, "ERR Invalid TIME option argument for XCLAIM")?;
                }
                Some(&argument) if is(option, "retrycount") => {
                    let count = integer_or(argument, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                    parsed.deliveries = u64::try_from(count).ok();
                }
                Some(&argument) if is(option, "lastid") => parsed.last_id = EntryId::strict(argument, 0)?,
                _ => return Err(CommandEnd::error(format!("ERR Unrecognized XCLAIM option '{}'", shown(option)))),
            }
        }
        // Clients use their own clocks, so a time in the future or before the epoch counts as now.
        parsed.delivered = u64::try_from(delivered).ok().filter(|time| *time <= now).unwrap_or(now);
        Ok(parsed)
    }
}

/// Steps of work for examining a pending entry.
const CANDIDATE_STEPS: u64 = ROW;
/// Steps of work for claiming an entry: for its row, and for the rows of its old and its new pending state.
const CLAIM_STEPS: u64 = READ + 3 * WRITE + 1;

/// `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`: assigns idle pending entries to a
/// consumer.
pub(super) fn xautoclaim<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let min_idle = integer_or(arguments[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
    let start = EntryId::range_start(arguments[5])?;
    let (mut count, mut just_id) = (100, false);
    let mut options = arguments[6..].iter();
    while let Some(&option) = options.next() {
        if is(option, "justid") {
            just_id = true;
            continue;
        }
        match options.next() {
            Some(&argument) if is(option, "count") => count = parse_count(argument)?,
            _ => return Err(refused(SYNTAX)),
        }
    }
    let mut claiming = ClaimRun::begin(&*store, arguments[1], arguments[2], arguments[3])?;
    let claim = Claim { min_idle, delivered: store.now(), deliveries: None, just_id };
    let (olds, mut next) = candidates(&*store, &claiming, start, count)?;
    claiming.budget.work(CANDIDATE_STEPS * olds.len() as u64);
    let (mut claimed, mut deleted) = (Vec::new(), Vec::new());
    for (id, old) in olds {
        if count == 0 || claiming.budget.is_exceeded() {
            next = id;
            break;
        }
        let found = claiming.stream.entry(&*store, id)?;
        claiming.budget.work(CLAIM_STEPS + found.as_ref().map_or(0, steps_to_read));
        let Some(entry) = found else {
            claiming.ledger.remove(store, id, old)?;
            claiming.is_changed = true;
            deleted.push(id.reply());
            count -= 1;
            continue;
        };
        if claim.min_idle > 0 && idle(store.now(), old) < claim.min_idle {
            continue;
        }
        if claiming.budget.is_exceeded() || !just_id && !claiming.budget.fits_part(&entry) {
            next = id;
            break;
        }
        claimed.push(claiming.claim(store, id, Some(old), entry, claim)?);
        count -= 1;
    }
    claiming.end(store, arguments[1])?;
    Ok(Reply::Array(vec![next.reply(), Reply::Array(claimed), Reply::Array(deleted)]))
}

fn parse_count(argument: &[u8]) -> Result<u64, CommandEnd> {
    let count = integer_or(argument, "ERR COUNT must be > 0")?;
    let is_allowed = (1..=i64::MAX / 16).contains(&count);
    is_allowed.then_some(count as u64).ok_or_else(|| CommandEnd::error("ERR COUNT must be > 0"))
}

/// Returns the pending entries that `XAUTOCLAIM` visits, and the id of the next pending entry after them. The id is
/// zero if there is no such entry.
fn candidates(
    read: &dyn Read,
    claiming: &ClaimRun<'_>,
    start: EntryId,
    count: u64,
) -> Result<(Vec<(EntryId, Pending)>, EntryId), CommandEnd> {
    let most = count.saturating_mul(LOOKS).min(MAX_REDIS_STREAM_ROWS);
    let (mut olds, mut next) = (Vec::new(), EntryId::ZERO);
    let range = (start, EntryId::MAX);
    pending::visit(read, &claiming.stream, &claiming.ledger.group, range, Order::Ascending, &mut |id, old| {
        if olds.len() as u64 == most {
            next = id;
            return Ok(ControlFlow::Break(()));
        }
        olds.push((id, old));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((olds, next))
}
