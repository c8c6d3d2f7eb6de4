//! Locks, semaphores and elections: the holder at each time, and the treatment of former holders that do not know
//! their loss.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use thalweg_engine::{
    Coordination, CoordinationError, CoordinationWatch, Database, WriteError,
    recipes::{Acquire, Contender, Coordinator, Election, EnterResult, Hold, Lock, RecipeError, Semaphore, Watched},
    types::{LeaseId, Revision, command::CommitBuilder, limits::MAX_CONTENDERS},
};

use crate::support::Node;

const SECOND: Duration = Duration::from_secs(1);
/// Longest wait for another thread. Reaching it is a failure; it does not set the pace of a test.
const PATIENCE: Duration = Duration::from_secs(30);

fn locks(db: &Database) -> Coordination {
    db.coordination("locks").unwrap()
}

fn lock(db: &Database) -> Lock<Coordination> {
    Lock::new(locks(db), "job").unwrap()
}

fn lasting(ttl: Duration) -> Acquire<'static> {
    Acquire { ttl, ..Acquire::default() }
}

/// Work of a holder under the lock: all or nothing, and only while the lock is held.
fn fenced_put(db: &Database, held: &Hold<Coordination>, value: &[u8]) -> Result<(), WriteError> {
    let work = db.keyspace("work").unwrap();
    let mut commit = CommitBuilder::new();
    locks(db).fence(held, &mut commit).unwrap().put(work.id(), b"k", value).unwrap();
    db.commit(&commit).map(|_| ())
}

fn contenders(db: &Database, name: &str) -> usize {
    locks(db).list(format!("{name}/").as_bytes(), usize::MAX).unwrap().len()
}

fn wait_until(what: impl Fn() -> bool) {
    for _ in 0..PATIENCE.as_millis() {
        if what() {
            return;
        }
        // Leaves the processor to the threads that make it true. Only the number of looks is bounded.
        thread::sleep(Duration::from_millis(1));
    }
    panic!("not in {PATIENCE:?}");
}

/// Receives the result of a thread in time.
fn told<T>(from: &mpsc::Receiver<T>) -> T {
    from.recv_timeout(PATIENCE).expect("in time")
}

/// Waits for the lock in another thread, which sends the hold.
fn waiter(db: &Database, how: Acquire<'static>) -> mpsc::Receiver<Result<Hold<Coordination>, String>> {
    let (send, receive) = mpsc::channel();
    let lock = lock(db);
    thread::spawn(move || drop(send.send(lock.acquire(&how).map_err(|error| error.to_string()))));
    receive
}

fn one_holds_at_a_time_and_tokens_rise(node: &mut Node) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 6;
    let inside = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let sum = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (lock, inside, last, sum) = (lock(node.db()), inside.clone(), last.clone(), sum.clone());
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    let held = lock.acquire(&Acquire::default()).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "no other holder is inside");
                    let token = held.token().get();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "later holders have higher tokens");
                    let before = sum.load(Ordering::Relaxed);
                    thread::yield_now();
                    sum.store(before + 1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    held.release().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(sum.load(Ordering::Relaxed), THREADS * ROUNDS);
    assert_eq!(contenders(node.db(), "job"), 0);
    assert!(node.db().leases().list(None, 10).unwrap().is_empty(), "no lease is left behind");
}

fn a_dead_holders_lock_goes_to_the_next_and_its_writes_are_refused(node: &mut Node) {
    let db = node.db();
    let mut stale = lock(db).acquire(&lasting(10 * SECOND)).unwrap();
    fenced_put(db, &stale, b"first").unwrap();
    let next = waiter(db, lasting(60 * SECOND));
    wait_until(|| contenders(db, "job") == 2);
    node.pass(9 * SECOND);
    stale.check().unwrap();
    assert_eq!(stale.remaining(), SECOND);
    fenced_put(db, &stale, b"second").unwrap();
    assert!(next.try_recv().is_err(), "the holder is alive");
    node.pass(SECOND);
    // From here on the fenced write is rejected, even though no other holder has taken over, or noticed.
    let refused = fenced_put(db, &stale, b"late");
    assert_eq!(refused, Err(WriteError::ConditionFailed { condition: 0, actual: None }));
    assert_eq!(stale.check(), Err(RecipeError::Lost { lease: stale.lease() }));
    let taken = told(&next).unwrap();
    assert!(taken.token() > stale.token());
    fenced_put(db, &taken, b"third").unwrap();
    assert!(fenced_put(db, &stale, b"late").is_err());
    let lost = stale.keep_alive().unwrap_err();
    assert_eq!(lost, RecipeError::Lost { lease: stale.lease() });
    stale.release().unwrap();
    assert_eq!(db.keyspace("work").unwrap().get(b"k").unwrap().unwrap().value, &b"third"[..]);
    fenced_put(db, &taken, b"fourth").unwrap();
}

