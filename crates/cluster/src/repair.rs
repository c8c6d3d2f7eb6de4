//! Repair of a member while its consensus does not run: the member gets the state of another member over the links.
//!
//! Owns: the requests for the chunks of a snapshot, and the order in which members are asked. Does not own: the
//! decision to repair and the choice of the members (`comparison`), the note in the directory and the install
//! (`engine`).
//!
//! ```text
//! differs ─► does not serve, note: due ─► a majority gives its state, note: its members ─► the run ends
//!     consensus starts, serves ◄─ note: done ◄─ installed ◄─ snapshot of one of them ◄─ the next run begins
//! ```
//! The node keeps its votes and its log. The snapshot must contain every entry of the log; otherwise the repair fails
//! and can be repeated. The install is atomic: until then the node has its former state.
//!
//! Invariant: during a repair the node only dials. Other members cannot connect to it until consensus starts.

use std::{
    io,
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use thalweg_engine::{
    Database, RepairNote,
    snapshot::{InstallError, Installed},
};
use thalweg_types::{Action, Classified, ClusterId, Index};
use thalweg_wire::peer::{AskChunk, Channel};
use tokio::{runtime::LocalOptions, time::Instant};

use crate::{
    handshake::Credentials,
    link::{CallError, Link, Path, SentChunk},
    network::CHUNK_LIMIT,
    options::NodeOptions,
};

/// Error of a repair. The node still has its former state, except after [`InstallError::SwitchFailed`].
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The database was opened as a single node, not as a member of a cluster.
    #[error("the database is not a member of a cluster")]
    NotAMember,
    /// No member is known from which the state could be copied: the repair note in the directory names none.
    #[error("no member that could give its state is known")]
    NoSource,
    /// The caller has stopped the repair.
    #[error("the repair was stopped")]
    Stopped,
    /// The other member has replaced its snapshot by another one.
    #[error("the snapshot has ended at the other member")]
    SnapshotEnded,
    /// The runtime could not start, or the note about the repair could not be read or written.
    #[error("cannot repair the state: {0}")]
    Io(#[from] io::Error),
    /// The other member did not send its snapshot.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The snapshot of the other member could not be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl Classified for RepairError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotAMember => "not_a_member",
            Self::NoSource => "no_source",
            Self::Stopped => "stopped",
            Self::SnapshotEnded => "snapshot_ended",
            Self::Io(_) => "repair_io",
            Self::Call(_) => "member_unreachable",
            Self::Install(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::NotAMember | Self::NoSource => Action::Stop,
            Self::Stopped | Self::SnapshotEnded | Self::Io(_) | Self::Call(_) => Action::Retry,
            Self::Install(error) => error.action(),
        }
    }
}

/// Replaces the state of this member with the state of one of the members that its directory names. Records the repair
/// in the directory. Blocks, and checks `stop` after each chunk. Consensus must not run on the database during the
/// call. It must not start until the database has been closed and opened again.
///
/// # Errors
/// Returns the error of the last member that was asked.
pub fn repair(
    db: &Database,
    cluster: ClusterId,
    options: &NodeOptions,
    stop: &AtomicBool,
) -> Result<Installed, RepairError> {
    let parts = db.member_parts().ok_or(RepairError::NotAMember)?;
    let sources = db.repair_note()?.due.map_or_else(Vec::new, |due| due.sources);
    let advertise = if options.advertise.is_empty() { options.listen.to_string() } else { options.advertise.clone() };
    let credentials = Rc::new(Credentials::of_node(cluster, parts.member.node(), advertise, options));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let installed = runtime.block_on(async {
        let mut failed = RepairError::NoSource;
        for (node, address) in sources {
            let credentials = Rc::clone(&credentials);
            let link = Link::new(credentials, node, address.clone(), Channel::Snapshots, Path::default());
            match install_from(&link, db, parts.machine.applied().index, stop).await {
                Ok(installed) => return Ok(installed),
                Err(RepairError::Stopped) => return Err(RepairError::Stopped),
                Err(error) => {
                    tracing::warn!(%node, %address, %error, "the state of this member was not installed");
                    failed = error;
                }
            }
        }
        Err(failed)
    })?;
    db.note_repair(&RepairNote { done: Some(installed.applied.index), due: None })?;
    Ok(installed)
}

/// Installs a snapshot of the member at the other end of `link`. Fails if the snapshot does not contain all log entries
/// up to `least`.
async fn install_from(link: &Link, db: &Database, least: Index, stop: &AtomicBool) -> Result<Installed, RepairError> {
    let mut install = db.install()?;
    let mut snapshot = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(RepairError::Stopped);
        }
        let ask = AskChunk { snapshot, number: install.next_number(), least };
        let (sent, bytes): (u64, Bytes) = link.call::<_, SentChunk, _>(&ask, Instant::now() + CHUNK_LIMIT).await?;
        if snapshot != 0 && sent != snapshot {
            return Err(RepairError::SnapshotEnded);
        }
        snapshot = sent;
        if bytes.is_empty() {
            return Ok(install.finish_alone()?);
        }
        install.push(bytes)?;
    }
}
