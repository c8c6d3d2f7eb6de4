//! The handler of `GET /v1/streams/{stream}/groups/{group}/push`: sends deliveries as records arrive, within the
//! receiver's credit.
//!
//! As server-sent events, each record is an event. Its `id` is the offset, and its `data` is the record as a fetch
//! returns it, with the number of the attempt. As NDJSON, each record is a line. The receiver sends acks as separate
//! requests, which restore its credit. During silence, comments or lines state why the push waits. The push ends when
//! the server stops or `limit` records were sent. If an error ends the push, a last event or line states the reason. On
//! a member of a cluster, the reason is `moved` if another node has become the leader.
//!
//! When the connection ends, its unsettled records lapse at their deadlines. With `release=true` the server nacks them
//! immediately; use this for a receiver that settles only while it is connected.
//!
//! Bounds: a push counts in the limit `max_tails`. It holds at most one delivery of [`PUSH_PAGE_BYTES`] in memory. A
//! delivery of one larger record is encoded on a thread for long reads, and counts in the limit on reply bytes. If the
//! limit has no room, the record returns to the group and does not count as delivered, and the push waits for room.

use std::{io, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{Credit, Delivery, PushRequest, PushWaits, ReadError};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::PUSH_PAGE_BYTES,
    pushing::{PushEnd, ReturnRecords, ServedPush},
};
use thalweg_types::command::groups::check_member;

use super::{find_named, names};
use crate::{
    body,
    call::{Answer, Call},
    describe::{EVENTS, GroupPath, Level, NDJSON},
    following::{Follower, Format, WakeReason},
    json::{push_digits, push_number, push_text},
    pages::Running,
    parse::PushQuery,
    read_gate,
    record_json::push_json,
    shapes::Delivered,
};

/// Handles `GET /v1/streams/{stream}/groups/{group}/push`: pushes deliveries to a receiver.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/groups/{group}/push", params(GroupPath, PushQuery, Level),
    responses((status = 200,
            description = "One Delivered per event or line, within the credit, as `Accept` requests. The error `moved` \
                           ends it when the leadership has moved: push again and keep the records that you hold.",
            content((String = EVENTS), (Delivered = NDJSON))))
)]
pub(crate) async fn push(app: &Arc<App>, call: &Call) -> Answer {
    let query = PushQuery::parse(call.head.uri.query())?;
    let format = Format::asked(call, "deliveries")?;
    let (stream, group) = names(call)?;
    let group = read_gate::look_up(app, call, || find_named(app.db.blocking(), &stream, &group)).await?;
    let level = call.level(app)?;
    let follower = Follower::admit(app, call)?;
    let mut request = PushRequest {
        member: query.member.unwrap_or_else(|| "default".to_owned()),
        credit: Credit::default(),
        max_delivery_bytes: PUSH_PAGE_BYTES,
    };
    check_member(&request.member)?;
    request.credit.records = query.credit_records.unwrap_or(request.credit.records);
    request.credit.bytes = query.credit_bytes.unwrap_or(request.credit.bytes);
    let returns = if query.release { ReturnRecords::AtEnd } else { ReturnRecords::AtDeadline };
    let push = ServedPush::new(app, &call.account, app.db.push(&group, request, level)?, returns);
    let pushing = PushStream { follower, push, format, left: query.limit.unwrap_or(u64::MAX) };
    Ok(format.reply(pushing.follower.bulk(), pushing, step))
}

struct PushStream {
    follower: Follower,
    push: ServedPush,
    format: Format,
    /// Number of records that this push (a subscription to a group's records) may still send before it reaches its
    /// `limit`.
    left: u64,
}

