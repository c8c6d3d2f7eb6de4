//! Limits of this process and of its control groups: files, locked memory, memory, processors.
//!
//! Owns: the limits, how they are read, and the rules that judge them. Does not own: the needs of a node, which follow
//! from its configuration and are passed in (`Needs`).
//!
//! A node has the same limits as this process only if both are started in the same way. The texts of the findings state
//! this.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::{Findings, System, space::shown};

/// Memory limit in bytes below which the doctor reports that the default settings leave a node little memory for
/// caches. The setting `memory` of a server must be at least 64 MiB; by default it is half of the memory that the
/// system offers.
const LITTLE_MEMORY: u64 = 256 << 20;

/// Limits of this process. `None` means no limit, or a limit that the system does not report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Number of files that this process may have open now.
    pub open_files: Option<u64>,
    /// Number of open files up to which this process may raise its own limit.
    pub open_files_hard: Option<u64>,
    /// Bytes of memory that this process may lock.
    pub locked_bytes: Option<u64>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// Lowest memory limit of the control groups, in bytes.
    pub group_memory_bytes: Option<u64>,
    /// Size of the machine's swap space in bytes.
    pub swap_bytes: Option<u64>,
    /// Lowest processor quota of the control groups, as a number of processors.
    pub group_processors: Option<f64>,
    /// Number of processors that this process may use.
    pub processors: usize,
}

/// Client connections and open files that a node needs, according to its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Maximum number of client connections (`max_connections`). Each takes one open file.
    pub connections: u64,
    /// Number of files that a node opens beside the connections: segments, tables, listening sockets.
    pub other_files: u64,
}

