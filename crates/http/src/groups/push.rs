//! `GET /v1/streams/{stream}/groups/{group}/push`: deliveries as they come, as far as the receiver's credit goes.
//!
//! As server-sent events each record is an event whose `id` is its offset and whose `data` is what a fetch
//! shows of it, with the attempt to settle it by; as NDJSON each is a line. Acks go over requests of their
//! own, and bring credit back. Silence is broken by comments, or by lines that say what is waited for. The push
//! ends when the server stops or `limit` records were sent; before an end that is an error, it says why.
//!
//! When the connection ends, what it has not settled lapses at its deadline; with `release=true` it is given
//! back at once, which suits a receiver that settles only while it is connected.
//!
//! Bounds: a push counts as a tail does, and holds at most one delivery of [`PUSH_PAGE_BYTES`], or of one
//! record, in memory.

use std::{io, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{Credit, Delivery, Push, PushRequest, PushWaits, ReadError};
use thalweg_serving::{app::App, limits::PUSH_PAGE_BYTES};
use thalweg_types::command::groups::check_member;

use super::{find_named, names};
use crate::{
    call::{Answer, Call},
    following::{Follower, Format, Woken},
    json::{push_number, push_text},
    pages::Running,
    parse::PushQuery,
    record_json::push_json,
};

/// `GET /v1/streams/{stream}/groups/{group}/push`
pub(crate) fn push(app: &Arc<App>, call: &Call) -> Answer {
    let query = PushQuery::parse(call.head.uri.query())?;
    let format = Format::asked(call, "deliveries")?;
    let (stream, group) = names(call)?;
    let group = find_named(app.db.blocking(), &stream, &group)?;
    let level = call.level(app)?;
    let follower = Follower::admit(app)?;
    let mut request = PushRequest {
        member: query.member.unwrap_or_else(|| "default".to_owned()),
        credit: Credit::default(),
        max_delivery_bytes: PUSH_PAGE_BYTES,
    };
    check_member(&request.member)?;
    request.credit.records = query.credit_records.unwrap_or(request.credit.records);
    request.credit.bytes = query.credit_bytes.unwrap_or(request.credit.bytes);
    let pushing = Pushing {
        follower,
        push: app.db.push(&group, request, level)?,
        format,
        left: query.limit.unwrap_or(u64::MAX),
        release: query.release,
    };
    Ok(format.reply(pushing, step))
}

struct Pushing {
    follower: Follower,
    push: Push,
    format: Format,
    /// Records that may still be sent.
    left: u64,
    /// Give back what is not settled when the connection ends.
    release: bool,
}

impl Drop for Pushing {
    fn drop(&mut self) {
        if self.release {
            // If it can't be queued, what is held lapses by itself.
            let _ = self.push.give_back("the connection of its receiver ended");
        }
    }
}

fn step(pushing: Pushing) -> Running<Pushing> {
    Box::pin(async move {
        let mut pushing = pushing;
        if pushing.follower.is_new() {
            let greeting = pushing.still_here();
            return Ok((vec![greeting], Some(pushing)));
        }
        if pushing.follower.is_over() || pushing.left == 0 {
            return Ok((Vec::new(), None));
        }
        pushing.push.limit_delivery(pushing.left);
        match pushing.follower.wait(pushing.push.next(tokio::time::sleep)).await {
            Woken::Ready(Ok(Some(delivery))) => match pushing.show(&delivery) {
                Ok(shown) => Ok((vec![shown], Some(pushing))),
                Err(error) => Err(io::Error::other(error.to_string())),
            },
            Woken::Ready(Ok(None)) | Woken::Stopping => Ok((Vec::new(), None)),
            Woken::Ready(Err(error)) => Ok((vec![pushing.format.error(&error.into())], None)),
            Woken::Silence => {
                let said = pushing.still_here();
                Ok((vec![said], Some(pushing)))
            }
        }
    })
}

impl Pushing {
    fn show(&mut self, delivery: &Delivery) -> Result<Bytes, ReadError> {
        let mut out = Vec::new();
        delivery.for_each(&mut |message| {
            self.left = self.left.saturating_sub(1);
            if self.format == Format::Events {
                out.extend_from_slice(format!("id: {}\ndata: ", message.offset).as_bytes());
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
            out.extend_from_slice(if self.format == Format::Events { b"}\n\n" } else { b"}\n" });
            ControlFlow::Continue(())
        })?;
        Ok(out.into())
    }

    fn still_here(&mut self) -> Bytes {
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
