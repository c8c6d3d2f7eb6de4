//! Writes while the background work of the state or of the log is behind: on which thread they wait, and for how long.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use thalweg_disk::{
    SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_log::{Log, LogOptions, Purpose};
use thalweg_replica::{Leadership, Member, MemberOptions, ProposeError, Solo, SoloOptions, Wake};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    Applied, Backend, BackendError, BackendStats, BarrierFailed, LogBarrier, View, WriteBatch,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Lsn, ManualClock, NodeId, SpaceId, SpaceTime, Term,
    command::{Framed, KeyspaceConfig, encode_create_keyspace},
};

struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// A backend that is behind if the test says so.
#[derive(Debug)]
struct Behind {
    inner: MemoryBackend,
    may_wait: AtomicBool,
    owed: Mutex<Duration>,
    leaves_pauses: AtomicBool,
    /// Name of the thread that applied the last batch.
    applied_on: Mutex<Option<String>>,
}

impl Behind {
    fn new() -> Arc<Self> {
        let inner = MemoryBackend::open(Arc::new(SimDisk::new(2)), MemoryOptions::default(), Arc::new(NoLog)).unwrap();
        Arc::new(Self {
            inner,
            may_wait: AtomicBool::new(false),
            owed: Mutex::default(),
            leaves_pauses: AtomicBool::new(false),
            applied_on: Mutex::default(),
        })
    }

    fn owe(&self, millis: u64) {
        *self.owed.lock().unwrap() += Duration::from_millis(millis);
    }

    fn take_applied_on(&self) -> Option<String> {
        self.applied_on.lock().unwrap().take()
    }
}

impl Backend for Behind {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        self.inner.apply(batch, applied)?;
        *self.applied_on.lock().unwrap() = Some(thread::current().name().unwrap_or_default().to_owned());
        Ok(())
    }

    fn may_wait(&self) -> bool {
        self.may_wait.load(SeqCst)
    }

    fn leave_pauses(&self) {
        self.leaves_pauses.store(true, SeqCst);
    }

    fn take_pause(&self) -> Duration {
        std::mem::take(&mut *self.owed.lock().unwrap())
    }

    fn applied(&self) -> Option<Applied> {
        self.inner.applied()
    }

    fn persisted(&self) -> Option<Applied> {
        self.inner.persisted()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.inner.get(key)
    }

    fn view(&self) -> Arc<dyn View> {
        self.inner.view()
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        self.inner.flush()
    }

    fn maintain(&self) -> Result<(), BackendError> {
        self.inner.maintain()
    }

    fn stats(&self) -> BackendStats {
        self.inner.stats()
    }

    fn name(&self) -> &'static str {
        "behind"
    }
}

/// Waits until a batch is applied, and returns the name of the thread that has applied it.
fn applied_on(backend: &Behind) -> String {
    let begun = Instant::now();
    loop {
        if let Some(name) = backend.take_applied_on() {
            return name;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was applied");
        thread::yield_now();
    }
}

fn parts(backend: &Arc<Behind>) -> (Log, Arc<Machine>, Arc<ManualClock>) {
    parts_on(&SimDisk::new(1), backend)
}

fn parts_on(disk: &SimDisk, backend: &Arc<Behind>) -> (Log, Arc<Machine>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
    let options = LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap();
    let machine = Arc::new(Machine::open(backend.clone(), MachineOptions::default()).unwrap());
    (log, machine, clock)
}

fn create(name: &str) -> Framed {
    let mut command = Framed::new();
    command.encode(|out| encode_create_keyspace(out, name, &KeyspaceConfig::default())).unwrap();
    command
}

#[test]
fn an_async_proposer_leaves_commits_that_may_wait_to_the_committer_thread() {
    let backend = Behind::new();
    let (log, machine, clock) = parts(&backend);
    let options = SoloOptions { space: SpaceId::ZERO, node: NodeId(7), max_queue_bytes: 1 << 20 };
    let solo = Solo::open(log, machine, clock, &options).unwrap();
    let here = thread::current().name().unwrap_or_default().to_owned();
    let applied_on = || applied_on(&backend);
    backend.take_applied_on();
    for (may_wait, place) in [(false, here.as_str()), (true, "thalweg-commit")] {
        backend.may_wait.store(may_wait, SeqCst);
        let name = format!("inline-{may_wait}");
        let _inline = solo.propose_async(create(&name), Durability::Os, Purpose::Data).unwrap();
        assert_eq!(applied_on(), place);
        let name = format!("queued-{may_wait}");
        let queued = solo.propose_async_for(None, create(&name), Durability::Disk, Purpose::Data, Wake::Later);
        solo.commit_queued_here();
        assert_eq!(applied_on(), place);
        drop(queued.unwrap());
    }
    solo.close();
}

/// A serving thread would otherwise wait until a segment is prepared, and all its clients with it.
#[test]
fn an_async_proposer_leaves_commits_that_need_a_segment_to_the_committer_thread() {
    let (disk, backend) = (SimDisk::new(1), Behind::new());
    let (log, machine, clock) = parts_on(&disk, &backend);
    let options = SoloOptions { space: SpaceId::ZERO, node: NodeId(7), max_queue_bytes: 1 << 20 };
    let solo = Solo::open(log.clone(), machine, clock, &options).unwrap();
    assert!(!log.may_wait(|| 1 << 30), "segments are ready");
    disk.fail(Fault::new(Operation::Create, 1, Errno::Io).on_path(".tmp").for_good());
    let mut put = (0..10_000).map(|_| solo.propose(&create("filler"), Durability::Os, Purpose::Data));
    let refused = put.find_map(Result::err);
    assert!(matches!(refused, Some(ProposeError::Append(_))), "{refused:?}");
    assert!(log.may_wait(|| 1), "only the segment that is kept for deletes is ready");
    backend.take_applied_on();
    let _inline = solo.propose_async(create("inline"), Durability::Os, Purpose::Reclaim).unwrap();
    assert_eq!(applied_on(&backend), "thalweg-commit");
    assert!(!log.may_wait(|| 1 << 10) && log.may_wait(|| 1 << 20), "the last segment has room for small appends");
    solo.close();
}

#[test]
fn a_leader_owes_the_pauses_that_applying_has_left_to_it() {
    let backend = Behind::new();
    let (log, machine, clock) = parts(&backend);
    let options = MemberOptions::new(SpaceId::ZERO, NodeId(7), 1 << 20);
    let member = Member::open(log, machine, clock.clone(), &options).unwrap();
    assert!(backend.leaves_pauses.load(SeqCst));
    let millis = Duration::from_millis;
    backend.owe(40);
    assert_eq!(member.pause_left(), Duration::ZERO, "a follower makes none");
    backend.owe(40);
    member.set_leadership(Leadership::Leader { term: Term(1) });
    assert_eq!(member.pause_left(), Duration::ZERO, "those of a follower are forgotten");
    backend.owe(30);
    assert_eq!(member.pause_left(), millis(30));
    clock.advance(millis(10));
    backend.owe(5);
    assert_eq!(member.pause_left(), millis(25));
    clock.advance(millis(60));
    assert_eq!(member.pause_left(), Duration::ZERO);
    backend.owe(7);
    assert_eq!(member.pause_left(), millis(7), "from now on");
    member.set_leadership(Leadership::Follower { leader: None, term: Term(1) });
    assert_eq!(member.pause_left(), Duration::ZERO);
}
