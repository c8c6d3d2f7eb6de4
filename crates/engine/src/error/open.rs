//! `OpenError`: the errors of opening a directory.

use std::{path::PathBuf, time::Duration};

use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{Action, Classified, ClusterId, limits::MIN_MEMBER_SEGMENT_BYTES};

use crate::clock_file::shown_span;

/// Error returned when a directory cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this process, has the directory open.
    #[error(
        "{path} is in use by another process, or by a database or a snapshot of this one: stop that process, or use \
        another directory"
    )]
    Locked {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The data directory does not exist, and the options forbid creating it.
    #[error("{path} is not a Thalweg data directory: create one with `thalweg serve --data`, or check the path")]
    Missing {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory is not a data directory, and contains files of other programs.
    #[error(
        "{path} is not a Thalweg data directory, and not empty: it contains {}; choose an empty directory or a new path",
        shown(.found)
    )]
    NotEmpty {
        /// Path of the directory that has files of other programs.
        path: PathBuf,
        /// Names of the files and directories found there, in order.
        found: Vec<String>,
    },
    /// The directory is the destination of a restore that has not finished.
    #[error("a restore into {path} did not finish: run it again, or remove the directory")]
    Unfinished {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory's state is kept by another backend.
    #[error(
        "the state in {path} is stored by the {found} backend, not by {wanted}: open it with {found}, or move it with \
        `thalweg migrate --data {path} --from {found} --to {wanted}`"
    )]
    OtherBackend {
        /// Path of the data directory whose state another backend keeps.
        path: PathBuf,
        /// Name of the backend that keeps the directory's state.
        found: &'static str,
        /// Name of the backend with which the caller wanted to open the directory.
        wanted: &'static str,
    },
    /// The backend needs files of the operating system, which this (simulated) disk does not have.
    #[error("the {backend} backend cannot run on a simulated disk: open a directory of the operating system")]
    NoOsPath {
        /// Name of the backend that needs files of the operating system.
        backend: &'static str,
    },
    /// The wall clock is far ahead of the time at which the directory was last in use. The database's own clock never
    /// goes back, so a wrong wall clock would end leases and expire keys for good.
    #[error(
        "the wall clock is {} ahead of the last use of {path}, more than max_clock_jump ({}): opening it now would end \
         leases, expire keys and trim streams by that time, for good. If the clock is right, because the node was off, \
         accept it once with THALWEG_MAX_CLOCK_JUMP={} (`serve --max-clock-jump`). If it is wrong, correct it first",
        shown_span(*.jump), shown_span(*.max), shown_span(*.jump + Duration::from_secs(3600))
    )]
    ClockJump {
        /// Path of the data directory.
        path: PathBuf,
        /// Span between the last use of the directory and the time of the wall clock.
        jump: Duration,
        /// Maximum span that the option `max_clock_jump` permits.
        max: Duration,
    },
    /// This build of the program does not contain the backend.
    #[error("this build has no {backend} backend: build it with `--features {backend}`")]
    NotBuilt {
        /// Name of the backend that this build does not contain.
        backend: &'static str,
    },
    /// The directory was never in a cluster, so it cannot be opened as a member.
    #[error("{path} is not a member of a cluster: found a cluster with it, or open it alone")]
    NotAMember {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory has data of its own, so it cannot join a cluster.
    #[error(
        "{path} has data of its own and cannot join a cluster: join with a new directory, or found a cluster with this one"
    )]
    HasOwnData {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory has joined a cluster, so it cannot found one.
    #[error("{path} is a member of cluster {cluster} and cannot found another: use a new directory")]
    AlreadyMember {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The directory belongs to another cluster.
    #[error("{path} belongs to cluster {found}, not to {wanted}: use a new directory")]
    OtherCluster {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        found: ClusterId,
        /// Cluster that the caller wanted the directory to join.
        wanted: ClusterId,
    },
    /// The directory was created to join a cluster and has no data yet, so it cannot be opened alone.
    #[error("{path} has received nothing from cluster {cluster} yet: open it as a member, or use another directory")]
    NothingReceived {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// Other nodes of the cluster vote, or may vote, so this node must not decide alone.
    #[error(
        "{path} is a member of cluster {cluster}, and not known to be its only voter: open it as a member, and remove \
        the other members first"
    )]
    NotAlone {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The directory belongs to a member of a cluster, and its log is missing.
    #[error(
        "the log in {path} is missing, and with it votes and entries of cluster {cluster}: remove this member from the \
        cluster and join with a new directory"
    )]
    LogLost {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The log of a node alone is missing, and the state was never persisted.
    #[error(
        "the log in {path} is missing or empty, although the directory was in use: put the log back in place of the empty \
        one, restore a backup into a new directory, or open with --repair to begin with an empty log"
    )]
    LogMissing {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The log of a member must not be repaired by cutting off its end. Its peers send the missing entries instead.
    #[error(
        "{path} is a member of a cluster, so its log must not be cut: votes and acknowledged entries would be lost. Open \
        it without the repair; if that fails, remove the member from the cluster and join with a new directory"
    )]
    CannotRepairMember {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The segments of the log are too small for a member. With such segments, the member could not append the largest
    /// entry that the other members may commit.
    #[error(
        "segment_bytes is {got}, and a member of a cluster needs at least {MIN_MEMBER_SEGMENT_BYTES} ({} MiB), because it \
         must append every entry that the others agree on: set segment_bytes (`serve --segment-bytes`) to that or more",
        MIN_MEMBER_SEGMENT_BYTES >> 20
    )]
    SmallSegments {
        /// Size of a segment in the options, in bytes.
        got: u32,
    },
    /// The directory could not be prepared to found a cluster.
    #[error("the directory could not be made a member: {reason}; open it again")]
    Founding {
        /// Description of the step of founding the cluster that failed.
        reason: String,
    },
    /// The identity file is damaged, or a newer version of the program has written it.
    #[error("{path}: the identity file is damaged or of a newer version: {message}")]
    Identity {
        /// Path of the data directory.
        path: PathBuf,
        /// Description of what is wrong with the identity file.
        message: String,
    },
    /// The file `INSTALLED` names a state directory that does not exist. Nothing was changed.
    #[error(
        "the file INSTALLED in {path} names the state directory {dir}, which does not exist: bring the directory back, \
        or restore the newest backup into a new directory; a member of a cluster can join again with a new directory"
    )]
    StateMissing {
        /// Path of the data directory.
        path: PathBuf,
        /// Path of the missing directory, within the data directory.
        dir: String,
    },
    /// The file `INSTALLED` is missing, although a state directory exists that only an install creates. Nothing was
    /// changed.
    #[error(
        "{path} has the state directory {dir} of an installed snapshot, but the file INSTALLED, which names the \
        current state directory, is missing: bring the file back, or restore the newest backup into a new directory; \
        a member of a cluster can join again with a new directory"
    )]
    InstalledMissing {
        /// Path of the data directory.
        path: PathBuf,
        /// Path of the newest state directory, within the data directory.
        dir: String,
    },
    /// A file of the data directory could not be read or written.
    #[error("{operation} in {path} failed: {message}")]
    Io {
        /// Path of the data directory.
        path: PathBuf,
        /// Description of the file operation that failed.
        operation: &'static str,
        /// Message of the operating system about the failed file operation.
        message: String,
    },
    /// Corrupt data was cut from the log, but the log records that complete this repair could not be written.
    #[error("the repair did not finish: {reason}; run it again")]
    Repair {
        /// Reason why the repair could not be completed.
        reason: String,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Log(#[from] thalweg_log::OpenError),
    /// The backend of the state could not be opened.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The rows of the state could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The log and the state do not fit together, so later log records cannot be applied to the state.
    #[error(transparent)]
    Replica(#[from] thalweg_replica::OpenError),
}

/// Formats the names of the first few files for a message.
fn shown(found: &[String]) -> String {
    const FEW: usize = 3;
    let names: Vec<_> = found.iter().take(FEW).map(|name| format!("{name:?}")).collect();
    let more = match found.len().saturating_sub(FEW) {
        0 => String::new(),
        1 => " and 1 more entry".to_owned(),
        more => format!(" and {more} more entries"),
    };
    format!("{}{more}", names.join(", "))
}

impl Classified for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "locked",
            Self::Missing { .. } => "missing_directory",
            Self::NotEmpty { .. } => "directory_not_empty",
            Self::Unfinished { .. } => "unfinished_restore",
            Self::OtherBackend { .. } => "other_backend",
            Self::NoOsPath { .. } => "no_os_path",
            Self::ClockJump { .. } => "clock_jump",
            Self::NotBuilt { .. } => "backend_not_built",
            Self::NotAMember { .. } => "not_a_member",
            Self::HasOwnData { .. } => "has_own_data",
            Self::AlreadyMember { .. } => "already_member",
            Self::OtherCluster { .. } => "other_cluster",
            Self::NothingReceived { .. } => "nothing_received",
            Self::NotAlone { .. } => "not_alone",
            Self::LogLost { .. } | Self::LogMissing { .. } => "log_lost",
            Self::CannotRepairMember { .. } => "cannot_repair_member",
            Self::SmallSegments { .. } => "small_segments",
            Self::Founding { .. } => "founding_failed",
            Self::Identity { .. } => "bad_identity",
            Self::StateMissing { .. } => "state_missing",
            Self::InstalledMissing { .. } => "installed_missing",
            Self::Io { .. } => "io",
            Self::Repair { .. } => "repair_failed",
            Self::Log(error) => error.code(),
            Self::Backend(error) => error.code(),
            Self::Machine(error) => error.code(),
            Self::Replica(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Locked { .. } => Action::Retry,
            Self::Missing { .. }
            | Self::NotEmpty { .. }
            | Self::Unfinished { .. }
            | Self::OtherBackend { .. }
            | Self::ClockJump { .. }
            | Self::NoOsPath { .. }
            | Self::NotAMember { .. }
            | Self::HasOwnData { .. }
            | Self::AlreadyMember { .. }
            | Self::OtherCluster { .. }
            | Self::NothingReceived { .. }
            | Self::NotAlone { .. }
            | Self::CannotRepairMember { .. }
            | Self::SmallSegments { .. }
            | Self::NotBuilt { .. } => Action::Fix,
            Self::LogLost { .. }
            | Self::LogMissing { .. }
            | Self::Founding { .. }
            | Self::Identity { .. }
            | Self::StateMissing { .. }
            | Self::InstalledMissing { .. }
            | Self::Io { .. }
            | Self::Repair { .. } => Action::Stop,
            Self::Log(error) => error.action(),
            Self::Backend(error) => error.action(),
            Self::Machine(error) => error.action(),
            Self::Replica(error) => error.action(),
        }
    }
}
