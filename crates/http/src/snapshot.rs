//! The handler of `GET /v1/snapshot`: streams the state, or everything written since an LSN, in chunks.
//!
//! Owns: snapshots whose connection ended, for as long as clients may resume them. Does not own: the format of the
//! chunks, which the engine defines.
//!
//! A reply names its snapshot. If the connection breaks, the client requests the same snapshot again, from the first
//! chunk that it did not receive completely. For this, the server keeps a view of the state and the log's segments for
//! [`SNAPSHOT_KEEP`]. It keeps a completely sent snapshot for [`SENT_SNAPSHOT_KEEP`], because its last megabytes may
//! have been in the buffers of a broken connection, and the server cannot detect that.
//!
//! Invariant: at most the engine's `MAX_OPEN_SNAPSHOTS` exist here. A new snapshot replaces a kept one: first those
//! that were sent completely, then those that have been kept longest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use axum_core::body::Body;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use thalweg_engine::snapshot::{Snapshot, SnapshotError, SnapshotOptions};
use thalweg_serving::{
    admission::{Account, AddressKey, Reservation, Resource},
    app::App,
    error::ApiError,
    limits::{SENT_SNAPSHOT_KEEP, SNAPSHOT_KEEP},
};
use thalweg_types::Action;
use tokio::time::Instant;

use crate::{
    call::{Answer, Call},
    describe::{BINARY, Binary},
    pages::{self, FirstPageThread, Framing, Page, PageSource},
    parse::{Media, SnapshotQuery},
};

/// Header that names a snapshot, so that a client can resume it.
const SNAPSHOT: HeaderName = HeaderName::from_static("thalweg-snapshot");
/// Header with the LSN up to which a snapshot contains the data. The next increment begins there.
const LSN: HeaderName = HeaderName::from_static("thalweg-lsn");

/// Snapshots that are being sent, or that are kept until clients resume them, by their names.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<u64, SnapshotSlot>,
    /// True while the background task that removes expired snapshots runs.
    is_swept: bool,
}

#[derive(Debug)]
enum SnapshotSlot {
    /// A connection is reading the snapshot.
    Sending,
    /// The snapshot's connection has ended, and the client may resume the snapshot.
    Kept(KeptSnapshot),
}

/// A snapshot that the server holds. As long as this value exists, the snapshot counts in the limit on open snapshots,
/// for the connection that took it.
#[derive(Debug)]
struct HeldSnapshot {
    snapshot: Box<Snapshot>,
    held: Reservation,
}

#[derive(Debug)]
struct KeptSnapshot {
    snapshot: HeldSnapshot,
    since: Instant,
    /// True if the server has passed all bytes of the snapshot to the connection.
    is_sent: bool,
}

