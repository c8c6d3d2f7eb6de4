//! The handler of fetches over HTTP.

use std::sync::Arc;

use thalweg_serving::{
    app::App,
    fetching::{return_delivery, wait_and_fetch},
};

use super::{
    find_to_change,
    json::{JsonFetch, delivered},
    sent,
};
use crate::{
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
    let body = delivered(&delivery)?.into();
    let body = reply::counted_body(&call.account, body).inspect_err(|_| {
        return_delivery(app, &group, delivery.attempt);
    })?;
    Ok(reply::shown(Media::Json, body, delivery.durability))
}
