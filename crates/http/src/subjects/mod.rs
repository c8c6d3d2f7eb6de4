//! `/v1/subjects`: messages for whoever listens now. Nothing is stored.
//!
//! Owns publishing over HTTP ([`publish`]); [`subscribe`] and [`ask`] are beside it. What is published here is encoded as
//! the native protocol encodes it, once, so subscribers of either protocol get it.
//!
//! A publish that meets a subscription with the policy to block waits, at most as long as it was told to; it is all
//! or nothing, so it can be sent again as it is.

mod ask;
mod messages;
mod subscribe;

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use serde_json::json;
use thalweg_broker::{Batch, Notify, Published, Subject, WouldBlock};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::DEFAULT_WAIT,
    views::{Bell, Views},
};

pub(crate) use self::{ask::ask, messages::JsonPublish, subscribe::subscribe};
use crate::{
    batch, body,
    call::{Answer, Call},
    parse::{PublishQuery, decode},
    reply,
};

const PREFIX: &str = "/v1/subjects/";

/// The subject in a path.
fn subject_after(call: &Call, prefix: &str) -> Result<Subject, ApiError> {
    Ok(Subject::parse(&decode(call.path_after(prefix).as_bytes())?)?)
}

/// `POST /v1/subjects/{subject}`
pub(crate) async fn publish(app: &Arc<App>, call: &mut Call) -> Answer {
    let query = PublishQuery::parse(call.head.uri.query())?;
    let media = batch::media(call)?;
    let subject = subject_after(call, PREFIX)?;
    let reply_to = query.reply.as_deref().map(Subject::parse).transpose()?;
    let batch = {
        let body = body::read(app, call.body.get_mut()).await?;
        messages::encode(&subject, reply_to.as_ref(), media, &body, query.key.as_deref())?
    };
    let published = publish_within(&app.views, &batch, query.timeout.unwrap_or(DEFAULT_WAIT)).await?;
    let Published { delivered, missed } = published;
    let object = json!({ "messages": batch.messages(), "delivered": delivered, "missed": missed });
    Ok(reply::json(StatusCode::OK, &object))
}

/// Publishes, and waits so long for those who ask publishers to wait.
async fn publish_within(views: &Views, batch: &Batch, patience: Duration) -> Result<Published, ApiError> {
    // Nearly always there is room, and then there is no timer to set.
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
        }
    };
    tokio::time::timeout(patience, waiting).await.map_err(|_| blocked.into())
}
