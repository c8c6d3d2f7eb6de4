//! The simulated disk's promise about power loss.

use thalweg_disk::{
    Disk, File, SimDisk,
    sim::{PowerIsOff, PowerLoss},
};

fn durable_file(disk: &SimDisk, path: &str, data: &[u8]) -> std::sync::Arc<dyn File> {
    let file = disk.create(path).unwrap();
    file.write_all_at(data, 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir("").unwrap();
    file
}

#[test]
fn unsynced_bytes_are_lost_and_synced_ones_are_not() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"synced");
    file.write_all_at(b"later!", 0).unwrap();
    file.write_all_at(b"more", 6).unwrap();
    let lost = disk.power_loss_as(PowerLoss::LoseUnsynced);
    assert_eq!(lost.cached_bytes("a").unwrap(), b"synced");
    let kept = disk.power_loss_as(PowerLoss::KeepUnsynced);
    assert_eq!(kept.cached_bytes("a").unwrap(), b"later!more");
    file.sync_data().unwrap();
    for seed in 0..50 {
        assert_eq!(disk.power_loss(seed).cached_bytes("a").unwrap(), b"later!more", "seed {seed}");
    }
}

#[test]
fn a_synced_file_without_a_synced_name_may_vanish() {
    let disk = SimDisk::new(1);
    let file = disk.create("a").unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    let outcomes: std::collections::BTreeSet<_> =
        (0..50).map(|seed| disk.power_loss(seed).cached_bytes("a").ok()).collect();
    assert_eq!(outcomes, [None, Some(b"synced".to_vec())].into());
}

#[test]
fn after_the_crash_point_nothing_works() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 4096]);
    let mut mapping = file.map(4096).unwrap();
    let before = disk.operations();
    disk.power_off_after(2);
    file.write_all_at(b"1", 0).unwrap();
    mapping.write(b"2", 1);
    mapping.write(b"3", 2);
    let mut refused = vec![file.write_all_at(b"3", 2), file.sync_data(), file.sync_all(), file.set_len(0)];
    refused.extend([file.len().map(drop), file.map(1).map(drop), file.read_exact_at(&mut [0], 0)]);
    refused.extend([disk.open("a").map(drop), disk.create("b").map(drop), disk.rename("a", "b")]);
    refused.extend([disk.remove("a"), disk.create_dir("d"), disk.sync_dir(""), disk.list("").map(drop)]);
    refused.extend([disk.free_bytes().map(drop), disk.lock("LOCK").map(drop)]);
    for result in refused {
        assert!(PowerIsOff::caused(&result.unwrap_err()));
    }
    assert_eq!(disk.operations() - before, 2);
    let next = disk.power_loss_as(PowerLoss::KeepUnsynced);
    assert_eq!(next.cached_bytes("a").unwrap()[..3], *b"12\0");
    next.open("a").unwrap().write_all_at(b"works", 0).unwrap();
}
