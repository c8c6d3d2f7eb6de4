//! Outcomes of a power loss on the simulated disk, one behaviour a test. `contract.rs` checks the same
//! guarantees under random workloads.

use std::collections::BTreeSet;

use thalweg_disk::{
    Disk, SimDisk,
    sim::{PowerIsOff, PowerLoss},
};

use crate::support::{durable_file, tree};

/// Enough seeds to produce every outcome of a few independent choices.
const SEEDS: std::ops::Range<u64> = 0..400;

/// All contents that a power loss can leave under a path.
fn outcomes(disk: &SimDisk, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    SEEDS.map(|seed| disk.power_loss(seed).cached_bytes(path).ok()).collect()
}

/// All sets of names that a power loss can leave, joined by commas.
fn name_outcomes(disk: &SimDisk) -> BTreeSet<String> {
    SEEDS.map(|seed| disk.power_loss(seed).paths().join(",")).collect()
}

fn names<const N: usize>(expected: [&str; N]) -> BTreeSet<String> {
    expected.map(str::to_owned).into()
}

#[test]
fn unsynced_bytes_are_lost_and_synced_ones_are_not() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"synced");
    file.write_all_at(b"later!", 0).unwrap();
    file.write_all_at(b"more", 6).unwrap();
    let lost = disk.after_power_loss_with(PowerLoss::LoseUnsynced);
    assert_eq!(lost.cached_bytes("a").unwrap(), b"synced");
    assert_eq!(disk.durable_bytes("a").unwrap(), b"synced");
    let kept = disk.after_power_loss_with(PowerLoss::KeepUnsynced);
    assert_eq!(kept.cached_bytes("a").unwrap(), b"later!more");
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, "a"), [Some(b"later!more".to_vec())].into());
}

#[test]
fn sectors_survive_whole_and_independently() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 1024]);
    file.write_all_at(&[1; 1024], 0).unwrap();
    let sectors = |first, second| Some([[first; 512], [second; 512]].concat());
    assert_eq!(outcomes(&disk, "a"), [sectors(0, 0), sectors(0, 1), sectors(1, 0), sectors(1, 1)].into());
}

#[test]
fn an_earlier_version_of_a_sector_may_survive_a_later_one() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"0000");
    file.write_all_at(b"1", 1).unwrap();
    file.write_all_at(b"2", 2).unwrap();
    let expected = [b"0000", b"0100", b"0120"].map(|version| Some(version.to_vec()));
    assert_eq!(outcomes(&disk, "a"), expected.into());
}

#[test]
fn rewriting_a_sector_with_the_same_prefix_keeps_the_prefix() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[7; 512]);
    for len in [300, 200, 100] {
        file.write_all_at(&[[7; 100].to_vec(), vec![len as u8; len - 100]].concat(), 0).unwrap();
    }
    for outcome in outcomes(&disk, "a") {
        assert_eq!(outcome.unwrap()[..100], [7; 100]);
    }
}

#[test]
fn a_length_may_survive_without_its_data_and_the_other_way_round() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"");
    file.write_all_at(&[1; 600], 0).unwrap();
    let mut torn = vec![0; 600];
    torn[512..].fill(1);
    let first_only = [[1; 512].to_vec(), vec![0; 88]].concat();
    let expected = [vec![], vec![0; 600], vec![1; 600], torn, first_only];
    assert_eq!(outcomes(&disk, "a"), expected.map(Some).into());
}

#[test]
fn what_lay_past_a_lost_length_does_not_come_back() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"abc");
    file.write_all_at(b"defg", 3).unwrap();
    for seed in SEEDS {
        let next = disk.power_loss(seed);
        let file = next.open("a").unwrap();
        let len = file.len().unwrap() as usize;
        file.set_len(10).unwrap();
        assert_eq!(next.cached_bytes("a").unwrap()[len..], vec![0; 10 - len], "seed {seed}");
    }
}

