//! The block device below a directory, as `/sys` describes it.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Serialize;

use crate::System;

/// Kind of a block device. It determines how fast a sync can be that really stores the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceClass {
    /// A disk with rotating platters.
    Rotating,
    /// Flash memory (SSD, NVMe, eMMC).
    Flash,
    /// Memory that keeps its contents without power (`pmem`).
    PersistentMemory,
    /// A disk that a hypervisor, a cloud or another server provides.
    Virtual,
    /// Memory that loses its contents without power (`ram`, `zram`).
    Memory,
    /// A file of another file system that serves as a block device (`loop`).
    Loop,
    /// A device that the system does not describe.
    Unknown,
}

impl DeviceClass {
    /// Returns a description of this kind of device for people.
    #[must_use]
    pub fn shown(self) -> &'static str {
        match self {
            Self::Rotating => "rotating disk",
            Self::Flash => "flash",
            Self::PersistentMemory => "persistent memory",
            Self::Virtual => "virtual disk",
            Self::Memory => "volatile memory",
            Self::Loop => "file as a disk",
            Self::Unknown => "unknown device",
        }
    }
}

/// The block device that stores a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Name of the whole disk, such as `nvme0n1`. If the device consists of several disks, their names joined by
    /// commas.
    pub name: String,
    /// Kind of the device. [`Unknown`](DeviceClass::Unknown) if the device consists of disks of different kinds.
    pub class: DeviceClass,
    /// Vendor and model; `None` if the device does not report them, or if it consists of disks of different models.
    pub model: Option<String>,
    /// Mode of the device's write cache, as the kernel sees it. With `write back` a sync sends a flush to the device;
    /// with `write through` it sends none.
    pub write_cache: Option<String>,
}

/// Parts of vendor and model names by which disks of hypervisors and clouds are recognised.
const VIRTUAL: [&str; 10] =
    ["QEMU", "VMware", "VBOX", "Virtual", "Msft", "Amazon Elastic", "Google", "PersistentDisk", "Xen", "LIO-ORG"];

/// Maximum number of device layers that the doctor follows down to the disks, such as LVM on dm-crypt on RAID on
/// partitions.
const MAX_DEPTH: usize = 8;

impl Device {
    /// Returns the device with this major and minor number. `None` if the system does not describe it, for example
    /// because the file system has no block device.
    #[must_use]
    pub fn of(system: &System, major: u32, minor: u32) -> Option<Self> {
        let link = system.path(&format!("sys/dev/block/{major}:{minor}"));
        let dir = fs::canonicalize(link).ok()?;
        let mut disks = BTreeSet::new();
        collect_disks(&dir, 0, &mut disks);
        let all: Vec<Self> = disks.iter().map(|name| Self::of_disk(system, name)).collect();
        let (first, rest) = all.split_first()?;
        Some(rest.iter().fold(first.clone(), |sum, disk| sum.and(disk)))
    }

    fn of_disk(system: &System, name: &str) -> Self {
        let text = |file: &str| system.text(&format!("sys/block/{name}/{file}")).filter(|text| !text.is_empty());
        // A virtio disk reports the number of its vendor instead of a name.
        let parts = [text("device/vendor").filter(|vendor| !vendor.starts_with("0x")), text("device/model")];
        let model = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let is_rotating = text("queue/rotational").map(|text| text == "1");
        Self {
            class: class_of(name, &model, is_rotating),
            name: name.to_owned(),
            model: (!model.is_empty()).then_some(model),
            write_cache: text("queue/write_cache"),
        }
    }

    fn and(mut self, other: &Self) -> Self {
        self.name = format!("{},{}", self.name, other.name);
        if self.class != other.class {
            self.class = DeviceClass::Unknown;
        }
        if self.model != other.model {
            self.model = None;
        }
        // If one of the disks has a volatile cache, the whole device has one.
        if other.write_cache.as_deref() == Some("write back") {
            self.write_cache.clone_from(&other.write_cache);
        }
        self
    }
}

