//! A directory that this process opens, with the HTTP API over it but without sockets.
//!
//! Invariant: while the directory is open, its lock excludes every other process. So only this process can change it,
//! and a tail or a watch ends when it has shown all that exists.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum_core::body::Body;
use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use thalweg_engine::{Create, Database, OpenError, Options};
use thalweg_server::{
    app::App,
    config::{Config, Span},
    digest_json, http, node_status,
};
use thalweg_types::Durability;
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};
use ureq::http::{Request, Response};

use crate::{failure::Failure, offline, span::parse_span};

/// Time without changes after which a watch reports its position. A watch of a directory then ends, because no other
/// process can change the directory.
const PROGRESS_AFTER: Duration = Duration::from_millis(100);

/// Access of a command to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The command reads. A missing directory is not created.
    Read,
    /// The command inspects the state without changing it. No maintenance runs, and closing writes no log entry, so
    /// that a second inspection finds the same state.
    Inspect,
    /// The command writes. A missing directory is created.
    Write,
}

/// A data directory that this process has opened, and the HTTP API over it.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    database: Database,
    access: Access,
    http: Arc<http::Http>,
    runtime: Arc<Runtime>,
    /// Sender of the API's stop signal. The API runs as long as this sender exists and sends nothing.
    _stop: watch::Sender<bool>,
}

impl Directory {
    /// Opens a data directory. `durability` is the default durability of its writes; `None` selects the engine's
    /// default.
    pub(super) fn open(path: &Path, access: Access, durability: Option<Durability>) -> Result<Self, Failure> {
        let create = if access == Access::Write { Create::IfMissing } else { Create::Never };
        let mut options = Options { create, ..offline::options()? };
        options.durability = durability.unwrap_or(options.durability);
        options.max_clock_jump = max_clock_jump(options.max_clock_jump)?;
        options.scrub_interval = Duration::ZERO;
        if access == Access::Inspect {
            options.maintenance_interval = Duration::ZERO;
            options.max_clock_jump = Duration::ZERO;
        }
        let config =
            Config { durability: options.durability, tail_keep_alive: Span(PROGRESS_AFTER), ..Config::default() };
        let database = Database::open(path, options).map_err(|error| match error {
            OpenError::Locked { .. } => Failure::of(&error)
                .then("leave out --data to use the running server, with its address in --server or THALWEG_SERVER"),
            error => Failure::of(&error),
        })?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        let (stop, stopping) = watch::channel(false);
        let http = http::Http::new(&App::new(config, &database, stopping), Vec::new());
        Ok(Self { path: path.to_owned(), database, access, http, runtime: Arc::new(runtime), _stop: stop })
    }

    /// Executes an HTTP request on the directory. Returns the reply, even if its status is an error.
    pub(super) fn exchange(&self, request: Request<Vec<u8>>) -> Response<impl Read + Send + use<>> {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let response = self.runtime.block_on(self.http.respond(request));
        response.map(|body| BodyReader { runtime: Arc::clone(&self.runtime), body, chunk: Bytes::new() })
    }

    /// Returns the status of the node that the opened directory contains, without figures that only a server has.
    pub(super) fn status(&self) -> Value {
        node_status(&self.database)
    }

    /// Returns the revision of the newest change in the directory.
    pub(super) fn revision(&self) -> u64 {
        self.database.stats().applied_revision.0
    }

    /// Computes the digest of the present state, without writing a log entry for the digest. Calls `progress` with the
    /// number of rows read so far.
    pub(super) fn digest(&self, progress: &mut dyn FnMut(u64)) -> Result<Value, Failure> {
        let report = self.database.state_view().digest(progress).map_err(|error| Failure::of(&error))?;
        Ok(digest_json(&report))
    }

    /// Closes the directory. Does nothing if it was opened only to be inspected.
    pub(super) fn close(&self) -> Result<(), Failure> {
        if self.access == Access::Inspect {
            return Ok(());
        }
        self.http.stop();
        self.database.close().map_err(|error| Failure::of(&error))
    }
}

/// Returns the limit on jumps of the wall clock: the value in the environment, which `serve` reads too, or `default`.
fn max_clock_jump(default: Duration) -> Result<Duration, Failure> {
    let Ok(text) = std::env::var("THALWEG_MAX_CLOCK_JUMP") else { return Ok(default) };
    parse_span(&text).map_err(|why| Failure::usage(format!("THALWEG_MAX_CLOCK_JUMP={text}: {why}")))
}

/// Reader of the body of a reply of the HTTP API.
struct BodyReader {
    runtime: Arc<Runtime>,
    body: Body,
    chunk: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.runtime.block_on(self.body.frame()) {
                Some(frame) => self.chunk = frame.map_err(io::Error::other)?.into_data().unwrap_or_default(),
                None => return Ok(0),
            }
        }
        let read = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..read]);
        Ok(read)
    }
}
