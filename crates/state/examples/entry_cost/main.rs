//! Search for the most expensive entry that the state machine accepts, with all rows in memory.
//!
//! `cargo run --release -p thalweg-state --example entry_cost [lsm|memory|redb|sqlite] [KIND]`
//!
//! For each kind of command, the search doubles and then bisects the size of the command until it is rejected, applies
//! the largest accepted one a few times, and prints its steps and the CPU time of the entry. Entries of many commands
//! contain as many as a proposer puts into one entry. Goal: below 50 ms for each kind.
//!
//! Measured in the release profile on two idle cores, the most expensive kind by the median of 5 rounds: LSM 28 ms
//! (`EXPIRE` of 8 MiB in a `MULTI`, slowest round 32 ms), memory 35 ms, redb 35 ms, SQLite 45 ms (a sweep, slowest round
//! 55 ms).

#![allow(clippy::print_stdout)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use thalweg_disk::{Disk, RealDisk};
use thalweg_state::{
    blobs::{BlobUnreadable, Blobs},
    machine::{Entry, Machine, MachineOptions},
};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{
    BlobRef, Generation, Index, KeyspaceId, LogPosition, Lsn, Revision, SpaceTime, Term,
    command::{
        self, CommitBuilder, Deadline, Expect, KeyspaceConfig, KeyspaceHistory, Outcome, RedisBuilder, ScanOperation,
        TransactionBuilder, UnchangedRange, max_steps,
    },
    limits::{MAX_COMMIT_WRITES, MAX_ENTRY_COMMANDS, MAX_ENTRY_STEPS, MAX_VALUE_BYTES},
    reply::Reply,
};

/// Keyspace without settings.
const PLAIN: KeyspaceId = KeyspaceId(1);
/// Keyspace of Redis clients, which counts its keys.
const REDIS: KeyspaceId = KeyspaceId(2);
/// Keyspace that keeps many versions.
const HISTORY: KeyspaceId = KeyspaceId(3);
/// Keyspace in which all keys were deleted.
const DELETED: KeyspaceId = KeyspaceId(4);
/// Number of keys in each of the keyspaces.
const KEYS: usize = 200_000;
/// Number of measured entries of each kind.
const ROUNDS: usize = 5;

fn cpu_millis() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

#[derive(Debug)]
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Log in memory: each entry has a segment of its own.
#[derive(Debug, Default)]
struct Segments(Mutex<HashMap<Generation, Arc<Vec<u8>>>>);

/// Position of an entry's payload in its segment.
const OFFSET: u32 = 64;

impl Blobs for Segments {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        let segment = self.0.lock().expect("not poisoned").get(&blob.generation).cloned();
        let from = (blob.offset - OFFSET) as usize;
        let bytes = segment.as_ref().and_then(|segment| segment.get(from..from + blob.len as usize));
        let bytes = bytes.ok_or_else(|| BlobUnreadable("missing".to_owned()))?;
        assert_eq!(crc_fast::crc32_iscsi(bytes), blob.crc);
        Ok(Bytes::copy_from_slice(bytes))
    }
}

struct Node {
    machine: Machine,
    segments: Arc<Segments>,
}

impl Node {
    /// Applies one entry, and returns the outcomes, the CPU time in milliseconds, and the steps.
    fn apply(&self, commands: &[Vec<u8>]) -> (Vec<Outcome>, f64, u64) {
        let mut payload = Vec::new();
        for command in commands {
            payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
            payload.extend_from_slice(command);
        }
        let next_lsn = Lsn(self.machine.applied().lsn.0 + 1);
        let at = LogPosition { generation: Generation(next_lsn.0), offset: OFFSET };
        let payload = Arc::new(payload);
        if payload.len() > 4096 {
            self.segments.0.lock().expect("not poisoned").insert(at.generation, Arc::clone(&payload));
        }
        let (index, time) = (Index(next_lsn.0), SpaceTime(next_lsn.0 * 1_000_000));
        let entry = Entry { term: Term(1), index, time, payload: &payload, at, next_lsn };
        let (mut outcomes, steps) = (Vec::new(), self.machine.steps().expect("runs"));
        let start = cpu_millis();
        self.machine.apply(&entry, &mut outcomes).expect("applies");
        let took = cpu_millis() - start;
        (outcomes, took, self.machine.steps().expect("runs") - steps)
    }

