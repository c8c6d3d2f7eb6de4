//! Small types and functions that the modules for opening a data directory share.

use std::{io, ops::ControlFlow, path::Path};

use bytes::Bytes;
use thalweg_log::Log;
use thalweg_replica::ReplayProgress;
use thalweg_state::blobs::{BlobUnreadable, Blobs};
use thalweg_store::Background;
use thalweg_types::BlobRef;

use crate::error::OpenError;

/// Choice of the threads that do a database's background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Threads of the database do the background work.
    Threaded,
    /// The caller does the background work in steps; the database has no threads of its own. Used by simulations.
    Stepped,
}

impl Mode {
    /// Converts this mode to the backend's own type for it.
    pub(crate) const fn background(self) -> Background {
        match self {
            Self::Threaded => Background::Threads,
            Self::Stepped => Background::Stepped,
        }
    }
}

/// Reader of values that are stored in the log. The state machine uses it while it applies entries.
#[derive(Debug)]
pub(crate) struct LogBlobs(pub(crate) Log);

impl Blobs for LogBlobs {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        self.0.read_blob(blob).map_err(|error| BlobUnreadable(error.to_string()))
    }
}

/// Function that is called after each log record that an open replays. If it returns `Break`, the open ends with an
/// error.
pub(crate) type Progress<'p> = dyn FnMut(&ReplayProgress) -> ControlFlow<()> + 'p;

/// Returns the error of an operation on a file of the directory at `path`.
pub(crate) fn io_error(path: &Path, operation: &'static str, error: &io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), operation, message: error.to_string() }
}
