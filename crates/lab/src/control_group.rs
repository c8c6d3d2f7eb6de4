//! Control groups that limit the processor time or the memory of a process, and count the resources that the process
//! uses.
//!
//! Owns: the group, which dropping its handle removes, and the kernel's counts about the group. Both versions of
//! control groups are supported. Does not own: the processes in the group. A process that was put into the group by
//! [`hold`](ControlGroup::hold) goes back to the group of this process. A process that was started by
//! [`command`](ControlGroup::command) has to end before the handle is dropped.
//!
//! The kernel counts the page cache of a group's reads and writes as the group's memory. A process therefore has to be
//! in the group before it touches a file: pages that were read earlier belong to another group, and stay there.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// Period over which the kernel counts the processor time of the group, in microseconds.
const PERIOD_MICROS: u32 = 100_000;

/// Shell script that puts itself into the control groups named before `--`, and then becomes the command named after
/// it.
const ENTER: &str =
    "while [ \"$1\" != -- ]; do echo $$ > \"$1/cgroup.procs\" || exit 1; shift; done; shift; exec \"$@\"";

/// Version of the control groups of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Part of the kernel that limits or counts one kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    /// Controller that limits processor time.
    Processor,
    /// Controller that limits memory.
    Memory,
    /// Controller that counts the operations of disks.
    Disk,
}

impl Controller {
    /// Returns the name by which `/proc/self/cgroup` lists the controller in version 1.
    fn name(self) -> &'static str {
        match self {
            Self::Processor => "cpu",
            Self::Memory => "memory",
            Self::Disk => "blkio",
        }
    }

    /// Returns the directories at which the controller's groups may be mounted, with their versions. If a machine has
    /// both versions mounted, the controllers belong to version 1.
    fn mounts(self) -> &'static [(&'static str, Version)] {
        const TWO: (&str, Version) = ("/sys/fs/cgroup", Version::Two);
        match self {
            Self::Processor => {
                &[("/sys/fs/cgroup/cpu", Version::One), ("/sys/fs/cgroup/cpu,cpuacct", Version::One), TWO]
            }
            Self::Memory => &[("/sys/fs/cgroup/memory", Version::One), TWO],
            Self::Disk => &[("/sys/fs/cgroup/blkio", Version::One), TWO],
        }
    }

    /// Returns the name of a file that each group of this controller has.
    fn file(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Processor, Version::One) => "cpu.cfs_quota_us",
            (Self::Processor, Version::Two) => "cpu.max",
            (Self::Memory, Version::One) => "memory.limit_in_bytes",
            (Self::Memory, Version::Two) => "memory.max",
            (Self::Disk, Version::One) => "blkio.throttle.io_serviced",
            (Self::Disk, Version::Two) => "io.stat",
        }
    }
}

/// Directory of the control group for one controller (memory, disk or processor). In cgroup version 2 all controllers
/// share one directory.
#[derive(Clone, Debug)]
struct GroupDirectory {
    controller: Controller,
    version: Version,
    dir: PathBuf,
    /// Directory of the control group to which this process itself belongs. Processes that leave the new group go back
    /// to it.
    home: PathBuf,
}

/// A control group of the kernel, for the processes of a benchmark; removed when dropped.
#[derive(Debug)]
pub struct ControlGroup {
    places: Vec<GroupDirectory>,
}

/// Memory of a group, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// Bytes of memory that belong to no file, such as the heap.
    pub anonymous_bytes: u64,
    /// Bytes of the group's memory that are page cache of files.
    pub cache_bytes: u64,
    /// Bytes of the page cache that are not on the disk yet.
    pub dirty_bytes: u64,
    /// Number of page faults that waited for the disk.
    pub major_faults: u64,
    /// Number of times that the group reached its limit, so that the kernel had to free some of its pages. Some kernels
    /// with version 1 do not count this; the number then stays 0.
    pub times_at_limit: u64,
    /// Number of the group's processes that the kernel killed because it could free no pages.
    pub killed: u64,
}

impl ControlGroup {
    /// Creates a group that gets at most this many percent of one processor. If that is not possible here, returns the
    /// reason.
    pub fn with_processor(percent: u32) -> Result<Self, String> {
        let group = Self::create(Controller::Processor)?;
        let place = &group.places[0];
        let quota = PERIOD_MICROS / 100 * percent;
        let limited = match place.version {
            Version::One => place
                .set("cpu.cfs_period_us", &PERIOD_MICROS.to_string())
                .and_then(|()| place.set("cpu.cfs_quota_us", &quota.to_string())),
            Version::Two => place.set("cpu.max", &format!("{quota} {PERIOD_MICROS}")),
        };
        limited.map_err(|error| format!("{}: {error}", place.dir.display()))?;
        Ok(group)
    }