fn who_keeps_it_alive_holds_on(node: &mut Node) {
    let db = node.db();
    let mut held = lock(db).acquire(&lasting(10 * SECOND)).unwrap();
    let next = waiter(db, lasting(10 * SECOND));
    wait_until(|| contenders(db, "job") == 2);
    // Only this thread lets time pass. The waiter keeps its own lease alive, so it needs the time to do so.
    for _ in 0..8 {
        node.pass(3 * SECOND);
        assert_eq!(held.keep_alive().unwrap(), 10 * SECOND);
        let now = db.space_time();
        wait_until(|| db.leases().list(None, 10).unwrap().iter().all(|lease| lease.deadline >= now.plus(4 * SECOND)));
    }
    assert!(next.try_recv().is_err());
    let token = held.token();
    held.release().unwrap();
    assert!(told(&next).unwrap().token() > token);
}

fn a_held_lock_survives_a_kill_of_the_node(node: &mut Node) {
    let held = lock(node.db()).acquire(&lasting(10 * SECOND)).unwrap();
    let (key, token) = (held.key().to_vec(), held.token());
    node.kill();
    let db = node.db();
    let found = locks(db).get(&key).unwrap().map(|(revision, _)| revision.0);
    assert_eq!(found, Some(token.get()));
    let busy = lock(db).acquire(&Acquire::without_waiting()).unwrap_err();
    assert!(matches!(busy, RecipeError::TimedOut { ahead: 1, .. }), "{busy}");
    assert_eq!(contenders(db, "job"), 1, "a waiter that gives up leaves the queue");
    node.pass(10 * SECOND);
    assert!(lock(db).acquire(&Acquire::without_waiting()).unwrap().token() > token);
}

fn waiting_has_an_end(node: &mut Node) {
    let db = node.db();
    let held = lock(db).acquire(&lasting(1000 * SECOND)).unwrap();
    let how = Acquire { wait: Some(30 * SECOND), ttl: 100 * SECOND, value: b"" };
    let late = waiter(db, how);
    wait_until(|| contenders(db, "job") == 2);
    node.pass(29 * SECOND);
    assert!(late.try_recv().is_err());
    node.pass(SECOND);
    assert!(told(&late).unwrap_err().contains("held by another client"));
    assert_eq!(contenders(db, "job"), 1);
    held.release().unwrap();
    lock(db).acquire(&Acquire::without_waiting()).unwrap();
}

fn a_waiter_whose_lease_is_gone_enters_again(node: &mut Node) {
    let db = node.db();
    let held = lock(db).acquire(&lasting(1000 * SECOND)).unwrap();
    let robbed = waiter(db, lasting(30 * SECOND));
    wait_until(|| contenders(db, "job") == 2);
    let leases = db.leases().list(None, 10).unwrap();
    let lease = leases.iter().find(|lease| lease.id != held.lease()).unwrap().id;
    db.leases().revoke(lease).unwrap();
    assert_eq!(contenders(db, "job"), 1);
    node.pass(10 * SECOND);
    wait_until(|| contenders(db, "job") == 2);
    assert!(robbed.try_recv().is_err());
    held.check().unwrap();
    let token = held.token();
    held.release().unwrap();
    let held = told(&robbed).unwrap();
    assert!(held.token() > token && held.lease() != lease);
}

fn a_waiter_outlasts_a_database_that_is_away_for_longer_than_its_lease(node: &mut Node) {
    let db = node.db();
    let held = lock(db).acquire(&lasting(1000 * SECOND)).unwrap();
    let probe = Probe::new(db);
    let (send, waits) = mpsc::channel();
    {
        let lock = Lock::new(probe.clone(), "job").unwrap();
        let how = Acquire { wait: Some(500 * SECOND), ..lasting(30 * SECOND) };
        thread::spawn(move || drop(send.send(lock.acquire(&how).map(|held| held.token()))));
    }
    wait_until(|| probe.watches.load(Ordering::SeqCst) > 0);
    probe.fails.store(1, Ordering::SeqCst);
    probe.stumbles.store(usize::MAX, Ordering::SeqCst);
    node.pass(31 * SECOND);
    assert_eq!(contenders(db, "job"), 1, "the lease of the waiter has ended");
    let tried = probe.kept.load(Ordering::SeqCst);
    node.pass(31 * SECOND);
    wait_until(|| probe.kept.load(Ordering::SeqCst) > tried);
    assert!(waits.try_recv().is_err(), "the waiter does not give up");
    probe.fails.store(0, Ordering::SeqCst);
    probe.stumbles.store(0, Ordering::SeqCst);
    wait_until(|| contenders(db, "job") == 2);
    let token = held.token();
    held.release().unwrap();
    assert!(told(&waits).unwrap() > token);
}

