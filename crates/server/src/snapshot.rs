//! `GET /v1/snapshot`: the state, or what was written since an LSN, as a stream of chunks.
//!
//! Owns: the snapshots whose connection broke, for as long as they may be asked to go on. Does not own: the
//! chunks (see the engine), nor what a client does with them.
//!
//! A reply names its snapshot. A client whose connection broke asks for the same one from the first chunk that
//! it has not whole; a view of the state and the log's segments are kept for it for [`SNAPSHOT_KEEP`], no longer.
//! One that was sent to its end is given back at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use thalweg_engine::snapshot::{Snapshot, SnapshotError, SnapshotOptions};
use thalweg_types::{Action, Classified};

use crate::{
    app::{Answer, App, Call},
    error::ApiError,
    limits::SNAPSHOT_KEEP,
    pages::{self, First, Framing, Page, PageSource},
    parse::{Media, SnapshotQuery},
};

/// Names a snapshot, for a client that must go on with it.
pub const SNAPSHOT: HeaderName = HeaderName::from_static("thalweg-snapshot");
/// What is applied in a snapshot: where the next increment begins.
pub const LSN: HeaderName = HeaderName::from_static("thalweg-lsn");

/// Snapshots by their names.
#[derive(Debug, Default)]
pub struct Snapshots {
    table: Mutex<HashMap<u64, Place>>,
}

#[derive(Debug)]
enum Place {
    /// Somebody is reading it.
    Sending,
    /// Its connection broke then.
    Kept(Box<Snapshot>, Instant),
}

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Place>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets those that nobody has asked for in time.
    fn expire(&self) {
        let now = Instant::now();
        self.table().retain(|_, place| match place {
            Place::Sending => true,
            Place::Kept(_, since) => now.duration_since(*since) < SNAPSHOT_KEEP,
        });
    }

    /// Gives up the one that was kept longest; says whether there was one.
    fn give_up_one(&self) -> bool {
        let mut table = self.table();
        let kept = table.iter().filter_map(|(name, place)| match place {
            Place::Kept(_, since) => Some((*since, *name)),
            Place::Sending => None,
        });
        let oldest = kept.min().map(|(_, name)| name);
        oldest.is_some_and(|name| table.remove(&name).is_some())
    }

    fn resume(&self, name: u64) -> Result<Box<Snapshot>, ApiError> {
        let mut table = self.table();
        match table.remove(&name) {
            Some(Place::Kept(snapshot, _)) => {
                table.insert(name, Place::Sending);
                Ok(snapshot)
            }
            Some(Place::Sending) => {
                table.insert(name, Place::Sending);
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
}

/// `GET /v1/snapshot`
pub async fn get(app: &Arc<App>, call: &Call) -> Answer {
    let query = SnapshotQuery::parse(call.head.uri.query())?;
    app.snapshots.expire();
    let (name, snapshot) = match query {
        SnapshotQuery::Take { since, compression } => {
            let options = SnapshotOptions { since, compression, ..SnapshotOptions::default() };
            let snapshot = Box::new(take(app, options).await?);
            let name = app.new_number();
            app.snapshots.table().insert(name, Place::Sending);
            (name, snapshot)
        }
        SnapshotQuery::Resume { name, chunk } => {
            let mut snapshot = app.snapshots.resume(name)?;
            if let Err(error) = snapshot.resume_at(chunk) {
                app.snapshots.table().remove(&name);
                return Err(error.into());
            }
            (name, snapshot)
        }
    };
    let lsn = snapshot.info().applied.lsn;
    let sending = Sending { app: Arc::clone(app), name, snapshot: Some(snapshot) };
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
async fn take(app: &Arc<App>, options: SnapshotOptions) -> Result<Snapshot, ApiError> {
    let app = Arc::clone(app);
    let taken = tokio::task::spawn_blocking(move || {
        loop {
            match app.db.blocking().snapshot(&options) {
                // Somebody who may come back must not keep out somebody who is there.
                Err(SnapshotError::TooMany { .. }) if app.snapshots.give_up_one() => {}
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
    app: Arc<App>,
    name: u64,
    snapshot: Option<Box<Snapshot>>,
}

impl PageSource for Sending {
    fn page(&mut self) -> Result<Page, ApiError> {
        let Some(snapshot) = &mut self.snapshot else { return Ok(Page { frames: Vec::new(), last: true }) };
        match snapshot.next_chunk() {
            Ok(Some(chunk)) => Ok(Page { frames: vec![chunk], last: false }),
            Ok(None) => {
                self.snapshot = None;
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
        let Some(snapshot) = self.snapshot.take() else {
            self.app.snapshots.table().remove(&self.name);
            return;
        };
        self.app.snapshots.table().insert(self.name, Place::Kept(snapshot, Instant::now()));
        // Without a runtime the server is going down, and the table with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let app = Arc::downgrade(&self.app);
            runtime.spawn(async move {
                tokio::time::sleep(SNAPSHOT_KEEP).await;
                if let Some(app) = app.upgrade() {
                    app.snapshots.expire();
                }
            });
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        let status = match &error {
            SnapshotError::Compacted { .. } | SnapshotError::ChunkGone { .. } => StatusCode::GONE,
            SnapshotError::PastEnd { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            SnapshotError::TooMany { .. } => StatusCode::SERVICE_UNAVAILABLE,
            SnapshotError::Expired => StatusCode::INSUFFICIENT_STORAGE,
            SnapshotError::State(_) | SnapshotError::Log(_) | SnapshotError::Io(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut api = Self::new(status, error.code(), error.action(), error.to_string());
        api.detail = match error {
            SnapshotError::Compacted { oldest, .. } => Some(("oldest", oldest.0)),
            SnapshotError::PastEnd { applied, .. } => Some(("applied", applied.0)),
            SnapshotError::ChunkGone { oldest, .. } => Some(("oldest_chunk", oldest)),
            _ => None,
        };
        api
    }
}
