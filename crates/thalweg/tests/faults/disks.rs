//! A file system for each node, on a loop device of its own.
//!
//! Owns: the images and mounts, which end with it, and faults of the disks: frozen, full, and a loss of power.
//!
//! A loss of power shuts the file system down as it is: nothing that its journal and its files have only in memory is
//! written, then or later, and each access fails until the image is mounted again. So all that was not synced is gone,
//! except what the kernel happened to write before. What reached the block device stays, so this does not show whether
//! the file system flushes the caches of the device.

use std::{
    fs::{self, File, OpenOptions},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use crate::{done, mount::Mounted};

/// Size of each file system. The images are sparse.
const BYTES: u64 = 2 << 30;
/// Request of ext4 to shut a file system down, `_IOR('X', 125, __u32)`.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Neither data nor the journal is written at the shutdown.
const NO_LOG_FLUSH: u32 = 2;

/// The disk of one node.
pub struct Disk {
    image: PathBuf,
    at: PathBuf,
    mounted: Option<Mounted>,
}

impl Disk {
    /// Creates a disk below a directory; returns the reason if that is impossible here.
    pub fn create(root: &Path, name: &str) -> Result<Self, String> {
        let (image, at) = (root.join(format!("{name}.img")), root.join(name));
        let mounted = Mounted::create_of(&image, &at, BYTES)?;
        Ok(Self { image, at, mounted: Some(mounted) })
    }

    /// Directory at which the disk is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Freezes the file system for a time. A process of its own ends that, so that no failed test leaves it frozen.
    pub fn freeze(&self, time: Duration) -> Frozen {
        let script = r#"fsfreeze -f "$0" && sleep "$1"; fsfreeze -u "$0""#;
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&self.at).arg(time.as_secs_f64().to_string());
        Frozen(command.spawn().expect("a shell"))
    }

    /// Takes all room on the file system.
    pub fn fill(&self) {
        let file = OpenOptions::new().create(true).append(true).open(self.filler()).expect("a file");
        let (mut end, mut piece) = (0, i64::try_from(BYTES).expect("a size"));
        while piece >= 4096 {
            // SAFETY: the descriptor is open, and the call takes no pointers.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, end, piece) } == 0 {
                end += piece;
            } else {
                piece /= 2;
            }
        }
    }

    /// Frees what [`fill`](Self::fill) took.
    pub fn empty(&self) {
        fs::remove_file(self.filler()).expect("the file is there");
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Loses the disk's power.
    pub fn lose_power(&self) {
        let (root, how) = (File::open(&self.at).expect("a directory"), NO_LOG_FLUSH);
        // SAFETY: the descriptor is open, and the request reads a number that lives through the call.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const how) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Mounts the disk again after its power was lost. No process may use it.
    pub fn mount_again(&mut self) {
        self.mounted = None;
        // The processes that used it have ended, but the kernel may still hold their namespaces for a moment. A second
        // mount of an image in use would damage it.
        let is_used =
            || !Command::new("losetup").arg("-j").arg(&self.image).output().expect("losetup").stdout.is_empty();
        crate::until("the loop device is free", || !is_used());
        self.mounted = Some(Mounted::existing(&self.image, &self.at).expect("the image mounts again"));
    }
}

/// The end of a freeze.
pub struct Frozen(Child);

impl Frozen {
    /// Waits until the file system is not frozen any more.
    pub fn wait(mut self) {
        assert!(self.0.wait().expect("a shell").success(), "frozen and released");
    }
}

/// Checks that the tools for faults of disks are there.
pub fn check() -> Result<(), String> {
    ["fsfreeze", "losetup"].iter().try_for_each(|tool| done(Command::new(tool).arg("--version")))
}
