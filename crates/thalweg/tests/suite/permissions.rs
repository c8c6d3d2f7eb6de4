//! Permissions of the files that a server, a backup and a restore write, and warnings about those of others and about
//! wrong passwords.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    node::{Node, command, run},
    redis::{Redis, Reply, address},
};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the directory and everything in it.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { all.extend(tree(&entry)) } else { all.push(entry) }
    }
    all
}

#[track_caller]
fn is_private(dir: &Path) {
    for path in tree(dir) {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
}

#[test]
fn data_and_backups_are_private() {
    let root = tempfile::tempdir().unwrap();
    for backend in ["lsm", "memory", "redb", "sqlite"] {
        let at = |name: &str| root.path().join(format!("{backend}-{name}"));
        let node = Node::start_with(&at("data"), &["--backend", backend, "--native-quic-sockets", "1"]);
        node.cli(&["put", "k", "a", "1"]).ok();
        node.cli(&["append", "s", "record"]).ok();
        node.cli(&["backup", "--to", &format!("{}/", at("many").display())]).ok();
        node.cli(&["backup", "--to", at("one.tws").to_str().unwrap()]).ok();
        is_private(&at("data"));
        node.stop();
        is_private(&at("data"));
        is_private(&at("many"));
        assert_eq!(mode(&at("one.tws")), 0o600);
        let restored = at("restored");
        let args =
            ["restore", at("one.tws").to_str().unwrap(), "--data", restored.to_str().unwrap(), "--backend", backend]
                .map(str::to_owned);
        run(command().args(args), b"").ok();
        is_private(&restored);
    }
}

#[test]
fn a_backup_follows_no_link_and_overwrites_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (data, dir, victim) = (root.path().join("data"), root.path().join("backups"), root.path().join("victim"));
    fs::write(&victim, b"theirs").unwrap();
    fs::create_dir(&dir).unwrap();
    // The names that earlier versions gave to unfinished files.
    for name in ["backup.partial", "one.tws.partial"] {
        std::os::unix::fs::symlink(&victim, dir.join(name)).unwrap();
    }
    let node = Node::start(&data);
    node.cli(&["put", "k", "a", "1"]).ok();
    node.cli(&["backup", "--to", dir.to_str().unwrap()]).ok();
    node.cli(&["backup", "--to", dir.join("one.tws").to_str().unwrap()]).ok();
    node.stop();
    assert_eq!(fs::read(&victim).unwrap(), b"theirs");
}

#[test]
fn an_export_follows_no_link_and_replaces_a_file_only_when_it_is_complete() {
    let root = tempfile::tempdir().unwrap();
    let (data, dir) = (root.path().join("data"), root.path().join("exports"));
    let (victim, link, file) = (root.path().join("victim"), dir.join("link"), dir.join("file"));
    fs::write(&victim, b"theirs").unwrap();
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let node = Node::start(&data);
    node.cli(&["append", "s", "one"]).ok();
    let export =
        |to: &Path| node.cli(&["export", "--stream", "s", "--format", "lines", "--output", to.to_str().unwrap()]);
    assert!(export(&link).fails(1).contains("symbolic link"));
    assert_eq!(fs::read(&victim).unwrap(), b"theirs");
    assert!(link.is_symlink());
    // The mode of the file that it replaces does not stay.
    fs::write(&file, b"old").unwrap();
    set(&file, 0o644);
    export(&file).ok();
    assert_eq!((fs::read(&file).unwrap(), mode(&file)), (b"one\n".to_vec(), 0o600));
    // An export that fails leaves the file as it was, and nothing else.
    node.cli(&["append", "s", "two\nlines"]).ok();
    assert!(export(&file).fails(2).contains("does not fit on a line"));
    assert_eq!(fs::read(&file).unwrap(), b"one\n");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "{:?}", tree(&dir));
    assert!(export(&dir).fails(2).contains("directory"));
    node.stop();
}

#[test]
fn the_server_warns_of_files_that_others_can_change() {
    let root = tempfile::tempdir().unwrap();
    let (data, config) = (root.path().join("data"), root.path().join("thalweg.toml"));
    fs::create_dir(&data).unwrap();
    set(&data, 0o777);
    fs::write(&config, "resp_password = \"hunter2\"\n").unwrap();
    set(&config, 0o644);
    let node = Node::start_with(&data, &["--config", config.to_str().unwrap()]);
    node.signal(libc::SIGTERM);
    let (status, log) = node.wait(crate::node::PATIENCE);
    assert!(status.success(), "{log}");
    assert!(log.contains(&format!("other users can replace files in {}", data.display())), "{log}");
    assert!(log.contains(&format!("other users can read the secret in {}", config.display())), "{log}");
    assert!(log.contains("resp_password protects only the port for Redis clients"), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    set(&data, 0o700);
    set(&config, 0o600);
    let node = Node::start_with(&data, &["--config", config.to_str().unwrap()]);
    node.signal(libc::SIGTERM);
    let (_, log) = node.wait(crate::node::PATIENCE);
    assert!(!log.contains("other users"), "{log}");
}

#[test]
fn the_server_warns_of_a_wrong_password_without_showing_it() {
    let root = tempfile::tempdir().unwrap();
    let flags = ["--resp", "127.0.0.1:0", "--resp-password", "hunter2"];
    let node = Node::start_with(&root.path().join("data"), &flags);
    let answer = Redis::connect(&address(&node)).call("AUTH swordfish");
    assert!(matches!(&answer, Reply::Error(text) if text.starts_with("WRONGPASS")), "{answer:?}");
    node.signal(libc::SIGTERM);
    let (status, log) = node.wait(crate::node::PATIENCE);
    assert!(status.success(), "{log}");
    let warning = log.lines().find(|line| line.contains("a Redis client sent a wrong password"));
    assert!(warning.is_some_and(|line| line.contains("127.0.0.1")), "the warning names the client's address: {log}");
    assert!(!log.contains("swordfish") && !log.contains("hunter2"), "{log}");
}