    fn must(&self, command: Vec<u8>) {
        let (outcomes, ..) = self.apply(&[command]);
        assert!(outcomes.iter().all(is_accepted), "{outcomes:?}");
    }
}

fn is_accepted(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::TooExpensive { .. } | Outcome::TooMany { .. } | Outcome::OperationFailed { .. } => false,
        Outcome::Malformed(malformed) => panic!("{malformed}"),
        Outcome::Redis(Some(replies)) => !replies.iter().any(|reply| matches!(reply, Reply::Error(_))),
        _ => true,
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn key(number: usize) -> Vec<u8> {
    // Spread over the keyspace, so that neighbours of a command are not neighbours in the map.
    format!("key:{:010}", number * 7_919 % KEYS).into_bytes()
}

fn commit(count: usize, mut add: impl FnMut(&mut CommitBuilder, usize)) -> Option<Vec<u8>> {
    (count <= MAX_COMMIT_WRITES).then(|| {
        let mut commit = CommitBuilder::new();
        (0..count).for_each(|number| add(&mut commit, number));
        encoded(|out| commit.encode(out))
    })
}

fn transaction(count: usize, mut add: impl FnMut(&mut TransactionBuilder, usize)) -> Option<Vec<u8>> {
    (count <= MAX_COMMIT_WRITES).then(|| {
        let mut transaction = TransactionBuilder::new();
        (0..count).for_each(|number| add(&mut transaction, number));
        encoded(|out| transaction.encode(out).expect("within the limits"))
    })
}

/// Number of `SCAN`s of 1,000 keys that use up most of the steps of a batch's reads.
const SCANS: usize = 60;

/// Encodes a Redis transaction of `count` commands; `None` if they are too many for one.
fn multi(count: usize, args: impl Fn(usize) -> Vec<Vec<u8>>) -> Option<Vec<u8>> {
    burst(count, args, 0)
}

/// Encodes a burst: a Redis transaction of `count` commands, then `scans` times a `SCAN`; `None` if they are too many for one.
fn burst(count: usize, args: impl Fn(usize) -> Vec<Vec<u8>>, scans: usize) -> Option<Vec<u8>> {
    let mut builder = RedisBuilder::new(REDIS);
    builder.push(&[b"MULTI"]).ok()?;
    for number in 0..count {
        let args = args(number);
        builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).ok()?;
    }
    builder.push(&[b"EXEC"]).ok()?;
    for _ in 0..scans {
        builder.push(&[b"SCAN", b"", b"COUNT", b"1000"]).ok()?;
    }
    Some(builder.finish())
}

fn words(text: &[&[u8]]) -> Vec<Vec<u8>> {
    text.iter().map(|word| word.to_vec()).collect()
}

fn single(args: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = RedisBuilder::new(REDIS);
    builder.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).expect("within the limits");
    builder.finish()
}

/// Makes the entry of a size; `None` if no client could send it.
type Make<'a> = &'a dyn Fn(usize) -> Option<Vec<Vec<u8>>>;

/// Finds the largest accepted entry of a kind, and prints what it costs.
fn search(node: &Node, name: &str, make: Make<'_>, only: Option<&str>) -> f64 {
    if only.is_some_and(|only| !name.contains(only)) {
        return 0.0;
    }
    let accepts = |size: usize| {
        make(size).is_some_and(|entry| {
            let (outcomes, ..) = node.apply(&entry);
            outcomes.iter().all(is_accepted)
        })
    };
    let mut low = 1;
    if !accepts(low) {
        println!("{name:<44} rejected");
        return 0.0;
    }
    while low < 1 << 20 && accepts(low * 2) {
        low *= 2;
    }
    let mut high = low * 2;
    while high - low > low / 16 + 1 {
        let middle = low.midpoint(high);
        if accepts(middle) { low = middle } else { high = middle }
    }
    let mut all: Vec<(f64, u64)> = (0..ROUNDS)
        .map(|_| {
            let (_, took, steps) = node.apply(&make(low).expect("made before"));
            (took, steps)
        })
        .collect();
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    let (took, steps) = all[ROUNDS / 2];
    let per = took * 1e6 / steps.max(1) as f64;
    println!("{name:<44} {low:>8} {steps:>9} {took:>9.1} {:>9.1} {per:>7.0}", all[ROUNDS - 1].0);
    took
}

