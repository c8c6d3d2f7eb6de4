//! Description of the machine: a figure without its machine is a rumour.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde::Serialize;

/// The machine and the disk that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Filesystem type under the benchmark's directory.
    pub filesystem: String,
    /// Runnable tasks in the minute before the run: above 1, others shared the machine.
    pub load_before: Option<f64>,
}

/// The build that is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Build {
    /// Version of this workspace.
    pub version: &'static str,
    /// `release` or `debug`: figures of a debug build mean nothing.
    pub profile: &'static str,
    /// Commit of the checkout the binary lies in, or the one it was built with.
    pub commit: Option<String>,
}

impl Machine {
    /// Reads what can be read; `dir` is on the disk that will be measured.
    pub fn detect(dir: &Path) -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            cpu: line_of("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: line_of("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            filesystem: filesystem_of(dir).unwrap_or_else(unknown),
            load_before: std::fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }
}

impl Build {
    /// Describes this binary. The commit is `THALWEG_COMMIT` if that was set while building, else the head of
    /// the checkout that the executable lies in, else unknown.
    pub fn detect() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            commit: option_env!("THALWEG_COMMIT").map(str::to_owned).or_else(commit_of_checkout),
        }
    }
}

fn line_of(path: &str, label: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(label))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Type and device of the longest mount point above `dir`.
fn filesystem_of(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mount = PathBuf::from(left.split(' ').nth(4)?);
            let mut right = right.split(' ');
            let (kind, device) = (right.next()?, right.next()?);
            dir.starts_with(&mount).then(|| (mount.as_os_str().len(), format!("{kind} on {device}")))
        })
        .max_by_key(|(len, _)| *len)
        .map(|(_, text)| text)
}

/// Asks git for the commit of the checkout that the running program lies in.
fn commit_of_checkout() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let git =
        Command::new("git").arg("-C").arg(executable.parent()?).args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = String::from_utf8(git.ok().filter(|git| git.status.success())?.stdout).ok()?;
    Some(commit.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_describes_itself() {
        let machine = Machine::detect(Path::new("."));
        assert!(machine.cores > 0 && machine.memory_bytes > 0);
        assert!(machine.kernel.contains('.'), "{machine:?}");
        assert_ne!(machine.filesystem, "unknown");
        assert_eq!(Build::detect().version, env!("CARGO_PKG_VERSION"));
    }
}
