//! The file system and the device of a directory, and the meaning of the times that its syncs take.
//!
//! Owns: the checks of the speed of syncs, and the checks that a sync really stores the data. The bounds below follow
//! from physics and from the specifications of devices; the doc of each constant names its source. A measurement can
//! show that a sync is too fast to have stored the data. It cannot show that data survives a power failure after a sync
//! of a plausible speed: only an actual power failure can.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use serde::Serialize;

use crate::{Device, DeviceClass, Findings, Mount, SyncTimes, System, mounts};

/// Lower bound of the time in which a command reaches a device and returns. The data sheets of the fastest drives state
/// write latencies of 6 to 10 µs for the command alone; the system call and the interrupt take additional time.
const FASTEST_COMMAND_MICROS: f64 = 10.0;
/// Lower bound of the time in which flash stores a page: the fastest chips state 75 to 100 µs. If a sync takes less,
/// the drive has acknowledged it from its memory.
const FASTEST_FLASH_MICROS: f64 = 75.0;
/// Time of half a turn of the fastest platters (15,000 turns per minute). A sector needs this time on average to reach
/// the head.
const HALF_TURN_MICROS: f64 = 2000.0;
/// Median time of a sync above which the doctor reports a slow disk. At this time, one connection makes at most 50
/// durable writes a second.
const SLOW_MICROS: f64 = 20_000.0;
/// 99th percentile of the time of a sync above which the doctor reports pauses of durable writes.
const PAUSE_MICROS: f64 = 100_000.0;

/// File systems that store their files in memory only.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];
/// File systems whose files are stored by another machine, or by the host of a virtual machine.
const REMOTE: [&str; 9] = ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "glusterfs", "lustre"];
/// File systems that write each change of a file to a new place on the disk.
const COPY_ON_WRITE: [&str; 4] = ["btrfs", "zfs", "bcachefs", "nilfs2"];

/// File system and device of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Storage {
    /// Mount that contains the directory; `None` if the system does not list it.
    pub mount: Option<Mount>,
    /// Device of the file system; `None` if the file system has none, or if the system does not describe it.
    pub device: Option<Device>,
    /// True if the machine is virtual: the processor reports a hypervisor.
    pub is_virtual_machine: bool,
}

impl Storage {
    /// Reads the file system and the device of an existing directory.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist or cannot be reached.
    pub fn read(system: &System, dir: &Path) -> io::Result<Self> {
        let canonical = dir.canonicalize()?;
        let mount = mounts::mount_of(system, &canonical);
        let number = fs::metadata(&canonical)?.dev();
        let of = |number: u64| Device::of(system, rustix::fs::major(number), rustix::fs::minor(number));
        // A file system with several devices, such as btrfs, has a number of its own that names no device.
        let source = || {
            let source = mount.as_ref().filter(|mount| mount.source.starts_with("/dev/"))?;
            of(fs::metadata(&source.source).ok()?.rdev())
        };
        let flags = system.text("proc/cpuinfo").unwrap_or_default();
        let mut flags = flags.lines().filter(|line| line.starts_with("flags"));
        let is_virtual_machine = flags.any(|line| line.split(' ').any(|flag| flag == "hypervisor"));
        Ok(Self { device: of(number).or_else(source), mount, is_virtual_machine })
    }
}

/// Adds findings about the file system, about the speed of syncs, and about signs that syncs do not store the data.
pub(crate) fn judge(storage: &Storage, syncs: Option<&SyncTimes>, found: &mut Findings) {
    if let Some(mount) = &storage.mount {
        file_system(mount, found);
    }
    let in_memory = storage.mount.as_ref().is_some_and(|mount| IN_MEMORY.contains(&mount.kind.as_str()))
        || storage.device.as_ref().is_some_and(|device| device.class == DeviceClass::Memory);
    if in_memory {
        found.problem(
            "memory_file_system",
            "the directory is in memory, not on a disk".to_owned(),
            "all data is lost when the machine restarts, even acknowledged writes",
            "use a directory on a disk",
        );
        return;
    }
    if let Some(syncs) = syncs {
        honesty(storage, syncs, found);
        speed(syncs, found);
    }
}