impl KeptSnapshot {
    /// Returns the time at which the kept snapshot expires.
    fn until(&self) -> Instant {
        self.since + if self.is_sent { SENT_SNAPSHOT_KEEP } else { SNAPSHOT_KEEP }
    }
}

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases all kept snapshots. The server calls this when it stops.
    pub(crate) fn clear(&self) {
        self.table().slots.retain(|_, place| matches!(place, SnapshotSlot::Sending));
    }

    /// Releases the kept snapshots that have expired.
    fn expire(&self) {
        let now = Instant::now();
        self.table().slots.retain(|_, place| match place {
            SnapshotSlot::Sending => true,
            SnapshotSlot::Kept(kept) => now < kept.until(),
        });
    }

    /// Returns the time at which the next kept snapshot expires. Returns `None` if no snapshot is kept; the task that
    /// removes expired snapshots then ends.
    fn next_end(&self) -> Option<Instant> {
        let mut table = self.table();
        let next = table.kept().map(|(_, kept)| kept.until()).min();
        table.is_swept = next.is_some();
        next
    }

    /// Releases the kept snapshot that its client is least likely to resume: one that was sent completely if there is
    /// one, otherwise the one that was kept longest. Returns false if no snapshot is kept.
    fn evict_one(&self) -> bool {
        let mut table = self.table();
        let first = table.kept().min_by_key(|(name, kept)| (!kept.is_sent, kept.since, *name)).map(|(name, _)| name);
        first.is_some_and(|name| table.slots.remove(&name).is_some())
    }

    /// Releases one kept snapshot that a client of this address has taken: the one that the client is least likely to
    /// resume. Returns false if no snapshot of the address is kept.
    fn evict_one_of(&self, address: AddressKey) -> bool {
        let mut table = self.table();
        let kept = table.kept().filter(|(_, kept)| kept.snapshot.held.account().address() == address);
        let first = kept.min_by_key(|(name, kept)| (!kept.is_sent, kept.since, *name)).map(|(name, _)| name);
        first.is_some_and(|name| table.slots.remove(&name).is_some())
    }

    fn remove(&self, name: u64) {
        self.table().slots.remove(&name);
    }

    fn resume(&self, name: u64) -> Result<HeldSnapshot, ApiError> {
        let mut table = self.table();
        match table.slots.remove(&name) {
            Some(SnapshotSlot::Kept(kept)) => {
                table.slots.insert(name, SnapshotSlot::Sending);
                Ok(kept.snapshot)
            }
            Some(SnapshotSlot::Sending) => {
                table.slots.insert(name, SnapshotSlot::Sending);
                let message = "the snapshot is still being sent: the server has not detected the broken connection yet";
                Err(ApiError::new(StatusCode::CONFLICT, "snapshot_busy", Action::Retry, message))
            }
            None => {
                let message = "the snapshot has expired: take a new one";
                Err(ApiError::new(StatusCode::GONE, "snapshot_gone", Action::Fix, message))
            }
        }
    }

    /// Keeps a snapshot until it expires, so that a client can resume it. While the server shuts down there is no async
    /// runtime for the expiry. The snapshot is then kept until the server drops all of them.
    fn keep(self: &Arc<Self>, name: u64, kept: KeptSnapshot) {
        let mut table = self.table();
        table.slots.insert(name, SnapshotSlot::Kept(kept));
        if !table.is_swept
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            table.is_swept = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }
}

impl Table {
    fn kept(&self) -> impl Iterator<Item = (u64, &KeptSnapshot)> {
        self.slots.iter().filter_map(|(name, place)| match place {
            SnapshotSlot::Kept(kept) => Some((*name, kept)),
            SnapshotSlot::Sending => None,
        })
    }
}

/// Removes expired snapshots until none is kept.
async fn sweep(snapshots: Weak<Snapshots>) {
    while let Some(end) = snapshots.upgrade().and_then(|snapshots| snapshots.next_end()) {
        tokio::time::sleep_until(end).await;
        if let Some(snapshots) = snapshots.upgrade() {
            snapshots.expire();
        }
    }
}

/// Handles `GET /v1/snapshot`: sends a backup of the whole state, or of everything written since an LSN.
#[utoipa::path(
    get, path = "/v1/snapshot", params(SnapshotQuery),
    responses((status = 200, description = "The chunks.", body = Binary, content_type = BINARY,
        headers(("Thalweg-Snapshot" = String, description = "Name of the snapshot, with which a client resumes it."),
            ("Thalweg-LSN" = u64, description = "LSN of the snapshot, where the next increment begins."))))
)]
pub(crate) async fn get(app: &Arc<App>, snapshots: &Arc<Snapshots>, call: &Call) -> Answer {
    let query = SnapshotQuery::parse(call.head.uri.query())?;
    snapshots.expire();
    let (name, snapshot) = match query {
        SnapshotQuery::Take { since, compression } => {
            let chunk_bytes = app.config.snapshot_chunk_bytes();
            let options = SnapshotOptions { since, compression, chunk_bytes, ..SnapshotOptions::default() };
            let held = share(snapshots, &call.account)?;
            let snapshot = Box::new(take(app, snapshots, options).await?);
            let name = app.new_number();
            snapshots.table().slots.insert(name, SnapshotSlot::Sending);
            (name, HeldSnapshot { snapshot, held })
        }
        SnapshotQuery::Resume { name, chunk } => {
            let mut held = snapshots.resume(name)?;
            if let Err(error) = held.snapshot.resume_at(chunk) {
                snapshots.remove(name);
                return Err(error.into());
            }
            (name, held)
        }
    };
    let lsn = snapshot.snapshot.info().applied.lsn;
    let reader = Arc::clone(&call.account);
    let (app, snapshots) = (Arc::clone(app), Arc::clone(snapshots));
    let sending = Sending { app, snapshots, reader, name, snapshot: Some(snapshot), is_sent: false };
    let mut response = Response::new(body(sending).await?);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Media::Binary.name()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(LSN, HeaderValue::from(lsn.0));
    if let Ok(name) = HeaderValue::from_str(&format!("{name:016x}")) {
        headers.insert(SNAPSHOT, name);
    }
    Ok(response)
}

