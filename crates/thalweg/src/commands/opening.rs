//! Opening the data directory of a server. Shows the progress of a long replay, and handles signals that arrive
//! meanwhile.
//!
//! Owns: log lines about a long replay, and ending the process if a signal stops it before the directory is open. Does
//! not own: the signals themselves, and the steps after the open (`serve`).
//!
//! A process that is stopped while it opens its directory ends with success. Everything that the state has not applied
//! or persisted yet is still in the log, and the next start replays it.

use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_engine::{Database, MemberIdentity, OpenError, Options, ReplayProgress};
use thalweg_types::{Classified, ClusterId};
use tokio::{runtime::Runtime, task::JoinError};

use super::stop::Stop;
use crate::{failure::Failure, render};

/// Time from the start of a replay to the first log line about its progress, and between two such lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum time that opening the data directory may still take after a signal. Afterwards the process ends without
/// waiting for it.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Opens a data directory on a separate thread: as a member of a cluster if `member` contains the member's identity and
/// the cluster's id, and otherwise as a node alone. Returns `None` if a signal arrives before the directory is open.
pub(super) fn open_unless_stopped(
    runtime: &Runtime,
    path: &Path,
    options: Options,
    member: Option<(MemberIdentity, ClusterId)>,
    stop: &mut Stop,
) -> Result<Option<Database>, Failure> {
    let is_stopping = Arc::new(AtomicBool::new(false));
    let (path, stopping): (PathBuf, _) = (path.to_owned(), Arc::clone(&is_stopping));
    tracing::info!(data = %path.display(), "opening the data directory");
    let mut opening = runtime.spawn_blocking(move || {
        let mut report = ReplayReport::new();
        let mut progress = |progress: &ReplayProgress| {
            report.note(progress);
            if stopping.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match member {
            None => Database::open_while(&path, options, &mut progress),
            Some((identity, cluster)) => Database::open_member_while(&path, options, identity, cluster, &mut progress),
        }
    });
    runtime.block_on(async {
        let signal = tokio::select! {
            opened = &mut opening => return finished(opened).map(Some),
            signal = stop.signalled() => signal,
        };
        tracing::info!(signal, "stopping on a signal while the data directory is opened");
        is_stopping.store(true, Ordering::Relaxed);
        match tokio::time::timeout(STOP_LIMIT, opening).await {
            Ok(opened) => match opened.map_err(io::Error::from)? {
                Err(error) if error.code() != "interrupted" => Err(Failure::of(&error)),
                Err(_) => Ok(None),
                Ok(database) => {
                    // This open has written nothing that a close would have to persist, so an error is ignored.
                    let _ = database.close();
                    Ok(None)
                }
            },
            Err(_) => {
                tracing::info!(
                    "the open has not ended after {STOP_LIMIT:?}: ending the process, the next start recovers"
                );
                std::process::exit(0)
            }
        }
    })
}

fn finished(opened: Result<Result<Database, OpenError>, JoinError>) -> Result<Database, Failure> {
    opened.map_err(io::Error::from)?.map_err(|error| Failure::of(&error))
}

/// Writer of log lines about the progress of a long replay of the log.
struct ReplayReport {
    started: Instant,
    reported: Instant,
}

impl ReplayReport {
    fn new() -> Self {
        let now = Instant::now();
        Self { started: now, reported: now }
    }

    /// Logs the progress of the replay, unless the last log line is recent.
    fn note(&mut self, progress: &ReplayProgress) {
        if self.reported.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported = Instant::now();
        tracing::info!("{}", line(progress, self.started.elapsed()));
    }
}

/// Returns the log line about a replay that has taken `took` so far.
fn line(progress: &ReplayProgress, took: Duration) -> String {
    let (part, seconds) = (progress.part().clamp(0.0, 1.0), took.as_secs_f64().max(0.001));
    let left = if part > 0.0 { seconds / part * (1.0 - part) } else { 0.0 };
    let rate = progress.replayed.bytes as f64 / seconds;
    format!(
        "replaying the log: {:.0} %, {}, {}/s, about {left:.0} s left",
        100.0 * part,
        render::counted(progress.replayed.records, "record", "records"),
        render::bytes(rate as u64),
    )
}

#[cfg(test)]
mod tests {
    use thalweg_types::Lsn;

    use super::*;

    #[test]
    fn a_line_states_how_far_the_replay_is_and_how_long_it_will_take() {
        let mut progress = ReplayProgress { replayed: Default::default(), from: Lsn(100), at: Lsn(150), end: Lsn(300) };
        (progress.replayed.records, progress.replayed.bytes) = (50, 10 << 20);
        let said = line(&progress, Duration::from_secs(5));
        for part in ["25 %", "50 records", "2.00 MiB/s", "about 15 s left"] {
            assert!(said.contains(part), "{part:?} in {said:?}");
        }
        let nothing = ReplayProgress { at: Lsn(100), end: Lsn(100), ..progress };
        assert!(line(&nothing, Duration::ZERO).contains("0 %"));
    }
}
