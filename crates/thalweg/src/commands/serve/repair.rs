//! Repair of a member's state before its consensus starts. A repair happens if a note in the member's directory
//! requests it and names members that can give their state.
//!
//! Owns: the times at which a repair is tried, and the signals that arrive meanwhile. Does not own: the note in the
//! directory (`engine`), and the decision and the repair itself (`cluster`).
//!
//! Without the setting `cluster_repair`, or without members that can give their state, the node starts and takes part
//! in consensus, but does not serve clients.

use std::{
    io,
    os::unix::process::CommandExt as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use thalweg_cluster::{NodeOptions, RepairError};
use thalweg_engine::Database;
use thalweg_server::config::Config;
use thalweg_types::{Action, Classified as _, ClusterId};
use tokio::runtime::Runtime;

use super::membership::{self, MemberPart};
use crate::{
    commands::stop::Stop,
    failure::{Exit, Failure},
};

/// Pause after a failed attempt to repair the member's state.
const PAUSE: Duration = Duration::from_secs(2);
/// Interval at which the process checks for a signal during the pause between two attempts to repair.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum time that an attempt to repair may still take after a signal. Afterwards the process ends without waiting
/// for it.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Result of a repair at the start of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repaired {
    /// No repair was made. The node starts with its own state.
    Unchanged,
    /// The directory now has the state of another member. It must be opened again.
    Done,
    /// A signal has stopped the repair.
    Stopped,
}

/// Repairs the member's state, if a note in the directory requests a repair and other members can give their state.
/// Tries again until the repair succeeds or a signal stops it.
pub(super) fn if_due(
    runtime: &Runtime,
    config: &Config,
    member: &MemberPart,
    database: &Database,
    stop: &mut Stop,
) -> Result<Repaired, Failure> {
    // A note that cannot be read is ignored here. The start of the node reports it.
    let due = database.repair_note().ok().and_then(|note| note.due);
    if !config.cluster_repair || due.is_none_or(|due| due.sources.is_empty()) {
        return Ok(Repaired::Unchanged);
    }
    membership::check(member, database)?;
    let Some(options) = membership::node_options(config, member, database.report().node) else {
        return Ok(Repaired::Unchanged);
    };
    tracing::warn!("the state is wrong according to the file REPAIR: receiving the state of another member");
    let is_stopping = Arc::new(AtomicBool::new(false));
    let (db, cluster, stopping) = (database.clone(), member.credentials.cluster, Arc::clone(&is_stopping));
    let mut repairing = runtime.spawn_blocking(move || until_repaired(&db, cluster, &options, &stopping));
    let failed = |error: RepairError| Failure::of(&error).then("repair the directory with `thalweg cluster repair`");
    runtime.block_on(async {
        let signal = tokio::select! {
            repaired = &mut repairing => {
                return repaired.map_err(io::Error::from)?.map_err(failed);
            }
            signal = stop.signalled() => signal,
        };
        tracing::info!(signal, "stopping on a signal while the state is repaired");
        is_stopping.store(true, Ordering::Relaxed);
        if tokio::time::timeout(STOP_LIMIT, repairing).await.is_err() {
            tracing::info!(
                "the repair has not ended after {STOP_LIMIT:?}: ending the process, the next start repeats it"
            );
            std::process::exit(0);
        }
        Ok(Repaired::Stopped)
    })
}

fn until_repaired(
    db: &Database,
    cluster: ClusterId,
    options: &NodeOptions,
    stop: &AtomicBool,
) -> Result<Repaired, RepairError> {
    loop {
        match thalweg_cluster::repair(db, cluster, options, stop) {
            Ok(installed) => {
                let (from, index) = (installed.from, installed.applied.index.0);
                tracing::info!(%from, index, rows = installed.totals.rows, "the state is that of another member");
                return Ok(Repaired::Done);
            }
            Err(RepairError::Stopped) => return Ok(Repaired::Stopped),
            Err(error) if error.action() == Action::Retry => {
                tracing::warn!(%error, "the state is not repaired yet: trying again");
            }
            Err(error) => return Err(error),
        }
        let mut waited = Duration::ZERO;
        while waited < PAUSE && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            waited += LOOK;
        }
    }
}

/// Replaces this process by a new run of the same program with the same arguments. Returns only if this fails.
pub(super) fn start_again() -> Result<(), Failure> {
    let mut arguments = std::env::args_os();
    let mut again = std::process::Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let error = again.args(arguments).exec();
    let message = format!("this program cannot be started again: {error}");
    Err(Failure::new(Exit::Failed, "not_started_again", message).then("start the node: it repairs its state first"))
}