/// Repeats a command as often as a proposer puts it into one entry.
fn proposed(command: &dyn Fn(usize) -> Vec<u8>, size: usize) -> Option<Vec<Vec<u8>>> {
    let most = (MAX_ENTRY_STEPS / max_steps(&command(0), true)).max(1) as usize;
    (size <= most.min(MAX_ENTRY_COMMANDS)).then(|| (0..size).map(command).collect())
}

fn fill(node: &Node) {
    let history = KeyspaceHistory { revisions: Some(256), age: None };
    let plain = KeyspaceConfig::default();
    let configs = [plain, KeyspaceConfig { exact_counts: true, ..plain }, KeyspaceConfig { history, ..plain }, plain];
    for (number, config) in configs.iter().enumerate() {
        node.must(encoded(|out| command::encode_create_keyspace(out, &format!("k{number}"), config).expect("valid")));
    }
    for keyspace in [PLAIN, DELETED, HISTORY] {
        for numbers in (0..KEYS).collect::<Vec<_>>().chunks(300) {
            node.must(
                commit(numbers.len(), |commit, at| {
                    commit.put(keyspace, &key(numbers[at]), &[b'v'; 64]).expect("valid");
                })
                .expect("few"),
            );
        }
    }
    for _ in 0..300 {
        node.must(
            commit(100, |commit, at| _ = commit.put(HISTORY, &key(at), &[b'w'; 64]).expect("valid")).expect("few"),
        );
    }
    for numbers in (0..KEYS).collect::<Vec<_>>().chunks(5_000) {
        node.must(
            commit(numbers.len(), |commit, at| {
                commit.delete(DELETED, &key(numbers[at])).expect("valid");
            })
            .expect("few"),
        );
        node.must(multi(numbers.len(), |at| words(&[b"SET", &key(numbers[at]), &[b'v'; 64]])).expect("few"));
    }
    for numbers in (0..100_000_usize).collect::<Vec<_>>().chunks(2_000) {
        let mut fields = words(&[b"HSET", b"hash"]);
        for number in numbers {
            fields.extend([key(*number), vec![b'v'; 32]]);
        }
        node.must(single(&fields));
        node.must(multi(numbers.len(), |_| words(&[b"XADD", b"stream", b"*", b"f", &[b'v'; 32]])).expect("few"));
    }
    let last = (MAX_VALUE_BYTES - 1).to_string();
    for number in 0..8 {
        node.must(single(&words(&[b"SETRANGE", format!("large{number}").as_bytes(), last.as_bytes(), b"x"])));
    }
    node.must(single(&words(&[b"XGROUP", b"CREATE", b"stream", b"g", b"0"])));
}

