//! The knob `memory`, and the memory that the system offers: that of the machine, or of the control group (version 1 or
//! 2).
//!
//! Owns: the parsing of the knob, and the lowest limit among the machine's memory and the control groups of this
//! process. Does not own: the bounds that follow from the memory ([`memory`](super::memory)).

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use super::{ByteSize, Setting};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Minimum of the bound on the bytes of large replies: three values of the maximum size.
pub(super) const LEAST_REPLY_BYTES: u64 = 3 * thalweg_types::limits::MAX_VALUE_BYTES as u64;
/// Smallest size in bytes that the knob `memory` accepts.
pub(super) const MIN_MEMORY_BYTES: u64 = 64 * MIB;

/// Memory that a server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySize {
    /// Half of the memory that the system offers.
    Auto,
    /// The number of bytes that the configuration states.
    Bytes(ByteSize),
}

impl Setting for MemorySize {
    const VALUE_NAME: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "auto" => Ok(Self::Auto),
            size => {
                ByteSize::parse(size).map(Self::Bytes).map_err(|_| "auto, or a number of bytes such as 512MiB or 4GiB")
            }
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Bytes(size) => size.show(),
        }
    }
}

/// Memory that the system offers to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Number of bytes that the system offers to this process.
    pub bytes: u64,
    /// File that contains the limit of the control group; `None` if the machine's memory is the limit.
    pub limited_by: Option<PathBuf>,
}

impl fmt::Display for AvailableMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes / MIB;
        match &self.limited_by {
            Some(file) => write!(f, "{mib} MiB that {} permits", file.display()),
            None => write!(f, "{mib} MiB of this machine"),
        }
    }
}

impl AvailableMemory {
    /// Returns the memory that the system offers: the machine's memory, or the lowest limit of this process's control
    /// groups if it is lower. `None` if the system reports neither.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// Does the same as [`of_this_process`](Self::of_this_process), with the system's files below `root`. Meant for
    /// tests.
    #[must_use]
    pub fn below(root: &Path) -> Option<Self> {
        let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
        });
        let machine = machine.map(|bytes| Self { bytes, limited_by: None });
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = groups.lines().flat_map(|line| limits_of_group(root, line));
        machine.into_iter().chain(limits).min_by_key(|memory| memory.bytes)
    }
}

