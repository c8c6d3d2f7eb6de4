//! Commands about consumer groups, and queries about them for the code that serves consumers.
//!
//! Owns: the commands, the settlements (acks and nacks) in commits, and the methods of `Machine` about groups. Does not
//! own: the rules of delivery (`group`, `order`), or rows (`table`). Invariant: a query never holds the lock of the
//! groups together with a lock of the state that readers see (`Published`).

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, StreamId,
    command::{
        Outcome,
        groups::{Fetch, GroupCommand, GroupConfig, GroupOutcome, Settle, SettlementKind},
    },
    info,
    limits::{MAX_GROUP_MEMBERS, MAX_GROUPS},
    steps::{DELIVERED_RECORD, SETTLED_ATTEMPT, SETTLED_RUN, written_runs},
};

use crate::{
    error::MachineError,
    groups::{
        claims::CheckedSettlements,
        group::{Group, Refusal, SettledRecords},
        head::Head,
        read::{DeadParcel, GroupCounters, GroupReady, HeldAttempt, describe},
        reclaim::reclaim,
        table::GroupTable,
    },
    machine::{applying::Applying, state_machine::Machine},
    refused::Refused,
    sync::lock,
};

pub(crate) fn apply(applying: &mut Applying<'_>, command: GroupCommand<'_>) -> Result<Outcome, Refused> {
    match command {
        GroupCommand::Create { stream, start, config, name } => create(applying, stream, start, config, name),
        GroupCommand::Configure { group, config } => configure(applying, group, config),
        GroupCommand::Delete { group } => {
            let existed = applying.groups().remove(group);
            Ok(Outcome::Group(if existed { GroupOutcome::Done } else { GroupOutcome::NoSuchGroup(group) }))
        }
        GroupCommand::Fetch(request) => fetch(applying, &request),
        GroupCommand::Settle(settle) => {
            let Some(done) = perform_settle(applying, &settle) else { return Ok(no_such_group(settle.group)) };
            applying.charge(settle.steps() + SETTLED_RUN * done.runs);
            Ok(Outcome::Group(GroupOutcome::Settled { settled: done.count(), lapsed: done.lapsed }))
        }
        GroupCommand::Extend { group, by, attempts } => {
            let now = applying.applied.time;
            let groups = applying.groups();
            let Some(group) = groups.change(group) else { return Ok(no_such_group(group)) };
            let (stream, due, mut runs) = (group.head.stream, group.next_due(), 0);
            let mut extend = |attempt: &Attempt| {
                let extended = group.parcels.extend(now, *attempt, now.plus(by));
                runs += extended.unwrap_or(0);
                extended.is_some()
            };
            let lapsed = attempts.iter().filter(|attempt| !extend(attempt)).collect();
            // An extension can also shorten the deadline, and waiting consumers have set their timers by the old one.
            if is_earlier(due, group.next_due()) {
                groups.woken.insert(stream);
            }
            applying.charge(SETTLED_ATTEMPT * attempts.len() as u64 + written_runs(runs));
            Ok(Outcome::Group(GroupOutcome::Extended { deadline: now.plus(by), lapsed }))
        }
        GroupCommand::Reclaim { group, max } => reclaim(applying, group, max),
        GroupCommand::Seek { group, offset } => seek(applying, group, offset),
    }
}

/// Returns true if a group's next due time has become earlier (from `before` to `after`). Consumers that wait for it
/// have set their timers too late, so they must be woken.
fn is_earlier(before: Option<SpaceTime>, after: Option<SpaceTime>) -> bool {
    after.is_some_and(|after| before.is_none_or(|before| after < before))
}

fn no_such_group(group: GroupId) -> Outcome {
    Outcome::Group(GroupOutcome::NoSuchGroup(group))
}

fn create(
    applying: &mut Applying<'_>,
    stream: StreamId,
    start: Option<Offset>,
    config: GroupConfig,
    name: &str,
) -> Result<Outcome, Refused> {
    let Some((stream_name, first, next)) = applying.stream_bounds(stream) else {
        return Ok(Outcome::NoSuchStream(stream));
    };
    if config.dead_letters.as_deref() == Some(&*stream_name) {
        return Ok(dead_letters_to_itself());
    }
    let groups = applying.groups();
    if let Some(id) = groups.id(stream, name) {
        return Ok(Outcome::Group(GroupOutcome::Created { id, created: false }));
    }
    if groups.counted() >= MAX_GROUPS {
        return Ok(Outcome::TooMany { what: "consumer groups", limit: MAX_GROUPS });
    }
    let cursor = start.unwrap_or(next).clamp(first, next);
    let id = groups.create(Head::new(name, stream, config, cursor));
    Ok(Outcome::Group(GroupOutcome::Created { id, created: true }))
}

