//! Tests of control groups: parsing of the kernel's texts, and groups of this machine if it permits them.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::*;
use crate::{
    report::skip::skip,
    usage::{MeasuredProcess, Usage},
};

#[test]
fn the_group_of_a_process_is_found() {
    let one = "9:name=systemd:/a\n4:memory:/m\n1:cpu,cpuacct:/b/c\n0::/d\n";
    let of = |controller, version| own_group(one, controller, version);
    assert_eq!(of(Controller::Processor, Version::One), "/b/c");
    assert_eq!(of(Controller::Memory, Version::One), "/m");
    assert_eq!(of(Controller::Disk, Version::One), "/");
    assert_eq!(of(Controller::Processor, Version::Two), "/d");
    assert_eq!(own_group("", Controller::Memory, Version::Two), "/");
}

#[test]
fn the_counts_of_both_versions_are_read() {
    let stat = "cache 7\nrss 8\ntotal_cache 100\ntotal_rss 200\ntotal_dirty 30\ntotal_pgmajfault 4\n";
    let one = GroupMemory {
        anonymous_bytes: 200,
        cache_bytes: 100,
        dirty_bytes: 30,
        major_faults: 4,
        ..GroupMemory::default()
    };
    assert_eq!(GroupMemory::of_version_one(stat), one);
    let stat = "anon 200\nfile 100\nfile_mapped 1\nfile_dirty 30\npgmajfault 4\n";
    let two = GroupMemory::of_version_two(stat, "low 0\nhigh 1\nmax 17\noom 3\noom_kill 2\noom_group_kill 0\n");
    assert_eq!(two, GroupMemory { times_at_limit: 17, killed: 2, ..one });
    assert_eq!(GroupMemory::of_version_two("", "nonsense"), GroupMemory::default());
    assert_eq!(reads_of_version_one("253:0 Read 17\n253:0 Write 5\n8:0 Read 1\nTotal 23\n"), 18);
    assert_eq!(reads_of_version_two("253:0 rbytes=4096 wbytes=0 rios=17 wios=5\n8:0 rios=1 wios=2\n"), 18);
}

#[test]
fn a_process_in_the_group_gets_its_share_and_no_more() {
    let group = match ControlGroup::with_processor(10) {
        Ok(group) => group,
        Err(reason) => return skip("a limit of processor time", &reason),
    };
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
    // On a busy machine a thread sleeps longer than requested, so the processor time is compared with the time that
    // passed.
    let share = |time| {
        let cpu = || Usage::read(MeasuredProcess::Process(busy.id())).cpu;
        let (before, begun) = (cpu(), Instant::now());
        std::thread::sleep(time);
        let used = cpu() - before;
        used.as_secs_f64() / begun.elapsed().as_secs_f64()
    };
    let held = group.hold(busy.id()).unwrap();
    share(Duration::from_millis(200));
    let limited = share(Duration::from_secs(1));
    assert!(limited < 0.25, "{limited} of the time");
    drop(held);
    // Other programs on the machine may leave the process little processor time for a while.
    let is_freed = (0..120).any(|_| share(Duration::from_millis(500)) > 0.25);
    assert!(is_freed, "it gets more afterwards");
    busy.kill().unwrap();
    busy.wait().unwrap();
    let dir = group.places[0].dir.clone();
    drop(group);
    assert!(!dir.exists());
}

#[test]
fn a_program_that_takes_more_memory_than_its_group_has_is_killed() {
    let group = match ControlGroup::with_memory(Some(32 << 20)) {
        Ok(group) => group,
        Err(reason) => return skip("a limit of memory", &reason),
    };
    let run = |script: &str| {
        let mut inside = group.command(Path::new("sh"));
        inside.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        inside.status().unwrap()
    };
    assert!(run("exit 0").success());
    assert_eq!(run("exit 7").code(), Some(7), "the command is the program");
    assert_eq!(group.memory().unwrap().killed, 0);
    assert!(!run("dd if=/dev/zero of=/dev/null bs=200M count=1").success());
    let memory = group.memory().unwrap();
    assert!(memory.killed >= 1, "{memory:?}");
    let dirs: Vec<_> = group.places.iter().map(|place| place.dir.clone()).collect();
    drop(group);
    assert!(dirs.iter().all(|dir| !dir.exists()));
}

#[test]
fn reads_of_the_disk_are_counted() {
    let group = match ControlGroup::with_memory(None) {
        Ok(group) => group,
        Err(reason) => return skip("counts of disk reads", &reason),
    };
    let Some(before) = group.disk_reads() else {
        return skip("counts of disk reads", "the kernel counts no operations of disks for groups");
    };
    let scratch = crate::Scratch::below(None).unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, vec![1; 64 << 10]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let mut reading = group.command(Path::new("dd"));
    reading.args(["bs=4k", "iflag=direct", "of=/dev/null"]).arg(format!("if={}", file.display()));
    if !reading.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().success() {
        return skip("counts of disk reads", "the file system has no direct reads");
    }
    let reads = group.disk_reads().unwrap() - before;
    // The program and its libraries may have to be read from the disk too.
    assert!((16..2000).contains(&reads), "{reads} reads of 16 blocks, and of the program");
}