/// Coordinator that counts operations and fails on request.
#[derive(Clone, Debug)]
struct Probe {
    inner: Coordination,
    lists: Arc<AtomicUsize>,
    watches: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
    fails: Arc<AtomicUsize>,
    /// Number of the next lists, gets and watches that fail.
    stumbles: Arc<AtomicUsize>,
}

impl Probe {
    fn new(db: &Database) -> Self {
        let [lists, watches, kept, fails, stumbles] = Default::default();
        Self { inner: locks(db), lists, watches, kept, fails, stumbles }
    }

    fn stumble(&self) -> Result<(), CoordinationError> {
        let less = |left: usize| left.checked_sub(1);
        match self.stumbles.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Err(WriteError::Overloaded { queued_bytes: 1 }.into()),
            Err(_) => Ok(()),
        }
    }
}

impl Coordinator for Probe {
    type Error = CoordinationError;
    type Watch = CoordinationWatch;

    const LOOK_EVERY: Duration = Coordination::LOOK_EVERY;

    fn is_transient(error: &Self::Error) -> bool {
        Coordination::is_transient(error)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, Self::Error> {
        self.inner.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Self::Error> {
        self.kept.fetch_add(1, Ordering::SeqCst);
        match self.fails.load(Ordering::SeqCst) {
            0 => self.inner.keep_alive(lease),
            _ => Err(WriteError::Overloaded { queued_bytes: 1 }.into()),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), Self::Error> {
        self.inner.revoke(lease)
    }

    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<EnterResult, Self::Error> {
        self.inner.enter(key, value, lease)
    }

    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Self::Error> {
        self.stumble()?;
        self.inner.get(key)
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Self::Error> {
        self.stumble()?;
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list(prefix, limit)
    }

    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Self::Error> {
        self.stumble()?;
        let watch = self.inner.watch(watched);
        self.watches.fetch_add(1, Ordering::SeqCst);
        watch
    }
}

fn who_leaves_wakes_only_the_next(node: &mut Node) {
    const WAITERS: usize = 10;
    let probe = Probe::new(node.db());
    let lock = Lock::new(probe.clone(), "job").unwrap();
    let mut held = lock.acquire(&Acquire::default()).unwrap();
    let (send, next) = mpsc::channel();
    for _ in 0..WAITERS {
        let (lock, send) = (lock.clone(), send.clone());
        thread::spawn(move || drop(send.send(lock.acquire(&Acquire::default()).unwrap())));
    }
    wait_until(|| probe.watches.load(Ordering::SeqCst) == WAITERS);
    for _ in 0..WAITERS {
        let (lists, token) = (probe.lists.load(Ordering::SeqCst), held.token());
        held.release().unwrap();
        held = told(&next);
        assert!(held.token() > token);
        assert_eq!(probe.lists.load(Ordering::SeqCst), lists + 1, "only the next one looks");
    }
}

fn who_waits_bears_with_a_database_that_fails_for_a_while(node: &mut Node) {
    let db = node.db();
    let held = lock(db).acquire(&lasting(1000 * SECOND)).unwrap();
    for (probe, slots) in [(Probe::new(db), 1), (Probe::new(db), 2)] {
        // The slots of a semaphore and a lock of the same name share one queue.
        let second =
            (slots == 2).then(|| Semaphore::new(locks(db), "job", 2).unwrap().acquire(&lasting(SECOND * 1000)));
        let before = contenders(db, "job");
        probe.stumbles.store(4, Ordering::SeqCst);
        let (send, waits) = mpsc::channel();
        {
            let probe = probe.clone();
            thread::spawn(move || {
                let how = Acquire { wait: Some(5 * SECOND), ..lasting(100 * SECOND) };
                let held = Semaphore::new(probe, "job", slots).unwrap().acquire(&how);
                drop(send.send(held.map(|held| held.token()).map_err(|error| error.to_string())));
            });
        }
        wait_until(|| probe.stumbles.load(Ordering::SeqCst) == 0 && contenders(db, "job") == before + 1);
        probe.stumbles.store(2, Ordering::SeqCst);
        wait_until(|| probe.stumbles.load(Ordering::SeqCst) == 0 || slots == 2);
        probe.stumbles.store(0, Ordering::SeqCst);
        assert!(waits.try_recv().is_err());
        if slots == 1 {
            // The waiter has the number of contenders ahead once it has begun to watch one of them.
            wait_until(|| probe.watches.load(Ordering::SeqCst) > 0);
            node.pass(5 * SECOND);
            assert!(told(&waits).unwrap_err().contains("held by another client"));
        } else {
            drop(second);
            assert!(told(&waits).unwrap() > held.token());
        }
    }
}

fn a_thread_keeps_it_alive_and_says_when_it_is_lost(node: &mut Node) {
    let probe = Probe::new(node.db());
    let lock = Lock::new(probe.clone(), "job").unwrap();
    let kept = lock.acquire(&lasting(30 * SECOND)).unwrap().keep();
    let attempts = |at_least: usize| wait_until(|| probe.kept.load(Ordering::SeqCst) >= at_least);
    for round in 1..=5 {
        node.pass(10 * SECOND);
        attempts(round);
        wait_until(|| node.db().leases().list(None, 1).unwrap()[0].remaining == 30 * SECOND);
    }
    assert!(!kept.is_lost());
    // The database no longer answers.
    probe.fails.store(1, Ordering::SeqCst);
    node.pass(20 * SECOND);
    attempts(6);
    assert!(!kept.is_lost());
    probe.fails.store(0, Ordering::SeqCst);
    node.pass(9 * SECOND);
    wait_until(|| node.db().leases().list(None, 1).unwrap()[0].remaining == 30 * SECOND);
    assert!(!kept.is_lost(), "the database answered in time");
    probe.fails.store(1, Ordering::SeqCst);
    node.pass(30 * SECOND);
    assert!(kept.is_lost() && kept.wait_lost(Duration::ZERO), "immediately, whatever the thread is doing");
    probe.fails.store(0, Ordering::SeqCst);
    assert!(kept.is_lost(), "the loss is final");
    let token = kept.token();
    kept.release().unwrap();
    // Another client revokes the lease.
    let kept = lock.acquire(&lasting(30 * SECOND)).unwrap().keep();
    assert!(kept.token() > token && !kept.wait_lost(Duration::ZERO));
    let lease = node.db().leases().list(None, 1).unwrap()[0].id;
    node.db().leases().revoke(lease).unwrap();
    node.pass(10 * SECOND);
    assert!(kept.wait_lost(PATIENCE));
}

fn a_semaphore_lets_so_many_in_and_in_order(node: &mut Node) {
    const SLOTS: usize = 3;
    const THREADS: usize = 9;
    let semaphore = Semaphore::new(locks(node.db()), "slots", SLOTS).unwrap();
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (semaphore, inside, most) = (semaphore.clone(), inside.clone(), most.clone());
            thread::spawn(move || {
                for _ in 0..4 {
                    let held = semaphore.acquire(&Acquire::default()).unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    held.release().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= SLOTS);
    assert_eq!(contenders(node.db(), "slots"), 0);
    let mut held: Vec<_> = (0..SLOTS).map(|_| semaphore.acquire(&Acquire::without_waiting()).unwrap()).collect();
    assert!(held.windows(2).all(|pair| pair[0].token() < pair[1].token()));
    let full = semaphore.acquire(&Acquire::without_waiting()).unwrap_err();
    assert!(matches!(full, RecipeError::TimedOut { ahead: SLOTS, .. }), "{full}");
    // A holder in the middle of the queue dies. The waiter is admitted when that lease ends, even if its key is not
    // removed.
    let waits = {
        let semaphore = semaphore.clone();
        thread::spawn(move || semaphore.acquire(&lasting(100 * SECOND)).unwrap().token())
    };
    wait_until(|| contenders(node.db(), "slots") == SLOTS + 1);
    node.pass(9 * SECOND);
    held[0].keep_alive().unwrap();
    held[2].keep_alive().unwrap();
    node.pass(SECOND);
    // The waiter looks every ten seconds of its clock. It may have looked just before that lease ended.
    while !waits.is_finished() {
        thread::sleep(Duration::from_millis(200));
        held[0].keep_alive().unwrap();
        held[2].keep_alive().unwrap();
        node.pass(SECOND);
    }
    assert!(waits.join().unwrap() > held[2].token());
    assert!(held[1].check().is_err() && held[2].check().is_ok());
}

fn a_leader_is_seen_until_it_resigns_or_dies(node: &mut Node) {
    let db = node.db();
    let election = Election::new(db.coordination("elections").unwrap(), "shard/7").unwrap();
    let mut observer = election.observe();
    assert_eq!(observer.next(Duration::ZERO).unwrap(), Some(None), "there is no leader");
    assert_eq!(observer.next(Duration::ZERO).unwrap(), None, "nothing has changed");
    let run = |value: &'static [u8]| {
        let (election, (send, leads)) = (election.clone(), mpsc::channel());
        thread::spawn(move || {
            let how = Acquire { value, ttl: 10 * SECOND, wait: None };
            drop(send.send(election.campaign(&how).unwrap()));
        });
        leads
    };
    let count = || db.coordination("elections").unwrap().list(b"shard/7/", 10).unwrap().len();
    let first = told(&run(b"ann"));
    let (second, seen) = (run(b"bob"), thread::spawn(move || (observer.next(PATIENCE), observer)));
    wait_until(|| count() == 2);
    let (told_first, mut observer) = seen.join().unwrap();
    let leader = told_first.unwrap().unwrap().unwrap();
    assert_eq!((&leader.value[..], leader.token), (&b"ann"[..], first.token()));
    assert_eq!(election.leader().unwrap().unwrap(), leader);
    first.release().unwrap();
    let second = told(&second);
    let leader = loop {
        // There may be a moment without a leader in between.
        if let Some(leader) = observer.next(PATIENCE).unwrap().unwrap() {
            break leader;
        }
    };
    assert_eq!((&leader.value[..], leader.token), (&b"bob"[..], second.token()));
    node.pass(10 * SECOND);
    assert_eq!(election.leader().unwrap(), None);
    assert_eq!(observer.next(PATIENCE).unwrap(), Some(None), "the expired leader is hidden before it is removed");
}

fn names_and_contenders_have_bounds(node: &mut Node) {
    let db = node.db();
    for bad in ["".to_owned(), "x".repeat(513)] {
        assert_eq!(Lock::new(locks(db), &bad).unwrap_err(), RecipeError::BadName { got: bad.len() });
    }
    assert_eq!(Semaphore::new(locks(db), "s", 0).unwrap_err(), RecipeError::NoSlots);
    let outer = lock(db).acquire(&Acquire::default()).unwrap();
    let inner = Lock::new(locks(db), "job/part").unwrap().acquire(&Acquire::without_waiting()).unwrap();
    assert!(inner.token() > outer.token(), "a longer name is another lock");
    drop((inner, outer));
    let crowd = |count: usize| {
        let keyspace = locks(db).keyspace().id();
        for chunk in (0..count).collect::<Vec<_>>().chunks(500) {
            let mut commit = CommitBuilder::new();
            for number in chunk {
                // Ids of leases that were never granted.
                commit.put(keyspace, format!("job/{:016x}", number + (1 << 40)).as_bytes(), b"").unwrap();
            }
            db.commit(&commit).unwrap();
        }
    };
    crowd(MAX_CONTENDERS - 1);
    let last = lock(db).acquire(&Acquire::without_waiting()).unwrap_err();
    assert!(matches!(last, RecipeError::TimedOut { ahead, .. } if ahead == MAX_CONTENDERS - 1), "{last}");
    crowd(MAX_CONTENDERS);
    assert_eq!(lock(db).acquire(&Acquire::default()).unwrap_err(), RecipeError::TooMany);
    assert_eq!(contenders(db, "job"), MAX_CONTENDERS, "the contender has left");
}

on_every_backend!(
    one_holds_at_a_time_and_tokens_rise,
    a_dead_holders_lock_goes_to_the_next_and_its_writes_are_refused,
    who_keeps_it_alive_holds_on,
    a_held_lock_survives_a_kill_of_the_node,
    waiting_has_an_end,
    a_waiter_whose_lease_is_gone_enters_again,
    a_waiter_outlasts_a_database_that_is_away_for_longer_than_its_lease,
    who_leaves_wakes_only_the_next,
    who_waits_bears_with_a_database_that_fails_for_a_while,
    a_thread_keeps_it_alive_and_says_when_it_is_lost,
    a_semaphore_lets_so_many_in_and_in_order,
    a_leader_is_seen_until_it_resigns_or_dies,
    names_and_contenders_have_bounds,
);
