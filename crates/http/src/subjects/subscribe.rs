//! The handler of `GET /v1/subjects/{pattern}`: messages as they are published.
//!
//! Owns: the handler, the batches that it has taken from its queue, and their encoding in pages and slices. Does not
//! own: the queue and its policy (`thalweg_broker`), or the keepalive and the end of such replies (`following`).
//!
//! As server-sent events, each message is an event with a JSON object as `data`; as NDJSON it is a line. Events have no
//! ids: nothing is stored, so a client cannot resume. A request with `Last-Event-ID` is rejected, not ignored. If the
//! client is too slow and misses messages, an event `gap` (or a line with `gap`) reports it at the position of the
//! missing messages. With the policy `disconnect`, the connection ends with an event `error` with the code
//! `slow_consumer`.
//!
//! Bounds: a subscriber counts as a tail. Before the client has taken the previous page, the handler takes at most
//! [`TAKEN`] from the queue, so that the policy applies to the messages that wait there. A larger batch stays in the
//! queue until `max_reply_bytes_in_flight` has room for it, and counts there once it leaves the queue. A page has at
//! most [`TAIL_PAGE_BYTES`] and one message. A long message is encoded in slices, while it is sent.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use thalweg_broker::{Batch, Budget, Credit, Link, Outbound, Pattern, Policy, SubscriptionId, TakeResult};
use thalweg_serving::{
    admission::{Reservation, Resource},
    app::App,
    error::ApiError,
    limits::{ROOM_PAUSE, TAIL_PAGE_BYTES},
    views::{Bell, SubscriptionShare},
};
use thalweg_types::Action;
use thalweg_wire as wire;

use super::{PREFIX, messages::push_message};
use crate::{
    body,
    call::{Answer, Call},
    describe::{EVENTS, NDJSON, PatternPath},
    following::{Follower, Format, LAST_EVENT_ID, WakeReason},
    json::push_number,
    long_json::{LongJson, Slices},
    pages::Running,
    parse::{ParseError, SubscribeQuery, decode},
    shapes::Message,
};

/// Maximum number and bytes of the batches that the handler removes from the subscription's queue at a time.
const TAKEN: Budget = Budget { batches: 64, bytes: TAIL_PAGE_BYTES as u64 };
/// Size in bytes from which a message is encoded in slices, while it is sent.
const LONG_MESSAGE_BYTES: usize = 8 * 1024;
/// Id of the only subscription that a request has at the broker.
const SUBSCRIPTION: SubscriptionId = SubscriptionId(0);

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
    let link = app.views.broker.open_link_of(Arc::clone(&bell) as _, call.account.link_owner())?;
    let SubscribeQuery { group, policy, max_messages, max_bytes, limit } = query;
    let (messages, bytes) = (max_messages.unwrap_or(0), max_bytes.unwrap_or(0));
    let options = app.views.subscribe_options(policy, messages, bytes, Credit::UNLIMITED, &group.unwrap_or_default());
    link.subscribe(SUBSCRIPTION, pattern, &options)?;
    let taken_bytes = call.account.empty(Resource::ReplyBytes);
    let following = SubscriptionStream {
        follower,
        taken_bytes,
        long: None,
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
    /// Buffer into which the handler takes batches from the subscription's queue. It is reused.
    taken: Vec<Outbound>,
    /// Batches of messages, and notices about missed messages, that were taken from the queue and are not encoded for
    /// the client yet.
    waiting: VecDeque<Outbound>,
    /// Bytes that are reserved in the limit on unsent bytes of replies for the batches in `waiting`, if these are
    /// large.
    taken_bytes: Reservation,
    /// Number of bytes of the first waiting batch's messages that were already encoded for the client.
    within: usize,
    /// Remaining part of a long message that is being sent; `None` if there is none.
    long: Option<Slices>,
    format: Format,
    /// Number of messages that the subscription may still send before it reaches its `limit`.
    left: u64,
}

