//! `GET /v1/snapshot`: the state, or what was written since an LSN, as a stream of chunks.
//!
//! Owns: the snapshots whose connection is gone, for as long as they may be asked to go on. Does not own: the
//! chunks (see the engine), nor what a client does with them.
//!
//! A reply names its snapshot. A client whose connection broke asks for the same one from the first chunk that
//! it has not whole; a view of the state and the log's segments are kept for it for [`SNAPSHOT_KEEP`], no longer.
//! One that was sent to its end is kept, too, for [`SENT_SNAPSHOT_KEEP`]: its last megabytes may have been in the
//! buffers of a connection that broke, and the server can't tell.
//!
//! Invariant: no more than the engine's `MAX_OPEN_SNAPSHOTS` are here. What is kept gives way to a new one, those
//! that were sent to their end first, then those that have been kept longest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use thalweg_engine::snapshot::{Snapshot, SnapshotError, SnapshotOptions};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::{SENT_SNAPSHOT_KEEP, SNAPSHOT_KEEP},
};
use thalweg_types::Action;
use tokio::time::Instant;

use crate::{
    call::{Answer, Call},
    pages::{self, First, Framing, Page, PageSource},
    parse::{Media, SnapshotQuery},
};

/// Names a snapshot, for a client that must go on with it.
const SNAPSHOT: HeaderName = HeaderName::from_static("thalweg-snapshot");
/// What is applied in a snapshot: where the next increment begins.
const LSN: HeaderName = HeaderName::from_static("thalweg-lsn");

/// Snapshots by their names.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<u64, Place>,
    /// A task is there that forgets what is kept too long.
    is_swept: bool,
}

#[derive(Debug)]
enum Place {
    /// Somebody is reading it.
    Sending,
    /// Its connection is gone.
    Kept(Kept),
}

#[derive(Debug)]
struct Kept {
    snapshot: Box<Snapshot>,
    since: Instant,
    /// All of it was handed to the connection.
    is_sent: bool,
}

impl Kept {
    /// When it is forgotten.
    fn until(&self) -> Instant {
        self.since + if self.is_sent { SENT_SNAPSHOT_KEEP } else { SNAPSHOT_KEEP }
    }
}

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives all back that nobody is reading: the server stops.
    pub(crate) fn clear(&self) {
        self.table().places.retain(|_, place| matches!(place, Place::Sending));
    }

    /// Forgets those that nobody has asked for in time.
    fn expire(&self) {
        let now = Instant::now();
        self.table().places.retain(|_, place| match place {
            Place::Sending => true,
            Place::Kept(kept) => now < kept.until(),
        });
    }

    /// When the next one is to be forgotten; if there is none, nobody waits for it any more.
    fn next_end(&self) -> Option<Instant> {
        let mut table = self.table();
        let next = table.kept().map(|(_, kept)| kept.until()).min();
        table.is_swept = next.is_some();
        next
    }

    /// Gives up the one that is least likely to be asked for; says whether there was one.
    fn give_up_one(&self) -> bool {
        let mut table = self.table();
        let first = table.kept().min_by_key(|(name, kept)| (!kept.is_sent, kept.since, *name)).map(|(name, _)| name);
        first.is_some_and(|name| table.places.remove(&name).is_some())
    }

    fn remove(&self, name: u64) {
        self.table().places.remove(&name);
    }

    fn resume(&self, name: u64) -> Result<Box<Snapshot>, ApiError> {
        let mut table = self.table();
        match table.places.remove(&name) {
            Some(Place::Kept(kept)) => {
                table.places.insert(name, Place::Sending);
                Ok(kept.snapshot)
            }
            Some(Place::Sending) => {
                table.places.insert(name, Place::Sending);
                let message =
                    "the snapshot is still being sent: the server has not noticed yet that the connection broke";
                Err(ApiError::new(StatusCode::CONFLICT, "snapshot_busy", Action::Retry, message))
            }
            None => {
                let message = "the snapshot is not kept any more: take it anew";
                Err(ApiError::new(StatusCode::GONE, "snapshot_gone", Action::Fix, message))
            }
        }
    }

    /// Keeps it for a while; without a runtime the server is going down, and it is given back with the table.
    fn keep(self: &Arc<Self>, name: u64, kept: Kept) {
        let mut table = self.table();
        table.places.insert(name, Place::Kept(kept));
        if !table.is_swept
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            table.is_swept = true;
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }
}