    /// Creates a group that counts memory and, if the kernel permits it, operations of disks. With a limit, the group
    /// gets at most this many bytes of memory and no swap space. If that is not possible here, returns the reason.
    pub fn with_memory(limit_bytes: Option<u64>) -> Result<Self, String> {
        let mut group = Self::create(Controller::Memory)?;
        let place = &group.places[0];
        if let Some(bytes) = limit_bytes {
            let (limit, bytes) = (place.controller.file(place.version), bytes.to_string());
            place.set(limit, &bytes).map_err(|error| format!("{}/{limit}: {error}", place.dir.display()))?;
            // If there is no swap space, or if the kernel does not count it, this limit fails and is not needed.
            let _ = match place.version {
                Version::One => place.set("memory.memsw.limit_in_bytes", &bytes),
                Version::Two => place.set("memory.swap.max", "0"),
            };
        }
        match group.places[0].version {
            Version::One => {
                let counting = Self::create(Controller::Disk).into_iter().flat_map(Self::into_directories);
                group.places.extend(counting.inspect(GroupDirectory::count_operations));
            }
            Version::Two => {
                let place = GroupDirectory { controller: Controller::Disk, ..group.places[0].clone() };
                group.places.push(place);
            }
        }
        Ok(group)
    }

    /// Returns the directories of the group, and no longer removes them on drop. The caller removes them.
    fn into_directories(mut self) -> Vec<GroupDirectory> {
        std::mem::take(&mut self.places)
    }

    fn create(controller: Controller) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let name = format!("thalweg-bench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut reason = format!("no control groups with the controller {} are mounted", controller.name());
        for &(mount, version) in controller.mounts() {
            let mount = Path::new(mount);
            let dir = mount.join(&name);
            if let Err(error) = fs::create_dir(&dir) {
                if mount.exists() {
                    reason = format!("{}: {error}", dir.display());
                }
                continue;
            }
            let home = mount.join(own_group(&own, controller, version).trim_start_matches('/'));
            let place = GroupDirectory { controller, version, dir, home };
            // The kernel creates this file in each group that has the controller.
            let has_controller = place.dir.join(controller.file(version)).exists();
            let group = Self { places: vec![place] };
            if has_controller {
                return Ok(group);
            }
            reason = format!("groups below {} have no controller {}", mount.display(), controller.name());
        }
        Err(reason)
    }

    /// Returns a command that starts a program inside the group. The program keeps the process id of the command.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]);
        command.args(self.places.iter().map(|place| &place.dir)).arg("--").arg(program);
        command
    }

    /// Returns the directories of the group. They remain on the machine if this process ends without dropping the
    /// group.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|place| &*place.dir)
    }

    /// Puts a process with all its threads into the group. Dropping the returned value moves the process back.
    pub fn hold(&self, process: u32) -> io::Result<HeldProcess<'_>> {
        for place in &self.places {
            fs::write(place.dir.join("cgroup.procs"), process.to_string())?;
        }
        Ok(HeldProcess { group: self, process })
    }

    /// Returns the memory of the group; `None` if the group does not count memory.
    pub fn memory(&self) -> Option<GroupMemory> {
        let place = self.directory(Controller::Memory)?;
        let read = |file: &str| fs::read_to_string(place.dir.join(file)).unwrap_or_default();
        Some(match place.version {
            Version::One => GroupMemory {
                // If memory and swap space together reach the limit, only the second file counts it.
                times_at_limit: count_of(&read("memory.failcnt")) + count_of(&read("memory.memsw.failcnt")),
                killed: count_after(&read("memory.oom_control"), "oom_kill").unwrap_or(0),
                ..GroupMemory::of_version_one(&read("memory.stat"))
            },
            Version::Two => GroupMemory::of_version_two(&read("memory.stat"), &read("memory.events")),
        })
    }

    /// Returns the number of read operations that the disks have done for the group since its creation; `None` if the
    /// group does not count them. Reads from the page cache need no operation, and one operation may read several
    /// adjacent blocks.
    pub fn disk_reads(&self) -> Option<u64> {
        let place = self.directory(Controller::Disk)?;
        let text = fs::read_to_string(place.dir.join(place.controller.file(place.version))).ok()?;
        Some(match place.version {
            Version::One => reads_of_version_one(&text),
            Version::Two => reads_of_version_two(&text),
        })
    }

    fn directory(&self, controller: Controller) -> Option<&GroupDirectory> {
        self.places.iter().find(|place| place.controller == controller)
    }
}

