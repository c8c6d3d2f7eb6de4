//! Failing calls, full disks, flipped bits, and the figures that tests use.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
};

use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, FlippedFile, Operation, PowerLoss},
};

use crate::support::{durable_file, tree};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn only_the_nth_call_of_its_kind_fails() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 10]);
    disk.fail(Fault::new(Operation::Read, 2, Errno::Io));
    disk.fail(Fault::new(Operation::Write, 3, Errno::NoSpace));
    let mut reads = vec![];
    let mut writes = vec![];
    for _ in 0..4 {
        reads.push(errno(file.read_exact_at(&mut [0], 0)));
        writes.push(errno(file.write_all_at(b"x", 0)));
    }
    assert_eq!(reads, [None, Some(EIO), None, None]);
    assert_eq!(writes, [None, None, Some(ENOSPC), None]);
}

#[test]
fn every_kind_of_call_can_fail_and_then_has_done_nothing() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"abc");
    disk.create_dir("d").unwrap();
    disk.sync_dir("").unwrap();
    let before = tree(&disk);
    let kinds = [
        Operation::Read,
        Operation::Write,
        Operation::SetLen,
        Operation::Sync,
        Operation::SyncDir,
        Operation::Create,
        Operation::CreateDir,
        Operation::Rename,
        Operation::Remove,
    ];
    for kind in kinds {
        disk.fail(Fault::new(kind, 1, Errno::Io));
    }
    let failed = [
        errno(file.read_exact_at(&mut [0], 0)),
        errno(file.write_all_at(b"x", 0)),
        errno(file.set_len(1)),
        errno(file.sync_all()),
        errno(disk.sync_dir("")),
        errno(disk.create("b")),
        errno(disk.create_dir("e")),
        errno(disk.rename("a", "b")),
        errno(disk.remove("a")),
    ];
    assert_eq!(failed, [Some(EIO); 9]);
    assert_eq!(tree(&disk), before);
    assert_eq!(disk.list("e").unwrap_err().kind(), ErrorKind::NotFound);
    disk.create("b").unwrap();
}

#[test]
fn a_fault_can_be_bound_to_a_path_and_last() {
    let disk = SimDisk::new(1);
    let (log, state) = (durable_file(&disk, "log-1", b"x"), durable_file(&disk, "state", b"x"));
    disk.fail(Fault::new(Operation::Sync, 2, Errno::Io).on_path("log").for_good());
    let syncs: Vec<_> = (0..4).map(|_| (errno(log.sync_data()), errno(state.sync_data()))).collect();
    assert_eq!(syncs, [(None, None), (Some(EIO), None), (Some(EIO), None), (Some(EIO), None)]);
    disk.rename("log-1", "other").unwrap();
    assert_eq!(errno(log.sync_data()), None, "faults match a file by its latest name");
    disk.rename("other", "log-2").unwrap();
    disk.clear_faults();
    assert_eq!(errno(log.sync_data()), None);
}

#[test]
fn faults_of_one_kind_can_be_removed_and_failed_calls_are_counted() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"x");
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).for_good());
    disk.fail(Fault::new(Operation::Rename, 1, Errno::Io).for_good());
    let fails = || (errno(file.sync_data()), errno(disk.rename("a", "b")));
    assert_eq!(fails(), (Some(EIO), Some(EIO)));
    disk.clear_faults_of(Operation::Rename);
    assert_eq!(errno(disk.rename("a", "b")), None);
    assert_eq!(errno(file.sync_data()), Some(EIO));
    let failed = disk.failed_calls();
    assert_eq!((failed.syncs, failed.renames, failed.operations()), (2, 1, 3));
    assert_eq!(disk.kill_process().failed_calls().syncs, 0, "a new process has made no calls");
}

#[test]
fn failed_sync_leaves_pages_clean_and_unwritten() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"old old old");
    file.write_all_at(b"new", 0).unwrap();
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
    assert_eq!(errno(file.sync_data()), Some(EIO));
    file.sync_data().unwrap();
    // Reads still see the page, but no power loss restores it: the second sync reported a false success, as
    // on Linux.
    assert_eq!(disk.cached_bytes("a").unwrap(), b"new old old");
    for seed in 0..50 {
        assert_eq!(disk.power_loss(seed).cached_bytes("a").unwrap(), b"old old old", "seed {seed}");
    }
    assert_eq!(disk.kill_process().cached_bytes("a").unwrap(), b"new old old");
    // Rewriting a part of the page dirties it again, with everything in its sector.
    file.write_all_at(b"!", 3).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.power_loss(1).cached_bytes("a").unwrap(), b"new!old old");
}

#[test]
fn eviction_uncovers_what_a_failed_sync_did_not_write() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 1024]);
    file.write_all_at(&[1; 512], 0).unwrap();
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
    file.sync_data().unwrap_err();
    file.write_all_at(&[2; 512], 512).unwrap();
    disk.drop_caches();
    // The dirty page stays; the clean page is read from the medium.
    assert_eq!(disk.cached_bytes("a").unwrap(), [[0; 512], [2; 512]].concat());
}

