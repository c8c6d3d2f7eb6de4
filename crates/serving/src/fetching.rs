//! Fetches of consumer groups that may wait for records.
//!
//! Waiting fetches count against `max_tails`, over every protocol. A fetch returns at most as many records as the
//! client requested, so a client that requests only what it can process is never sent more.

use std::sync::Arc;

use thalweg_engine::{Delivery, FetchRequest, Group, Ready};
use thalweg_types::Durability;
use tokio::time::Instant;

use crate::{
    admission::{Account, Resource},
    app::App,
    error::ApiError,
};

/// Fetches records for a member of a consumer group. Waits for records as long as the request allows, but not
/// after the server begins to stop.
pub async fn wait_and_fetch(
    app: &Arc<App>,
    account: &Arc<Account>,
    group: &Group,
    request: &FetchRequest,
    level: Durability,
) -> Result<Delivery, ApiError> {
    let until = Instant::now() + request.wait;
    let mut stopping = app.stopping.clone();
    let mut held = None;
    loop {
        let due = match group.ready()? {
            Ready::Now => {
                let delivery = app.db.fetch(group, request, level).await?;
                if !delivery.is_empty() {
                    return Ok(delivery);
                }
                continue;
            }
            Ready::In(due) => due,
        };
        if Instant::now() >= until || *stopping.borrow() {
            return Ok(Delivery::none(level));
        }
        if held.is_none() {
            let taken = account.take(Resource::Tails, 1);
            held = Some(taken.ok_or_else(|| ApiError::overloaded("too many waiting fetches and tails: retry later"))?);
        }
        let wake = due.map_or(until, |due| until.min(Instant::now() + due));
        tokio::select! {
            ready = app.db.group_ready(group) => ready?,
            () = tokio::time::sleep_until(wake) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }
}
