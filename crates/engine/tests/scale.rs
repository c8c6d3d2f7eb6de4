//! Measurements that need minutes and gigabytes: replay, open, memory. They are not part of a normal run: `cargo test
//! --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1`.
#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::{
    io::Read,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use thalweg_engine::{
    BackendKind, Database, Maintenance, MemberIdentity, Options,
    snapshot::{Compression, SnapshotOptions},
    types::{ClusterId, Durability, StreamId, command::StreamConfig, record::RecordBatch},
};

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident size");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024
}

fn open(path: &Path) -> (Database, f64) {
    let started = Instant::now();
    let db = Database::open(path, Options { durability: Durability::Os, ..Options::default() }).expect("opens");
    (db, started.elapsed().as_secs_f64())
}

fn append(path: &Path, gib: u64) {
    let (db, _) = open(path);
    let stream = db.stream("s").unwrap();
    let mut batch = RecordBatch::new();
    (0..100).for_each(|_| batch.push_payload(&[7; 1024]).unwrap());
    for _ in 0..gib * 1024 * 1024 / 100 {
        stream.append(&batch).unwrap();
    }
    db.close().unwrap();
}

#[test]
#[ignore = "writes 1 GiB: \
            cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1"]
fn a_gibibyte_of_one_kilobyte_records_is_replayed_within_ten_seconds() {
    let dir = tempfile::tempdir().unwrap();
    {
        let options = Options {
            durability: Durability::Os,
            max_replay_bytes: u64::MAX,
            memtable_bytes: 4 << 30,
            maintenance_interval: std::time::Duration::ZERO,
            ..Options::default()
        };
        let db = Database::open(dir.path(), options).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        for number in 0..1024 * 1024_u64 {
            keyspace.put(&number.to_be_bytes(), &[7; 1000]).unwrap();
        }
        db.sync().unwrap();
    }
    let (db, seconds) = open(dir.path());
    let report = db.report();
    println!(
        "replayed {} records, {} MiB in {seconds:.2} s; resident {} MiB",
        report.replayed_records,
        report.replayed_bytes >> 20,
        resident_bytes() >> 20
    );
    assert!(report.replayed_records > 1024 * 1024);
    assert!(seconds < 10.0);
    assert!(resident_bytes() < 1 << 30);
    assert_eq!(db.find_keyspace("k").unwrap().get(&77_u64.to_be_bytes()).unwrap().unwrap().value.len(), 1000);
}

#[test]
#[ignore = "writes 10 GiB: \
            cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1"]
fn ten_gibibytes_closed_cleanly_open_within_a_second() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), 10);
    let (db, seconds) = open(dir.path());
    let stats = db.stats();
    println!("{} segments, opened in {seconds:.3} s; resident {} MiB", stats.log.segments, resident_bytes() >> 20);
    assert!(db.report().clean);
    assert!(stats.log.segments >= 150);
    assert!(seconds < 1.0);
    assert!(resident_bytes() < 256 << 20);
}

#[test]
#[ignore = "writes 10 million keys: \
            cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1"]
fn ten_million_keys_stay_under_a_gibibyte_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _) = open(dir.path());
    let keyspace = db.keyspace("k").unwrap();
    let (mut peak, started) = (0, Instant::now());
    for number in 0..10_000_000_u64 {
        // A multiplicative permutation gives a random order with every key once.
        let key = format!("key_{:010}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 10_000_000_019);
        keyspace.put(key.as_bytes(), &[7; 100]).unwrap();
        if number % 100_000 == 0 {
            peak = peak.max(resident_bytes());
        }
    }
    let rate = 1e7 / started.elapsed().as_secs_f64();
    println!("{rate:.0} puts/s; peak resident {} MiB; {:?}", peak >> 20, db.stats().state);
    assert!(peak < 1 << 30);
}

#[test]
#[ignore = "makes a million streams: \
            cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1"]
