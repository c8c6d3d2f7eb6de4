//! Power loss before each operation of an install, on each backend that runs on a simulated disk.
//!
//! One member installs one snapshot. Before each operation of its disk, a copy of the disk is made as after a power
//! loss or a kill. A member is then opened on each copy, and must be able to continue in the group. The LSM crate does
//! its own I/O, so its tables are copied as they are at that moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tempfile::TempDir;
use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, MemberIdentity, MemberParts, OpenError, Options, ScanRange, SteppedOptions,
    snapshot::{InstallError, Snapshot, SnapshotOptions},
    types::{
        Action, Classified, Clock, Durability, Index, ManualClock, NodeId, SpaceId, Term,
        command::{Framed, StreamConfig, encode_put},
    },
};
use thalweg_log::{Draft, LogRecord, Purpose, RecordKind};
use thalweg_replica::{Membership, NodeInfo, Vote};

use crate::{
    cluster::{Group, Node, TERM, keeping},
    common::{
        batch,
        hooked::{Hook, HookedDisk},
        small,
    },
};

/// Node that installs.
const FOLLOWER: u64 = 2;

/// The files of a node after a crash.
struct Crash {
    disk: SimDisk,
    tables: TempDir,
    what: &'static str,
}

/// Keeps the files of a node before each operation of its disk, while it records.
#[derive(Debug)]
struct Recorder {
    disk: SimDisk,
    tables: PathBuf,
    crashes: Mutex<Option<Vec<Crash>>>,
}

impl std::fmt::Debug for Crash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.what)
    }
}

impl Recorder {
    fn add(&self) {
        let mut crashes = self.crashes.lock().unwrap();
        let Some(crashes) = &mut *crashes else { return };
        let number = crashes.len() as u64;
        let draw = |seed| self.disk.power_loss(seed);
        let disks = [("power loss", draw(number)), ("power loss", draw(!number)), ("kill", self.disk.kill_process())];
        crashes.extend(disks.map(|(what, disk)| Crash { disk, tables: copy(&self.tables), what }));
    }
}

impl Hook for Recorder {
    fn changes(&self) {
        self.add();
    }
}

/// Copies a directory of tables, which may not exist.
fn copy(tables: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut dirs = vec![(tables.to_owned(), copy.path().to_owned())];
    while let Some((from, to)) = dirs.pop() {
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).into_iter().flatten() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                dirs.push((entry.path(), target));
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    copy
}

fn options(backend: BackendKind) -> Options {
    Options { memtable_bytes: 16 << 10, ..small(backend) }
}

/// Opens a member that installs snapshots.
fn try_open(disk: Arc<dyn Disk>, tables: &Path, group: &Group, backend: BackendKind) -> Result<Database, OpenError> {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&group.clock);
    let os_dir = (backend == BackendKind::Lsm).then_some(tables);
    let stepped = SteppedOptions { disk, clock, seed: FOLLOWER, os_dir };
    let how = MemberIdentity::Join { cluster: group.cluster };
    Database::open_stepped(&stepped, options(backend), Some(how))
}

fn open(disk: Arc<dyn Disk>, tables: &Path, group: &Group, backend: BackendKind) -> Database {
    try_open(disk, tables, group, backend).unwrap()
}

/// Digest of the state, with its index and running hash.
fn shown(db: &Database) -> String {
    let state = &db.state_view().digest(&mut |_| {}).unwrap().state;
    format!("{} {} {:x}", state.applied.index, state.digest, state.applied.running_hash)
}

fn parts(db: &Database) -> MemberParts {
    db.member_parts().expect("a member")
}

/// Appends the records to the node's log, and applies them.
fn follow(db: &Database, disk: &SimDisk, records: &[LogRecord]) {
    let node = Node { db: db.clone(), parts: parts(db), disk: disk.clone() };
    for record in records {
        let received = node.receive(record);
        node.parts.member.apply(received.index, Some(&received), true, &mut Vec::new()).unwrap();
    }
}

fn vote_in(term: u64) -> Vote {
    Vote { term: Term(term), node: NodeId(1), committed: true }
}

