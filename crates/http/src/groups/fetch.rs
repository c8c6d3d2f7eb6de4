//! The handler of fetches over HTTP.

use std::sync::Arc;

use thalweg_serving::{
    app::App,
    error::ApiError,
    fetching::{return_delivery, wait_and_fetch},
};

use super::{
    find_to_change,
    json::{JsonFetch, delivered},
    sent,
};
use crate::{
    body,
    call::{Answer, Call},
    describe::{GroupPath, Level},
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
    let sent: JsonFetch = sent(app, call).await?;
    let group = find_to_change(app, call).await?;
    let level = call.level(app)?;
    let request = sent.request(app.config.max_body_bytes.0)?;
    let delivery = wait_and_fetch(app, &call.account, &group, &request, level).await?;
    let (attempt, durability, bytes) = (delivery.attempt, delivery.durability, delivery.stored_bytes());
    let shown = body::work(app, &call.account, bytes, move || delivered(&delivery)).await;
    let return_records = |_: &ApiError| return_delivery(app, &group, attempt);
    let document = shown.inspect_err(return_records)??;
    let body = document.into_body(app, call).inspect_err(return_records)?;
    Ok(reply::shown(Media::Json, body, durability))
}
