//! Choice of the thread for a read: the connection's own thread, or one of the threads for reads that take long or wait
//! for the disk.
//!
//! A handler that only reads first runs on the thread of its connection with a small [budget](thalweg_types::budget).
//! If it spends the budget, the [readers](thalweg_serving::readers) run it again from the beginning. Does not own: the
//! reads.

use std::sync::{Arc, Mutex, PoisonError};

use axum_core::body::Body;
use http::StatusCode;
use thalweg_serving::{admission::Account, app::App, error::ApiError, readers::ReaderError};
use thalweg_types::{
    Action, Classified,
    budget::{self, BudgetSpent},
    limits::MAX_VALUE_BYTES,
    steps::SHORT_READ,
};

use crate::call::{Answer, Call};

/// A handler that only reads and needs no body.
pub(crate) type Read = fn(&Arc<App>, &Call) -> Answer;

/// Calls a handler that only reads, with the limit on work of a short read. Returns an error if the handler reaches the
/// limit.
#[inline]
pub(crate) fn briefly(app: &Arc<App>, call: &Call, read: Read) -> Result<Answer, BudgetSpent> {
    budget::within(SHORT_READ, || read(app, call))
}

/// Runs a handler that only reads on a thread for long reads.
pub(crate) async fn long(app: &Arc<App>, call: &Call, read: Read) -> Answer {
    again(BudgetSpent::Steps, app, call, read).await
}

/// Runs a handler again on another thread, after its first call has exceeded the work that a short read may do. `spent`
/// is the reason. If the handler needed the disk, a thread for reads from the disk runs it first.
pub(crate) async fn again(spent: BudgetSpent, app: &Arc<App>, call: &Call, read: Read) -> Answer {
    let (shared, account) = (Arc::clone(app), Arc::clone(&call.account));
    let (owner, head, id) = (Arc::clone(&account), call.head.clone(), call.id.clone());
    let fresh = Call::new(owner, head, id, Body::empty(), call.reply_memory);
    let call = Call { waits_since: call.waits_since.clone(), ..fresh };
    // The size of a value is unknown.
    let read = app.readers.run_again(spent, &account, MAX_VALUE_BYTES, move || read(&shared, &call));
    read.await.map_err(|error| failed(&error))?
}

/// Runs `read` on a thread for long reads. `bytes` is the approximate number of bytes of memory that the read needs.
pub(crate) async fn on_reader<T: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    bytes: usize,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    app.readers.run(account, bytes, read).await.map_err(|error| failed(&error))
}

/// Runs `search` again on another thread, after its first call has exceeded the work that a short read may do. `spent`
/// is the reason. `bytes` is the number of bytes of memory that the search needs; they are reserved only if it runs on
/// a thread for long reads.
pub(crate) async fn search_again<T: Send + 'static>(
    spent: BudgetSpent,
    app: &App,
    account: &Arc<Account>,
    bytes: usize,
    search: impl FnMut() -> T + Send + 'static,
) -> Result<T, ApiError> {
    app.readers.run_again(spent, account, bytes, search).await.map_err(|error| failed(&error))
}

/// Runs `work` again on another thread, after its first call has exceeded the work that a short read may do, for the
/// reason `spent`. Returns the result of the work and its `state`. The work's memory (in bytes) is reserved only if it
/// runs on a thread for long reads. `work` may be called twice here: if it waits for the disk and then takes too long,
/// it begins again. So it must not depend on changes that an earlier call has made to `state`.
pub(crate) async fn work_again<S: Send + 'static, T: Send + 'static>(
    spent: BudgetSpent,
    (app, account, bytes): (&App, &Arc<Account>, usize),
    state: S,
    mut work: impl FnMut(&mut S) -> T + Send + 'static,
) -> Result<(T, S), ApiError> {
    // The thread may still hold the closure when the result arrives, so the closure does not own the state.
    let state = Arc::new(Mutex::new(Some(state)));
    let shared = Arc::clone(&state);
    let search = move || {
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        work(state.as_mut().expect("it is taken behind the last call"))
    };
    let result = search_again(spent, app, account, bytes, search).await?;
    let state = state.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok((result, state.expect("it is taken once")))
}

/// Converts the error of a read that has returned no result to an API error.
fn failed(error: &ReaderError) -> ApiError {
    let status = match error.action() {
        Action::Stop => StatusCode::INTERNAL_SERVER_ERROR,
        Action::Fix | Action::Retry => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::classified(status, error)
}