/// Writes a membership, from which each node of an earlier one is removed that it does not have.
fn set_members(group: &Group, members: &[u64]) {
    let leader = group.leader();
    let infos: BTreeMap<_, _> = members.iter().map(|id| (NodeId(*id), NodeInfo::at(format!("n{id}:1")))).collect();
    let membership = Membership::new(vec![infos.keys().copied().collect()], infos).unwrap();
    let (next, time) = (leader.applied().next(), leader.parts.machine.applied().time);
    let lsn = leader.append(RecordKind::Membership, (TERM, next), time, &membership.encode());
    leader.parts.member.apply(next, Some(&leader.record(lsn)), true, &mut Vec::new()).unwrap();
}

fn put(group: &Group, key: &[u8], value: &[u8]) {
    let keyspace = group.leader().db.find_keyspace("k").unwrap().id();
    group.run(group.leader().db.to_async().put(keyspace, key, value, Durability::Os)).unwrap();
}

fn write(group: &Group, from: u8) {
    for number in from..from + 40 {
        put(group, &[number], &vec![number; if number % 4 == 0 { 2000 } else { 90 }]);
    }
    let db = group.leader().db.to_async();
    let (stream, _) = group.run(db.create_stream("s", &StreamConfig::default())).unwrap();
    for number in from..from + 10 {
        let records = batch(&[vec![number; 5], vec![number; 500]]);
        group.run(db.append(stream.id(), None, &records, Durability::Os)).unwrap();
    }
}

/// A group, a snapshot of its leader, and the expected states.
struct Scene {
    group: Group,
    /// Last entry that the follower has applied before the install.
    former: Index,
    chunks: Vec<Bytes>,
    new: String,
    snapshot: Index,
    last: String,
    /// Nodes that were removed before the snapshot.
    removed: BTreeSet<NodeId>,
}

impl Scene {
    fn new() -> Self {
        let group = Group::founded(1, &keeping());
        let db = group.leader().db.to_async();
        group.run(async { db.keyspace("k").await }).unwrap();
        set_members(&group, &[1, 2, 3, 4, 9]);
        (0..10_u8).for_each(|number| put(&group, &[number], &[7; 400]));
        let former = group.leader().applied();
        set_members(&group, &[1, 2, 3, 9]);
        write(&group, 20);
        set_members(&group, &[1, 2, 3]);
        let snapshot = group.leader().db.snapshot(&SnapshotOptions { chunk_bytes: 4000, ..SnapshotOptions::default() });
        let chunks = chunks(snapshot.unwrap());
        let (new, snapshot) = (shown(&group.leader().db), group.leader().applied());
        set_members(&group, &[1, 2]);
        write(&group, 40);
        let last = shown(&group.leader().db);
        Self { group, former, chunks, new, snapshot, last, removed: [NodeId(4), NodeId(9)].into() }
    }

    /// Entries of the leader in a range of indexes.
    fn entries(&self, after: Index, through: Index) -> Vec<LogRecord> {
        let mut entries = self.group.leader().entries(Index::ZERO);
        entries.retain(|record| record.index <= through && (record.index > after || after == Index::ZERO));
        entries
    }

    /// Opens a new member, which has the first entries, on disk, and some more in its log only.
    fn follower(&self, disk: Arc<dyn Disk>, sim: &SimDisk, tables: &Path, backend: BackendKind) -> Database {
        let db = open(disk, tables, &self.group, backend);
        follow(&db, sim, &self.entries(Index::ZERO, self.former));
        let node = Node { db: db.clone(), parts: parts(&db), disk: sim.clone() };
        node.append(RecordKind::Vote, (Term(3), Index::ZERO), node.parts.machine.applied().time, &vote_in(3).encode());
        node.parts.member.apply_local().unwrap();
        for record in self.entries(self.former, Index(self.former.0 + 3)) {
            node.receive(&record);
        }
        db.flush().unwrap();
        db
    }

    fn install(&self, db: &Database) -> Result<(), InstallError> {
        let mut install = db.install()?;
        for chunk in &self.chunks {
            install.push(chunk.clone())?;
        }
        install.prepare()?;
        install.finish().map(drop)
    }