#[test]
fn failed_sync_keeps_a_length_pending() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", b"abc");
    file.write_all_at(b"def", 3).unwrap();
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
    file.sync_data().unwrap_err();
    let outcomes: BTreeSet<_> = (0..50).map(|seed| disk.power_loss(seed).cached_bytes("a").unwrap()).collect();
    assert_eq!(outcomes, [b"abc".to_vec(), b"abc\0\0\0".to_vec()].into());
    file.sync_data().unwrap();
    assert_eq!(disk.power_loss(7).cached_bytes("a").unwrap(), b"abc\0\0\0");
}

#[test]
fn failing_calls_may_leave_a_part() {
    let (mut torn_writes, mut torn_syncs) = (0, 0);
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let file = durable_file(&disk, "a", &[0; 4096]);
        disk.fail(Fault::new(Operation::Write, 1, Errno::Io).with_partial_effect());
        file.write_all_at(&[1; 4096], 0).unwrap_err();
        let bytes = disk.cached_bytes("a").unwrap();
        let written = bytes.iter().take_while(|byte| **byte == 1).count();
        assert!(written < 4096 && bytes[written..].iter().all(|byte| *byte == 0), "seed {seed}");
        torn_writes += usize::from(written > 0);

        file.write_all_at(&[2; 4096], 0).unwrap();
        disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).with_partial_effect());
        file.sync_data().unwrap_err();
        let durable = disk.after_power_loss_with(PowerLoss::KeepUnsynced).cached_bytes("a").unwrap();
        let new = durable.chunks(512).filter(|sector| *sector == [2; 512]).count();
        torn_syncs += usize::from((1..8).contains(&new));
    }
    assert!(torn_writes > 10 && torn_syncs > 10, "of 20, {torn_writes} writes and {torn_syncs} syncs were torn");
}

#[test]
fn failed_directory_sync_loses_its_entries() {
    let disk = SimDisk::new(1);
    disk.create("a").unwrap();
    disk.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
    assert_eq!(errno(disk.sync_dir("")), Some(EIO));
    disk.sync_dir("").unwrap();
    assert_eq!(disk.paths(), ["a"]);
    assert!(disk.after_power_loss_with(PowerLoss::KeepUnsynced).paths().is_empty());
}

#[test]
fn a_full_disk_takes_a_beginning_and_refuses_the_rest() {
    let disk = SimDisk::new(1);
    disk.set_capacity(3 * 4096);
    let file = disk.create("a").unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 4096);
    assert_eq!(file.write_all_at(&[2; 9000], 5000).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 3 * 4096);
    assert_eq!(disk.free_bytes().unwrap(), 0);
    // Overwriting allocated blocks, and extending without allocating, still succeed.
    file.write_all_at(&[3; 100], 0).unwrap();
    file.set_len(1 << 30).unwrap();
    assert_eq!(file.write_all_at(&[1], 1 << 29).unwrap_err().kind(), ErrorKind::StorageFull);
    file.set_len(4096).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 2 * 4096);
}

#[test]
fn space_of_a_removed_file_is_free_once_it_is_closed() {
    let disk = SimDisk::new(1);
    disk.set_capacity(8192);
    let file = durable_file(&disk, "a", &[1; 8192]);
    let mapping = file.map(8192).unwrap();
    let guard = disk.lock("a").unwrap();
    disk.lock("a").unwrap_err();
    disk.remove("a").unwrap();
    drop((file, guard));
    assert_eq!(disk.free_bytes().unwrap(), 0);
    assert_eq!(disk.kill_process().free_bytes().unwrap(), 8192);
    drop(mapping);
    assert_eq!(disk.free_bytes().unwrap(), 8192);
    let replaced = durable_file(&disk, "b", &[1; 8192]);
    drop(replaced);
    disk.create("c").unwrap();
    disk.rename("c", "b").unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 8192);
}

#[test]
fn mapping_a_hole_is_refused() {
    let disk = SimDisk::new(1);
    let file = disk.create("a").unwrap();
    file.set_len(8192).unwrap();
    file.write_all_at(&[1], 0).unwrap();
    assert_eq!(file.map(8192).unwrap_err().kind(), ErrorKind::InvalidInput);
    file.map(4096).unwrap();
}

#[test]
#[should_panic(expected = "SIGBUS")]
fn writing_through_a_mapping_of_a_shrunk_file_panics() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 8192]);
    let mut mapping = file.map(8192).unwrap();
    file.set_len(4096).unwrap();
    mapping.write(b"x", 5000);
}

