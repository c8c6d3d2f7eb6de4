//! Fetches from consumer groups, for all protocols: fetches that may wait for records, and the fetches of pushes.
//!
//! Owns: the wait for records, and the records of a delivery until its reply is on its way. Does not own: the format of
//! replies, or the credit of a push (`pushing`).
//!
//! Waiting fetches count against `max_tails`, over every protocol. A fetch returns at most as many records as the
//! client requested, so a client that requests only as many as it can process never gets more.
//!
//! A delivery takes effect before its reply exists. While replies use up the bound on their bytes, a fetch therefore
//! delivers fewer records. A single large record for whose reply there is no room goes back to its group. The records
//! also go back if the client disconnects or cancels its request before the reply is on its way: [`HeldRecords`]
//! returns them when it is dropped. If the fetch command is still being committed at that time, another task finishes
//! it.
//!
//! If the new records of a fetch would exceed the memory for stored objects, the fetch delivers only records that were
//! delivered before. If there are none, the fetch is rejected ([`objects`](crate::objects)).
//!
//! A fetch that finds records is a command. An empty answer is not a command, so a member of a cluster first passes a
//! linearizable barrier, and looks for records once more: another leader may have appended some.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use thalweg_engine::{
    AsyncDatabase, Delivery, FetchRequest, Group, GroupError, GroupStart, PreparedFetch, Ready, Stream, UnreadDelivery,
};
use thalweg_types::{
    Action, Attempt, Durability, ReadLevel,
    budget::{Budget, BudgetSpent},
    command::groups::{Redelivery, Settlement},
};
use tokio::{runtime::Handle, time::Instant};

use crate::{
    admission::{Account, Resource},
    app::App,
    error::ApiError,
    objects::{ObjectRoom, no_object_room},
};

/// A client that fetches from a consumer group.
#[derive(Clone, Copy, Debug)]
pub struct Fetcher<'a> {
    /// State that all protocols of the server share.
    pub app: &'a Arc<App>,
    /// Account of the client's connection.
    pub account: &'a Arc<Account>,
    /// Database handle of the client's request, which proposes the fetches.
    pub db: &'a AsyncDatabase,
    /// Group from which the client fetches.
    pub group: &'a Group,
    /// Durability level that a delivery reaches before the client gets its records.
    pub level: Durability,
    /// Flag that is set while the request may have taken effect. It is set when a command is proposed, and cleared if
    /// the command has delivered nothing. `None` if the caller does not need it.
    pub begun: Option<&'a AtomicBool>,
}

/// Reason why a fetch of records from a consumer group failed.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The consumer group or its stream does not exist any more, or the fetch command failed.
    Group(GroupError),
    /// The lookup before the fetch command failed, or the read of the delivered records after the command.
    Read(ApiError),
    /// The memory for stored objects has no room for more unsettled records, so the group cannot deliver new ones.
    NoRoom,
}

impl From<GroupError> for FetchError {
    fn from(error: GroupError) -> Self {
        Self::Group(error)
    }
}

impl From<ApiError> for FetchError {
    fn from(error: ApiError) -> Self {
        Self::Read(error)
    }
}

impl From<FetchError> for ApiError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Group(error) => error.into(),
            FetchError::Read(error) => error,
            FetchError::NoRoom => no_object_room(),
        }
    }
}

