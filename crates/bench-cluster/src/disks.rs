//! A file system for each node, on a loop device, so that the benchmark can freeze the disk of one node.
//!
//! Owns: the image files and the mounts, which dropping [`Disks`] removes. Needs root, loop devices, and the programs
//! that create, mount and freeze file systems. A separate process ends each freeze, so that no freeze outlasts the
//! benchmark.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

/// Size of each file system in bytes. The images are sparse files.
const BYTES: u64 = 8 << 30;

/// One file system for each node. Dropping this value unmounts the file systems, so it must be dropped after the nodes.
#[derive(Debug)]
pub(crate) struct Disks(Vec<PathBuf>);

impl Disks {
    /// Creates `count` file systems below a directory. If this machine does not permit that, returns the reason.
    pub(crate) fn create(dir: &Path, count: usize) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount and freeze file systems".to_owned());
        }
        done(Command::new("fsfreeze").arg("--version"))?;
        let mut disks = Self(Vec::new());
        for number in 0..count {
            let (image, at) = (dir.join(format!("disk{number}.img")), dir.join(format!("disk{number}")));
            fs::create_dir_all(&at).map_err(|error| error.to_string())?;
            let file = File::create(&image).map_err(|error| error.to_string())?;
            file.set_len(BYTES).map_err(|error| error.to_string())?;
            done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
            done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
            disks.0.push(at);
        }
        Ok(disks)
    }

    /// Returns the mount directories of the file systems, one for each node, in the order of the nodes' numbers.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for at in &self.0 {
            if done(Command::new("umount").arg(at)).is_err() {
                let _ = done(Command::new("umount").arg("--lazy").arg(at));
            }
        }
    }
}

/// Freezes the file system that is mounted at `at` for `time`. The returned process ends when the freeze ends.
pub(crate) fn freeze(at: &Path, time: Duration) -> std::io::Result<Child> {
    let script = r#"fsfreeze -f "$0" && sleep "$1"; fsfreeze -u "$0""#;
    Command::new("sh").args(["-c", script]).arg(at).arg(time.as_secs_f64().to_string()).spawn()
}

/// Runs a system command. If it fails, returns the reason.
fn done(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use thalweg_lab::Scratch;

    use super::*;

    #[test]
    fn a_write_waits_for_the_end_of_a_freeze() {
        let scratch = Scratch::below(None).unwrap();
        let disks = match Disks::create(scratch.path(), 1) {
            Ok(disks) => disks,
            Err(reason) => {
                eprintln!("SKIPPED: a frozen disk: {reason}");
                return;
            }
        };
        let at = disks.paths()[0].clone();
        let mut file = File::create(at.join("file")).unwrap();
        file.write_all(b"before").unwrap();
        file.sync_all().unwrap();
        let mut frozen = freeze(&at, Duration::from_millis(500)).unwrap();
        // Writes of two bytes are fast until the freeze begins. The write that meets the freeze waits for its end.
        let longest = std::iter::from_fn(|| {
            let begun = std::time::Instant::now();
            file.write_all(b"..").unwrap();
            file.sync_all().unwrap();
            frozen.try_wait().unwrap().is_none().then_some(begun.elapsed())
        });
        let (mut slowest, mut last) = (Duration::ZERO, std::time::Instant::now());
        for took in longest {
            slowest = slowest.max(took);
            last = std::time::Instant::now();
        }
        // The waiting write may end after the process. Then the iterator has not counted it, and its time is that since
        // the last one.
        let slowest = slowest.max(last.elapsed());
        assert!(slowest >= Duration::from_millis(300), "{slowest:?}");
        assert!(frozen.wait().unwrap().success());
        drop(file);
        drop(disks);
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(at.to_str().unwrap()), "{mounts}");
    }
}
