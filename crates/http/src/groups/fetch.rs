//! The handler of fetches over HTTP.

use std::{sync::Arc, time::Instant};

use thalweg_serving::{app::App, fetching::Fetcher, limits::DEFAULT_WAIT};

use super::{
    find_to_change,
    json::{JsonFetch, delivered},
};
use crate::{
    body,
    call::{Answer, Call},
    describe::{GroupPath, Level},
    json_body,
    parse::Media,
    reply,
    shapes::Delivery,
};

/// Handles `POST /v1/streams/{stream}/groups/{group}/fetch`: delivers records to a member.
#[utoipa::path(
    post, path = "/v1/streams/{stream}/groups/{group}/fetch", params(GroupPath, Level),
    request_body = Option<JsonFetch>,
    responses((status = 200, description = "The delivered records.", body = Delivery))
)]
pub(crate) async fn fetch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent: JsonFetch = json_body::or_default(app, call).await?;
    let group = find_to_change(app, call).await?;
    let level = call.level(app)?;
    let request = sent.request(app.config.max_body_bytes.0)?;
    // The time for which the fetch waits for records is separate from this time, for which it waits for the cluster.
    let patience = call.deadline(DEFAULT_WAIT)?.saturating_duration_since(Instant::now());
    let db = call.db(app)?;
    let fetcher = Fetcher { app, account: &call.account, db: &db, group: &group, level, begun: None };
    let (delivery, held) = fetcher.wait_and_fetch(&request, patience).await?;
    // If there is no room for the reply, or the client disconnects before, the records return to their group.
    let (durability, bytes) = (delivery.durability, delivery.stored_bytes());
    let document = body::work(app, &call.account, bytes, move || delivered(&delivery)).await??;
    let body = document.into_body(app, call)?;
    held.hand_over();
    Ok(reply::shown(Media::Json, body, durability))
}