fn dead_letters_to_itself() -> Outcome {
    Outcome::Group(GroupOutcome::BadConfig { what: "dead letters of a stream can't go to that stream" })
}

fn configure(applying: &mut Applying<'_>, id: GroupId, config: GroupConfig) -> Result<Outcome, Refused> {
    let Some(stream) = applying.groups().get(id).map(|group| group.head.stream) else { return Ok(no_such_group(id)) };
    let itself =
        applying.stream_bounds(stream).is_some_and(|(name, ..)| config.dead_letters.as_deref() == Some(&*name));
    if itself {
        return Ok(dead_letters_to_itself());
    }
    let groups = applying.groups();
    groups.woken.insert(stream);
    let configured = groups.change(id).is_some_and(|group| group.configure(config));
    Ok(Outcome::Group(match configured {
        true => GroupOutcome::Done,
        false => GroupOutcome::BadConfig { what: "a group's order is fixed when it is created" },
    }))
}

fn fetch(applying: &mut Applying<'_>, request: &Fetch<'_>) -> Result<Outcome, Refused> {
    let now = applying.applied.time;
    let Some(stream) = applying.groups().get(request.group).map(|group| group.head.stream) else {
        return Ok(no_such_group(request.group));
    };
    let Some((_, start, next)) = applying.stream_bounds(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    let groups = applying.groups();
    let Some(group) = groups.change(request.group) else { return Ok(no_such_group(request.group)) };
    let (due, written) = (group.next_due(), group.parcels.written_runs());
    let fetched = group.fetch(now, request, start, next);
    let written = group.parcels.written_runs() - written;
    if is_earlier(due, group.next_due()) {
        groups.woken.insert(stream);
    }
    match fetched {
        Ok(fetched) => {
            let records: u64 = fetched.deliveries.iter().map(|delivered| u64::from(delivered.run.count)).sum();
            applying.charge(DELIVERED_RECORD * records + written_runs(written));
            Ok(Outcome::Group(GroupOutcome::Fetched(Box::new(fetched))))
        }
        Err(Refusal::TooManyMembers) => {
            Ok(Outcome::TooMany { what: "members of the consumer group", limit: MAX_GROUP_MEMBERS })
        }
    }
}

fn seek(applying: &mut Applying<'_>, id: GroupId, offset: Option<Offset>) -> Result<Outcome, Refused> {
    let Some(stream) = applying.groups().get(id).map(|group| group.head.stream) else { return Ok(no_such_group(id)) };
    let Some((_, start, next)) = applying.stream_bounds(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    let cursor = offset.unwrap_or(next).clamp(start, next);
    let groups = applying.groups();
    groups.woken.insert(stream);
    let Some(group) = groups.change(id) else { return Ok(no_such_group(id)) };
    group.seek(cursor);
    Ok(Outcome::Group(GroupOutcome::Sought { cursor }))
}

/// Checks a settlement (ack or nack) that is a write of a commit: the delivery attempts that it names must still hold
/// all records that it settles. Charges steps of work for the ranges of records in these attempts.
pub(crate) fn check_settle(applying: &mut Applying<'_>, settle: &Settle<'_>) -> Result<(), Refused> {
    let now = applying.applied.time;
    let mut claims = std::mem::take(&mut applying.applier.pending.claims);
    let checked = match applying.groups().get(settle.group) {
        Some(group) => check_in(group, now, settle, &mut claims),
        None => Err(GroupOutcome::NoSuchGroup(settle.group)),
    };
    applying.applier.pending.claims = claims;
    let runs = checked.map_err(|outcome| Refused::Outcome(Outcome::Group(outcome)))?;
    applying.charge(SETTLED_RUN * runs);
    Ok(())
}

/// Checks a settlement (ack or nack) against its group. Returns the number of runs (ranges of consecutive records) in
/// the delivery attempts that it names. An attempt that is named twice counts twice.
fn check_in(
    group: &Group,
    now: SpaceTime,
    settle: &Settle<'_>,
    claims: &mut CheckedSettlements,
) -> Result<u64, GroupOutcome> {
    let (id, mut all) = (settle.group, 0);
    for (attempt, ranges) in settle.settlements.iter() {
        let (mut each, mut claim) = (ranges, |first, end| claims.claim(id, attempt, first, end));
        // Claims come first, so that overlapping ranges are rejected before a search for each of them.
        let claimed = match ranges.is_all() {
            true => claim(Offset::ZERO, Offset::MAX),
            false => each.all(|range| claim(range.first, range.end())),
        };
        let runs = claimed.then(|| group.runs_if_held(now, &settle.kind, attempt, ranges)).flatten();
        all += runs.ok_or(GroupOutcome::AttemptLapsed { group: id, attempt })?;
    }
    Ok(all)
}

/// Applies a settlement (ack or nack). Returns `None` if the group does not exist.
pub(crate) fn perform_settle(applying: &mut Applying<'_>, settle: &Settle<'_>) -> Option<SettledRecords> {
    let now = applying.applied.time;
    let groups = applying.groups();
    let group = groups.change(settle.group)?;
    let stream = group.head.stream;
    let was_full = group.is_full();
    let done = group.settle(now, &settle.kind, &settle.settlements);
    // A nack returns records, and an ack may make room or unblock a key. Most acks wake no consumer.
    let wakes = was_full || settle.kind != SettlementKind::Ack || group.has_freed();
    if wakes || applying.machine.settlement_waiters.load(Ordering::SeqCst) > 0 {
        applying.groups().woken.insert(stream);
    }
    Some(done)
}

/// Registration of a caller that waits for settlements (acks and nacks), see [`Machine::wake_at_settlements`].
#[derive(Debug)]
pub struct SettlementWaiter(Arc<Machine>);

impl Drop for SettlementWaiter {
    fn drop(&mut self) {
        self.0.settlement_waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Machine {
    /// Calls `with` with the table of consumer groups as of the last applied entry.
    pub(super) fn with_groups<T>(&self, with: impl FnOnce(&mut GroupTable) -> T) -> Result<T, MachineError> {
        let mut table = lock(&self.groups);
        if table.applying { Err(MachineError::Stopped) } else { Ok(with(&mut table)) }
    }

    /// Returns the id of the consumer group with this name that reads the stream.
    pub fn group_id(&self, stream: StreamId, name: &str) -> Result<Option<GroupId>, MachineError> {
        self.with_groups(|table| table.id(stream, name))
    }

    /// Returns the statistics of a consumer group at time `now`.
    pub fn group(&self, id: GroupId, now: SpaceTime) -> Result<Option<info::Group>, MachineError> {
        let group = self.with_groups(|table| table.get(id).map(|group| describe(id, group, now)))?;
        Ok(group.and_then(|group| {
            // A stream that has just been deleted takes its groups with it.
            let stream = self.stream(group.stream)?;
            let lag = stream.next.0.saturating_sub(group.cursor.0);
            let floor = group.floor.max(stream.start);
            Some(info::Group { lag, floor, stream_name: stream.name.to_string(), ..group })
        }))
    }

    /// Returns the consumer groups of a stream in the order of names or, for `None`, all groups in the order of ids.
    pub fn groups(&self, stream: Option<StreamId>) -> Result<Vec<GroupId>, MachineError> {
        self.with_groups(|table| match stream {
            Some(stream) => table.of_stream(stream).collect(),
            None => table.iter().map(|(id, _)| id).collect(),
        })
    }

    /// Returns all consumer groups in the order of ids, each with the stream that it reads.
    pub fn group_streams(&self) -> Result<Vec<(StreamId, GroupId)>, MachineError> {
        self.with_groups(|table| table.iter().map(|(id, group)| (group.head.stream, id)).collect())
    }

    /// Returns the number of consumer groups.
    pub fn group_count(&self) -> Result<usize, MachineError> {
        self.with_groups(|table| table.len())
    }

    /// Returns the counters of the first `max` consumer groups in the order of ids, and the number of all groups. Does
    /// not iterate over pending records.
    pub fn group_counters(&self, max: usize) -> Result<(Vec<GroupCounters>, usize), MachineError> {
        self.with_groups(|table| {
            (table.iter().take(max).map(|(id, group)| GroupCounters::of(id, group)).collect(), table.len())
        })
    }

    /// Returns the stream, cursor and configuration of a consumer group. A node needs them before it proposes a fetch.
    pub fn group_cursor(&self, id: GroupId) -> Result<Option<(StreamId, Offset, GroupConfig)>, MachineError> {
        self.with_groups(|table| {
            table.get(id).map(|group| (group.head.stream, group.head.cursor, group.head.config.clone()))
        })
    }

    /// Reports if a fetch from a consumer group at time `now` would deliver records.
    pub fn group_ready(&self, id: GroupId, now: SpaceTime) -> Result<GroupReady, MachineError> {
        let Some(stream) = self.with_groups(|table| table.get(id).map(|group| group.head.stream))? else {
            return Ok(GroupReady::NoGroup);
        };
        // Read without the lock of the groups, because the applier takes the two locks in the other order.
        let Some(next) = self.stream_next(stream) else { return Ok(GroupReady::NoGroup) };
        self.with_groups(|table| match table.get(id) {
            Some(group) if group.is_ready(now, next) => GroupReady::Now,
            Some(group) => GroupReady::At(group.next_due()),
            None => GroupReady::NoGroup,
        })
    }

    /// Returns the number of records of a group, up to `max`, that a fetch at `now` delivers before new ones.
    pub fn deliverable_again(&self, id: GroupId, now: SpaceTime, max: u32) -> Result<u32, MachineError> {
        self.with_groups(|table| table.get(id).map_or(0, |group| group.deliverable_again(now, max)))
    }

    /// Returns the records that these delivery attempts of a group still hold at time `now`.
    pub fn held_attempts(
        &self,
        id: GroupId,
        now: SpaceTime,
        attempts: &[Attempt],
    ) -> Result<Vec<HeldAttempt>, MachineError> {
        self.with_groups(|table| {
            let group = table.get(id);
            let held = |&attempt: &Attempt| {
                let parcel = group.and_then(|group| group.parcels.get(attempt)).filter(|parcel| parcel.is_held(now));
                parcel.map_or(HeldAttempt::nothing(attempt), |parcel| HeldAttempt::of(attempt, parcel))
            };
            attempts.iter().map(held).collect()
        })
    }

    /// Registers a caller that waits for settlements (acks and nacks). Until the returned value is dropped, every
    /// settlement of a group wakes the callers that wait on the group's stream; otherwise only settlements that make
    /// records deliverable do. Used by callers that wait until their own deliveries are settled.
    #[must_use]
    pub fn wake_at_settlements(self: &Arc<Self>) -> SettlementWaiter {
        self.settlement_waiters.fetch_add(1, Ordering::SeqCst);
        SettlementWaiter(Arc::clone(self))
    }

    /// Returns the consumer groups with dead letters that are not moved to a dead-letter stream yet.
    pub fn groups_with_dead(&self) -> Result<Vec<GroupId>, MachineError> {
        self.with_groups(|table| table.iter().filter(|(_, group)| group.parcels.dead() > 0).map(|(id, _)| id).collect())
    }

    /// Returns the dead letters of the group's first delivery attempt after `after` that has any; `None` if none has.
    pub fn dead_letters(&self, id: GroupId, after: Option<Attempt>) -> Result<Option<DeadParcel>, MachineError> {
        self.with_groups(|table| {
            let mut dead = table.get(id)?.parcels.dead_from(after);
            dead.next().map(|(attempt, parcel)| DeadParcel::of(attempt, parcel))
        })
    }

    /// Returns the streams with a consumer group that may have become able to deliver records since the last call,
    /// because records were acked or nacked, or the cursor or the configuration changed. Consumers that wait on these
    /// streams then fetch again. If there are none, a call costs one atomic load.
    #[must_use]
    pub fn take_woken_groups(&self) -> BTreeSet<StreamId> {
        if !self.groups_woken.load(Ordering::Acquire) {
            return BTreeSet::new();
        }
        let mut table = lock(&self.groups);
        self.groups_woken.store(false, Ordering::Release);
        std::mem::take(&mut table.woken)
    }
}
