//! Consumer groups: fetched from, pushed from, described. What settles deliveries are commands.
//!
//! Deliveries go out as tails do, as the bytes that lie in the log.

use std::sync::Arc;

use thalweg_engine::{self as engine, Credit, Delivery, FetchRequest, Group, GroupInfo, PushRequest, StreamRun};
use thalweg_types::{
    GroupId,
    command::groups::check_member,
    limits::{MAX_CREDIT_BYTES, MAX_CREDIT_RECORDS},
};
use thalweg_wire::{self as wire, GroupFound, GroupList, Kind, List, Pushing as Began, Release};

use super::{
    failure::{self, Failure},
    reads::{LISTED_BYTES, listed, on_the_spot_or_off_thread},
    replies::{Replies, Room},
    request::{Handled, Reply, Request, Turn},
    streams::{put_runs, runs_bytes},
    subscription::{Found, Patience, Source, Wanted},
};
use crate::{app::App, groups::wait_and_fetch, limits::NATIVE_PAGE_BYTES};

/// Bytes of a delivery before its parts: durability, attempt, deadline, how many parts.
const DELIVERY_HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Bytes of a part beside its runs: how often, how many runs.
const PART_HEAD_BYTES: usize = 4 + 4;

fn find(app: &App, id: GroupId) -> Result<Group, Failure> {
    app.db.blocking().group_by_id(id)?.ok_or_else(|| {
        let message = format!("there is no consumer group with id {id}: it was deleted, ask for its name's id anew");
        Failure::fix("no_such_group", message)
    })
}

/// At most so many bytes of records, and so many records, so that a delivery fits into the client's frames with what
/// stands around its records: half of a frame is for that, 64 bytes for each.
fn fitting(max_frame_bytes: usize) -> (u64, u32) {
    let half = max_frame_bytes / 2;
    (half as u64, u32::try_from(half / 64).unwrap_or(u32::MAX))
}

/// `fetch`
pub fn fetch(turn: &mut Turn<'_>, fetch: &wire::Fetch<'_>) -> Result<Handled, Failure> {
    let group = find(turn.app, fetch.group)?;
    check_member(fetch.member).map_err(engine::WriteError::from)?;
    let (most_bytes, most_records) = fitting(turn.out.max_frame_bytes());
    let or = |asked: u32, default: u64| if asked == 0 { default } else { asked.into() };
    let default = FetchRequest::default();
    let wanted = FetchRequest {
        member: fetch.member.to_owned(),
        max_records: or(fetch.max_records, default.max_records.into()).min(most_records.into()) as u32,
        max_bytes: or(fetch.max_bytes, default.max_bytes).min(most_bytes),
        wait: std::time::Duration::from_micros(fetch.wait),
    };
    let level = fetch.level.0.unwrap_or(turn.app.config.durability);
    let app = Arc::clone(turn.app);
    Ok(Handled::later(async move {
        let delivery = wait_and_fetch(&app, &group, &wanted, level).await?;
        let delivered = Delivered::of(delivery)?;
        Ok(Reply::encode(move |out, id| delivered.put(out, Kind::Delivery, id, Room::Owed)))
    }))
}

/// `push`
pub fn push(turn: &mut Turn<'_>, request: &Request<'_>, push: &wire::Push<'_>) -> Result<Handled, Failure> {
    let group = find(turn.app, push.group)?;
    check_member(push.member).map_err(engine::WriteError::from)?;
    let default = Credit::default();
    let credit = Credit {
        records: if push.held_records == 0 { default.records } else { push.held_records.min(MAX_CREDIT_RECORDS) },
        bytes: if push.held_bytes == 0 { default.bytes } else { push.held_bytes.min(MAX_CREDIT_BYTES) },
    };
    let wanted = PushRequest { member: push.member.to_owned(), credit, max_delivery_bytes: NATIVE_PAGE_BYTES };
    let level = push.level.0.unwrap_or(turn.app.config.durability);
    let begun = turn.app.db.push(&group, wanted, level)?;
    let Credit { records: held_records, bytes: held_bytes } = begun.credit();
    turn.out.reply(request.id, &Began { held_records, held_bytes })?;
    let release = push.release;
    Ok(Handled::Began(Source::Push(Box::new(Pushing { app: Arc::clone(turn.app), push: begun, release }))))
}

/// A push.
#[derive(Debug)]
pub struct Pushing {
    app: Arc<App>,
    push: engine::Push,
    release: Release,
}

impl Drop for Pushing {
    fn drop(&mut self) {
        if self.release == Release::AtOnce {
            // If it can't be queued, what is held lapses by itself.
            let _ = self.push.give_back("the subscription of its receiver ended");
        }
    }
}

impl Pushing {
    /// The next delivery.
    pub async fn step(&mut self, wanted: Wanted) -> Found {
        if wanted.patience == Patience::TakeWhatIsThere {
            // What waits to be delivered can wait for the next member: nothing of it is this one's yet.
            return Found::Nothing;
        }
        let (most_bytes, most_records) = fitting(wanted.max_frame_bytes);
        let (credit_records, credit_bytes) = wanted.credit;
        self.push.limit_delivery(wanted.max_messages.min(credit_records).min(most_records.into()));
        self.push.limit_delivery_bytes(credit_bytes.min(most_bytes).min(NATIVE_PAGE_BYTES));
        let delivery = tokio::select! {
            biased;
            () = wanted.stop.notified() => return Found::Nothing,
            delivery = self.push.next(tokio::time::sleep) => delivery,
        };
        match delivery {
            Err(error) => Found::Over(error.into()),
            Ok(None) => Found::Over(failure::stopping()),
            Ok(Some(delivery)) => match Delivered::of(delivery) {
                Ok(delivered) => delivered.found(&self.app, &wanted).await,
                Err(failure) => Found::Over(failure),
            },
        }
    }
}