fn file_system(mount: &Mount, found: &mut Findings) {
    let (kind, point) = (mount.kind.as_str(), mount.point.display());
    if mount.is("ro") {
        found.problem(
            "read_only",
            format!("the file system at {point} is mounted read-only"),
            "a node cannot write here; a file system that was mounted writable becomes read-only after an error",
            "look for errors of the disk in the kernel's log (`dmesg`), then mount it with `rw`",
        );
    }
    if mount.has("nobarrier") || mount.is("barrier=0") {
        found.problem(
            "no_barriers",
            format!("the file system at {point} is mounted without write barriers"),
            "a sync does not empty the cache of the disk: a power failure loses acknowledged writes, and can damage the \
             file system",
            "remove `nobarrier` or `barrier=0` from the mount options, unless each disk's cache survives a power failure",
        );
    }
    if kind == "overlay" && mount.has("volatile") {
        found.problem(
            "syncs_ignored",
            format!("the overlay at {point} is mounted with `volatile`"),
            "the kernel ignores syncs there: a crash of the machine loses acknowledged writes",
            "keep the data on a volume, not in the layer of a container",
        );
    } else if kind == "overlay" {
        found.weakness(
            "overlay",
            format!("the directory is in an overlay, as containers have it, at {point}"),
            "the data usually goes away with the container",
            "mount a volume at the data directory",
        );
    }
    if REMOTE.contains(&kind) || kind.starts_with("fuse") {
        found.weakness(
            "remote_file_system",
            format!("the file system at {point} is {kind}: another machine or process writes it"),
            "its server decides when a sync is durable and whether locks hold; neither can be known from here",
            "use a local disk, or make sure that the server acknowledges a sync only when the data is on stable storage",
        );
    }
    if COPY_ON_WRITE.contains(&kind) && !mount.has("nodatacow") {
        let extra = match kind {
            "btrfs" => "run `chattr +C` on the empty data directory before the first start, or use ext4 or xfs",
            "zfs" => {
                "check `zfs get sync` (it must not be `disabled`, which cannot be seen from here), or use ext4 or xfs"
            }
            _ => "use ext4 or xfs for the data directory",
        };
        found.weakness(
            "copy_on_write",
            format!("{kind} writes each change of a file to a new place"),
            "the log's files are allocated once and overwritten; here each sync allocates again, and the file becomes \
             fragmented",
            extra,
        );
    }
    if mount.is("data=journal") {
        found.weakness(
            "journalled_data",
            format!("the file system at {point} writes all data twice (`data=journal`)"),
            "the log has checksums and needs no journal; each write costs twice its bytes",
            "mount with `data=ordered`, the default",
        );
    }
    if mount.is("sync") || mount.is("dirsync") {
        found.weakness(
            "mounted_sync",
            format!("the file system at {point} is mounted with `sync` or `dirsync`"),
            "each write waits for the disk, even if no client waits for it",
            "remove the option; the node syncs what it acknowledges",
        );
    }
}

