//! A snapshot from a server or a directory into a file, going on after a broken connection.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use thalweg_engine::snapshot::{Compression, PartialSnapshot, SnapshotOptions, survey};
use thalweg_types::Lsn;

use super::{http::Ask, local::Local, remote::Remote};
use crate::failure::{Exit, Failure};

/// How long a backup goes on trying to reach a server that went away: as long as the server keeps a snapshot.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// What to take, and who is told of the bytes that have come.
pub struct SnapshotAsk<'a> {
    pub since: Option<Lsn>,
    pub compression: Compression,
    pub progress: &'a mut dyn FnMut(u64),
}

/// A file that is being written.
pub struct PartialFile {
    pub path: PathBuf,
    pub file: File,
}

impl PartialFile {
    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &io::Error) -> Failure {
        Failure::file(&self.path, error)
    }

    /// Cuts it after its last whole chunk; says what is left. None if not even the first is whole.
    fn cut(&mut self) -> Result<Option<PartialSnapshot>, Failure> {
        self.file.seek(SeekFrom::Start(0)).map_err(|error| self.fault(&error))?;
        let Ok(partial) = survey(BufReader::new(&self.file)) else { return Ok(None) };
        let cut = self.file.set_len(partial.bytes).and_then(|()| self.file.seek(SeekFrom::Start(partial.bytes)));
        cut.map_err(|error| self.fault(&error))?;
        Ok(Some(partial))
    }
}

impl Local {
    pub(super) fn take_snapshot(&self, ask: &mut SnapshotAsk<'_>, out: &mut PartialFile) -> Result<(), Failure> {
        let options = SnapshotOptions { since: ask.since, compression: ask.compression, ..SnapshotOptions::default() };
        let mut snapshot = self.database().snapshot(&options).map_err(|error| Failure::of(&error))?;
        let mut bytes = 0;
        while let Some(chunk) = snapshot.next_chunk().map_err(|error| Failure::of(&error))? {
            out.append(&chunk)?;
            bytes += chunk.len() as u64;
            (ask.progress)(bytes);
        }
        Ok(())
    }
}

impl Remote {
    pub(super) fn take_snapshot(&self, ask: &mut SnapshotAsk<'_>, out: &mut PartialFile) -> Result<(), Failure> {
        let since = ask.since.map_or_else(String::new, |lsn| format!("&since={lsn}"));
        let first = format!("/v1/snapshot?compress={}{since}", ask.compression.name());
        let (headers, mut body) = self.http().stream_with_headers(Ask::get(first))?;
        let name = headers.get("thalweg-snapshot").and_then(|name| name.to_str().ok()).map(str::to_owned);
        let mut bytes = 0;
        loop {
            let Err(broken) = copy(&mut body, out, &mut bytes, ask.progress)? else { return Ok(()) };
            let lost = self.http().lost(&broken.into());
            let Some(name) = &name else { return Err(lost) };
            let Some(partial) = out.cut()? else { return Err(lost) };
            if partial.is_complete {
                // Only the end of the reply was lost.
                return Ok(());
            }
            bytes = partial.bytes;
            body = self.go_on(&format!("/v1/snapshot?resume={name}&chunk={}", partial.chunks), lost)?;
        }
    }

    /// Asks for the rest until the server is there again and has noticed that the connection broke.
    fn go_on(&self, path: &str, lost: Failure) -> Result<Box<dyn Read>, Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.http().stream_with_headers(Ask::get(path)) {
                Ok((_, body)) => return Ok(body),
                Err(failure) if failure.exit == Exit::Unavailable && Instant::now() < until => thread::sleep(PAUSE),
                Err(failure) if failure.exit == Exit::Unavailable => return Err(lost),
                Err(failure) => return Err(failure.then("the server keeps a snapshot for a minute only: start again")),
            }
        }
    }
}

/// Copies until the end, or until the connection breaks, which is the inner error.
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