/// Counts a new snapshot for a connection, within the limit on open snapshots. A client address may use only a part of
/// this limit. If the address has used up its part, first releases a snapshot of this address that no connection reads.
fn share(snapshots: &Snapshots, account: &Arc<Account>) -> Result<Reservation, ApiError> {
    loop {
        if let Some(held) = account.take_quietly(Resource::Snapshots, 1) {
            return Ok(held);
        }
        if !snapshots.evict_one_of(account.address()) {
            return account.take(Resource::Snapshots, 1).ok_or_else(|| {
                ApiError::overloaded("too many snapshots are in progress, or too many for this address: retry later")
            });
        }
    }
}

async fn body(sending: Sending) -> Result<Body, ApiError> {
    pages::body(sending, FirstPageThread::Blocking, Framing::Chunks).await
}

/// Takes a snapshot on a thread for blocking work, because taking it waits for the log's sync.
async fn take(app: &App, snapshots: &Arc<Snapshots>, options: SnapshotOptions) -> Result<Snapshot, ApiError> {
    let (db, snapshots) = (app.db.blocking().clone(), Arc::clone(snapshots));
    let taken = tokio::task::spawn_blocking(move || {
        loop {
            match db.snapshot(&options) {
                // A client may never resume a kept snapshot, so a kept snapshot must not block a client that waits now.
                Err(SnapshotError::TooMany { .. }) if snapshots.evict_one() => {}
                taken => return taken,
            }
        }
    });
    match taken.await {
        Ok(taken) => Ok(taken?),
        Err(error) => Err(ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            Action::Stop,
            format!("taking the snapshot failed: {error}"),
        )),
    }
}

/// A snapshot that is being sent. If it is dropped before its end, clients can resume the snapshot for a while.
struct Sending {
    app: Arc<App>,
    snapshots: Arc<Snapshots>,
    /// Account of the connection that reads the snapshot. A resumed snapshot still counts for the connection that took
    /// it.
    reader: Arc<Account>,
    name: u64,
    /// The snapshot that the engine makes; `None` after it has failed.
    snapshot: Option<HeldSnapshot>,
    is_sent: bool,
}

impl PageSource for Sending {
    fn reader(&self) -> (&Arc<App>, &Arc<Account>) {
        (&self.app, &self.reader)
    }

    fn is_counted(&self) -> bool {
        // Pages are not counted: the number of snapshots and the size of a chunk are bounded already.
        false
    }

    fn restart(&mut self) {
        // The first chunk is read on a thread for long reads, which needs no second attempt.
    }

    fn page(&mut self) -> Result<Page, ApiError> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(Page { frames: Vec::new(), last: true }) };
        match snapshot.snapshot.next_chunk() {
            Ok(Some(chunk)) => Ok(Page { frames: vec![chunk], last: false }),
            Ok(None) => {
                self.is_sent = true;
                Ok(Page { frames: Vec::new(), last: true })
            }
            Err(error) => {
                // Another attempt would fail too.
                self.snapshot = None;
                Err(error.into())
            }
        }
    }

    fn failure(&mut self, _: &ApiError) -> Option<bytes::Bytes> {
        None
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        match self.snapshot.take() {
            None => self.snapshots.remove(self.name),
            // If the client did not read, the server does not keep the snapshot, because it holds the log.
            Some(_) if self.reader.is_cut() => self.snapshots.remove(self.name),
            Some(snapshot) => {
                let kept = KeptSnapshot { snapshot, since: Instant::now(), is_sent: self.is_sent };
                self.snapshots.keep(self.name, kept);
            }
        }
    }
}