fn honesty(storage: &Storage, syncs: &SyncTimes, found: &mut Findings) {
    let class = storage.device.as_ref().map_or(DeviceClass::Unknown, |device| device.class);
    let median = syncs.small.p50_micros;
    let measured = format!(
        "an fdatasync of {} new bytes takes {} (median of {})",
        syncs.small_bytes,
        micros(median),
        syncs.small.count
    );
    if median < FASTEST_COMMAND_MICROS && class != DeviceClass::PersistentMemory {
        found.problem(
            "sync_too_fast",
            format!("{measured}; no command reaches a disk in less than {}", micros(FASTEST_COMMAND_MICROS)),
            "the sync does nothing, or a volatile cache answers it: a power failure loses acknowledged writes",
            "look for a library that disables syncs (`LD_PRELOAD`, eatmydata), for `cache=unsafe` of a virtual machine, and \
             for a RAM disk below this one",
        );
        return;
    }
    match class {
        DeviceClass::Rotating if median < HALF_TURN_MICROS => found.weakness(
            "cached_sync",
            format!("{measured}; a platter needs {} for half a turn", micros(HALF_TURN_MICROS)),
            "a cache answers. A controller with a battery keeps it through a power failure; a disk alone does not. Which of \
             the two this is cannot be known from here",
            "if there is no controller with a battery, switch the cache of the disk off (`hdparm -W0`), or check that the \
             kernel sees it: /sys/block/NAME/queue/write_cache must be `write back`",
        ),
        DeviceClass::Flash if median < FASTEST_FLASH_MICROS => found.note(
            "cached_sync",
            format!("{measured}; flash needs {} or more to store a page", micros(FASTEST_FLASH_MICROS)),
            "the drive answers from its memory. Drives for servers keep it with capacitors (power-loss protection); whether \
             this one does cannot be known from here",
            "look for power-loss protection in the data sheet of the model",
        ),
        DeviceClass::Virtual | DeviceClass::Loop => found.note(
            "virtual_disk",
            format!("{measured}, on a disk that the host provides"),
            "the host decides when a sync is durable; the guest cannot measure it",
            "check the host: no cache mode `unsafe`, and a volume that survives the loss of its machine",
        ),
        DeviceClass::Unknown => found.note(
            "unknown_device",
            format!("{measured}, on a device that the kernel does not describe"),
            "neither the device's speed nor its cache can be judged",
            "check which device stores the data of this file system",
        ),
        _ => {}
    }
    let device = storage
        .device
        .as_ref()
        .filter(|device| device.class == DeviceClass::Flash || device.class == DeviceClass::Rotating);
    if let Some(device) = device.filter(|device| device.write_cache.as_deref() == Some("write through")) {
        found.note(
            "no_flush",
            format!("the kernel sends no flush to {}, because it reports no volatile cache", device.name),
            "a sync is as durable as that report is true",
            "if the device has a volatile cache after all, write `write back` to its queue/write_cache in /sys/block",
        );
    }
    if storage.is_virtual_machine && matches!(class, DeviceClass::Flash | DeviceClass::Rotating) {
        found.note(
            "virtual_machine",
            "this is a virtual machine".to_owned(),
            "the host may cache below the disk that the kernel sees; that cannot be known from here",
            "check the cache mode and the volume type at the host",
        );
    }
}

fn speed(syncs: &SyncTimes, found: &mut Findings) {
    let (median, tail) = (syncs.small.p50_micros, syncs.small.p99_micros);
    if median > SLOW_MICROS {
        found.weakness(
            "slow_sync",
            format!("an fdatasync takes {} (median), up to {}", micros(median), micros(syncs.small.max_micros)),
            "no durable write is faster than one sync; writes of many clients share it",
            "use another disk, or the level `interval` for data of which the last second may be lost",
        );
    } else if tail > PAUSE_MICROS {
        found.weakness(
            "unsteady_sync",
            format!(
                "1 of 100 fdatasyncs takes {} or more, the longest {}",
                micros(tail),
                micros(syncs.small.max_micros)
            ),
            "durable writes pause as long as the slowest sync",
            "look for other programs that write to this disk, and for its own limits (I/O credits of a cloud volume)",
        );
    }
}