#[test]
fn a_flipped_bit_is_on_the_medium_and_in_the_cache() {
    let disk = SimDisk::new(1);
    durable_file(&disk, "a", &[0; 1000]);
    disk.flip_bit("a", 700, 3).unwrap();
    let mut expected = vec![0; 1000];
    expected[700] = 8;
    assert_eq!(disk.cached_bytes("a").unwrap(), expected);
    assert_eq!(disk.power_loss(3).cached_bytes("a").unwrap(), expected);
    assert_eq!(disk.flip_bit("a", 1000, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.flip_bit("a", 0, 8).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.flip_bit("b", 0, 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_flipped_bit_counts_until_it_is_overwritten_on_the_medium() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 1000]);
    assert!(disk.flipped_files().is_empty());
    disk.flip_bit("a", 700, 3).unwrap();
    let flipped = |is_overwritten| vec![FlippedFile { path: "a".to_owned(), is_overwritten }];
    assert_eq!(disk.flipped_files(), flipped(false));
    file.write_all_at(&[1; 100], 100).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.flipped_files(), flipped(false), "another byte of the sector");
    file.write_all_at(&[1], 700).unwrap();
    assert_eq!(disk.flipped_files(), flipped(false), "a power loss brings it back");
    assert_eq!(disk.after_power_loss_with(PowerLoss::LoseUnsynced).flipped_files(), flipped(false));
    file.sync_data().unwrap();
    assert_eq!(disk.flipped_files(), flipped(true));
    assert_eq!(disk.power_loss(3).flipped_files(), flipped(true));
    drop(file);
    disk.remove("a").unwrap();
    disk.sync_dir("").unwrap();
    assert!(disk.flipped_files().is_empty());
}

#[test]
fn random_flips_hit_exactly_one_durable_bit_and_replay() {
    assert_eq!(SimDisk::new(1).flip_random_bit(1), None);
    let mut hit = BTreeSet::new();
    for seed in 0..50 {
        let flips = [(); 2].map(|()| {
            let disk = SimDisk::new(1);
            durable_file(&disk, "a", &[0; 100]);
            durable_file(&disk, "b", &[0; 200]).write_all_at(&[0; 50], 200).unwrap();
            let flip = disk.flip_random_bit(seed).unwrap();
            let bits: u32 = tree(&disk).values().flatten().map(|byte| byte.count_ones()).sum();
            assert_eq!(bits, 1, "seed {seed}");
            let len = disk.durable_bytes(&flip.path).unwrap().len();
            assert!(flip.offset < len as u64, "{flip:?}");
            assert_eq!(disk.cached_bytes(&flip.path).unwrap()[flip.offset as usize], 1 << flip.bit);
            flip
        });
        assert_eq!(flips[0], flips[1]);
        hit.insert(flips[0].path.clone());
    }
    assert_eq!(hit.len(), 2);
}

#[test]
fn counts_tell_each_kind_apart() {
    let disk = SimDisk::new(1);
    let file = durable_file(&disk, "a", &[0; 8192]);
    let before = disk.counts();
    file.write_all_at(&[1; 100], 4000).unwrap();
    file.write_all_vectored_at(&[io::IoSlice::new(b"ab"), io::IoSlice::new(b"c")], 0).unwrap();
    file.map(8192).unwrap().write(b"xy", 9);
    file.sync_data().unwrap();
    file.read_exact_at(&mut [0; 7], 0).unwrap();
    let writing = disk.counts() - before;
    assert_eq!((writing.writes, writing.mapped_writes, writing.syncs, writing.reads), (2, 1, 1, 1));
    assert_eq!((writing.bytes_written, writing.bytes_read, writing.operations()), (105, 7, 4));
    // Operations that a write path into a prewritten file must never cause.
    assert_eq!((writing.extensions, writing.allocations), (0, 0));
    assert_eq!((writing.creates, writing.renames, writing.removes, writing.dir_syncs), (0, 0, 0, 0));

    let before = disk.counts();
    file.write_all_at(&[1], 8192).unwrap();
    file.set_len(9000).unwrap();
    file.set_len(10).unwrap();
    file.write_all_at(&[1; 10], 10).unwrap();
    disk.create_dir("x/y").unwrap();
    drop(disk.lock("LOCK").unwrap());
    disk.rename("a", "b").unwrap();
    disk.remove("b").unwrap();
    disk.sync_dir("x").unwrap();
    let rest = disk.counts() - before;
    assert_eq!((rest.extensions, rest.allocations, rest.set_lens), (3, 1, 2));
    assert_eq!((rest.creates, rest.dir_creates, rest.renames, rest.removes, rest.dir_syncs), (1, 2, 1, 1, 1));
}

#[test]
fn the_op_log_keeps_the_last_events() {
    let disk = SimDisk::new(1);
    durable_file(&disk, "silent", b"");
    disk.keep_events(3);
    let file = durable_file(&disk, "a", b"xyz");
    file.set_len(1).unwrap();
    let shown: Vec<String> = disk.events().iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["6 Sync \"a\"", "7 SyncDir \"\"", "8 SetLen \"a\" 0+1"]);
    disk.keep_events(1);
    assert_eq!(disk.events().len(), 1);
    disk.keep_events(0);
    file.sync_data().unwrap();
    assert!(disk.events().is_empty());
}