    /// Opens the member on the disk that a crash has left. Checks that the member has the former or the new state, and
    /// can continue.
    fn check(&self, crash: &Crash, former: &str, is_done: bool, backend: BackendKind, context: &str) {
        let reopen = || open(Arc::new(crash.disk.clone()), crash.tables.path(), &self.group, backend);
        let db = reopen();
        let found = shown(&db);
        assert!(found == self.new || !is_done && found == former, "{context}: {found}");
        let vote = parts(&db).machine.vote().unwrap().and_then(|vote| Vote::decode(&vote));
        assert_eq!(vote, Some(vote_in(3)), "{context}: the node's own vote");
        if found == former {
            self.install(&db).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(shown(&db), self.new, "{context}");
        }
        let membership = parts(&db).machine.membership().unwrap().unwrap();
        assert_eq!(membership.removed, self.removed, "{context}");
        follow(&db, &crash.disk, &self.entries(self.snapshot, Index::MAX));
        assert_eq!(shown(&db), self.last, "{context}");
        assert!(parts(&db).machine.is_removed(NodeId(3)).unwrap() && parts(&db).machine.is_removed(NodeId(9)).unwrap());
        assert_eq!(db.scrub().damages, 0, "{context}");
        db.flush().unwrap();
        drop(db);
        assert_eq!(shown(&reopen()), self.last, "{context}");
    }
}

fn chunks(mut snapshot: Snapshot) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    while let Some(chunk) = snapshot.next_chunk().unwrap() {
        chunks.push(chunk);
    }
    chunks
}

fn crash_everywhere(backend: BackendKind) {
    let scene = Scene::new();
    let (disk, tables) = (SimDisk::new(1), tempfile::tempdir().unwrap());
    let recorder =
        Arc::new(Recorder { disk: disk.clone(), tables: tables.path().to_owned(), crashes: Mutex::default() });
    let hooked = HookedDisk { disk: disk.clone(), hook: Arc::clone(&recorder) as _ };
    let db = scene.follower(Arc::new(hooked), &disk, tables.path(), backend);
    let former = shown(&db);
    *recorder.crashes.lock().unwrap() = Some(Vec::new());
    scene.install(&db).unwrap();
    assert_eq!(shown(&db), scene.new);
    let during = recorder.crashes.lock().unwrap().as_ref().map_or(0, Vec::len);
    recorder.add();
    let crashes = recorder.crashes.lock().unwrap().take().unwrap();
    drop(db);
    println!("{backend:?}: {} crashes", crashes.len());
    assert!(during > 100, "{during}");
    for (number, crash) in crashes.iter().enumerate() {
        let context = format!("{backend:?}: {} {number} of {}", crash.what, crashes.len());
        scene.check(crash, &former, number >= during, backend, &context);
    }
}

#[test]
fn a_member_with_the_memory_backend_survives_a_crash_at_each_operation_of_an_install() {
    crash_everywhere(BackendKind::Memory);
}

#[test]
#[cfg(feature = "redb")]
fn a_member_with_redb_survives_a_crash_at_each_operation_of_an_install() {
    crash_everywhere(BackendKind::Redb);
}

#[test]
fn a_member_with_the_lsm_backend_survives_a_crash_at_each_operation_of_an_install() {
    crash_everywhere(BackendKind::Lsm);
}

/// Writes an entry that puts a key to the leader's log in a later term, and applies it. Later ones must be of that
/// term, too.
fn put_in(term: Term, group: &Group, key: &[u8]) {
    let leader = group.leader();
    let keyspace = leader.db.find_keyspace("k").unwrap().id();
    let mut command = Framed::new();
    command.encode(|out| encode_put(out, keyspace, key, &[term.0 as u8; 90])).unwrap();
    let (next, time) = (leader.applied().next(), leader.parts.machine.applied().time);
    let lsn = leader.append(RecordKind::Entry, (term, next), time, command.bytes());
    leader.parts.member.apply(next, Some(&leader.record(lsn)), true, &mut Vec::new()).unwrap();
}