#[test]
fn set_len_may_be_lost_both_ways() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"abc");
    file.set_len(5).unwrap();
    assert_eq!(outcomes(&disk, "a"), [b"abc".to_vec(), b"abc\0\0".to_vec()].map(Some).into());
    file.sync_data().unwrap();
    file.set_len(1).unwrap();
    let outcomes = outcomes(&disk, "a");
    // Bytes beyond an unsynced truncation may already read as zeroes.
    assert_eq!(outcomes, [b"a".to_vec(), b"abc\0\0".to_vec(), b"a\0\0\0\0".to_vec()].map(Some).into());
    file.sync_data().unwrap();
    file.set_len(3).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.after_power_loss_with(PowerLoss::LoseUnsynced).cached_bytes("a").unwrap(), b"a\0\0");
}

#[test]
fn whole_blocks_behind_a_cut_do_not_come_back_after_a_sync() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[9; 20_000]);
    file.set_len(5000).unwrap();
    file.set_len(20_000).unwrap();
    file.sync_data().unwrap();
    let mut expected = vec![9; 5000];
    expected.resize(20_000, 0);
    assert_eq!(outcomes(&disk, "a"), [Some(expected)].into());
}

#[test]
fn mapped_writes_are_lost_and_kept_as_others() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 1024]);
    let mut mapping = file.map(1024).unwrap();
    mapping.write(&[1; 2], 511);
    assert_eq!(disk.unsynced_changes(), 1);
    assert_eq!(outcomes(&disk, "a").len(), 4);
    file.sync_data().unwrap();
    assert_eq!(outcomes(&disk, "a").len(), 1);
    assert_eq!(disk.durable_bytes("a").unwrap()[510..514], [0, 1, 1, 0]);
}

#[test]
fn a_synced_file_without_a_synced_name_may_vanish() {
    let disk = SimDisk::new(1);
    let file = disk.create("a").unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(outcomes(&disk, "a"), [None, Some(b"synced".to_vec())].into());
    assert_eq!(disk.durable_bytes("a"), None);
}

#[test]
fn a_synced_name_does_not_save_unsynced_bytes() {
    let disk = SimDisk::new(1);
    let file = disk.create("a").unwrap();
    file.write_all_at(b"unsynced", 0).unwrap();
    disk.sync_dir("").unwrap();
    let expected = [b"".to_vec(), vec![0; 8], b"unsynced".to_vec()];
    assert_eq!(outcomes(&disk, "a"), expected.map(Some).into());
}

#[test]
fn rename_is_old_or_new_and_never_both_or_none() {
    let disk = SimDisk::new(1);
    durable_file(&disk, "new", b"new");
    durable_file(&disk, "name", b"old");
    disk.rename("new", "name").unwrap();
    let outcomes: BTreeSet<_> = SEEDS.map(|seed| tree(&disk.power_loss(seed))).collect();
    let before = [("name".to_owned(), b"old".to_vec()), ("new".to_owned(), b"new".to_vec())];
    let after = [("name".to_owned(), b"new".to_vec())];
    assert_eq!(outcomes, [before.into(), after.into()].into());
    disk.sync_dir("").unwrap();
    assert_eq!(name_outcomes(&disk), names(["name"]));
}

#[test]
fn rename_between_directories_is_atomic_too() {
    let disk = SimDisk::new(1);
    disk.create_dir("x").unwrap();
    disk.create_dir("y").unwrap();
    durable_file(&disk, "x/a", b"");
    disk.sync_dir("x").unwrap();
    disk.rename("x/a", "y/b").unwrap();
    assert_eq!(name_outcomes(&disk), names(["x/a", "y/b"]));
    disk.sync_dir("y").unwrap();
    assert_eq!(name_outcomes(&disk), names(["y/b"]));
}

