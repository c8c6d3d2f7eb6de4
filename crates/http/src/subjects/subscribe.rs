//! The handler of `GET /v1/subjects/{pattern}`: messages as they are published.
//!
//! As server-sent events, each message is an event with a JSON object as `data`; as NDJSON it is a line. Events have no
//! ids: nothing is stored, so a client cannot resume. A request with `Last-Event-ID` is rejected, not ignored. If the
//! client is too slow and misses messages, an event `gap` (or a line with `gap`) reports it at the position of the
//! missing messages. With the policy to disconnect, the connection ends with an event `error` with the code
//! `slow_consumer`.
//!
//! Bounds: a subscriber counts as a tail. It takes at most [`TAKEN`] from its queue before the client has taken the
//! previous page, so that policies apply to the messages that wait in the queue. It encodes at most a page of
//! [`TAIL_PAGE_BYTES`] at a time, or one message.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use thalweg_broker::{Batch, Budget, Credit, Link, Outbound, Pattern, Policy, SubscriptionId, TakeResult};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::TAIL_PAGE_BYTES,
    views::{Bell, SubscriptionShare},
};
use thalweg_types::Action;
use thalweg_wire as wire;

use super::{PREFIX, messages::push_message};
use crate::{
    call::{Answer, Call},
    describe::{EVENTS, NDJSON, PatternPath},
    following::{Follower, Format, LAST_EVENT_ID, WakeReason},
    json::push_number,
    pages::Running,
    parse::{ParseError, SubscribeQuery, decode},
    shapes::Message,
};

/// Limits, as a number and in bytes, of the batches that one take removes from the subscription's queue.
const TAKEN: Budget = Budget { batches: 64, bytes: TAIL_PAGE_BYTES as u64 };

/// Handles `GET /v1/subjects/{pattern}`: streams messages of subjects as they are published.
#[utoipa::path(
    get, path = "/v1/subjects/{subject}", params(PatternPath, SubscribeQuery),
    responses((status = 200,
            description = "One Message per event or line, by `Accept`. A `gap` is the number of missed messages.",
            content((String = EVENTS), (Message = NDJSON))))
)]
pub(crate) fn subscribe(app: &Arc<App>, call: &Call) -> Answer {
    let query = SubscribeQuery::parse(call.head.uri.query())?;
    let format = Format::asked(call, "messages")?;
    if call.header(&LAST_EVENT_ID).is_some() {
        let expected = "left out: a subject stores nothing to resume from; use a stream if no message may be missed";
        return Err(ParseError::BadHeader { name: "Last-Event-ID", expected }.into());
    }
    let pattern = Pattern::parse(&decode(call.path_after(PREFIX).as_bytes())?)?;
    if query.policy == Policy::Block && !app.config.http_blocking_subjects.covers(&pattern) {
        let message = "the policy block is not permitted for these subjects over HTTP: choose another policy, or list them \
            in http_blocking_subjects";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "blocking_not_allowed", Action::Fix, message));
    }
    let follower = Follower::admit(app, call)?;
    let held = app.views.subscription_share(&call.account, &pattern)?;
    let bell = Bell::new();
    let link = app.views.broker.open_link(Arc::clone(&bell) as _)?;
    let SubscribeQuery { group, policy, max_messages, max_bytes, limit } = query;
    let (messages, bytes) = (max_messages.unwrap_or(0), max_bytes.unwrap_or(0));
    let options = app.views.subscribe_options(policy, messages, bytes, Credit::UNLIMITED, &group.unwrap_or_default());
    link.subscribe(SubscriptionId(0), pattern, &options)?;
    let following = SubscriptionStream {
        follower,
        _held: held,
        link,
        bell,
        taken: Vec::new(),
        waiting: VecDeque::new(),
        within: 0,
        format,
        left: limit.unwrap_or(u64::MAX),
    };
    Ok(format.reply(following.follower.bulk(), following, step))
}

