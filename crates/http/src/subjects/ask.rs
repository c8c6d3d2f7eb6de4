//! The handler of `POST /v1/ask/{subject}`: sends one message and returns the first answer to it.
//!
//! Each request opens its own connection to the broker in this process (a *link*), with one subscription to a reply
//! subject that other clients cannot guess. So no task is needed between the responder and the client, and later
//! answers find no subscriber.

use std::{sync::Arc, time::Duration};

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use thalweg_broker::{Batch, Budget, Link, Outbound, Pattern, Policy, RequestError, SubscribeOptions, SubscriptionId};
use thalweg_serving::{
    admission::{Reservation, Resource, counted},
    app::App,
    error::ApiError,
    limits::{DEFAULT_WAIT, ROOM_PAUSE},
    views::Bell,
};
use thalweg_types::{Action, limits::MAX_REQUEST_TIMEOUT};
use thalweg_wire as wire;

use super::{messages, publish_within, subject_after};
use crate::{
    batch, body,
    call::{Answer, Call},
    describe::{AskParameters, BINARY, Binary, NDJSON, SubjectPath},
    long_json::{self, LongJson},
    parse::{Media, PublishQuery, negotiate},
    reply_memory::{self, ReplyMemory},
    shapes::Message,
};

/// Id of the only subscription that a request has at the broker.
const SUBSCRIPTION: SubscriptionId = SubscriptionId(0);

/// Handles `POST /v1/ask/{subject}`: publishes a message and waits for an answer to it.
#[utoipa::path(
    post, path = "/v1/ask/{subject}", params(SubjectPath, AskParameters),
    request_body(content((Binary = BINARY), (String = NDJSON), (batch::Messages = "application/json"))),
    responses((status = 200,
            description = "The first answer: its payload or, if `Accept` requests JSON, the message.",
            content((Binary = BINARY), (Message = "application/json"))))
)]
pub(crate) async fn ask(app: &Arc<App>, call: &mut Call) -> Answer {
    let query = PublishQuery::parse(call.head.uri.query())?;
    if query.reply.is_some() {
        return Err(ApiError::bad_request(
            "bad_parameter",
            "?reply= is only for a publish: the server chooses the reply subject of a request",
        ));
    }
    let media = batch::media(call)?;
    let shown = negotiate(call.header(&header::ACCEPT), &[Media::Binary, Media::Json]).ok_or_else(|| {
        let message = "Accept must allow application/octet-stream or application/json for answers";
        ApiError::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", Action::Fix, message)
    })?;
    let subject = subject_after(call, "/v1/ask/")?;
    let reply_to = app.views.reply_subject();
    let batch = {
        let body = body::read(app, &call.account, call.body.get_mut()).await?;
        let reply_to = reply_to.clone();
        let encode = move |body: &[u8]| messages::encode(&subject, Some(&reply_to), media, body, query.key.as_deref());
        batch::parse(app, call, media, body, encode).await?.0
    };
    if batch.messages() != 1 {
        return Err(ApiError::bad_request("too_many_messages", "a request has one message: send messages one by one"));
    }
    let replies = Pattern::from(reply_to);
    let _held = app.views.subscription_share(&call.account, &replies)?;
    let bell = Bell::new();
    let link = app.views.broker.open_link_of(Arc::clone(&bell) as _, call.account.link_owner())?;
    let options = SubscribeOptions { policy: Policy::DropNew, max_messages: 1, ..SubscribeOptions::DEFAULTS };
    link.subscribe(SUBSCRIPTION, replies, &options)?;
    let patience = query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_REQUEST_TIMEOUT);
    let exchange = exchange(app, call, &batch, patience, &link, &bell);
    let (answer, held) = tokio::time::timeout(patience, exchange).await.map_err(|_| RequestError::TimedOut)??;
    drop((link, batch));
    show(app, call, answer, held, shown).await
}

/// Publishes the message, and waits for its answer and for room in the limit on unsent bytes of replies. Returns the
/// answer and the reserved room. If there is no room, the answer stays in its queue until the request times out. The
/// request is not rejected earlier, because its message was published.
async fn exchange(
    app: &Arc<App>,
    call: &Call,
    batch: &Batch,
    patience: Duration,
    link: &Link,
    bell: &Bell,
) -> Result<(Batch, Reservation), ApiError> {
    if let Some(error) = RequestError::of(publish_within(&app.views, batch, patience).await?) {
        return Err(error.into());
    }
    let mut stopping = app.stopping.clone();
    let mut out = Vec::new();
    loop {
        let held = room(call, link.next_bytes(SUBSCRIPTION)).await;
        // The budget is unlimited, so one take empties the queue.
        let _ = link.take(&mut out, Budget::UNLIMITED);
        if let Some(Outbound::Batch { batch, .. }) = out.drain(..).find(|item| matches!(item, Outbound::Batch { .. })) {
            return Ok((batch, held));
        }
        tokio::select! {
            () = bell.rung() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return Err(RequestError::TimedOut.into()),
        }
    }
}

/// Waits until the limit on unsent bytes of replies has room for an answer of `bytes` bytes, and reserves the room.
async fn room(call: &Call, bytes: u64) -> Reservation {
    let wanted = long_json::most_held_bytes(bytes);
    if !reply_memory::is_counted(wanted, call.head.version) {
        return call.account.empty(Resource::ReplyBytes);
    }
    loop {
        if let Some(held) = call.account.take_quietly(Resource::ReplyBytes, wanted) {
            return held;
        }
        tokio::time::sleep(ROOM_PAUSE).await;
    }
}

async fn show(app: &App, call: &mut Call, answer: Batch, held: Reservation, media: Media) -> Answer {
    let bytes = answer.encoded().len();
    let content = body::work(app, &call.account, bytes, move || content(&answer, media)).await??;
    call.reply_memory = ReplyMemory::Counted;
    let body = match content {
        Content::Payload(payload) => Body::from(counted(payload, held)),
        Content::Message(message) => message.into_reserved_body(app, held),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    Ok(response)
}

/// Answer to a client's message, as the body of the HTTP reply: its raw payload, or the answer as JSON.
enum Content {
    Payload(Bytes),
    Message(LongJson),
}

fn content(answer: &Batch, media: Media) -> Result<Content, ApiError> {
    let malformed = |what: String| {
        // The broker has checked the batch when it was published, so this error is internal.
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, what)
    };
    let batch = wire::Batch::decode(answer.encoded()).map_err(|error| malformed(error.to_string()))?;
    let first = batch.messages().next().transpose().map_err(|error| malformed(error.to_string()))?;
    let message = first.ok_or_else(|| malformed("an answer without a message".to_owned()))?;
    if media != Media::Json {
        return Ok(Content::Payload(answer.encoded().slice_ref(message.payload)));
    }
    let mut out = LongJson::sharing(answer.encoded());
    messages::push_message(&mut out, &batch, &message);
    out.json().push(b'\n');
    Ok(Content::Message(out))
}