#[test]
fn removal_may_be_undone_until_the_directory_is_synced() {
    let disk = SimDisk::new(1);
    drop(durable_file(&disk, "a", b"back"));
    disk.remove("a").unwrap();
    assert_eq!(outcomes(&disk, "a"), [None, Some(b"back".to_vec())].into());
    disk.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk, "a"), [None].into());
}

#[test]
fn changes_of_different_names_survive_independently() {
    let disk = SimDisk::new(1);
    disk.create("a").unwrap();
    disk.create("b").unwrap();
    assert_eq!(name_outcomes(&disk), names(["", "a", "a,b", "b"]));
}

#[test]
fn changes_of_one_name_keep_their_order() {
    let disk = SimDisk::new(1);
    durable_file(&disk, "a", b"first");
    disk.rename("a", "b").unwrap();
    disk.create("a").unwrap();
    // The second `a` without the rename would have destroyed a durable file that was never removed.
    assert_eq!(name_outcomes(&disk), names(["a", "a,b", "b"]));
    for seed in SEEDS {
        let files = tree(&disk.power_loss(seed));
        assert_eq!(files.values().filter(|bytes| *bytes == b"first").count(), 1, "seed {seed}");
    }
}

#[test]
fn a_lost_directory_takes_its_files_along() {
    let disk = SimDisk::new(1);
    disk.create_dir("d/e").unwrap();
    disk.create("d/e/a").unwrap().sync_all().unwrap();
    disk.sync_dir("d/e").unwrap();
    disk.sync_dir("d").unwrap();
    assert_eq!(name_outcomes(&disk), names(["", "d/e/a"]));
    disk.sync_dir("").unwrap();
    assert_eq!(name_outcomes(&disk), names(["d/e/a"]));
}

#[test]
fn a_power_loss_leaves_the_disk_it_was_drawn_from_alone() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"one");
    let guard = disk.lock("LOCK").unwrap();
    file.write_all_at(b"two", 0).unwrap();
    let next = disk.after_power_loss_with(PowerLoss::KeepUnsynced);
    next.open("a").unwrap().write_all_at(b"xxx", 0).unwrap();
    assert_eq!((next.operations(), next.unsynced_changes()), (1, 1));
    drop(next.lock("LOCK").unwrap());
    assert_eq!(disk.cached_bytes("a").unwrap(), b"two");
    assert_eq!(disk.lock("LOCK").unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(guard);
}

#[test]
fn what_a_first_power_loss_left_is_durable_for_the_second() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 2048]);
    file.write_all_at(&[1; 2048], 0).unwrap();
    for seed in SEEDS {
        let once = disk.power_loss(seed);
        assert_eq!(once.unsynced_changes(), 0);
        assert_eq!(tree(&once.power_loss(seed + 1)), tree(&once), "seed {seed}");
    }
}

#[test]
fn a_killed_process_loses_its_locks_but_nothing_written() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"one");
    let _guard = disk.lock("LOCK").unwrap();
    file.write_all_at(b"two", 0).unwrap();
    let next = disk.kill_process();
    assert_eq!(next.cached_bytes("a").unwrap(), b"two");
    assert_eq!(next.durable_bytes("a").unwrap(), b"one");
    drop(next.lock("LOCK").unwrap());
    // The kernel still has the old changes, which are older than the new ones.
    next.open("a").unwrap().write_all_at(b"3", 0).unwrap();
    let prefix = |kept| next.after_power_loss_with(PowerLoss::KeepPrefix(kept)).cached_bytes("a").unwrap();
    assert_eq!([prefix(0), prefix(1), prefix(2), prefix(3)], [b"one", b"one", b"two", b"3wo"]);
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
        assert!(PowerIsOff::is_cause_of(&result.unwrap_err()));
    }
    assert_eq!(disk.operations() - before, 2);
    let next = disk.after_power_loss_with(PowerLoss::KeepUnsynced);
    assert_eq!(next.cached_bytes("a").unwrap()[..3], *b"12\0");
    next.open("a").unwrap().write_all_at(b"works", 0).unwrap();
}