/// Formats a time for people; `micros` is the time in microseconds.
pub(crate) fn micros(micros: f64) -> String {
    match micros {
        m if m < 10.0 => format!("{m:.1} µs"),
        m if m < 1000.0 => format!("{m:.0} µs"),
        m if m < 10_000.0 => format!("{:.1} ms", m / 1e3),
        m if m < 1e6 => format!("{:.0} ms", m / 1e3),
        m => format!("{:.1} s", m / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sample;

    fn mount(kind: &str, options: &str) -> Mount {
        let options = options.split(',').map(str::to_owned).collect();
        Mount { point: "/".into(), kind: kind.to_owned(), source: "/dev/sda".to_owned(), options }
    }

    fn on(class: DeviceClass, cache: &str) -> Storage {
        let device = Device { name: "sda".to_owned(), class, model: None, write_cache: Some(cache.to_owned()) };
        Storage { mount: Some(mount("ext4", "rw,relatime")), device: Some(device), is_virtual_machine: false }
    }

    fn syncs(p50_micros: f64, p99_micros: f64) -> SyncTimes {
        let small = Sample { count: 100, p50_micros, p90_micros: p99_micros, p99_micros, max_micros: p99_micros };
        SyncTimes { small_bytes: 4096, small, large_bytes: 1 << 20, large_bytes_per_second: 1e8 }
    }

    fn codes(storage: &Storage, syncs: &SyncTimes) -> Vec<&'static str> {
        let mut found = Findings::default();
        judge(storage, Some(syncs), &mut found);
        found.codes()
    }

    #[test]
    fn a_sync_is_judged_by_what_its_device_can_do() {
        use DeviceClass::{Flash, Loop, PersistentMemory, Rotating, Unknown, Virtual};
        let of = |class, p50| codes(&on(class, "write back"), &syncs(p50, p50));
        for class in [Rotating, Flash, Virtual, Loop, Unknown] {
            assert_eq!(of(class, 3.0), ["sync_too_fast"], "{class:?}");
        }
        assert_eq!(of(PersistentMemory, 3.0), Vec::<&str>::new());
        assert_eq!(of(Flash, 30.0), ["cached_sync"]);
        assert_eq!(of(Flash, 500.0), Vec::<&str>::new());
        assert_eq!(of(Rotating, 500.0), ["cached_sync"]);
        assert_eq!(of(Rotating, 8000.0), Vec::<&str>::new());
        assert_eq!(of(Virtual, 500.0), ["virtual_disk"]);
        assert_eq!(of(Unknown, 500.0), ["unknown_device"]);
        assert_eq!(codes(&on(Flash, "write through"), &syncs(500.0, 500.0)), ["no_flush"]);
        let guest = Storage { is_virtual_machine: true, ..on(Flash, "write back") };
        assert_eq!(codes(&guest, &syncs(500.0, 500.0)), ["virtual_machine"]);
    }

    #[test]
    fn a_slow_disk_and_a_slow_tail_are_different_findings() {
        let flash = on(DeviceClass::Flash, "write back");
        assert_eq!(codes(&flash, &syncs(25_000.0, 300_000.0)), ["slow_sync"]);
        assert_eq!(codes(&flash, &syncs(900.0, 300_000.0)), ["unsteady_sync"]);
    }

    #[test]
    fn mount_options_that_cost_durability_or_speed_are_found() {
        let of = |kind: &str, options: &str| {
            let storage = Storage { mount: Some(mount(kind, options)), ..on(DeviceClass::Flash, "write back") };
            codes(&storage, &syncs(500.0, 500.0))
        };
        assert_eq!(of("ext4", "rw,relatime,discard"), Vec::<&str>::new());
        assert_eq!(of("ext4", "rw,nobarrier"), ["no_barriers"]);
        assert_eq!(
            of("ext4", "ro,barrier=0,data=journal,sync"),
            ["read_only", "no_barriers", "journalled_data", "mounted_sync"]
        );
        assert_eq!(of("overlay", "rw,lowerdir=/a,volatile"), ["syncs_ignored"]);
        assert_eq!(of("overlay", "rw,lowerdir=/a"), ["overlay"]);
        assert_eq!(of("nfs4", "rw"), ["remote_file_system"]);
        assert_eq!(of("fuse.sshfs", "rw"), ["remote_file_system"]);
        assert_eq!(of("btrfs", "rw,space_cache"), ["copy_on_write"]);
        assert_eq!(of("btrfs", "rw,nodatacow"), Vec::<&str>::new());
        assert_eq!(of("tmpfs", "rw"), ["memory_file_system"]);
    }

    #[test]
    fn without_facts_there_are_no_findings() {
        let mut found = Findings::default();
        judge(&Storage { mount: None, device: None, is_virtual_machine: false }, None, &mut found);
        assert_eq!(found.codes(), Vec::<&str>::new());
    }
}
