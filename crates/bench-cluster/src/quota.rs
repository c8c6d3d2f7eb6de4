//! A control group that limits the processor time of a process.
//!
//! Owns: the group, which ends with it, and the processes in it, which go back to the benchmark's own group. Both versions of
//! control groups are supported. Does not own: the process.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Period over which the kernel counts the processor time of the group, in microseconds.
const PERIOD_MICROS: u32 = 100_000;

/// Version of the control groups of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Directories at which the processor's control groups are mounted, with their versions. On machines with both, those of
/// version 1 limit processor time.
const MOUNTS: [(&str, Version); 3] = [
    ("/sys/fs/cgroup/cpu", Version::One),
    ("/sys/fs/cgroup/cpu,cpuacct", Version::One),
    ("/sys/fs/cgroup", Version::Two),
];

/// A control group with a limit of processor time; removed when dropped.
#[derive(Debug)]
pub(crate) struct CpuGroup {
    dir: PathBuf,
    /// Group of this process, to which processes go back.
    home: PathBuf,
}

impl CpuGroup {
    /// Creates a group that gets this many percent of one processor. Returns the reason if that is not possible here.
    pub(crate) fn create(percent: u32) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("thalweg-bench-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut reason = "no control groups of processors are mounted".to_owned();
        for (mount, version) in MOUNTS {
            let mount = Path::new(mount);
            let dir = mount.join(&name);
            if let Err(error) = fs::create_dir(&dir) {
                if mount.exists() {
                    reason = format!("{}: {error}", dir.display());
                }
                continue;
            }
            let group = Self { dir, home: mount.join(own_group(&own, version).trim_start_matches('/')) };
            match group.limit(version, percent) {
                Ok(()) => return Ok(group),
                Err(error) => reason = format!("{}: {error}", group.dir.display()),
            }
        }
        Err(reason)
    }

    fn limit(&self, version: Version, percent: u32) -> io::Result<()> {
        let quota = PERIOD_MICROS / 100 * percent;
        // The kernel creates these files if the group limits processors. No other file may be created there.
        let set = |file: &str, text: String| {
            let mut file = fs::File::options().write(true).open(self.dir.join(file))?;
            io::Write::write_all(&mut file, text.as_bytes())
        };
        match version {
            Version::One => {
                set("cpu.cfs_period_us", PERIOD_MICROS.to_string())?;
                set("cpu.cfs_quota_us", quota.to_string())
            }
            Version::Two => set("cpu.max", format!("{quota} {PERIOD_MICROS}")),
        }
    }

    /// Puts a process with all its threads into the group until the returned value is dropped.
    pub(crate) fn hold(&self, process: u32) -> io::Result<HeldProcess<'_>> {
        fs::write(self.dir.join("cgroup.procs"), process.to_string())?;
        Ok(HeldProcess { group: self, process })
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        // Works once no process is in it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// A process in the group.
#[derive(Debug)]
pub(crate) struct HeldProcess<'a> {
    group: &'a CpuGroup,
    process: u32,
}

impl Drop for HeldProcess<'_> {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = fs::write(self.group.home.join("cgroup.procs"), self.process.to_string());
    }
}

/// Returns the path of a process's group below the mount, from the contents of `/proc/self/cgroup`.
fn own_group(groups: &str, version: Version) -> &str {
    let is_wanted = |line: &&str| match (line.split(':').nth(1), version) {
        (Some(controllers), Version::One) => controllers.split(',').any(|name| name == "cpu"),
        (Some(controllers), Version::Two) => controllers.is_empty(),
        (None, _) => false,
    };
    groups.lines().find(is_wanted).and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        time::Duration,
    };

    use super::*;
    use crate::usage::{MeasuredProcess, Usage};

    #[test]
    fn the_group_of_a_process_is_found() {
        let one = "9:name=systemd:/a\n1:cpu,cpuacct:/b/c\n0::/d\n";
        assert_eq!((own_group(one, Version::One), own_group(one, Version::Two)), ("/b/c", "/d"));
        assert_eq!(own_group("", Version::Two), "/");
    }

    #[test]
    fn a_process_in_the_group_gets_its_share_and_no_more() {
        let group = match CpuGroup::create(10) {
            Ok(group) => group,
            Err(reason) => {
                eprintln!("SKIPPED: a limit of processor time: {reason}");
                return;
            }
        };
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        let used = |time| {
            let cpu = || Usage::read(MeasuredProcess::Process(busy.id())).cpu;
            let before = cpu();
            std::thread::sleep(time);
            (cpu() - before).as_secs_f64()
        };
        let held = group.hold(busy.id()).unwrap();
        used(Duration::from_millis(200));
        let limited = used(Duration::from_secs(1));
        assert!(limited < 0.25, "{limited} s of one");
        drop(held);
        let freed: f64 = (0..100).map(|_| used(Duration::from_millis(100))).take_while(|used| *used < 0.05).sum();
        assert!(freed < 4.0, "it gets more afterwards");
        busy.kill().unwrap();
        busy.wait().unwrap();
        let dir = group.dir.clone();
        drop(group);
        assert!(!dir.exists());
    }
}
