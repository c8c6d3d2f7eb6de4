//! Fetches of consumer groups that may wait for records.
//!
//! Waiting fetches count against `max_tails`, over every protocol. A fetch returns at most as many records as the
//! client requested, so a client that requests only what it can process is never sent more.
//!
//! A delivery takes effect before its reply exists. So while replies use up the bound on their bytes, a fetch delivers
//! fewer records, and a single large record for whose reply there is no room [goes back](return_delivery) to its group.
//!
//! A fetch whose records have no room among the stored objects delivers only records that were delivered before, and is
//! refused if there are none ([`objects`](crate::objects)).
//!
//! A fetch that finds records is a command. The answer that there are none is not, so a member of a cluster first
//! passes a linearizable barrier, and looks once more: another leader may have appended records.

use std::sync::Arc;

use http::StatusCode;
use thalweg_engine::{Delivery, FetchRequest, Group, GroupStart, PreparedFetch, Ready, Stream, UnreadDelivery};
use thalweg_types::{
    Attempt, Durability, ReadLevel,
    budget::{Budget, BudgetSpent},
    command::groups::{Redelivery, Settlement},
};
use tokio::time::Instant;

use crate::{
    admission::{Account, Resource},
    app::App,
    error::ApiError,
    limits::DEFAULT_WAIT,
    objects::no_object_room,
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
    let (mut held, mut has_passed) = (None, app.cluster.is_none());
    loop {
        let due = match group.ready()? {
            Ready::Now => {
                let room = account.reply_room(request.max_bytes);
                let smaller = (room < request.max_bytes).then(|| FetchRequest { max_bytes: room, ..request.clone() });
                let mut prepared = prepare(app, account, group, smaller.as_ref().unwrap_or(request)).await?;
                let admitted = app.objects.admit_fetch(app.db.blocking(), account, &mut prepared)?;
                let held = admitted.ok_or_else(no_object_room)?;
                let unread = app.db.fetch_prepared(prepared, level).await;
                held.finish();
                let delivery = read(app, account, unread?).await?;
                if !delivery.is_empty() {
                    return Ok(delivery);
                }
                continue;
            }
            Ready::In(due) => due,
        };
        let is_stopping = *stopping.borrow();
        if is_stopping || Instant::now() >= until && has_passed {
            return Ok(Delivery::none(level));
        }
        if Instant::now() >= until {
            pass_barrier(app).await?;
            has_passed = true;
            continue;
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

/// Waits until this node's state shows all that was acknowledged before the call, if the node is a member of a cluster.
async fn pass_barrier(app: &App) -> Result<(), ApiError> {
    if let Some(cluster) = &app.cluster {
        cluster.handle.read(ReadLevel::Linearizable, (Instant::now() + DEFAULT_WAIT).into_std()).await?;
    }
    Ok(())
}

/// Performs the lookups before a fetch: on this thread if they are short and their bytes are in memory, else on another
/// one.
async fn prepare(
    app: &App,
    account: &Arc<Account>,
    group: &Group,
    request: &FetchRequest,
) -> Result<PreparedFetch, ApiError> {
    let spent = match Budget::RESIDENT.perform(|| PreparedFetch::new(group, request)) {
        Ok(prepared) => return Ok(prepared?),
        Err(spent) => spent,
    };
    // The records of a group with order per key are read to find their keys.
    let bytes = usize::try_from(request.max_bytes).unwrap_or(usize::MAX);
    let (group, request) = (group.clone(), request.clone());
    on_reader(app, account, spent, bytes, move || PreparedFetch::new(&group, &request)).await
}

/// Converts the start of a group by time to one by offset, so that the search for the time holds up no other client of
/// the calling thread. Returns other starts unchanged.
pub async fn resolve_start(
    app: &App,
    account: &Arc<Account>,
    stream: &Stream,
    start: GroupStart,
) -> Result<GroupStart, ApiError> {
    let GroupStart::Time(time) = start else { return Ok(start) };
    let offset = match Budget::RESIDENT.perform(|| stream.offset_at(time)) {
        Ok(found) => found?,
        Err(spent) => {
            let stream = stream.clone();
            on_reader(app, account, spent, 0, move || stream.offset_at(time)).await?
        }
    };
    Ok(GroupStart::Offset(offset))
}

/// Performs a read that has spent its budget again, on another thread.
async fn on_reader<T: Send + 'static, E: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    spent: BudgetSpent,
    bytes: usize,
    read: impl FnMut() -> Result<T, E> + Send + 'static,
) -> Result<T, ApiError>
where
    ApiError: From<E>,
{
    let read = app.readers.run_again(spent, account, bytes, read);
    Ok(read.await.map_err(|error| ApiError::classified(StatusCode::SERVICE_UNAVAILABLE, &error))??)
}

/// Reads the records of a delivery: on this thread if they are in memory, else on a thread that waits for the disk.
async fn read(app: &App, account: &Arc<Account>, unread: UnreadDelivery) -> Result<Delivery, ApiError> {
    // The bounds of the delivery limit the steps.
    let spent = match Budget::resident(u64::MAX).perform(|| unread.read()) {
        Ok(delivery) => return Ok(delivery?),
        Err(spent) => spent,
    };
    let bytes = usize::try_from(unread.max_bytes()).unwrap_or(usize::MAX);
    on_reader(app, account, spent, bytes, move || unread.read()).await
}

/// Returns the records of a delivery to their group, because there is no room for the reply that would contain them.
/// They do not count as delivered. The caller need not wait: if the return fails, the ack deadline of the records
/// passes.
pub fn return_delivery(app: &App, group: &Group, attempt: Attempt) {
    drop(app.db.nack_group(group, &[Settlement::all(attempt)], Redelivery::Uncounted, "", Durability::Os));
}
