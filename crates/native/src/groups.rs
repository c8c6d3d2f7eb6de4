//! Handlers of requests about consumer groups: fetch, push, describe. Acks and nacks are commands (`write`).
//! `deliveries` encodes deliveries, and `push` runs the steps of a push.

use std::sync::{Arc, atomic::AtomicBool};

use thalweg_engine::{self as engine, Credit, FetchRequest, Group, PushRequest};
use thalweg_serving::{
    app::App,
    fetching::Fetcher,
    limits::{DEFAULT_WAIT, NATIVE_PAGE_BYTES},
};
use thalweg_types::{
    GroupId,
    command::groups::check_member,
    limits::{MAX_CREDIT_BYTES, MAX_CREDIT_RECORDS},
};
use thalweg_wire::{self as wire, ClientFrame, GroupFound, GroupList, Kind, List, Pushing as PushBegun, RawFrame};

use super::{
    deliveries::{DeliveryFrame, delivery_limits},
    failure::Failure,
    push::PushSource,
    reads::{LISTED_BYTES, inline_or_blocking, listed},
    replies::{FrameMemory, Replies},
    request::Request,
    subscription::Source,
    turn::{Handled, Reply, Turn},
};

fn find(app: &App, id: GroupId) -> Result<Group, Failure> {
    app.db.blocking().group_by_id(id)?.ok_or_else(|| {
        let message =
            format!("there is no consumer group with id {id}: it was deleted; look up the id of its name again");
        Failure::invalid("no_such_group", message)
    })
}

/// Returns true if this node's state has the consumer group that a frame names, or if the frame names none.
pub(crate) fn has_group(app: &App, frame: RawFrame<'_>) -> bool {
    let id = match ClientFrame::decode(frame).map(|envelope| envelope.frame) {
        Ok(ClientFrame::Fetch(fetch)) => fetch.group,
        Ok(ClientFrame::Push(push)) => push.group,
        _ => return true,
    };
    !matches!(app.db.blocking().group_by_id(id), Ok(None))
}

/// Handles a `fetch` request: delivers records to a member of a consumer group. Waits for records if the client
/// requests this. If the frame with the records does not reach the outbox, the records return to the group.
pub(crate) fn fetch(turn: &mut Turn<'_>, fetch: &wire::Fetch<'_>) -> Result<Handled, Failure> {
    let group = find(turn.app, fetch.group)?;
    check_member(fetch.member).map_err(engine::WriteError::from)?;
    let (most_bytes, most_records) = delivery_limits(turn.out.max_frame_bytes());
    let or = |asked: u32, default: u64| if asked == 0 { default } else { asked.into() };
    let default = FetchRequest::default();
    let wanted = FetchRequest {
        member: fetch.member.to_owned(),
        max_records: or(fetch.max_records, default.max_records.into()).min(most_records.into()) as u32,
        max_bytes: or(fetch.max_bytes, default.max_bytes).min(most_bytes),
        wait: std::time::Duration::from_micros(fetch.wait),
    };
    let level = fetch.level.0.unwrap_or(turn.app.config.durability);
    let (app, account) = (Arc::clone(turn.app), Arc::clone(turn.account));
    let begun = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&begun);
    let reply = async move {
        let (db, begun) = (&app.db, Some(&*noted));
        let fetcher = Fetcher { app: &app, account: &account, db, group: &group, level, begun };
        let (delivery, held) = fetcher.wait_and_fetch(&wanted, DEFAULT_WAIT).await?;
        let delivered = DeliveryFrame::of(delivery)?;
        let room = FrameMemory::reserve(&account, delivered.frame_bytes())?;
        let reply = Reply::encode(move |out, id| {
            delivered.put(out, Kind::Delivery, id, room)?;
            held.hand_over();
            Ok(())
        });
        Ok::<_, Failure>(reply)
    };
    Ok(Handled::later_with_effect(reply, begun))
}

/// Handles a `push` request: begins a subscription that delivers records to a member of a consumer group.
pub(crate) fn push(turn: &mut Turn<'_>, request: &Request<'_>, push: &wire::Push<'_>) -> Result<Handled, Failure> {
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
    turn.out.reply(request.id, &PushBegun { held_records, held_bytes })?;
    Ok(Handled::Began(Source::Push(Box::new(PushSource::new(turn.app, turn.account, begun, push.release)))))
}

/// Handles a `find group` request: replies with the description of a consumer group.
pub(crate) fn find_group(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindGroup<'_>,
) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(wanted.stream);
    // Reports a missing stream differently from a missing group.
    stream.info()?;
    let group = match stream.find_group(wanted.name)? {
        Some(group) => group.info()?,
        None => {
            let message = format!("the stream has no consumer group {:?}: create it", wanted.name);
            return Err(Failure::invalid("no_such_group", message));
        }
    };
    turn.out.reply(request.id, &GroupFound { group })?;
    Ok(Handled::Replied)
}

/// Handles a `list groups` request: replies with a page of the consumer groups of one stream or of all streams.
pub(crate) fn list(turn: &mut Turn<'_>, request: &Request<'_>, wanted: &wire::ListGroups) -> Result<Handled, Failure> {
    let limit = listed(wanted.limit);
    let (app, stream, after) = (Arc::clone(turn.app), wanted.stream, wanted.after);
    inline_or_blocking(turn, request, limit, LISTED_BYTES * limit, move || {
        let (groups, more) = app.db.blocking().groups_after(Some(stream).filter(|id| id.0 != 0), after, limit)?;
        Ok(move |out: &mut Replies, id: u32| out.reply(id, &GroupList { more, groups: List::Items(&groups) }))
    })
}