impl Table {
    fn kept(&self) -> impl Iterator<Item = (u64, &Kept)> {
        self.places.iter().filter_map(|(name, place)| match place {
            Place::Kept(kept) => Some((*name, kept)),
            Place::Sending => None,
        })
    }
}

/// Forgets what is kept too long, until nothing is kept.
async fn sweep(snapshots: Weak<Snapshots>) {
    while let Some(end) = snapshots.upgrade().and_then(|snapshots| snapshots.next_end()) {
        tokio::time::sleep_until(end).await;
        if let Some(snapshots) = snapshots.upgrade() {
            snapshots.expire();
        }
    }
}

/// `GET /v1/snapshot`
pub(crate) async fn get(app: &Arc<App>, snapshots: &Arc<Snapshots>, call: &Call) -> Answer {
    let query = SnapshotQuery::parse(call.head.uri.query())?;
    snapshots.expire();
    let (name, snapshot) = match query {
        SnapshotQuery::Take { since, compression } => {
            let options = SnapshotOptions { since, compression, ..SnapshotOptions::default() };
            let snapshot = Box::new(take(app, snapshots, options).await?);
            let name = app.new_number();
            snapshots.table().places.insert(name, Place::Sending);
            (name, snapshot)
        }
        SnapshotQuery::Resume { name, chunk } => {
            let mut snapshot = snapshots.resume(name)?;
            if let Err(error) = snapshot.resume_at(chunk) {
                snapshots.remove(name);
                return Err(error.into());
            }
            (name, snapshot)
        }
    };
    let lsn = snapshot.info().applied.lsn;
    let sending = Sending { snapshots: Arc::clone(snapshots), name, snapshot: Some(snapshot), is_sent: false };
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

async fn body(sending: Sending) -> Result<Body, ApiError> {
    pages::body(sending, First::Blocking, Framing::Chunks).await
}

/// On a blocking thread: it waits for the log's sync.
async fn take(app: &App, snapshots: &Arc<Snapshots>, options: SnapshotOptions) -> Result<Snapshot, ApiError> {
    let (db, snapshots) = (app.db.blocking().clone(), Arc::clone(snapshots));
    let taken = tokio::task::spawn_blocking(move || {
        loop {
            match db.snapshot(&options) {
                // Somebody who may come back must not keep out somebody who is there.
                Err(SnapshotError::TooMany { .. }) if snapshots.give_up_one() => {}
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

/// A snapshot on its way. What is left of it when it is dropped is kept for a while.
struct Sending {
    snapshots: Arc<Snapshots>,
    name: u64,
    /// None once it has failed.
    snapshot: Option<Box<Snapshot>>,
    is_sent: bool,
}

impl PageSource for Sending {
    fn app(&self) -> Option<&Arc<App>> {
        // So many are taken at a time, and a chunk is as large as it may be.
        None
    }

    fn page(&mut self) -> Result<Page, ApiError> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(Page { frames: Vec::new(), last: true }) };
        match snapshot.next_chunk() {
            Ok(Some(chunk)) => Ok(Page { frames: vec![chunk], last: false }),
            Ok(None) => {
                self.is_sent = true;
                Ok(Page { frames: Vec::new(), last: true })
            }
            Err(error) => {
                // It will not get better.
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
            Some(snapshot) => {
                let kept = Kept { snapshot, since: Instant::now(), is_sent: self.is_sent };
                self.snapshots.keep(self.name, kept);
            }
        }
    }
}