fn a_million_small_streams_fit_a_node() {
    const STREAMS: u32 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let empty = resident_bytes();
    {
        let (db, _) = open(dir.path());
        let started = Instant::now();
        let mut batch = RecordBatch::new();
        batch.push_payload(b"a small record").unwrap();
        for number in 0..STREAMS {
            let stream = db.stream(&format!("device-{number:07}")).unwrap();
            for _ in 0..3 {
                stream.append(&batch).unwrap();
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("made in {seconds:.1} s; resident {} MiB", (resident_bytes() - empty) >> 20);
        let started = Instant::now();
        db.maintain().unwrap();
        println!("a round of maintenance with a flush: {:.3} s", started.elapsed().as_secs_f64());
        let started = Instant::now();
        db.maintain().unwrap();
        println!("a round of maintenance with nothing to do: {:.6} s", started.elapsed().as_secs_f64());
        db.close().unwrap();
    }
    let before = resident_bytes();
    let (db, seconds) = open(dir.path());
    let grown = resident_bytes().saturating_sub(before);
    println!("opened in {seconds:.2} s; {} MiB more resident", grown >> 20);
    let state: u64 = walk(&dir.path().join("state")).sum();
    println!("{} bytes of state on disk a stream", state / u64::from(STREAMS));
    let page = db.streams_after(Some(StreamId(STREAMS - 1)), 10);
    assert_eq!((page.len(), page[0].name.as_str()), (1, "device-0999999"));
    assert_eq!(page[0].next.0, 3);
    assert!(seconds < 10.0 && grown < 600 << 20);
}

/// Runs rounds until one finds nothing to do, and prints their duration.
fn rounds(db: &Database, what: &str) -> Vec<Maintenance> {
    let (started, mut slowest, mut all) = (Instant::now(), 0.0_f64, Vec::new());
    loop {
        let began = Instant::now();
        let done = db.maintain().unwrap();
        slowest = slowest.max(began.elapsed().as_secs_f64());
        if done == Maintenance::default() {
            break;
        }
        all.push(done);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{what}: {} rounds, {seconds:.1} s, the slowest {slowest:.3} s; {} MiB",
        all.len(),
        resident_bytes() >> 20
    );
    all
}

#[test]
#[ignore = "makes a million streams: \
            cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1"]
fn retention_and_deletion_of_a_million_streams_come_in_bounded_rounds() {
    let streams: u32 = std::env::var("STREAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: Durability::Os,
        maintenance_interval: std::time::Duration::ZERO,
        history_bytes: 0,
        ..Options::default()
    };
    let db = Database::open(dir.path(), options).unwrap();
    let keeps_one = StreamConfig { max_records: Some(1), ..StreamConfig::default() };
    let mut batch = RecordBatch::new();
    batch.push_payload(&[7; 100]).unwrap();
    for number in 0..streams {
        let (stream, _) = db.create_stream(&format!("device-{number:07}"), &keeps_one).unwrap();
        (0..3).for_each(|_| drop(stream.append(&batch).unwrap()));
    }
    let done = rounds(&db, "each stream trimmed to one of three records, log freed or moved");
    let sum = |of: fn(&Maintenance) -> u64| done.iter().map(of).sum::<u64>();
    assert_eq!(
        (sum(|done| done.trimmed_streams), sum(|done| done.reclaimed_entries)),
        (streams.into(), 2 * u64::from(streams))
    );
    println!("{} MiB moved, {} segments freed", sum(|done| done.moved_bytes) >> 20, sum(|done| done.freed_segments));
    let started = Instant::now();
    for id in 1..=streams {
        let name = format!("device-{:07}", id - 1);
        db.find_stream(&name).unwrap().delete().unwrap();
    }
    println!("all deleted in {:.1} s", started.elapsed().as_secs_f64());
    // Deleting a stream reclaims its few entries immediately.
    rounds(&db, "their segments freed");
    assert_eq!((db.stats().streams, db.streams_after(None, 1).len()), (0, 0));
    db.create_stream("one-more", &keeps_one).unwrap();
}

fn walk(dir: &Path) -> Box<dyn Iterator<Item = u64>> {
    let entries = std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").path());
    Box::new(entries.flat_map(|path| -> Box<dyn Iterator<Item = u64>> {
        if path.is_dir() {
            walk(&path)
        } else {
            Box::new(std::iter::once(path.metadata().map_or(0, |file| file.len())))
        }
    }))
}

/// Returns the anonymous memory of the process: without pages of files, which the kernel can take back at any time.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a resident size");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024
}

/// Reads the next chunk of a snapshot file; `None` at its end.
fn read_chunk(file: &mut impl Read) -> Option<Bytes> {
    let mut header = [0; 32];
    file.read_exact(&mut header).ok()?;
    let stored = u32::from_le_bytes(header[16..20].try_into().unwrap()) as usize;
    let mut chunk = vec![0; 32 + stored];
    chunk[..32].copy_from_slice(&header);
    file.read_exact(&mut chunk[32..]).unwrap();
    Some(chunk.into())
}

/// Installs a state of two gigabytes, half of it in the log, into an open database with the default options.
#[test]
#[ignore = "writes 10 GiB: cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1 \
            an_install_of_two_gigabytes"]
fn an_install_of_two_gigabytes_takes_at_most_256_mib_above_idle() {
    const MOST_BYTES: u64 = 256 << 20;
    let backend = std::env::var("THALWEG_TEST_BACKEND").map_or(BackendKind::Lsm, |name| {
        BackendKind::from_name(&name).expect("THALWEG_TEST_BACKEND is the name of a backend")
    });
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = source.path().join("snapshot");
    let totals = {
        let options = Options { durability: Durability::Os, ..Options::default() };
        let db = Database::open(source.path().join("data"), options).unwrap();
        let keyspace = db.keyspace("k").unwrap();
        let stream = db.stream("s").unwrap();
        // Incompressible, so that the chunks have their usual length.
        let mut state = 1_u64;
        let mut random = move |len: usize| {
            let mut bytes = vec![0; len];
            for part in bytes.chunks_mut(8) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                part.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..part.len()]);
            }
            bytes
        };
        for number in 0..1_300_000_u64 {
            keyspace.put(&number.to_be_bytes(), &random(800)).unwrap();
        }
        for _ in 0..10_000 {
            let mut batch = RecordBatch::new();
            (0..100).for_each(|_| batch.push_payload(&random(1024)).unwrap());
            stream.append(&batch).unwrap();
        }
        let mut file = std::fs::File::create(&path).unwrap();
        let options = SnapshotOptions { compression: Compression::None, ..SnapshotOptions::default() };
        let totals = db.snapshot(&options).unwrap().write_to(&mut file, &mut |_| {}).unwrap();
        db.close().unwrap();
        totals
    };
    assert!(totals.bytes() > 2_000_000_000, "{totals:?}");
    std::fs::remove_dir_all(source.path().join("data")).unwrap();
    let options = Options { backend: Some(backend), ..Options::default() };
    let member = MemberIdentity::Join { cluster: ClusterId(1) };
    let db = Database::open_member(target.path(), options, member).unwrap();
    let idle = anonymous_bytes();
    let (peak, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    let (loaded, finished) = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous_bytes(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut file = std::fs::File::open(&path).unwrap();
        let mut install = db.install().unwrap();
        while let Some(chunk) = read_chunk(&mut file) {
            install.push(chunk).unwrap();
        }
        let loaded = started.elapsed();
        let installed = install.finish().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(installed.totals, totals);
        (loaded, started.elapsed())
    });
    let above = peak.load(Ordering::Relaxed).saturating_sub(idle);
    println!(
        "{}: {} MB loaded in {:.1} s, finished after {:.1} s; idle {} MiB, peak {} MiB above",
        backend.name(),
        totals.bytes() / 1_000_000,
        loaded.as_secs_f64(),
        finished.as_secs_f64(),
        idle >> 20,
        above >> 20
    );
    assert!(above <= MOST_BYTES, "{} MiB above idle", above >> 20);
}