/// Adds the names of the disks below the device in `dir` to `found`.
fn collect_disks(dir: &Path, depth: usize, found: &mut BTreeSet<String>) {
    let slaves = fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
    let slaves: Vec<_> = slaves.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect();
    if slaves.is_empty() || depth == MAX_DEPTH {
        // The kernel puts the directory of a partition into that of its disk.
        let whole = if dir.join("partition").exists() { dir.parent().unwrap_or(dir) } else { dir };
        found.extend(whole.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        return;
    }
    slaves.iter().for_each(|slave| collect_disks(slave, depth + 1, found));
}

fn class_of(name: &str, model: &str, is_rotating: Option<bool>) -> DeviceClass {
    let is_named = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is_named(&["zram", "ram"]) {
        return DeviceClass::Memory;
    }
    if is_named(&["loop"]) {
        return DeviceClass::Loop;
    }
    if is_named(&["pmem"]) {
        return DeviceClass::PersistentMemory;
    }
    // A virtual disk usually claims to be rotating, even on flash.
    if is_named(&["vd", "xvd", "nbd", "rbd", "drbd"]) || VIRTUAL.iter().any(|part| model.contains(part)) {
        return DeviceClass::Virtual;
    }
    match is_rotating {
        Some(true) => DeviceClass::Rotating,
        Some(false) => DeviceClass::Flash,
        None => DeviceClass::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::system::with_files;

    #[test]
    fn names_and_models_tell_the_class() {
        for (name, model, is_rotating, class) in [
            ("sda", "ATA ST4000", Some(true), DeviceClass::Rotating),
            ("nvme0n1", "Samsung SSD 990", Some(false), DeviceClass::Flash),
            ("nvme1n1", "Amazon Elastic Block Store", Some(false), DeviceClass::Virtual),
            ("vda", "", Some(true), DeviceClass::Virtual),
            ("sdb", "QEMU HARDDISK", Some(true), DeviceClass::Virtual),
            ("zram0", "", Some(false), DeviceClass::Memory),
            ("loop3", "", Some(false), DeviceClass::Loop),
            ("pmem0", "", Some(false), DeviceClass::PersistentMemory),
            ("sdc", "", None, DeviceClass::Unknown),
        ] {
            assert_eq!(class_of(name, model, is_rotating), class, "{name} {model}");
        }
    }

    #[test]
    fn a_partition_on_a_mapped_device_leads_to_its_disks() {
        let (root, system) = with_files(&[
            ("sys/block/sda/queue/rotational", "0"),
            ("sys/block/sda/queue/write_cache", "write through"),
            ("sys/block/sda/device/model", "A "),
            ("sys/block/sda/sda1/partition", "1"),
            ("sys/block/sdb/queue/rotational", "0"),
            ("sys/block/sdb/queue/write_cache", "write back"),
            ("sys/block/sdb/device/model", "B"),
            ("sys/block/dm-0/queue/rotational", "0"),
        ]);
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("sys/dev/block")).unwrap();
        fs::create_dir_all(at("sys/block/dm-0/slaves")).unwrap();
        symlink(at("sys/block/dm-0"), at("sys/dev/block/253:0")).unwrap();
        symlink(at("sys/block/sda/sda1"), at("sys/dev/block/8:1")).unwrap();
        symlink(at("sys/block/sda/sda1"), at("sys/block/dm-0/slaves/sda1")).unwrap();
        let one = Device::of(&system, 253, 0).unwrap();
        assert_eq!((one.name.as_str(), one.class, one.model.as_deref()), ("sda", DeviceClass::Flash, Some("A")));
        assert_eq!(Device::of(&system, 8, 1).unwrap().name, "sda");
        symlink(at("sys/block/sdb"), at("sys/block/dm-0/slaves/sdb")).unwrap();
        let two = Device::of(&system, 253, 0).unwrap();
        assert_eq!((two.name.as_str(), two.model, two.class), ("sda,sdb", None, DeviceClass::Flash));
        assert_eq!(two.write_cache.as_deref(), Some("write back"));
        assert_eq!(Device::of(&system, 9, 9), None);
    }
}