impl GroupDirectory {
    /// Makes the kernel count the operations of all disks for a group of version 1. The kernel begins to count a disk's
    /// operations when a rule about the disk is written. The rule written here is 0, which limits nothing.
    fn count_operations(&self) {
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        for device in disks.filter_map(|disk| fs::read_to_string(disk.path().join("dev")).ok()) {
            // If the kernel refuses the rule, it does not count the operations of this disk.
            let _ = self.set("blkio.throttle.read_iops_device", &format!("{} 0", device.trim()));
        }
    }

    /// Writes text to a file that the kernel has created in the group. Other files cannot be created there.
    fn set(&self, file: &str, text: &str) -> io::Result<()> {
        let mut file = fs::File::options().write(true).open(self.dir.join(file))?;
        io::Write::write_all(&mut file, text.as_bytes())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for place in &self.places {
            // The removal works if no process is in the group. In version 2 several controllers share the directory, so
            // it may already be removed.
            let _ = fs::remove_dir(&place.dir);
        }
    }
}

/// Handle of a process that was moved into the group. Dropping it moves the process back to the group of the calling
/// process.
#[derive(Debug)]
pub struct HeldProcess<'a> {
    group: &'a ControlGroup,
    process: u32,
}

impl Drop for HeldProcess<'_> {
    fn drop(&mut self) {
        for place in &self.group.places {
            // This write fails if the process has ended, which does no harm.
            let _ = fs::write(place.home.join("cgroup.procs"), self.process.to_string());
        }
    }
}

impl GroupMemory {
    /// Parses the file `memory.stat` of a control group of version 1.
    fn of_version_one(stat: &str) -> Self {
        let count = |label: &str| count_after(stat, label).unwrap_or(0);
        Self {
            anonymous_bytes: count("total_rss"),
            cache_bytes: count("total_cache"),
            dirty_bytes: count("total_dirty"),
            major_faults: count("total_pgmajfault"),
            ..Self::default()
        }
    }

    /// Parses the files `memory.stat` and `memory.events` of a control group of version 2.
    fn of_version_two(stat: &str, events: &str) -> Self {
        let count = |text: &str, label: &str| count_after(text, label).unwrap_or(0);
        Self {
            anonymous_bytes: count(stat, "anon"),
            cache_bytes: count(stat, "file"),
            dirty_bytes: count(stat, "file_dirty"),
            major_faults: count(stat, "pgmajfault"),
            times_at_limit: count(events, "max"),
            killed: count(events, "oom_kill"),
        }
    }
}

/// Parses a kernel file that contains only a number; 0 if it contains none.
fn count_of(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// Returns the number in the line `label number`; `None` if there is no such line.
fn count_after(text: &str, label: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == label)?.1.trim().parse().ok()
}

/// Returns the number of read operations in `blkio.throttle.io_serviced`, which has lines such as `253:0 Read 17`.
fn reads_of_version_one(text: &str) -> u64 {
    let reads = text.lines().filter_map(|line| line.split_once(" Read "));
    reads.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// Returns the number of read operations in `io.stat`, which has lines such as `253:0 rbytes=4096 wbytes=0 rios=1
/// wios=0`.
fn reads_of_version_two(text: &str) -> u64 {
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix("rios="));
    words.filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// Finds the group of a process for a controller in the contents of `/proc/self/cgroup`. Returns its path relative to
/// the directory where the groups are mounted.
fn own_group(groups: &str, controller: Controller, version: Version) -> &str {
    let is_wanted = |line: &&str| match (line.split(':').nth(1), version) {
        (Some(controllers), Version::One) => controllers.split(',').any(|name| name == controller.name()),
        (Some(controllers), Version::Two) => controllers.is_empty(),
        (None, _) => false,
    };
    groups.lines().find(is_wanted).and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/")
}

#[cfg(test)]
#[path = "control_group_tests.rs"]
mod tests;
