//! A file system on a loop-mounted image, unmounted in every case.

#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

/// A mounted ext4 image; unmounted when dropped.
pub struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Creates an image with a new ext4 file system and mounts it; returns the reason if that is impossible here.
    pub fn create(image: &Path, at: &Path) -> Result<Self, String> {
        Self::create_of(image, at, 192 * 1024 * 1024)
    }

    /// Creates and mounts an image like [`create`](Self::create), of this size.
    pub fn create_of(image: &Path, at: &Path, bytes: u64) -> Result<Self, String> {
        // SAFETY: geteuid takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err("not root".to_owned());
        }
        let file = File::create(image).map_err(|error| error.to_string())?;
        file.set_len(bytes).map_err(|error| error.to_string())?;
        done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image))?;
        Self::existing(image, at)
    }

    /// Mounts an image. Its journal commits only when a sync requests it or after a long time. A copy with the same
    /// UUID may be mounted at the same time.
    pub fn existing(image: &Path, at: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        done(Command::new("mount").args(["-o", "loop,commit=300"]).arg(image).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process left by a failed test may still use it; then it is unmounted when that process ends.
        if done(Command::new("umount").arg(&self.at)).is_err() {
            let _ = done(Command::new("umount").arg("--lazy").arg(&self.at));
        }
    }
}

/// Returns the reason why a command of the system failed.
pub fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}