impl Fetcher<'_> {
    /// Fetches records. Waits for records as long as the request allows, but not after the server begins to stop.
    /// Before a member of a cluster returns an empty answer, it waits at most for `patience` until the cluster confirms
    /// the answer.
    ///
    /// The caller may drop the future. Records that the future was about to return then go back to their group.
    pub async fn wait_and_fetch(
        &self,
        request: &FetchRequest,
        patience: Duration,
    ) -> Result<(Delivery, HeldRecords), ApiError> {
        let Self { app, account, group, .. } = *self;
        let until = Instant::now() + request.wait;
        let mut stopping = app.stopping.clone();
        let (mut held, mut has_passed) = (None, app.cluster.is_none());
        loop {
            let due = match group.ready()? {
                Ready::Now => {
                    let room = account.reply_room(request.max_bytes);
                    let smaller =
                        (room < request.max_bytes).then(|| FetchRequest { max_bytes: room, ..request.clone() });
                    let (delivery, records) = self.fetch(smaller.as_ref().unwrap_or(request)).await?;
                    if !delivery.is_empty() {
                        return Ok((delivery, records));
                    }
                    continue;
                }
                Ready::In(due) => due,
            };
            let is_stopping = *stopping.borrow();
            if is_stopping || Instant::now() >= until && has_passed {
                return Ok((Delivery::none(self.level), HeldRecords::none(app, group)));
            }
            if Instant::now() >= until {
                pass_barrier(app, patience).await?;
                has_passed = true;
                continue;
            }
            if held.is_none() {
                let taken = account.take(Resource::Tails, 1);
                held =
                    Some(taken.ok_or_else(|| ApiError::overloaded("too many waiting fetches and tails: retry later"))?);
            }
            let wake = due.map_or(until, |due| until.min(Instant::now() + due));
            tokio::select! {
                ready = app.db.group_ready(group) => ready?,
                () = tokio::time::sleep_until(wake) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }

    /// Fetches records once, without waiting for records to arrive. Lookups and reads that take long or wait for the
    /// disk run on other threads. The delivery may be empty.
    ///
    /// The caller may drop the future. Records that the future was about to return then go back to their group.
    pub(crate) async fn fetch(&self, request: &FetchRequest) -> Result<(Delivery, HeldRecords), FetchError> {
        let Self { app, account, group, .. } = *self;
        let mut prepared = prepare(app, account, group, request).await?;
        let admitted = app.objects.admit_fetch(app.db.blocking(), account, &mut prepared)?;
        let room = Some(admitted.ok_or(FetchError::NoRoom)?);
        self.note_begun(true);
        let proposed = self.db.fetch_prepared(prepared, self.level);
        let proposed =
            ProposedFetch { app: Arc::clone(app), group: group.clone(), room, committing: Some(Box::pin(proposed)) };
        let (unread, held) = proposed.await?;
        match read(app, account, unread).await {
            Ok(delivery) if delivery.is_empty() => {
                self.note_begun(false);
                held.hand_over();
                Ok((delivery, HeldRecords::none(app, group)))
            }
            Ok(delivery) => Ok((delivery, held)),
            Err(error) => {
                held.read_failed(&error);
                Err(error.into())
            }
        }
    }

    fn note_begun(&self, has_begun: bool) {
        if let Some(begun) = self.begun {
            begun.store(has_begun, Ordering::Relaxed);
        }
    }
}

/// Guard of the records that a fetch has delivered, until they are on their way to the client. If the guard is dropped
/// earlier, the records return to their group, and do not count as delivered.
#[must_use = "dropped, it returns the records to their group"]
#[derive(Debug)]
pub struct HeldRecords {
    app: Arc<App>,
    group: Group,
    /// Number of the delivery whose records return to the group when the guard is dropped; `None` if there are no
    /// records to return.
    attempt: Option<Attempt>,
}

impl HeldRecords {
    /// Creates a guard that holds no records, for a delivery that is empty.
    pub(crate) fn none(app: &Arc<App>, group: &Group) -> Self {
        Self::new(app, group, None)
    }

    fn new(app: &Arc<App>, group: &Group, attempt: Option<Attempt>) -> Self {
        Self { app: Arc::clone(app), group: group.clone(), attempt }
    }

    /// Ends the guard because the records are on their way to the client. The records stay with the client.
    pub fn hand_over(mut self) {
        self.attempt = None;
    }

    /// Handles records that could not be read. They return to their group if a later read may succeed. Otherwise their
    /// ack deadline passes and the delivery counts, so that they become dead letters in the end.
    fn read_failed(self, error: &ApiError) {
        if error.action != Action::Retry {
            self.hand_over();
        }
    }
}

impl Drop for HeldRecords {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            // The result is ignored: if the return fails, the ack deadline of the records passes.
            let settlements = [Settlement::all(attempt)];
            drop(self.app.db.nack_group(&self.group, &settlements, Redelivery::Uncounted, "", Durability::Os));
        }
    }
}

/// Future of a fetch command that is being committed.
type Committing = Pin<Box<dyn Future<Output = Result<UnreadDelivery, GroupError>> + Send>>;

/// A fetch command that was proposed and may still be committing. If this future is dropped before the command has an
/// outcome, a new task waits for the command, and returns its records to their group.
struct ProposedFetch {
    app: Arc<App>,
    group: Group,
    /// Memory reserved for the group's new unsettled records; `None` once the command has an outcome.
    room: Option<ObjectRoom>,
    /// Future of the command; `None` once the command has an outcome.
    committing: Option<Committing>,
}

impl Future for ProposedFetch {
    type Output = Result<(UnreadDelivery, HeldRecords), GroupError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let committing = self.committing.as_mut().expect("not polled after its end");
        let fetched = ready!(committing.as_mut().poll(cx));
        self.committing = None;
        if let Some(room) = self.room.take() {
            room.finish();
        }
        Poll::Ready(fetched.map(|unread| {
            let held = HeldRecords::new(&self.app, &self.group, unread.attempt());
            (unread, held)
        }))
    }
}

impl Drop for ProposedFetch {
    fn drop(&mut self) {
        let Some(committing) = self.committing.take() else { return };
        // Without a runtime the process is ending. The ack deadline of the records then passes.
        let Ok(runtime) = Handle::try_current() else { return };
        let (app, group, room) = (Arc::clone(&self.app), self.group.clone(), self.room.take());
        runtime.spawn(async move {
            let committed = committing.await;
            if let Some(room) = room {
                room.finish();
            }
            if let Ok(unread) = committed {
                drop(HeldRecords::new(&app, &group, unread.attempt()));
            }
        });
    }
}