/// Returns the limits of a control group and its ancestors. `line` is a line of `/proc/self/cgroup`: `0::/path` for
/// version 2, `4:memory:/path` for version 1.
fn limits_of_group(root: &Path, line: &str) -> Vec<AvailableMemory> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Vec::new();
    };
    let (mounts, files): (&[&str], &[&str]) = match controllers {
        "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], &["memory.max", "memory.high"]),
        list if list.split(',').any(|name| name == "memory") => (&["sys/fs/cgroup/memory"], &["memory.limit_in_bytes"]),
        _ => return Vec::new(),
    };
    let mut limits = Vec::new();
    for mount in mounts {
        // In a container, this may be the path on the host. Then only the mounted directory itself exists.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            for file in files {
                let relative = Path::new(mount).join(group).join(file);
                let text = fs::read_to_string(root.join(&relative)).unwrap_or_default();
                // If the group has no limit, the file contains `max`, which is no number.
                if let Ok(bytes) = text.trim().parse() {
                    limits.push(AvailableMemory { bytes, limited_by: Some(Path::new("/").join(relative)) });
                }
            }
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    /// Creates the files of a system with 8 GiB of memory below a directory.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", "MemFree: 1 kB\nMemTotal:        8388608 kB\n")].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_lowest_limit_of_machine_and_control_groups_counts() {
        let found = |files: &[(&str, &str)]| AvailableMemory::below(system(files).path()).unwrap();
        assert_eq!((found(&[]).bytes, found(&[]).limited_by), (8 * GIB, None));
        // Version 2: the limit of the parent is lower, and `max` is no limit.
        let two = [
            ("proc/self/cgroup", "0::/pod/server\n"),
            ("sys/fs/cgroup/pod/server/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/memory.max", "536870912\n"),
        ];
        assert_eq!(found(&two).bytes, 512 * MIB);
        assert_eq!(found(&two).to_string(), "512 MiB that /sys/fs/cgroup/pod/memory.max permits");
        // Version 1: the number that stands for no limit is above the machine's memory.
        let group = ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n");
        let one = [
            group,
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(found(&one).bytes, 256 * MIB);
        let none = [group, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(found(&none), AvailableMemory { bytes: 8 * GIB, limited_by: None });
        // In a container, the path is that of the host, and the mount shows the container's own group.
        let inside = [("proc/self/cgroup", "0::/host/path\n"), ("sys/fs/cgroup/memory.max", "1073741824\n")];
        assert_eq!(found(&inside).bytes, GIB);
        // Both versions of control groups are in use, as with systemd's hybrid hierarchy.
        let both = [
            ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/unified/b/memory.high", "1610612736\n"),
        ];
        assert_eq!(found(&both).bytes, 1536 * MIB);
    }
    #[test]
    fn the_lowest_limit_of_a_nested_hierarchy_of_version_2_counts() {
        let leaf = "sys/fs/cgroup/kube.slice/pod.slice/server.scope";
        let cgroup = ("proc/self/cgroup", "0::/kube.slice/pod.slice/server.scope\n");
        let found = |files: &[(&str, &str)]| {
            let files: Vec<(&str, &str)> = [cgroup].into_iter().chain(files.iter().copied()).collect();
            let found = AvailableMemory::below(system(&files).path()).unwrap();
            (found.bytes, found.limited_by.map(|file| file.display().to_string()))
        };
        let max_of = |dir: &str| format!("{dir}/memory.max");
        let (leaf_max, leaf_high) = (max_of(leaf), format!("{leaf}/memory.high"));
        let (pod, kube) = ("sys/fs/cgroup/kube.slice/pod.slice", "sys/fs/cgroup/kube.slice");
        let (pod_max, pod_high, kube_max) = (max_of(pod), format!("{pod}/memory.high"), max_of(kube));
        let at = |bytes: u64, file: &str| (bytes, Some(format!("/{file}")));
        let unlimited = [(&*leaf_max, "max\n"), (&*leaf_high, "max\n"), (&*pod_high, "max\n")];
        // Later files replace earlier ones.
        let found = |more: &[(&str, &str)]| found(&[&unlimited[..], more].concat());
        // No group has a limit, and the root of the hierarchy has no file for one.
        assert_eq!(found(&[(&pod_max, "max\n"), (&kube_max, "max\n")]), (8 * GIB, None));
        // Only the parent has a limit, or only the parent's parent.
        assert_eq!(found(&[(&pod_max, "1073741824\n"), (&kube_max, "max\n")]), at(GIB, &pod_max));
        assert_eq!(found(&[(&pod_max, "max\n"), (&kube_max, "2147483648\n")]), at(2 * GIB, &kube_max));
        // A group cannot use more than its parent, even if its own limit is higher.
        assert_eq!(found(&[(&leaf_max, "3221225472\n"), (&pod_max, "1073741824\n")]), at(GIB, &pod_max));
        assert_eq!(found(&[(&leaf_max, "536870912\n"), (&pod_max, "1073741824\n")]), at(GIB / 2, &leaf_max));
        // Above memory.high the kernel slows down the processes of the group, so it counts as a limit too.
        assert_eq!(found(&[(&leaf_max, "1073741824\n"), (&leaf_high, "805306368\n")]), at(768 * MIB, &leaf_high));
        assert_eq!(found(&[(&pod_max, "1073741824\n"), (&pod_high, "805306368\n")]), at(768 * MIB, &pod_high));
        // Limits above the machine's memory, and files without a number, count as no limit.
        assert_eq!(found(&[(&pod_max, "17179869184\n"), (&kube_max, "\n")]), (8 * GIB, None));
        // A group that was removed while the process is in it keeps the limits of its parents.
        let removed = [("proc/self/cgroup", "0::/kube.slice/old (deleted)\n"), (&*kube_max, "1073741824\n")];
        assert_eq!(AvailableMemory::below(system(&removed).path()).unwrap().bytes, GIB);
        // The process is outside the root of its cgroup namespace.
        let outside = [("proc/self/cgroup", "0::/../other\n"), ("sys/fs/cgroup/memory.max", "1073741824\n")];
        assert_eq!(AvailableMemory::below(system(&outside).path()).unwrap().bytes, GIB);
    }
}