fn step(pushing: PushStream) -> Running<PushStream> {
    Box::pin(async move {
        let mut pushing = pushing;
        if pushing.follower.is_new() {
            let greeting = pushing.keepalive_line();
            return Ok((vec![greeting], Some(pushing)));
        }
        if pushing.follower.is_over() || pushing.left == 0 {
            return Ok((Vec::new(), None));
        }
        pushing.push.limit_delivery(pushing.left, PUSH_PAGE_BYTES);
        match pushing.follower.wait(pushing.push.next()).await {
            WakeReason::Ready(Ok(delivery)) => {
                let (attempt, records) = (delivery.attempt, delivery.record_count());
                let showing = pushing.show(delivery);
                let shown = match showing.await {
                    Ok(shown) => shown.map_err(|error| io::Error::other(error.to_string()))?,
                    Err(error) => {
                        pushing.push.return_delivery(attempt);
                        return Ok((vec![pushing.format.error(&error)], None));
                    }
                };
                match pushing.follower.counted(shown, None) {
                    Ok(shown) => {
                        pushing.left = pushing.left.saturating_sub(records);
                        Ok((vec![shown], Some(pushing)))
                    }
                    Err(no_room) => {
                        pushing.push.return_delivery(attempt);
                        // The room is released before the next delivery: this may come much later, or contain another
                        // record.
                        let has_room = pushing.follower.room(no_room).await.is_some();
                        Ok((Vec::new(), has_room.then_some(pushing)))
                    }
                }
            }
            WakeReason::Ready(Err(PushEnd::Stopping)) | WakeReason::Stopping => Ok((Vec::new(), None)),
            WakeReason::Ready(Err(PushEnd::Moved)) => Ok((vec![pushing.format.error(&PushEnd::moved())], None)),
            WakeReason::Ready(Err(PushEnd::Failed(error))) => Ok((vec![pushing.format.error(&error)], None)),
            WakeReason::Silence => {
                let said = pushing.keepalive_line();
                Ok((vec![said], Some(pushing)))
            }
        }
    })
}

impl PushStream {
    /// Encodes a delivery: on this thread if it is short, otherwise on a thread for long reads. Returns an error if the
    /// system cannot start such a thread.
    fn show(
        &self,
        delivery: Delivery,
    ) -> impl Future<Output = Result<Result<Vec<u8>, ReadError>, ApiError>> + Send + use<> {
        let (app, account) = (Arc::clone(&self.follower.app), Arc::clone(self.follower.account()));
        // A delivery of several records has at most the bytes of a page. Their batch may be much longer, but is not
        // encoded.
        let bytes = if delivery.record_count() > 1 { 0 } else { delivery.stored_bytes() };
        let format = self.format;
        async move { body::work(&app, &account, bytes, move || shown(format, &delivery)).await }
    }

    fn keepalive_line(&mut self) -> Bytes {
        let waits = match self.push.waits() {
            Ok(Some(PushWaits::ForCredit)) => "credit",
            _ => "records",
        };
        match self.format {
            Format::Events => format!(": waits for {waits}\n\n").into(),
            Format::Lines => format!("{{\"waits_for\":\"{waits}\"}}\n").into(),
        }
    }
}

/// Returns the events or lines of a delivery's records.
fn shown(format: Format, delivery: &Delivery) -> Result<Vec<u8>, ReadError> {
    let mut out = Vec::new();
    delivery.for_each(&mut |message| {
        if format == Format::Events {
            out.extend_from_slice(b"id: ");
            push_digits(&mut out, message.offset.0);
            out.extend_from_slice(b"\ndata: ");
        }
        push_json(&mut out, message.offset, message.time, message.record);
        out.pop();
        out.push(b',');
        push_number(&mut out, "deliveries", message.deliveries.into());
        out.push(b',');
        push_number(&mut out, "attempt", delivery.attempt.0);
        out.push(b',');
        push_number(&mut out, "deadline_micros", delivery.deadline.0);
        out.extend_from_slice(b",\"durability\":");
        push_text(&mut out, delivery.durability.name());
        out.extend_from_slice(if format == Format::Events { b"}\n\n" } else { b"}\n" });
        ControlFlow::Continue(())
    })?;
    Ok(out)
}
