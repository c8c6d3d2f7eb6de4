//! Behaviour of every disk: the same checks on real files and on the simulated disk.

use std::{
    io::{self, ErrorKind, IoSlice},
    sync::Arc,
    time::Duration,
};

use thalweg_disk::{Disk, File, RealDisk, SimDisk};

/// Runs a check on an empty disk of each kind.
fn on_both(check: fn(&dyn Disk)) {
    let dir = tempfile::tempdir().unwrap();
    check(&RealDisk::open(dir.path().join("root")).unwrap());
    check(&SimDisk::new(1));
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.kind(),
    }
}

fn bytes(file: &Arc<dyn File>) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn file_with(disk: &dyn Disk, path: &str, data: &[u8]) -> Arc<dyn File> {
    let file = disk.create(path).unwrap();
    file.write_all_at(data, 0).unwrap();
    file
}

#[test]
fn create_makes_an_empty_file_once_and_open_finds_it() {
    on_both(|disk| {
        assert_eq!(kind(disk.open("a")), ErrorKind::NotFound);
        let file = disk.create("a").unwrap();
        assert!(file.is_empty().unwrap());
        assert_eq!(kind(disk.create("a")), ErrorKind::AlreadyExists);
        file.write_all_at(b"shared", 0).unwrap();
        assert_eq!(bytes(&disk.open("a").unwrap()), b"shared");
    });
}

#[test]
fn writes_overlay_extend_and_leave_zeroes_between() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"0123456789");
        file.write_all_at(b"abc", 4).unwrap();
        file.write_all_at(b"z", 5000).unwrap();
        let mut expected = b"0123abc789".to_vec();
        expected.resize(5000, 0);
        expected.push(b'z');
        assert_eq!(bytes(&file), expected);
        file.write_all_at(b"", 9000).unwrap();
        assert_eq!(file.len().unwrap(), 5001);
    });
}

#[test]
fn vectored_write_joins_all_parts() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"xx");
        // More parts than one system call accepts, of uneven sizes, some empty.
        let parts: Vec<Vec<u8>> = (0..2500usize).map(|part| vec![part as u8; part % 7]).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_all_vectored_at(&slices, 2).unwrap();
        file.write_all_vectored_at(&[], 2).unwrap();
        assert_eq!(bytes(&file), [b"xx".to_vec(), parts.concat()].concat());
    });
}

#[test]
fn reading_past_the_end_is_an_unexpected_eof() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"abc");
        assert_eq!(kind(file.read_exact_at(&mut [0; 2], 2)), ErrorKind::UnexpectedEof);
        assert_eq!(kind(file.read_exact_at(&mut [0; 1], 1000)), ErrorKind::UnexpectedEof);
        file.read_exact_at(&mut [], 1000).unwrap();
    });
}

#[test]
fn offsets_beyond_what_a_file_can_have_are_refused() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"abc");
        assert_eq!(kind(file.write_all_at(b"x", u64::MAX)), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_all_vectored_at(&[IoSlice::new(b"x")], u64::MAX)), ErrorKind::InvalidInput);
        file.read_exact_at(&mut [0; 1], u64::MAX).unwrap_err();
        file.set_len(u64::MAX).unwrap_err();
        assert_eq!(bytes(&file), b"abc");
    });
}

#[test]
fn set_len_cuts_for_good_and_extends_with_zeroes() {
    on_both(|disk| {
        let file = file_with(disk, "a", &[7; 6000]);
        file.set_len(10).unwrap();
        file.set_len(6000).unwrap();
        let mut expected = vec![7; 10];
        expected.resize(6000, 0);
        assert_eq!(bytes(&file), expected);
        file.set_len(0).unwrap();
        assert!(file.is_empty().unwrap());
    });
}

#[test]
fn syncs_succeed_and_change_nothing() {
    on_both(|disk| {
        disk.create_dir("d/e").unwrap();
        let file = file_with(disk, "d/e/a", b"abc");
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        for dir in ["", "d", "d/e"] {
            disk.sync_dir(dir).unwrap();
        }
        assert_eq!(bytes(&disk.open("d/e/a").unwrap()), b"abc");
        assert_eq!(kind(disk.sync_dir("missing")), ErrorKind::NotFound);
        assert_eq!(kind(disk.sync_dir("d/e/a")), ErrorKind::NotADirectory);
    });
}

