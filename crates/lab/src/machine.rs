//! Description of the machine and of the measured build. Reports print both, because figures mean nothing without them.

use std::path::Path;

use serde::Serialize;
use thalweg_doctor::System;
use thalweg_types::build;

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
    /// Average number of runnable tasks in the minute before the benchmark run. Above 1, other programs were using the
    /// machine.
    pub load_before: Option<f64>,
}

/// Version, profile and commit of a build of Thalweg. In a report, it is the build of the program that generated the
/// load. A server in a process of its own may be another build.
#[derive(Clone, Debug, Serialize)]
pub struct Build {
    /// Version of Thalweg that was built.
    pub version: &'static str,
    /// `release` or `debug`. Figures of a debug build mean nothing.
    pub profile: &'static str,
    /// Commit of the source, which was recorded while building.
    pub commit: Option<String>,
    /// True if the source had changes that were not committed.
    pub dirty: bool,
}

impl Machine {
    /// Reads the machine's description from the kernel. Values that the kernel does not report stay empty. `dir` must
    /// be on the disk that will be measured.
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
    /// Describes the running binary. Its commit was recorded while building. Only `thalweg` records it; other programs
    /// have none.
    pub fn detect() -> Self {
        let build::Build { commit, is_dirty } = build::get();
        let (version, profile) = (env!("CARGO_PKG_VERSION"), build::profile());
        Self { version, profile, commit: commit.map(str::to_owned), dirty: is_dirty }
    }

    /// Describes a build in words, from its version, its profile, its commit, and the flag that its source had
    /// uncommitted changes.
    pub fn name(version: &str, profile: &str, commit: Option<&str>, dirty: bool) -> String {
        let changes = if dirty { " with changes" } else { "" };
        format!("version {version} ({profile}, commit {}{changes})", commit.unwrap_or("unknown"))
    }
}

fn line_of(path: &str, label: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(label))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the filesystem type and the device of the mount that contains `dir`.
fn filesystem_of(dir: &Path) -> Option<String> {
    let mount = thalweg_doctor::mount_of(&System::of_this_machine(), &dir.canonicalize().ok()?)?;
    Some(format!("{} on {}", mount.kind, mount.source))
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

    #[test]
    fn the_commit_is_the_one_that_was_stamped_not_that_of_the_present_checkout() {
        assert_eq!(Build::detect().commit, None, "the checkout of these tests has a commit, but this program no stamp");
        build::set(build::Build { commit: Some("0123456789ab"), is_dirty: true });
        let Build { version, profile, commit, dirty } = Build::detect();
        let name = Build::name(version, profile, commit.as_deref(), dirty);
        assert!(name.contains("commit 0123456789ab with changes"), "{name}");
    }
}