/// On a member of a cluster, waits until this node's state contains every change that the cluster acknowledged before
/// the call. Returns immediately on a node alone.
async fn pass_barrier(app: &App, patience: Duration) -> Result<(), ApiError> {
    if let Some(cluster) = &app.cluster {
        cluster.handle.read(ReadLevel::Linearizable, (Instant::now() + patience).into_std()).await?;
    }
    Ok(())
}

/// Prepares a fetch command: looks up in the stream what the command needs, such as how many records fit into the
/// request's byte limit. If this takes little work and needs only data in memory, it runs on this thread, and otherwise
/// on another thread.
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

/// Converts the start of a group from a time to an offset. The search for the time may run on another thread, so that
/// it does not delay other clients of the calling thread. Returns other starts unchanged.
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

/// Performs a read again on another thread, because the first attempt on this thread reached the limit on its work.
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

/// Reads the records of a delivery: on this thread if they are in memory, otherwise on a thread that waits for the
/// disk.
async fn read(app: &App, account: &Arc<Account>, unread: UnreadDelivery) -> Result<Delivery, ApiError> {
    // The bounds of the delivery limit the steps.
    let spent = match Budget::resident(u64::MAX).perform(|| unread.read()) {
        Ok(delivery) => return Ok(delivery?),
        Err(spent) => spent,
    };
    let bytes = usize::try_from(unread.max_bytes()).unwrap_or(usize::MAX);
    on_reader(app, account, spent, bytes, move || unread.read()).await
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, ops::ControlFlow};

    use thalweg_engine::{Database, Options};
    use thalweg_types::{command::groups::GroupConfig, record::RecordBatch};
    use tokio::sync::watch;

    use super::*;
    use crate::{admission::AddressKey, config::Config, limits::DEFAULT_WAIT, readers::ReaderError};

    fn waits() -> FetchRequest {
        FetchRequest { wait: Duration::from_secs(60), ..FetchRequest::default() }
    }

    /// A group over a stream with one record. Its ack deadline is longer than any test takes.
    struct TestGroup {
        app: Arc<App>,
        account: Arc<Account>,
        group: Group,
        _stop: watch::Sender<bool>,
        _dir: tempfile::TempDir,
    }

    impl TestGroup {
        fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let db = Database::open(dir.path(), Options::default()).unwrap();
            let stream = db.stream("s").unwrap();
            let mut batch = RecordBatch::new();
            batch.push_payload(b"job").unwrap();
            stream.append(&batch).unwrap();
            let config = GroupConfig { ack_deadline: Duration::from_secs(3600), ..GroupConfig::default() };
            let (group, _) = stream.create_group("g", GroupStart::Beginning, &config).unwrap();
            let (stop, stopping) = watch::channel(false);
            let app = App::new(Config::default(), &db, stopping);
            let account = app.admission.account(AddressKey::LOCAL);
            Self { app, account, group, _stop: stop, _dir: dir }
        }

        fn fetcher(&self) -> Fetcher<'_> {
            let Self { app, account, group, .. } = self;
            Fetcher { app, account, db: &app.db, group, level: Durability::Disk, begun: None }
        }

        /// Fetches the record, and waits for it if necessary. Does not settle the record. Returns its number of
        /// deliveries.
        async fn fetch(&self) -> Vec<u32> {
            let (delivery, held) = self.fetcher().wait_and_fetch(&waits(), DEFAULT_WAIT).await.unwrap();
            held.hand_over();
            let mut deliveries = Vec::new();
            let visited = delivery.for_each(&mut |message| {
                deliveries.push(message.deliveries);
                ControlFlow::Continue(())
            });
            visited.unwrap();
            deliveries
        }
    }

    #[tokio::test]
    async fn a_fetch_that_is_dropped_gives_its_records_back_uncounted() {
        let jobs = TestGroup::start();
        let begun = AtomicBool::new(false);
        let fetcher = Fetcher { begun: Some(&begun), ..jobs.fetcher() };
        let request = FetchRequest::default();
        let mut fetching = Box::pin(fetcher.fetch(&request));
        // This poll proposes the command. The database may even have committed it, and the record may have been read,
        // by now.
        drop(poll_fn(|cx| Poll::Ready(fetching.as_mut().poll(cx))).await);
        drop(fetching);
        assert!(begun.load(Ordering::Relaxed), "a client that cancels now cannot know the effect");
        assert_eq!(jobs.fetch().await, [1]);
    }

    #[tokio::test]
    async fn records_that_could_not_be_read_go_back_if_a_later_read_may_succeed() {
        let jobs = TestGroup::start();
        let failed = |error: &ReaderError| ApiError::classified(StatusCode::SERVICE_UNAVAILABLE, error);
        let (_, held) = jobs.fetcher().fetch(&FetchRequest::default()).await.unwrap();
        held.read_failed(&failed(&ReaderError::NoThread));
        let (delivery, held) = jobs.fetcher().wait_and_fetch(&waits(), DEFAULT_WAIT).await.unwrap();
        assert_eq!(delivery.record_count(), 1);
        held.read_failed(&failed(&ReaderError::Panicked));
        assert_eq!(jobs.group.info().unwrap().in_flight, 1, "the delivery counts, and the record lapses");
    }
}
