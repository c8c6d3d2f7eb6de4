//! Checks of a machine and of a directory on it: `thalweg doctor`.
//!
//! Owns: reading the facts (disk, file system, free space, limits, clocks, kernel settings, owners of files), the probe
//! that measures syncs, and the rules that turn facts into findings. Does not own: the command line and its output, the
//! permissions of a data directory, and the memory that a server takes; the code of the command checks these.
//!
//! Each subject is one module: a structure of facts, `read`, and `judge`, which is a pure function of the facts.
//!
//! Invariants: nothing outside of the given directory is written, and the probe's file is removed in every case, also
//! when the caller stops the probe. A fact that the system does not report is `None`, never a guess, and a rule without
//! its fact reports nothing, or reports that the fact is unknown.
//!
//! ```text
//! lib ── examine ─┬─ storage ── mounts, device
//!                 ├─ probe ──── disk (the calls that the log makes)
//!                 ├─ space, owners, limits, clocks, kernel
//!                 └─ finding, system
//! ```

mod clocks;
mod device;
mod finding;
mod kernel;
mod limits;
mod mounts;
mod owners;
mod probe;
mod space;
mod storage;
mod system;

use std::{io, path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use thalweg_disk::{Disk, RealDisk};

pub use self::{
    clocks::{Clocks, Ntp},
    device::{Device, DeviceClass},
    finding::{Finding, Findings, Severity},
    kernel::Kernel,
    limits::{Limits, Needs},
    mounts::{Mount, mount_of},
    owners::Owners,
    probe::{ProbeFile, Sample, SyncTimes, Walls, measure},
    space::{Space, SpaceNeeds},
    storage::Storage,
    system::System,
};

/// Parameters of an examination of a machine by `thalweg doctor`.
#[derive(Clone, Debug)]
pub struct Examination {
    /// Duration of the measurement of syncs. Zero skips it.
    pub probe_time: Duration,
    /// Disk space that a node needs.
    pub wanted: SpaceNeeds,
    /// Files and connections that a node needs.
    pub needs: Needs,
    /// Lowest memory limit of this process's control groups, in bytes, computed as a server computes it. `None` if no
    /// limit is below the machine's memory.
    pub group_memory_bytes: Option<u64>,
}

/// Facts about a machine and a directory.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// File system and device on which the directory is stored.
    pub storage: Storage,
    /// Times of syncs in the directory; `None` if they were not measured.
    pub syncs: Option<SyncTimes>,
    /// Size and free space of the file system that contains the directory.
    pub space: Space,
    /// Owners of the files in the directory.
    pub owners: Owners,
    /// Limits of this process and of its control groups.
    pub limits: Limits,
    /// Facts about the machine's clocks.
    pub clocks: Clocks,
    /// Settings of the kernel that affect a node.
    pub kernel: Kernel,
}

/// Reads the facts about this machine and an existing directory, and measures syncs in it. The measurement calls
/// `go_on` between two syncs. If `go_on` returns false, the measurement ends early without a result.
///
/// # Errors
///
/// Fails if the directory cannot be read, or if a write or sync of the measurement fails. It is no error if this
/// process may not write to the directory, or if the measurement's file would take space that a node keeps free. Then
/// no syncs are measured, and a finding states the reason.
pub fn examine(dir: &Path, given: &Examination, go_on: &mut dyn FnMut() -> bool) -> io::Result<(Facts, Findings)> {
    let system = System::of_this_machine();
    let space = Space::read(dir)?;
    let owners = Owners::read(dir)?;
    let (mut walls, mut unmeasured) = (Walls::default(), None);
    let syncs = if given.probe_time.is_zero() || !owners.writable {
        None
    } else if space.available_bytes < probe::FILE_BYTES * 2 {
        unmeasured = Some("the probe needs 32 MiB of free space");
        None
    } else if space.available_bytes < given.wanted.reserve_bytes.saturating_add(probe::FILE_BYTES * 2) {
        unmeasured = Some("the probe would take space from the reserve, and a running node would reject new data");
        None
    } else {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir)?);
        measure(&disk, given.probe_time, &mut walls, go_on)?
    };
    let limits = Limits::read(&system, given.group_memory_bytes);
    let memory = limits.memory_bytes;
    let facts = Facts {
        storage: Storage::read(&system, dir)?,
        clocks: Clocks::read(&system, &walls),
        kernel: Kernel::read(&system, memory),
        syncs,
        space,
        owners,
        limits,
    };
    let mut found = Findings::default();
    storage::judge(&facts.storage, facts.syncs.as_ref(), &mut found);
    if let Some(reason) = unmeasured {
        found.note(
            "not_measured",
            format!("syncs were not measured: {reason}"),
            "nothing is known about the disk's speed",
            "free some space and run this again",
        );
    }
    space::judge(&facts.space, &given.wanted, &mut found);
    owners::judge(&facts.owners, &mut found);
    limits::judge(&facts.limits, &given.needs, &mut found);
    clocks::judge(&facts.clocks, &mut found);
    kernel::judge(&facts.kernel, facts.syncs.as_ref(), &mut found);
    found.sort();
    Ok((facts, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_takes_no_space_from_the_reserve_of_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let given = Examination {
            probe_time: Duration::from_millis(10),
            wanted: SpaceNeeds { reserve_bytes: u64::MAX, segments_bytes: 0, history_bytes: 0 },
            needs: Needs { connections: 1, other_files: 0 },
            group_memory_bytes: None,
        };
        let (facts, found) = examine(dir.path(), &given, &mut || -> bool { panic!("nothing is measured") }).unwrap();
        assert!(facts.syncs.is_none() && found.codes().contains(&"not_measured"), "{:?}", found.codes());
    }
}
