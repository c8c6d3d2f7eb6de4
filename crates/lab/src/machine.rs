//! Description of the machine and of the measured build. Reports print it, since figures mean nothing without their
//! machine.

use std::{path::Path, process::Command};

use serde::Serialize;
use thalweg_doctor::System;

/// Description of the machine, and of the disk that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// CPU model as the kernel reports it.
    pub cpu: String,
    /// Number of CPU cores that this process may use.
    pub cores: usize,
    /// Size of the machine's memory in bytes.
    pub memory_bytes: u64,
    /// Release of the Linux kernel, such as 6.18.
    pub kernel: String,
    /// Type of the filesystem that holds the benchmark's directory, such as ext4.
    pub filesystem: String,
    /// Load average of the minute before the run, in runnable tasks. Above 1, other programs were using the machine.
    pub load_before: Option<f64>,
}

/// Version, profile and commit of the build that is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Build {
    /// Version of the Thalweg workspace.
    pub version: &'static str,
    /// `release` or `debug`. Figures of a debug build mean nothing.
    pub profile: &'static str,
    /// Commit of the git checkout that contains the running binary, or else the commit that was recorded while
    /// building.
    pub commit: Option<String>,
}

impl Machine {
    /// Reads the machine's description from the kernel; a value that the kernel does not report is left empty. `dir`
    /// must be on the disk that will be measured.
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
    /// Describes the running binary. Its commit is `THALWEG_COMMIT` if that variable was set while building, else the
    /// head of the git checkout that contains the executable, else unknown.
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

/// Returns filesystem type and device of the mount that contains `dir`.
fn filesystem_of(dir: &Path) -> Option<String> {
    let mount = thalweg_doctor::mount_of(&System::of_this_machine(), &dir.canonicalize().ok()?)?;
    Some(format!("{} on {}", mount.kind, mount.source))
}

/// Runs git and returns the commit of the checkout that contains the running program.
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