fn step(following: SubscriptionStream) -> Running<SubscriptionStream> {
    Box::pin(async move {
        let mut following = following;
        if following.follower.is_new() {
            // The greeting confirms that the client receives all messages that are published from now on.
            let greeting = following.keepalive_line();
            return Ok((vec![greeting], Some(following)));
        }
        loop {
            if let Some(slice) = following.next_slice() {
                return Ok((vec![slice], Some(following)));
            }
            if following.follower.is_over() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            let mut more = TakeResult::All;
            if following.waiting.is_empty() {
                let Some(taken) = following.take_when_room().await else { return Ok((Vec::new(), None)) };
                more = taken;
            }
            match following.page() {
                Some(Page::Items(page)) => return Ok((vec![page], Some(following))),
                Some(Page::Last(page)) => return Ok((vec![page], None)),
                Some(Page::Long(long)) => {
                    following.begin_long(long).await?;
                    continue;
                }
                None => {}
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

/// A part of the reply to a subscriber.
enum Page {
    Items(Bytes),
    /// The last part of the reply.
    Last(Bytes),
    /// A long message, which is not encoded yet.
    Long(LongMessage),
}

/// A long message of a batch.
struct LongMessage {
    batch: Batch,
    /// Position of the message among the batch's messages, in bytes.
    at: usize,
}

impl LongMessage {
    /// Creates the event or line for the client, with the message as JSON.
    fn document(&self, format: Format) -> Option<LongJson> {
        let mut out = LongJson::sharing(self.batch.encoded());
        let batch = wire::Batch::decode(self.batch.encoded()).ok()?;
        let message = wire::Messages::new(batch.records().get(self.at..)?).next()?.ok()?;
        begin(format, out.json(), None);
        push_message(&mut out, &batch, &message);
        end(format, out.json());
        Some(out)
    }
}

impl SubscriptionStream {
    /// Takes messages from the queue. If the next batch is large, it stays in the queue until the limit on unsent bytes
    /// of replies has room for it. Returns `None` if the server stops.
    async fn take_when_room(&mut self) -> Option<TakeResult> {
        self.taken_bytes.shrink_to(0);
        loop {
            let next_bytes = self.link.next_bytes(SUBSCRIPTION);
            if next_bytes <= TAIL_PAGE_BYTES as u64 {
                break;
            }
            if let Some(held) = self.follower.account().take_quietly(Resource::ReplyBytes, next_bytes) {
                self.taken_bytes = held;
                break;
            }
            if let WakeReason::Stopping = self.follower.wait(tokio::time::sleep(ROOM_PAUSE)).await {
                return None;
            }
        }
        let more = self.link.take(&mut self.taken, TAKEN);
        let bytes = |item: &Outbound| if let Outbound::Batch { batch, .. } = item { batch.encoded().len() } else { 0 };
        let bytes: usize = self.taken.iter().map(bytes).sum();
        // The policy may have replaced the batch during the wait, so the reservation is set to what was taken.
        self.taken_bytes.set(if bytes > TAIL_PAGE_BYTES { bytes as u64 } else { 0 });
        self.waiting.extend(self.taken.drain(..));
        Some(more)
    }

    /// Begins to send a long message.
    async fn begin_long(&mut self, long: LongMessage) -> io::Result<()> {
        let (bytes, format) = (long.batch.encoded().len(), self.format);
        let account = Arc::clone(self.follower.account());
        let made = body::work(&self.follower.app, &account, bytes, move || long.document(format)).await;
        self.long = made.map_err(|error| io::Error::other(error.message.into_owned()))?.map(Slices::new);
        Ok(())
    }

    /// Returns the next slice of the long message that is being sent; `None` if there is none.
    fn next_slice(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if !self.long.as_mut()?.push_slice(&mut out) {
            self.long = None;
            if self.waiting.is_empty() {
                self.taken_bytes.shrink_to(0);
            }
        }
        Some(out.into())
    }

    /// Returns the next page for the client, made of the waiting batches of messages and notices about missed messages.
    /// Returns `None` if nothing waits.
    fn page(&mut self) -> Option<Page> {
        let mut out = Vec::new();
        while let Some(item) = self.waiting.pop_front() {
            match item {
                Outbound::Batch { batch, subscriptions } => match self.show(&mut out, &batch) {
                    Shown::All => {}
                    Shown::Part => {
                        self.waiting.push_front(Outbound::Batch { batch, subscriptions });
                        break;
                    }
                    Shown::Long(long) => {
                        if self.within > 0 {
                            self.waiting.push_front(Outbound::Batch { batch, subscriptions });
                        }
                        return Some(Page::Long(long));
                    }
                },
                Outbound::Gap { messages, .. } => self.gap(&mut out, messages),
                Outbound::Disconnect { messages, .. } => {
                    self.failure(&mut out, messages);
                    return Some(Page::Last(out.into()));
                }
            }
            if self.left == 0 || out.len() >= TAIL_PAGE_BYTES {
                break;
            }
        }
        if self.waiting.is_empty() {
            self.taken_bytes.shrink_to(0);
        }
        (!out.is_empty()).then(|| Page::Items(out.into()))
    }

    /// Encodes messages of a batch, beginning after the last message of the previous page.
    fn show(&mut self, out: &mut Vec<u8>, shared: &Batch) -> Shown {
        // The broker checked the batch when it was published.
        let Ok(batch) = wire::Batch::decode(shared.encoded()) else { return Shown::All };
        let begun = self.within;
        let Some(rest) = batch.records().get(begun..) else { return Shown::All };
        let mut messages = wire::Messages::new(rest);
        while self.left > 0 && out.len() < TAIL_PAGE_BYTES {
            let at = messages.position();
            let Some(Ok(message)) = messages.next() else {
                self.within = 0;
                return Shown::All;
            };
            let is_long = messages.position() - at >= LONG_MESSAGE_BYTES;
            if is_long && !out.is_empty() {
                // This message begins the next page.
                self.within = begun + at;
                return Shown::Part;
            }
            self.left -= 1;
            if is_long {
                let is_last = messages.position() == rest.len();
                self.within = if is_last { 0 } else { begun + messages.position() };
                return Shown::Long(LongMessage { batch: shared.clone(), at: begun + at });
            }
            begin(self.format, out, None);
            push_message(out, &batch, &message);
            end(self.format, out);
        }
        self.within = begun + messages.position();
        Shown::Part
    }

    fn gap(&self, out: &mut Vec<u8>, messages: u64) {
        begin(self.format, out, Some("gap"));
        out.push(b'{');
        push_number(out, "gap", messages);
        out.push(b'}');
        end(self.format, out);
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

/// Result of encoding messages of a batch.
enum Shown {
    /// All messages of the batch are encoded.
    All,
    /// The page ends before the end of the batch.
    Part,
    /// The next message is long, and is not encoded yet.
    Long(LongMessage),
}

fn begin(format: Format, out: &mut Vec<u8>, event: Option<&str>) {
    if format == Format::Events {
        if let Some(event) = event {
            out.extend_from_slice(format!("event: {event}\n").as_bytes());
        }
        out.extend_from_slice(b"data: ");
    }
}

fn end(format: Format, out: &mut Vec<u8>) {
    out.extend_from_slice(if format == Format::Events { b"\n\n" } else { b"\n" });
}