#[test]
fn rename_replaces_and_open_handles_follow() {
    on_both(|disk| {
        let new = file_with(disk, "new", b"new");
        let old = file_with(disk, "old", b"old");
        disk.rename("new", "old").unwrap();
        assert_eq!(disk.list("").unwrap(), ["old"]);
        assert_eq!(bytes(&disk.open("old").unwrap()), b"new");
        assert_eq!((bytes(&new), bytes(&old)), (b"new".to_vec(), b"old".to_vec()));
        disk.rename("old", "old").unwrap();
        disk.create_dir("d").unwrap();
        disk.rename("old", "d/moved").unwrap();
        assert_eq!(bytes(&disk.open("d/moved").unwrap()), b"new");
        assert_eq!(kind(disk.rename("old", "x")), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename("d/moved", "nowhere/x")), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename("d", "x")), ErrorKind::IsADirectory);
        disk.create_dir("e").unwrap();
        assert_eq!(kind(disk.rename("d/moved", "e")), ErrorKind::IsADirectory);
    });
}

#[test]
fn removed_file_lives_on_in_its_handle() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"abc");
        disk.remove("a").unwrap();
        assert_eq!(kind(disk.open("a")), ErrorKind::NotFound);
        assert_eq!(kind(disk.remove("a")), ErrorKind::NotFound);
        disk.remove_if_there("a").unwrap();
        file.write_all_at(b"d", 3).unwrap();
        assert_eq!(bytes(&file), b"abcd");
        assert!(disk.create("a").unwrap().is_empty().unwrap());
    });
}

#[test]
fn list_shows_files_only_in_order() {
    on_both(|disk| {
        disk.create_dir("d/inner").unwrap();
        for name in ["d/b", "d/a", "d/inner/c", "z", "d/a.tmp"] {
            disk.create(name).unwrap();
        }
        assert_eq!(disk.list("d").unwrap(), ["a", "a.tmp", "b"]);
        assert_eq!(disk.list("").unwrap(), ["z"]);
        assert_eq!(disk.list("d/inner").unwrap(), ["c"]);
        assert_eq!(kind(disk.list("missing")), ErrorKind::NotFound);
        assert_eq!(kind(disk.list("z")), ErrorKind::NotADirectory);
    });
}

#[test]
fn directories_are_created_with_those_above_and_may_exist() {
    on_both(|disk| {
        assert_eq!(kind(disk.create("d/a")), ErrorKind::NotFound);
        disk.create_dir("d/e").unwrap();
        disk.create_dir("d/e").unwrap();
        disk.create_dir("").unwrap();
        disk.create("d/a").unwrap();
        assert_eq!(kind(disk.create_dir("d/a")), ErrorKind::AlreadyExists);
        assert_eq!(kind(disk.create_dir("d/a/b")), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.create("d/a/b")), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.open("d")), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.create("d/e")), ErrorKind::AlreadyExists);
    });
}

#[test]
fn paths_out_of_the_root_are_refused_everywhere() {
    on_both(|disk| {
        disk.create("good").unwrap();
        for path in ["..", "../a", "/etc/passwd", "a/../b", "a//b", ".", "a/"] {
            let refusals = [
                kind(disk.open(path)),
                kind(disk.create(path)),
                kind(disk.rename("good", path)),
                kind(disk.rename(path, "other")),
                kind(disk.remove(path)),
                kind(disk.create_dir(path)),
                kind(disk.list(path)),
                kind(disk.sync_dir(path)),
                kind(disk.lock(path)),
            ];
            assert_eq!(refusals, [ErrorKind::InvalidInput; 9], "{path:?}");
        }
    });
}

#[test]
fn a_lock_that_this_process_holds_is_waited_for() {
    on_both(|disk| {
        let guard = disk.lock("LOCK").unwrap();
        assert_eq!(kind(disk.lock_within("LOCK", Duration::from_millis(1))), ErrorKind::WouldBlock);
        let other = disk.lock_within("OTHER", Duration::MAX).unwrap();
        let (send, taken) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || send.send(disk.lock_within("LOCK", Duration::from_secs(3600)).map(drop)).unwrap());
            assert!(taken.try_recv().is_err(), "the lock is held");
            drop(guard);
            taken.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        });
        drop(other);
        drop(disk.lock("LOCK").unwrap());
    });
}

#[test]
fn lock_is_exclusive_even_within_a_process_and_ends_with_its_guard() {
    on_both(|disk| {
        let guard = disk.lock("LOCK").unwrap();
        assert_eq!(kind(disk.lock("LOCK")), ErrorKind::WouldBlock);
        let other = disk.lock("OTHER").unwrap();
        drop(guard);
        let again = disk.lock("LOCK").unwrap();
        assert_eq!(disk.list("").unwrap(), ["LOCK", "OTHER"]);
        drop((other, again));
    });
}

