//! Handlers of `/v1/subjects`: messages for current subscribers. Nothing is stored.
//!
//! Owns: publishing over HTTP ([`publish`]), and in its modules [`subscribe`] and [`ask`]. Each message is encoded
//! once, as the native protocol encodes it, so subscribers of both protocols receive it.
//!
//! A publish waits while the queue of a subscription with the policy `block` is full, but not longer than its timeout.
//! A publish that times out has reached no subscription, so a client can repeat it unchanged.

pub(crate) mod ask;
mod messages;
pub(crate) mod subscribe;

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use thalweg_broker::{Batch, Notify, Published, Subject, WouldBlock};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::DEFAULT_WAIT,
    views::{Bell, Views},
};
use utoipa::ToSchema;

pub(crate) use self::messages::JsonPublish;
use crate::{
    batch, body,
    call::{Answer, Call},
    describe::{BINARY, Binary, NDJSON, SubjectPath},
    parse::{PublishQuery, decode},
    reply,
};

const PREFIX: &str = "/v1/subjects/";

/// Returns the subject that the path of a request contains.
fn subject_after(call: &Call, prefix: &str) -> Result<Subject, ApiError> {
    Ok(Subject::parse(&decode(call.path_after(prefix).as_bytes())?)?)
}

/// Handles `POST /v1/subjects/{subject}`: publishes messages to a subject.
#[utoipa::path(
    post, path = "/v1/subjects/{subject}", params(SubjectPath, PublishQuery),
    request_body(content((Binary = BINARY), (String = NDJSON), (batch::Messages = "application/json"))),
    responses((status = 200,
            description = "The number of messages, and of subscriptions that got them or had no room.",
            body = PublishedShown))
)]
pub(crate) async fn publish(app: &Arc<App>, call: &mut Call) -> Answer {
    let query = PublishQuery::parse(call.head.uri.query())?;
    let media = batch::media(call)?;
    let subject = subject_after(call, PREFIX)?;
    let reply_to = query.reply.as_deref().map(Subject::parse).transpose()?;
    let batch = {
        let body = body::read(app, &call.account, call.body.get_mut()).await?;
        let encode =
            move |body: &[u8]| messages::encode(&subject, reply_to.as_ref(), media, body, query.key.as_deref());
        batch::parse(app, call, media, body, encode).await?.0
    };
    let published = publish_within(&app.views, &batch, query.timeout.unwrap_or(DEFAULT_WAIT)).await?;
    let Published { delivered, missed, nodes, .. } = published;
    let nodes = app.cluster.is_some().then_some(nodes);
    let shown = PublishedShown { messages: batch.messages(), delivered, missed, nodes };
    Ok(reply::json(StatusCode::OK, &json!(shown)))
}

/// Result of a publish in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = Published)]
struct PublishedShown {
    messages: u32,
    /// Number of subscriptions of this node that got the messages.
    delivered: u64,
    /// Number of subscriptions of this node that missed the messages, because their queues were full.
    missed: u64,
    /// Number of other nodes of the cluster to which the messages are sent, because clients subscribe there.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<u32>,
}

/// Publishes a batch of messages. Waits at most `patience` for subscriptions whose policy blocks publishers.
async fn publish_within(views: &Views, batch: &Batch, patience: Duration) -> Result<Published, ApiError> {
    // Almost always all queues have room. Then no timer needs to be set.
    let blocked = match views.broker.publish(batch, None) {
        Ok(published) => return Ok(published),
        Err(blocked) => blocked,
    };
    let bell = Bell::new();
    let waiter: Arc<dyn Notify> = Arc::clone(&bell) as _;
    let waiting = async {
        loop {
            match views.broker.publish(batch, Some(&waiter)) {
                Ok(published) => return published,
                Err(WouldBlock { .. }) => bell.rung().await,
            }
            // If the bell has rung already, the loop would spin without this yield.
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience, waiting).await.map_err(|_| blocked.into())
}