/// A delivery as a frame shows it.
#[derive(Debug)]
struct Delivered {
    durability: thalweg_types::Durability,
    attempt: thalweg_types::Attempt,
    deadline: thalweg_types::SpaceTime,
    parts: Vec<(u32, Vec<StreamRun>)>,
}

impl Delivered {
    fn of(delivery: Delivery) -> Result<Self, Failure> {
        let (durability, deadline) = (delivery.durability, delivery.deadline);
        // Without records the number means nothing, and is not shown.
        let attempt = if delivery.is_empty() { thalweg_types::Attempt(0) } else { delivery.attempt };
        Ok(Self { durability, attempt, deadline, parts: delivery.into_runs()? })
    }

    fn put(self, out: &mut Replies, kind: Kind, id: u32, room: Room) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        let parts_bytes: usize = self.parts.iter().map(|(_, runs)| PART_HEAD_BYTES + runs_bytes(runs)).sum();
        out.shared(kind, id, DELIVERY_HEAD_BYTES + parts_bytes, room, |parts| {
            let head = parts.bytes();
            head.push(self.durability as u8);
            head.extend_from_slice(&self.attempt.0.to_le_bytes());
            head.extend_from_slice(&self.deadline.0.to_le_bytes());
            head.extend_from_slice(&(self.parts.len() as u32).to_le_bytes());
            for (deliveries, runs) in self.parts {
                parts.bytes().extend_from_slice(&deliveries.to_le_bytes());
                put_runs(parts, runs);
            }
        })
    }

    /// As a push's frame.
    async fn found(self, app: &App, wanted: &Wanted) -> Found {
        let runs = || self.parts.iter().flat_map(|(_, runs)| runs);
        let records = runs().map(|run| u64::from(run.count)).sum();
        let bytes = runs().map(|run| run.bytes.len() as u64).sum();
        let room = wanted.wait_for_room(app, bytes).await;
        Found::frame(records, bytes, move |out, id| self.put(out, Kind::Pushed, id, room))
    }
}

/// `find group`
pub fn find_group(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindGroup<'_>,
) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(wanted.stream);
    // A stream that is gone is told apart from a group that is not there.
    stream.info()?;
    let info = match stream.find_group(wanted.name)? {
        Some(group) => group.info()?,
        None => {
            let message = format!("the stream has no consumer group {:?}: create it", wanted.name);
            return Err(Failure::fix("no_such_group", message));
        }
    };
    shown(&info, |group| turn.out.reply(request.id, &GroupFound { group }))?;
    Ok(Handled::Replied)
}

/// `list groups`
pub fn list(turn: &mut Turn<'_>, request: &Request<'_>, wanted: &wire::ListGroups) -> Result<Handled, Failure> {
    let limit = listed(wanted.limit);
    let (app, stream, after) = (Arc::clone(turn.app), wanted.stream, wanted.after);
    on_the_spot_or_off_thread(turn, request, limit, LISTED_BYTES * limit, move || {
        let (groups, more) = app.db.blocking().groups_after(Some(stream).filter(|id| id.0 != 0), after, limit)?;
        Ok(move |out: &mut Replies, id: u32| {
            // Borrowed one inside the other: all at once.
            let members: Vec<Vec<wire::Member<'_>>> = groups.iter().map(members).collect();
            let groups: Vec<_> = groups.iter().zip(&members).map(|(info, members)| group(info, members)).collect();
            out.reply(id, &GroupList { more, groups: List::Items(&groups) })
        })
    })
}

fn shown<T>(info: &GroupInfo, then: impl FnOnce(wire::Group<'_>) -> T) -> T {
    then(group(info, &members(info)))
}

fn members(info: &GroupInfo) -> Vec<wire::Member<'_>> {
    info.members.iter().map(member).collect()
}

fn member(member: &engine::GroupMember) -> wire::Member<'_> {
    let engine::GroupMember { name, last_fetch, in_flight, attempts } = member;
    wire::Member { last_fetch: *last_fetch, in_flight: *in_flight, attempts: *attempts, name }
}

fn group<'a>(info: &'a GroupInfo, members: &'a [wire::Member<'a>]) -> wire::Group<'a> {
    wire::Group {
        id: info.id,
        stream: info.stream,
        cursor: info.cursor,
        floor: info.floor,
        lag: info.lag,
        pending: info.pending,
        in_flight: info.in_flight,
        parked: info.parked,
        dying: info.dying,
        delivered: info.delivered,
        redelivered: info.redelivered,
        acked: info.acked,
        dead: info.dead,
        dropped: info.dropped,
        config: info.config.clone(),
        name: &info.name,
        stream_name: &info.stream_name,
        members: List::Items(members),
    }
}
