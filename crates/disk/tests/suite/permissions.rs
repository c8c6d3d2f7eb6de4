//! Permissions of files and directories on the real disk, and symbolic links in the place of files.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use thalweg_disk::{Disk, RealDisk};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_their_owner_can_use_new_files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("above/root");
    let disk = RealDisk::open(&root).unwrap();
    disk.create_dir("a/b").unwrap();
    disk.create("a/b/file").unwrap().write_all_at(b"x", 0).unwrap();
    let _lock = disk.lock("LOCK").unwrap();
    for made in ["", "a", "a/b"] {
        assert_eq!(mode(&root.join(made)), 0o700, "{made}");
    }
    for made in ["a/b/file", "LOCK"] {
        assert_eq!(mode(&root.join(made)), 0o600, "{made}");
    }
    assert_eq!(mode(&dir.path().join("above")), 0o700);
}

#[test]
fn existing_permissions_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    fs::set_permissions(dir.path().join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    disk.open("file").unwrap().write_all_at(b"y", 0).unwrap();
    assert_eq!((mode(dir.path()), mode(&dir.path().join("file"))), (0o750, 0o640));
}

#[test]
fn a_symbolic_link_in_the_place_of_a_file_is_not_followed() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (target, absent) = (outside.path().join("target"), outside.path().join("absent"));
    fs::write(&target, b"theirs").unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    for (name, to) in [("file", &target), ("LOCK", &absent), ("new", &absent)] {
        std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    }
    assert!(disk.open("file").is_err());
    assert!(disk.lock("LOCK").is_err());
    assert!(disk.create("new").is_err());
    assert!(!absent.exists(), "nothing is created at the other end of a link");
    assert_eq!(fs::read(&target).unwrap(), b"theirs");
    // A directory may be on another file system.
    std::os::unix::fs::symlink(outside.path(), dir.path().join("elsewhere")).unwrap();
    disk.open("elsewhere/target").unwrap();
}