fn search_all(node: &Node, only: Option<&str>) -> f64 {
    let one = |command: Option<Vec<u8>>| command.map(|command| vec![command]);
    let mut worst: f64 = 0.0;
    let mut search = |name: &str, make: Make<'_>| worst = worst.max(search(node, name, make, only));
    println!("{:<44} {:>8} {:>9} {:>9} {:>9} {:>7}", "kind", "size", "steps", "ms", "most ms", "ns/step");
    let value = [b'v'; 64];
    search("commit: puts", &|n| one(commit(n, |commit, at| _ = commit.put(PLAIN, &key(at), &value).expect("valid"))));
    search("commit: puts with counts", &|n| {
        one(commit(n, |commit, at| _ = commit.put(REDIS, &key(at), &value).expect("valid")))
    });
    search("commit: deletes with counts", &|n| {
        one(commit(n, |commit, at| _ = commit.delete(REDIS, &key(at)).expect("valid")))
    });
    search("commit: puts with 256 versions", &|n| {
        one(commit(n, |commit, at| _ = commit.put(HISTORY, &key(at % 100), &value).expect("valid")))
    });
    search("commit: puts with deadlines", &|n| {
        let deadline = Deadline::At(SpaceTime(u64::MAX / 4));
        one(commit(n, |commit, at| _ = commit.put_until(PLAIN, &key(at), &value, deadline, None).expect("valid")))
    });
    search("commit: conditions", &|n| {
        one(commit(n, |commit, at| _ = commit.expect(PLAIN, &key(at), Expect::Present).expect("valid")))
    });
    search("commit: range conditions", &|n| {
        let range = UnchangedRange { end: Some(b"a"), since: Revision(u64::MAX), count: 0 };
        one(commit(n, |commit, _| _ = commit.expect(PLAIN, b"", Expect::Unchanged(range)).expect("valid")))
    });
    search("transaction: scans of 1 over deleted rows", &|n| {
        one(transaction(n, |transaction, _| {
            let scan = ScanOperation { limit: 1, ..ScanOperation::default() };
            transaction.then().scan(DELETED, &scan).expect("valid");
        }))
    });
    search("transaction: scans of 1", &|n| {
        one(transaction(n, |transaction, at| {
            let start = key(at);
            let scan = ScanOperation { start: Some(&start), limit: 1, ..ScanOperation::default() };
            transaction.then().scan(PLAIN, &scan).expect("valid");
        }))
    });
    search("transaction: scans of 1,000", &|n| {
        one(transaction(n, |transaction, at| {
            let start = key(at);
            let scan = ScanOperation { start: Some(&start), limit: 1_000, keys_only: true, ..ScanOperation::default() };
            transaction.then().scan(PLAIN, &scan).expect("valid");
        }))
    });
    search("transaction: gets", &|n| {
        one(transaction(n, |transaction, at| _ = transaction.then().get(PLAIN, &key(at)).expect("valid")))
    });
    search("transaction: counters", &|n| {
        one(transaction(n, |transaction, at| {
            transaction.then().add(REDIS, format!("counter{at}").as_bytes(), 1).expect("valid");
        }))
    });
    let last = (MAX_VALUE_BYTES - 1).to_string();
    let large = |at: usize| format!("large{}", at % 8).into_bytes();
    search("MULTI: SETRANGE of 8 MiB", &|n| {
        one(multi(n, |at| words(&[b"SETRANGE", &large(at), last.as_bytes(), b"x"])))
    });
    search("MULTI: GET of 8 MiB", &|n| one(multi(n, |at| words(&[b"GET", &large(at)]))));
    search("MULTI: EXPIRE of 8 MiB", &|n| one(multi(n, |at| words(&[b"EXPIRE", &large(at), b"1000000"]))));
    search("MULTI: EXPIRE of 8 MiB, then SCANs", &|n| {
        one(burst(n, |at| words(&[b"EXPIRE", &large(at), b"1000000"]), SCANS))
    });
    search("MULTI: SET", &|n| one(multi(n, |at| words(&[b"SET", &key(at), &value]))));
    search("MULTI: INCR", &|n| one(multi(n, |at| words(&[b"INCR", format!("counter{at}").as_bytes()]))));
    search("MULTI: DEL of one key", &|n| one(multi(n, |at| words(&[b"DEL", &key(at)]))));
    search("MULTI: EXPIRE", &|n| one(multi(n, |at| words(&[b"EXPIRE", &key(at + 100_000), b"1000000"]))));
    search("MULTI: HSET", &|n| one(multi(n, |at| words(&[b"HSET", b"hash", &key(at), &value]))));
    search("MULTI: HGETALL of 100,000 fields", &|n| one(multi(n, |_| words(&[b"HGETALL", b"hash"]))));
    search("MULTI: KEYS of nothing", &|n| one(multi(n, |_| words(&[b"KEYS", b"nothing"]))));
    search("MULTI: SCAN with a hostile pattern", &|n| {
        let pattern = [&b"*"[..], &b"?*".repeat(n), b"x"].concat();
        let scan = words(&[b"SCAN", b"", b"COUNT", b"20000", b"MATCH", &pattern]);
        one(multi(10, |_| scan.clone()).filter(|_| pattern.len() <= 4096))
    });
    search("MULTI: SCAN", &|n| one(multi(n, |_| words(&[b"SCAN", b"", b"COUNT", b"1000"]))));
    search("MULTI: HRANDFIELD of many", &|n| {
        one(multi(1, |_| words(&[b"HRANDFIELD", b"hash", format!("-{n}").as_bytes()])))
    });
    search("MULTI: XADD", &|n| one(multi(n, |_| words(&[b"XADD", b"stream", b"*", b"f", &value]))));
    search("MULTI: XADD with MAXLEN", &|n| {
        one(multi(n, |_| words(&[b"XADD", b"stream", b"MAXLEN", b"50000", b"*", b"f", &value])))
    });
    search("MULTI: XRANGE", &|n| {
        one(multi(1, |_| words(&[b"XRANGE", b"stream", b"-", b"+", b"COUNT", n.to_string().as_bytes()])))
    });
    search("MULTI: XREADGROUP", &|n| {
        let count = n.min(10_000).to_string();
        let args =
            words(&[b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", count.as_bytes(), b"STREAMS", b"stream", b">"]);
        one(multi(1, |_| args.clone()).filter(|_| n <= 10_000))
    });
    search("entry: puts", &|n| {
        proposed(&|at| encoded(|out| command::encode_put(out, REDIS, &key(at), &value).expect("valid")), n)
    });
    search("entry: GET of 8 MiB", &|n| proposed(&|at| single(&words(&[b"GET", &large(at)])), n));
    search("entry: SET", &|n| proposed(&|at| single(&words(&[b"SET", &key(at), &value])), n));
    search("entry: HSET", &|n| proposed(&|at| single(&words(&[b"HSET", b"hash", &key(at), &value])), n));
    search("entry: XADD", &|n| proposed(&|_| single(&words(&[b"XADD", b"stream", b"*", b"f", &value])), n));
    search("sweep", &|n| {
        let mut clear = TransactionBuilder::new();
        clear.then().delete_prefix(PLAIN, b"key:").expect("valid");
        node.must(encoded(|out| clear.encode(out).expect("valid")));
        Some(vec![encoded(|out| command::encode_sweep(out, n as u32))])
    });
    // The last one, because it empties the keyspace.
    search("MULTI: SET, then FLUSHDB as often", &|n| {
        one(multi(2 * n, |at| if at < n { words(&[b"SET", &key(at), b"v"]) } else { words(&[b"FLUSHDB"]) }))
    });
    worst
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (name, only) = (args.next().unwrap_or_else(|| "lsm".to_owned()), args.next());
    let dir = std::env::temp_dir().join(format!("thalweg-entry-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let disk = || -> Arc<dyn Disk> { Arc::new(RealDisk::open(&dir).expect("a disk")) };
    let backend: Arc<dyn Backend> = match name.as_str() {
        "memory" => Arc::new(MemoryBackend::open(disk(), MemoryOptions::default(), Arc::new(NoLog)).expect("opens")),
        "redb" => Arc::new(RedbBackend::open(&disk(), RedbOptions::default(), Arc::new(NoLog)).expect("opens")),
        "sqlite" => Arc::new(SqliteBackend::open(SqliteOptions::new(&dir), Arc::new(NoLog)).expect("opens")),
        _ => Arc::new(LsmBackend::open(LsmOptions::new(dir.clone()), Arc::new(NoLog)).expect("opens")),
    };
    let segments = Arc::new(Segments::default());
    let machine = Machine::open(backend, MachineOptions::default()).expect("opens").with_blobs(segments.clone());
    let node = Node { machine, segments };
    fill(&node);
    println!("{name}: {KEYS} keys in each keyspace, median of {ROUNDS} entries, CPU time of the applying thread");
    let worst = search_all(&node, only.as_deref());
    println!("most expensive entry: {worst:.1} ms");
    let _ = std::fs::remove_dir_all(&dir);
}