#[test]
fn mapped_writes_are_writes() {
    on_both(|disk| {
        let file = file_with(disk, "a", &[0; 10_000]);
        let mut mapping = file.map(8000).unwrap();
        mapping.write(b"mapped", 4093);
        mapping.write(b"end", 7997);
        mapping.write(b"", 8000);
        let mut expected = vec![0; 10_000];
        expected[4093..4099].copy_from_slice(b"mapped");
        expected[7997..8000].copy_from_slice(b"end");
        assert_eq!(bytes(&file), expected);
        file.write_all_at(b"pwrite", 4095).unwrap();
        mapping.write(b"ma", 4093);
        file.sync_data().unwrap();
        drop(file);
        // The mapping works without an open handle.
        mapping.write(b"X", 0);
        expected[4095..4101].copy_from_slice(b"pwrite");
        expected[0] = b'X';
        assert_eq!(bytes(&disk.open("a").unwrap()), expected);
    });
}

#[test]
fn reserved_bytes_are_zeroes_that_can_be_mapped() {
    on_both(|disk| {
        let file = file_with(disk, "a", b"0123456789");
        if !file.reserve(10_000).unwrap() {
            // Zeroes are what a caller writes where the file system cannot reserve space.
            file.write_all_at(&[0; 9_990], 10).unwrap();
        }
        assert_eq!(file.len().unwrap(), 10_000);
        assert!(file.allocated_bytes().unwrap() >= 10_000);
        let mut expected = vec![0; 10_000];
        expected[..10].copy_from_slice(b"0123456789");
        assert_eq!(bytes(&file), expected);
        file.map(10_000).unwrap().write(b"end", 9_997);
        expected[9_997..].copy_from_slice(b"end");
        file.sync_all().unwrap();
        assert_eq!(bytes(&disk.open("a").unwrap()), expected);
        // A file that is long enough already keeps its length and its bytes.
        file.reserve(100).unwrap();
        assert_eq!(bytes(&file), expected);
    });
}

#[test]
fn a_mapping_is_not_empty_and_lies_within_the_file() {
    on_both(|disk| {
        let file = file_with(disk, "a", &[0; 100]);
        assert_eq!(kind(file.map(0)), ErrorKind::InvalidInput);
        assert_eq!(kind(file.map(101)), ErrorKind::InvalidInput);
        file.map(100).unwrap();
    });
}

#[test]
fn writing_past_a_mapping_panics_and_changes_nothing() {
    on_both(|disk| {
        let file = file_with(disk, "a", &[0; 8192]);
        for (len, offset) in [(2, 4095), (1, 4096), (1, u64::MAX), (4097, 0)] {
            let mut mapping = file.map(4096).unwrap();
            let write = std::panic::AssertUnwindSafe(|| mapping.write(&vec![1; len], offset));
            assert!(std::panic::catch_unwind(write).is_err(), "{len} bytes at {offset}");
        }
        assert_eq!(bytes(&file), [0; 8192]);
    });
}

#[test]
fn free_bytes_is_above_zero() {
    on_both(|disk| assert!(disk.free_bytes().unwrap() > 0));
}

#[test]
fn many_threads_may_use_one_file() {
    on_both(|disk| {
        let file = file_with(disk, "a", &[0; 4 * 3000]);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let file = &file;
                scope.spawn(move || {
                    for at in 0..300u64 {
                        file.write_all_at(&[thread + 1; 10], u64::from(thread) * 3000 + at * 10).unwrap();
                        if at % 100 == 0 {
                            file.sync_data().unwrap();
                        }
                    }
                });
            }
        });
        let expected: Vec<u8> = (1..=4).flat_map(|fill| [fill; 3000]).collect();
        assert_eq!(bytes(&file), expected);
    });
}

#[test]
fn real_disk_creates_its_root_and_refuses_a_file_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("deep/er/root");
    RealDisk::open(&root).unwrap().create("a").unwrap();
    let again = RealDisk::open(&root).unwrap();
    assert_eq!(again.list("").unwrap(), ["a"]);
    assert_eq!(again.os_path(), Some(root.as_path()));
    assert_eq!(kind(RealDisk::open(root.join("a"))), ErrorKind::NotADirectory);
    assert_eq!(kind(RealDisk::open(root.join("a/b"))), ErrorKind::NotADirectory);
}

#[test]
fn real_lock_holds_against_another_disk_on_the_same_root() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (RealDisk::open(dir.path()).unwrap(), RealDisk::open(dir.path()).unwrap());
    let guard = first.lock("LOCK").unwrap();
    assert_eq!(kind(second.lock("LOCK")), ErrorKind::WouldBlock);
    drop(guard);
    second.lock("LOCK").unwrap();
}