impl Limits {
    /// Reads the limits of this process. `group_memory_bytes` is the lowest memory limit of its control groups, in
    /// bytes.
    #[must_use]
    pub fn read(system: &System, group_memory_bytes: Option<u64>) -> Self {
        let files = getrlimit(Resource::Nofile);
        let kib = |label: &str| system.field("proc/meminfo", label).map(|kib| kib * 1024);
        Self {
            open_files: files.current,
            open_files_hard: files.maximum,
            locked_bytes: getrlimit(Resource::Memlock).current,
            memory_bytes: kib("MemTotal:"),
            group_memory_bytes,
            swap_bytes: kib("SwapTotal:"),
            group_processors: group_processors(system),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Returns the lowest processor quota of this process's control groups and their ancestors, in processors. Reads
/// `cpu.max` (`QUOTA PERIOD`) of version 2, and `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1.
fn group_processors(system: &System) -> Option<f64> {
    let groups = system.text("proc/self/cgroup")?;
    let mut lowest: Option<f64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        let mounts: &[&str] = if is_unified {
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        } else {
            &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
        };
        // In a container, the path may be one of the host's tree. Then only the mount point of the control groups
        // exists here.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            for mount in mounts {
                let dir = Path::new(mount).join(group);
                let quota = if is_unified { quota_of_v2(system, &dir) } else { quota_of_v1(system, &dir) };
                lowest = match (lowest, quota) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
    }
    lowest
}

fn quota_of_v2(system: &System, dir: &Path) -> Option<f64> {
    let text = system.text(dir.join("cpu.max").to_str()?)?;
    let (quota, period) = text.split_once(' ')?;
    ratio(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_of_v1(system: &System, dir: &Path) -> Option<f64> {
    // If there is no quota, the file contains -1. Parsing it as an unsigned number fails, which gives `None`.
    let read = |name: &str| system.number(dir.join(name).to_str()?);
    ratio(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn ratio(quota: u64, period: u64) -> Option<f64> {
    (period > 0 && quota > 0).then(|| quota as f64 / period as f64)
}

/// Checks if the limits are sufficient for a node with these needs. Adds a finding for each problem.
pub(crate) fn judge(limits: &Limits, needs: &Needs, found: &mut Findings) {
    open_files(limits, needs, found);
    memory(limits, found);
    processors(limits, found);
}

fn open_files(limits: &Limits, needs: &Needs, found: &mut Findings) {
    let wanted = needs.connections + needs.other_files;
    // A server raises its limit of open files to the hard limit when it starts.
    let Some(files) = limits.open_files_hard.filter(|files| *files < wanted) else { return };
    found.weakness(
        "few_open_files",
        format!(
            "a process that starts here may open up to {files} files; a node with {} connections needs {wanted}",
            needs.connections
        ),
        "further clients cannot connect, and a node that cannot open a segment stops accepting writes",
        format!("raise the hard limit: LimitNOFILE={wanted} in a unit of systemd, or /etc/security/limits.conf"),
    );
}

fn memory(limits: &Limits, found: &mut Findings) {
    let group = limits.group_memory_bytes;
    let offered = [limits.memory_bytes, group].into_iter().flatten().min();
    if let Some(bytes) = offered.filter(|bytes| *bytes < LITTLE_MEMORY) {
        found.weakness(
            "little_memory",
            format!("the system offers {} of memory", shown(bytes)),
            "a node uses half of it (`memory = \"auto\"`), so caches and queues are small",
            "give the machine or the control group more memory; docs/guides/sizing.md has the sizes",
        );
    }
    if let (Some(group), Some(machine)) = (group, limits.memory_bytes)
        && group < machine
    {
        found.note(
            "group_memory",
            format!("the control group may use {} of {} of memory", shown(group), shown(machine)),
            "a node takes half of the group's memory as its `memory`; the page cache of its files counts in the group, too",
            "nothing, unless the node shares the group with other programs: then set `memory`",
        );
    }
}

fn processors(limits: &Limits, found: &mut Findings) {
    let Some(quota) = limits.group_processors else { return };
    if quota < 1.0 {
        found.weakness(
            "processor_quota",
            format!("the control group may use {quota:.2} of a processor"),
            "when the quota of a period (usually 100 ms) is used up, all threads of the node stand still until the next one: \
             acknowledgements and elections are late",
            "give the group at least one processor, or shares (weights) instead of a quota",
        );
    } else if quota < limits.processors as f64 {
        found.note(
            "processor_quota",
            format!("the control group may use {quota:.2} processors; the process sees {}", limits.processors),
            "when the quota of a period is used up, all threads of the node stand still until the next one",
            "nothing, unless latencies jump by tens of milliseconds under load: then raise the quota",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::with_files;

    const GIB: u64 = 1 << 30;

    fn limits() -> Limits {
        Limits {
            open_files: Some(1 << 20),
            open_files_hard: Some(1 << 20),
            locked_bytes: Some(0),
            memory_bytes: Some(8 * GIB),
            group_memory_bytes: None,
            swap_bytes: Some(0),
            group_processors: None,
            processors: 4,
        }
    }

    const NEEDS: Needs = Needs { connections: 4096, other_files: 1024 };

    fn codes(limits: &Limits, needs: &Needs) -> Vec<&'static str> {
        let mut found = Findings::default();
        judge(limits, needs, &mut found);
        found.codes()
    }

    #[test]
    fn each_limit_is_judged() {
        assert_eq!(codes(&limits(), &NEEDS), Vec::<&str>::new());
        assert_eq!(codes(&Limits { open_files_hard: Some(4096), ..limits() }, &NEEDS), ["few_open_files"]);
        assert_eq!(codes(&Limits { open_files_hard: None, ..limits() }, &NEEDS), Vec::<&str>::new(), "no limit");
        assert_eq!(
            codes(&Limits { open_files: Some(1024), ..limits() }, &NEEDS),
            Vec::<&str>::new(),
            "a server raises it"
        );
        assert_eq!(codes(&Limits { memory_bytes: Some(200 << 20), ..limits() }, &NEEDS), ["little_memory"]);
        let small = Limits { group_memory_bytes: Some(128 << 20), ..limits() };
        assert_eq!(codes(&small, &NEEDS), ["little_memory", "group_memory"]);
        assert_eq!(codes(&Limits { group_processors: Some(0.5), ..limits() }, &NEEDS), ["processor_quota"]);
        assert_eq!(codes(&Limits { group_processors: Some(2.5), ..limits() }, &NEEDS), ["processor_quota"]);
        assert_eq!(codes(&Limits { group_processors: Some(8.0), ..limits() }, &NEEDS), Vec::<&str>::new());
    }

    #[test]
    fn the_lowest_processor_quota_of_both_versions_counts() {
        let quota = |files: &[(&str, &str)]| group_processors(&with_files(files).1);
        let two = [
            ("proc/self/cgroup", "0::/pod/server\n"),
            ("sys/fs/cgroup/pod/server/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ];
        assert_eq!(quota(&two), Some(1.5));
        let one = [
            ("proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/b\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ];
        assert_eq!(quota(&one), Some(0.5));
        assert_eq!(quota(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "0 0\n")]), None);
        assert_eq!(quota(&[]), None);
    }
}