struct SubscriptionStream {
    follower: Follower,
    _held: SubscriptionShare,
    link: Link,
    bell: Arc<Bell>,
    /// Buffer that is reused for the batches that a take removes from the subscription's queue.
    taken: Vec<Outbound>,
    /// Batches and notices taken from the queue and not encoded for the client yet.
    waiting: VecDeque<Outbound>,
    /// Number of bytes of the first waiting batch's messages that were already encoded for the client.
    within: usize,
    format: Format,
    /// Number of messages that the subscription may still send before it reaches its `limit`.
    left: u64,
}

fn step(following: SubscriptionStream) -> Running<SubscriptionStream> {
    Box::pin(async move {
        let mut following = following;
        if following.follower.is_new() {
            // The greeting confirms that the client will receive messages published from now on.
            let greeting = following.keepalive_line();
            return Ok((vec![greeting], Some(following)));
        }
        loop {
            if following.follower.is_over() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            let mut more = TakeResult::All;
            if following.waiting.is_empty() {
                more = following.link.take(&mut following.taken, TAKEN);
                following.waiting.extend(following.taken.drain(..));
            }
            if let Some((page, last)) = following.page() {
                return Ok((vec![page], (!last).then_some(following)));
            }
            if more == TakeResult::More {
                continue;
            }
            match following.follower.wait(following.bell.rung()).await {
                WakeReason::Ready(()) => {}
                WakeReason::Silence => {
                    let said = following.keepalive_line();
                    return Ok((vec![said], Some(following)));
                }
                WakeReason::Stopping => return Ok((Vec::new(), None)),
            }
        }
    })
}

impl SubscriptionStream {
    /// Returns the next page of the waiting batches and notices, and true if it is the last page. Returns `None` if
    /// nothing waits.
    fn page(&mut self) -> Option<(Bytes, bool)> {
        let mut out = Vec::new();
        while let Some(item) = self.waiting.pop_front() {
            match item {
                Outbound::Batch { batch, subscriptions } => {
                    if !self.show(&mut out, &batch) {
                        self.waiting.push_front(Outbound::Batch { batch, subscriptions });
                    }
                }
                Outbound::Gap { messages, .. } => self.gap(&mut out, messages),
                Outbound::Disconnect { messages, .. } => {
                    self.failure(&mut out, messages);
                    return Some((out.into(), true));
                }
            }
            if self.left == 0 || out.len() >= TAIL_PAGE_BYTES {
                break;
            }
        }
        (!out.is_empty()).then(|| (out.into(), false))
    }

    /// Encodes messages of a batch, beginning after the last message of the previous page. Returns true if the batch is
    /// finished.
    fn show(&mut self, out: &mut Vec<u8>, batch: &Batch) -> bool {
        // The broker checked the batch when it was published.
        let Ok(batch) = wire::Batch::decode(batch.encoded()) else { return true };
        let Some(rest) = batch.records().get(self.within..) else { return true };
        let mut messages = wire::Messages::new(rest);
        while self.left > 0 && out.len() < TAIL_PAGE_BYTES {
            let Some(Ok(message)) = messages.next() else {
                self.within = 0;
                return true;
            };
            self.left -= 1;
            self.begin(out, None);
            push_message(out, &batch, &message);
            self.end(out);
        }
        self.within += messages.position();
        false
    }

    fn begin(&self, out: &mut Vec<u8>, event: Option<&str>) {
        if self.format == Format::Events {
            if let Some(event) = event {
                out.extend_from_slice(format!("event: {event}\n").as_bytes());
            }
            out.extend_from_slice(b"data: ");
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.format == Format::Events { b"\n\n" } else { b"\n" });
    }

    fn gap(&self, out: &mut Vec<u8>, messages: u64) {
        self.begin(out, Some("gap"));
        out.push(b'{');
        push_number(out, "gap", messages);
        out.push(b'}');
        self.end(out);
    }

    fn failure(&self, out: &mut Vec<u8>, messages: u64) {
        let message = format!("the queue was full, and the policy is to disconnect; {messages} messages were missed");
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "slow_consumer", Action::Retry, message);
        out.extend_from_slice(&self.format.error(&error));
    }

    fn keepalive_line(&self) -> Bytes {
        match self.format {
            Format::Events => Bytes::from_static(b": subscribed\n\n"),
            Format::Lines => Bytes::from_static(b"{\"subscribed\":true}\n"),
        }
    }
}