/// Consensus truncates a conflicting tail, which reaches beyond the snapshot, after the new state is prepared and
/// before it is switched in, and does not wait for the fsync of that record. A power loss never leaves the tail beside
/// the new state: consensus would refuse such a log.
fn truncate_and_crash_everywhere(backend: BackendKind) {
    let group = Group::founded(1, &keeping());
    let db = group.leader().db.to_async();
    group.run(async { db.keyspace("k").await }).unwrap();
    set_members(&group, &[1, 2, 3]);
    (0..10_u8).for_each(|number| put(&group, &[number], &[7; 400]));
    let common = group.leader().applied();
    (10..20_u8).for_each(|number| put_in(Term(5), &group, &[number]));
    let (expected, snapshot) = (shown(&group.leader().db), group.leader().applied());
    let chunks = chunks(group.leader().db.snapshot(&SnapshotOptions::default()).unwrap());
    put_in(Term(5), &group, &[20]);
    let later = group.leader().entries(snapshot.next());
    let continued = shown(&group.leader().db);

    let (disk, tables) = (SimDisk::new(1), tempfile::tempdir().unwrap());
    let recorder =
        Arc::new(Recorder { disk: disk.clone(), tables: tables.path().to_owned(), crashes: Mutex::default() });
    let hooked = HookedDisk { disk: disk.clone(), hook: Arc::clone(&recorder) as _ };
    let db = open(Arc::new(hooked), tables.path(), &group, backend);
    let mut entries = group.leader().entries(Index::ZERO);
    entries.retain(|record| record.index <= common);
    follow(&db, &disk, &entries);
    let node = Node { db: db.clone(), parts: parts(&db), disk: disk.clone() };
    let time = node.parts.machine.applied().time;
    node.append(RecordKind::Vote, (Term(5), Index::ZERO), time, &vote_in(5).encode());
    node.parts.member.apply_local().unwrap();
    // A leader of an earlier term has left entries that no majority has.
    for number in 1..=20 {
        node.append(RecordKind::Entry, (Term(3), Index(common.0 + number)), time, &entries.last().unwrap().payload);
    }
    db.flush().unwrap();
    let former = shown(&db);
    let mut install = db.install().unwrap();
    chunks.into_iter().for_each(|chunk| _ = install.push(chunk).unwrap());
    install.prepare().unwrap();
    *recorder.crashes.lock().unwrap() = Some(Vec::new());
    let truncated = Draft {
        space: SpaceId::ZERO,
        kind: RecordKind::Truncate,
        term: Term::ZERO,
        index: common.next(),
        time,
        payload: &[],
    };
    node.parts.log.try_append(&[truncated], Purpose::Reclaim).unwrap();
    install.finish().unwrap();
    assert_eq!(shown(&db), expected);
    recorder.add();
    let crashes = recorder.crashes.lock().unwrap().take().unwrap();
    drop((node, install, db));
    assert!(crashes.len() > 10, "{}", crashes.len());
    for (number, crash) in crashes.iter().enumerate() {
        let context = format!("{backend:?}: {} {number} of {}", crash.what, crashes.len());
        let db = open(Arc::new(crash.disk.clone()), crash.tables.path(), &group, backend);
        let found = shown(&db);
        assert!([&former, &expected].contains(&&found), "{context}: {found}");
        let status = crate::consensus::start(&db).unwrap_or_else(|error| panic!("{context}: {error}"));
        if found == expected {
            let last = status.last.map(|last| (last.term, last.index));
            assert_eq!(last, Some((Term(5), snapshot)), "{context}");
            follow(&db, &crash.disk, &later);
            assert_eq!(shown(&db), continued, "{context}");
        }
    }
}

#[test]
fn a_truncation_before_an_install_survives_every_power_loss_with_the_memory_backend() {
    truncate_and_crash_everywhere(BackendKind::Memory);
}

#[test]
fn a_truncation_before_an_install_survives_every_power_loss_with_the_lsm_backend() {
    truncate_and_crash_everywhere(BackendKind::Lsm);
}

#[test]
#[cfg(feature = "redb")]
fn a_truncation_before_an_install_survives_every_power_loss_with_redb() {
    truncate_and_crash_everywhere(BackendKind::Redb);
}

