//! The handler of `POST /v1/ask/{subject}`: sends one message and returns the first answer to it.
//!
//! Each request has its own link with one subscription to a reply subject that other clients cannot guess. So no task
//! is needed between the responder and the client, and later answers find no subscriber.

use std::{sync::Arc, time::Duration};

use axum_core::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use thalweg_broker::{Batch, Budget, Link, Outbound, Pattern, Policy, RequestError, SubscribeOptions, SubscriptionId};
use thalweg_serving::{app::App, error::ApiError, limits::DEFAULT_WAIT, views::Bell};
use thalweg_types::{Action, limits::MAX_REQUEST_TIMEOUT};
use thalweg_wire as wire;

use super::{messages, publish_within, subject_after};
use crate::{
    batch, body,
    call::{Answer, Call},
    describe::{AskParameters, BINARY, Binary, NDJSON, SubjectPath},
    parse::{Media, PublishQuery, negotiate},
    shapes::Message,
};

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
    let link = app.views.broker.open_link(Arc::clone(&bell) as _)?;
    let options = SubscribeOptions { policy: Policy::DropNew, max_messages: 1, ..SubscribeOptions::DEFAULTS };
    link.subscribe(SubscriptionId(0), replies, &options)?;
    let patience = query.timeout.unwrap_or(DEFAULT_WAIT).min(MAX_REQUEST_TIMEOUT);
    let answered = tokio::time::timeout(patience, exchange(app, &batch, patience, &link, &bell)).await;
    show(&answered.map_err(|_| RequestError::TimedOut)??, shown)
}

async fn exchange(
    app: &Arc<App>,
    batch: &Batch,
    patience: Duration,
    link: &Link,
    bell: &Bell,
) -> Result<Batch, ApiError> {
    if let Some(error) = RequestError::of(publish_within(&app.views, batch, patience).await?) {
        return Err(error.into());
    }
    let mut stopping = app.stopping.clone();
    let mut out = Vec::new();
    loop {
        // The budget is unlimited, so one take empties the queue.
        let _ = link.take(&mut out, Budget::UNLIMITED);
        if let Some(Outbound::Batch { batch, .. }) = out.drain(..).find(|item| matches!(item, Outbound::Batch { .. })) {
            return Ok(batch);
        }
        tokio::select! {
            () = bell.rung() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return Err(RequestError::TimedOut.into()),
        }
    }
}

fn show(answer: &Batch, media: Media) -> Answer {
    let malformed = |what: String| {
        // The broker checked the batch when it was published.
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, what)
    };
    let batch = wire::Batch::decode(answer.encoded()).map_err(|error| malformed(error.to_string()))?;
    let first = batch.messages().next().transpose().map_err(|error| malformed(error.to_string()))?;
    let message = first.ok_or_else(|| malformed("an answer without a message".to_owned()))?;
    let body = match media {
        Media::Json => {
            let mut out = Vec::new();
            messages::push_message(&mut out, &batch, &message);
            out.push(b'\n');
            out
        }
        _ => message.payload.to_vec(),
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    Ok(response)
}
