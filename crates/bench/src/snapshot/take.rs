//! Takes one snapshot, into a file or without storing it.

use std::{
    fs::File,
    io::{BufReader, Write as _},
    path::Path,
    time::Instant,
};

use thalweg_engine::{
    Database,
    snapshot::{self, SnapshotFile, Totals},
};

use super::options::{NAME, SnapshotOptions, Target};
use crate::{
    BenchError,
    usage::{MeasuredProcess, Usage},
};

/// A snapshot that was taken, with its cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenSnapshot {
    /// Seconds from the request of the snapshot to its last byte. If the snapshot is written to a file, the final sync
    /// of the file is included.
    pub(super) seconds: f64,
    /// CPU seconds that the whole process used while the snapshot was taken.
    pub(super) cpu_seconds: f64,
    /// Number of entries and number of bytes of the content, as the snapshot reports them.
    pub(super) totals: Totals,
    pub(super) chunks: u64,
    /// Bytes of all chunks of the snapshot.
    pub(super) bytes: u64,
}

/// Takes one snapshot. If the options request a file, `path` is its path.
pub(super) fn take(database: &Database, options: &SnapshotOptions, path: &Path) -> Result<TakenSnapshot, BenchError> {
    let mut file = match options.to {
        Target::File => Some(File::create(path).map(SnapshotFile::new).map_err(BenchError::files(path))?),
        Target::Null => None,
    };
    let (begun, before) = (Instant::now(), Usage::read(MeasuredProcess::Own));
    let (compression, pace) = (options.compress, options.pace());
    let options = snapshot::SnapshotOptions { compression, pace, ..snapshot::SnapshotOptions::default() };
    let mut taking = database.snapshot(&options).map_err(BenchError::subject(NAME, "beginning a snapshot"))?;
    let mut bytes = 0;
    while let Some(chunk) = taking.next_chunk().map_err(BenchError::subject(NAME, "taking a snapshot"))? {
        bytes += chunk.len() as u64;
        if let Some(file) = &mut file {
            file.write_all(&chunk).map_err(BenchError::files(path))?;
        }
    }
    if let Some(file) = &mut file {
        file.finish().map_err(BenchError::files(path))?;
    }
    Ok(TakenSnapshot {
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: Usage::read(MeasuredProcess::Own).since(&before).cpu_seconds,
        totals: taking.so_far(),
        chunks: taking.next_number(),
        bytes,
    })
}

/// Reads the snapshot's file, checks all of it, and removes it.
pub(super) fn check(taken: &TakenSnapshot, path: &Path) -> Result<(), BenchError> {
    let file = File::open(path).map_err(BenchError::files(path))?;
    let read = snapshot::verify(BufReader::with_capacity(1 << 20, file));
    let read = read.map_err(BenchError::subject(NAME, "checking a snapshot"))?;
    if (read.totals, read.chunks, read.bytes) != (taken.totals, taken.chunks, taken.bytes) {
        let message = format!("taken {taken:?}, read {read:?}");
        return Err(BenchError::wrong(NAME, "checking a snapshot", message));
    }
    std::fs::remove_file(path).map_err(BenchError::files(path))?;
    // The kernel frees the blocks of the removed file now, so that this does not disturb the next measurement.
    let parent = path.parent().unwrap_or(path);
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(BenchError::files(parent))
}
