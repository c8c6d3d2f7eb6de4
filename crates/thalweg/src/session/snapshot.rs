//! Download of a snapshot into a file. The download is resumed after a broken connection.

use std::{
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use thalweg_engine::snapshot::{Compression, PartialSnapshot, SnapshotFile, survey};
use thalweg_types::Lsn;

use super::{
    Session,
    http::{OpenReply, RequestBuilder, is_broken_connection},
};
use crate::{
    failure::{Exit, Failure},
    render,
};

/// Time for which a backup tries to reach a lost server again. The server keeps a snapshot for the same time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of snapshots that one backup begins. A new one is necessary if the server no longer has the previous
/// snapshot, because it was restarted or was unreachable for too long.
const TRIES: u32 = 3;
/// Pause between two attempts to resume the download of a snapshot.
const PAUSE: Duration = Duration::from_millis(200);

/// Options of a snapshot, and a callback for the number of received bytes.
pub(crate) struct SnapshotRequest<'a> {
    pub since: Option<Lsn>,
    pub compression: Compression,
    pub progress: &'a mut dyn FnMut(u64),
}

/// A backup file that is being written during the download of a snapshot.
pub(crate) struct PartialFile {
    pub path: PathBuf,
    pub file: SnapshotFile,
}

impl PartialFile {
    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &io::Error) -> Failure {
        Failure::file(&self.path, error)
    }

    /// Truncates the file after its last complete chunk. Returns a description of the remaining contents; `None` if
    /// the file has no complete chunk.
    fn cut(&mut self) -> Result<Option<PartialSnapshot>, Failure> {
        let Self { path, file } = self;
        let fault = |error: io::Error| Failure::file(path, &error);
        let mut written = file.file().map_err(fault)?;
        written.seek(SeekFrom::Start(0)).map_err(fault)?;
        let Ok(partial) = survey(BufReader::new(written)) else { return Ok(None) };
        file.cut(partial.bytes).map_err(fault)?;
        Ok(Some(partial))
    }
}

impl Session {
    /// Downloads a snapshot of the node into a file. Begins a new snapshot if the server no longer has the current one.
    pub(crate) fn snapshot(&self, ask: &mut SnapshotRequest<'_>, out: &mut PartialFile) -> Result<(), Failure> {
        for left in (0..TRIES).rev() {
            match self.take_one_snapshot(ask, out)? {
                DownloadEnd::Whole => return Ok(()),
                DownloadEnd::Lost(failed) if self.http.opened_directory().is_some() => return Err(failed),
                DownloadEnd::Lost(lost) if left == 0 => return Err(given_up(lost)),
                DownloadEnd::Lost(lost) => {
                    let again = format!("{}: the server no longer has the snapshot; taking a new one", lost.message);
                    render::note(&again);
                    out.file.cut(0).map_err(|error| out.fault(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Downloads one snapshot. Resumes the download after a broken connection, as long as the server has the
    /// snapshot.
    fn take_one_snapshot(&self, ask: &mut SnapshotRequest<'_>, out: &mut PartialFile) -> Result<DownloadEnd, Failure> {
        let since = ask.since.map_or_else(String::new, |lsn| format!("&since={lsn}"));
        let first = format!("/v1/snapshot?compress={}{since}", ask.compression.name());
        let mut reply = self.begin_download(&first)?;
        let name = reply.headers.get("thalweg-snapshot").and_then(|name| name.to_str().ok()).map(str::to_owned);
        let mut bytes = 0;
        loop {
            let Err(broken) = copy(&mut reply.body, out, &mut bytes, ask.progress)? else {
                return Ok(DownloadEnd::Whole);
            };
            let lost = self.http.lost(broken);
            let (Some(name), Some(partial)) = (&name, out.cut()?) else { return Ok(DownloadEnd::Lost(lost)) };
            if partial.is_complete {
                // The snapshot is complete. Only the end of the reply was lost.
                return Ok(DownloadEnd::Whole);
            }
            bytes = partial.bytes;
            let rest = format!("/v1/snapshot?resume={name}&chunk={}", partial.chunks);
            match self.resume_download(&rest, lost)? {
                Ok(rest) => reply.body = rest,
                Err(gone) => return Ok(DownloadEnd::Lost(gone)),
            }
        }
    }

    /// Requests a new snapshot. If the connection breaks, repeats the request until the server answers, like later
    /// requests. If the server was never reached, fails immediately, because the address may be wrong.
    fn begin_download(&self, path: &str) -> Result<OpenReply, Failure> {
        let until = Instant::now() + PATIENCE;
        let mut first: Option<Failure> = None;
        loop {
            let failure = match self.http.open(RequestBuilder::get(path)) {
                Err(failure) if failure.exit == Exit::Unavailable => failure,
                answered => return answered,
            };
            if first.is_none() && !is_broken_connection(&failure) {
                return Err(failure);
            }
            if Instant::now() >= until {
                return Err(first.unwrap_or(failure));
            }
            if first.is_none() {
                render::note(&format!("{}: requesting the snapshot again", failure.message));
            }
            first.get_or_insert(failure);
            thread::sleep(PAUSE);
        }
    }

    /// Requests the remaining chunks of a snapshot after a lost connection. Repeats the request while the server is
    /// unreachable, or still busy with the lost connection. The inner error (`Ok(Err(_))`) means that the server no
    /// longer has the snapshot.
    fn resume_download(&self, path: &str, lost: Failure) -> Result<Result<Box<dyn Read + Send>, Failure>, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.http.open(RequestBuilder::get(path)) {
                Ok(reply) => return Ok(Ok(reply.body)),
                Err(failure) if matches!(&*failure.code, "snapshot_gone" | "chunk_gone") => return Ok(Err(failure)),
                Err(failure) if failure.exit == Exit::Unavailable && Instant::now() < until => thread::sleep(PAUSE),
                Err(failure) if failure.exit == Exit::Unavailable => return Err(lost),
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// Result of the attempts to download one snapshot: downloaded completely, or lost.
enum DownloadEnd {
    Whole,
    /// The connection broke, and the download of this snapshot cannot be resumed.
    Lost(Failure),
}

fn given_up(lost: Failure) -> Failure {
    let message = format!("the snapshot was lost {TRIES} times before its end, last because: {}", lost.message);
    Failure::new(Exit::Unavailable, "snapshot_lost", message)
        .then("find out why the connection breaks or the server restarts, or run the backup on the server's machine")
}

/// Copies the body of a reply to the file, until the body ends or the connection breaks. The inner result is the error
/// of the connection.
fn copy(
    body: &mut impl Read,
    out: &mut PartialFile,
    bytes: &mut u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Result<(), io::Error>, Failure> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return Ok(Ok(())),
            Ok(read) => {
                out.append(&buffer[..read])?;
                *bytes += read as u64;
                progress(*bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}