/// Lets another thread apply the member's records at the first operation of the disk, and gives it time to begin.
#[derive(Debug, Default)]
struct Intruder {
    member: Mutex<Option<MemberParts>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Hook for Intruder {
    fn changes(&self) {
        let Some(parts) = self.member.lock().unwrap().take() else { return };
        let thread = std::thread::spawn(move || parts.member.apply_local().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        *self.thread.lock().unwrap() = Some(thread);
    }
}

#[test]
fn a_thread_that_applies_records_during_a_switch_does_not_stop_the_member() {
    let scene = Scene::new();
    let (disk, tables) = (SimDisk::new(1), tempfile::tempdir().unwrap());
    let intruder = Arc::<Intruder>::default();
    let hooked = HookedDisk { disk: disk.clone(), hook: Arc::clone(&intruder) as _ };
    let db = scene.follower(Arc::new(hooked), &disk, tables.path(), BackendKind::Memory);
    let mut install = db.install().unwrap();
    scene.chunks.iter().for_each(|chunk| _ = install.push(chunk.clone()).unwrap());
    install.prepare().unwrap();
    let node = Node { db: db.clone(), parts: parts(&db), disk: disk.clone() };
    node.append(RecordKind::Vote, (Term(4), Index::ZERO), node.parts.machine.applied().time, &vote_in(4).encode());
    *intruder.member.lock().unwrap() = Some(parts(&db));
    install.finish().unwrap();
    let thread = intruder.thread.lock().unwrap().take().expect("the switch writes to the disk");
    thread.join().unwrap();
    assert_eq!(parts(&db).member.failure(), None);
    assert_eq!(shown(&db), scene.new);
    follow(&db, &disk, &scene.entries(scene.snapshot, Index::MAX));
    assert_eq!(shown(&db), scene.last);
}

/// Flips a bit in a table or on the disk.
fn flip(seed: u64, disk: &SimDisk, tables: &Path) {
    let mut files = Vec::new();
    let mut dirs = vec![tables.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.path().is_dir() { dirs.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    match files.get(seed as usize % (2 * files.len()).max(1)) {
        None => drop(disk.flip_random_bit(seed)),
        Some(path) => {
            let mut bytes = fs::read(path).unwrap();
            let at = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize;
            if let Some(byte) = at.checked_rem(bytes.len()).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1 << (seed % 8);
            }
            fs::write(path, bytes).unwrap();
        }
    }
}

/// All keys and values of the keyspace `k`, which are partly in the log.
fn values(db: &Database) -> Vec<(Vec<u8>, Vec<u8>)> {
    let keyspace = db.find_keyspace("k").unwrap();
    let pairs = keyspace.iter(ScanRange::default()).map(|pair| pair.unwrap());
    pairs.map(|(key, entry)| (key.to_vec(), entry.value.to_vec())).collect()
}

/// An install repairs a member in place if its state was damaged at rest but still opens. A member that does not open
/// reports that, and is replaced.
#[test]
fn flipped_bits_at_rest_are_repaired_in_place_by_an_install() {
    let scene = Scene::new();
    let expected = values(&scene.group.leader().db);
    for backend in [BackendKind::Memory, BackendKind::Redb, BackendKind::Lsm].into_iter().filter(|kind| kind.is_built())
    {
        let (disk, tables) = (SimDisk::new(1), tempfile::tempdir().unwrap());
        drop(scene.follower(Arc::new(disk.clone()), &disk, tables.path(), backend));
        let (mut repaired, mut refused) = (0, 0);
        for seed in 0..60 {
            let (disk, tables) = (disk.kill_process(), copy(tables.path()));
            flip(seed, &disk, tables.path());
            let Ok(db) = try_open(Arc::new(disk.clone()), tables.path(), &scene.group, backend) else {
                refused += 1;
                continue;
            };
            let context = format!("{backend:?}, seed {seed}");
            match scene.install(&db) {
                Ok(()) => {}
                // The log, or the row of the vote, cannot be read.
                Err(error) => {
                    assert_ne!(error.action(), Action::Retry, "{context}: {error}");
                    refused += 1;
                    continue;
                }
            }
            assert_eq!(shown(&db), scene.new, "{context}");
            follow(&db, &disk, &scene.entries(scene.snapshot, Index::MAX));
            assert_eq!(shown(&db), scene.last, "{context}");
            assert_eq!(values(&db), expected, "{context}");
            repaired += 1;
        }
        println!("{backend:?}: {repaired} repaired, {refused} refused");
        assert!(repaired > 0, "{backend:?}");
    }
}
