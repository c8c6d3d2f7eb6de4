//! A deterministic runtime: one thread, virtual time, and an order of tasks that follows from the seed.
//!
//! Owns: the tasks, the timers, the random numbers, and the event log of a simulation. Does not own: disks and
//! networks, which are built from tasks and timers.
//!
//! Tasks belong to a *process*: a node of the cluster, or [`OUTSIDE`] for clients and for the script of faults. A crash
//! drops all tasks of a process; a stopped process keeps its tasks, but none of them runs.
//!
//! Invariants:
//! - with the same seed and the same program, tasks are polled in the same order, so the events are the same;
//! - time advances only while no task is ready, to the next timer;
//! - no code uses the clock, the scheduler or the random numbers of the operating system.

mod async_runtime;
mod join;
mod time;
mod watch;

use std::{
    any::Any,
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

pub use async_runtime::SimRuntime;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
pub use time::{Elapsed, SimInstant, Sleep, Timeout, sleep, timeout};

/// A process of the simulation, by its number.
pub type ProcessId = u64;
/// Process of the tasks that do not belong to a node.
pub const OUTSIDE: ProcessId = 0;
/// Simulated true time at the start of a simulation, in microseconds since the Unix epoch.
pub const EPOCH_MICROS: u64 = 1_800_000_000_000_000;

type TaskId = u64;
type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;
type ReadyQueue = Arc<Mutex<VecDeque<TaskId>>>;

/// Time that the scheduler's clock shows when a simulation begins. Times outside this module count from this moment.
const BEGIN: Duration = Duration::from_secs(1);

struct TaskWaker {
    id: TaskId,
    is_queued: AtomicBool,
    ready: ReadyQueue,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            lock(&self.ready).push_back(self.id);
        }
    }
}

fn lock(ready: &ReadyQueue) -> std::sync::MutexGuard<'_, VecDeque<TaskId>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    process: ProcessId,
    /// Future of the task; `None` while the task is being polled.
    future: Option<BoxedTask>,
    waker: Arc<TaskWaker>,
}

/// A line of the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual time of the event since the start of the simulation.
    pub at: Duration,
    /// Process that the event concerns.
    pub process: ProcessId,
    /// Description of the event.
    pub text: String,
}

struct Scheduler {
    now: Cell<Duration>,
    last_id: Cell<u64>,
    tasks: RefCell<BTreeMap<TaskId, Task>>,
    ready: ReadyQueue,
    /// Tasks that became ready while their process was stopped. They run when the process continues.
    held: RefCell<Vec<TaskId>>,
    stopped: RefCell<BTreeSet<ProcessId>>,
    /// Wakers of the timers, by the time and the number of the timer.
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    rng: RefCell<SmallRng>,
    /// Process to which the task that runs now belongs.
    process: Cell<ProcessId>,
    polls: Cell<u64>,
    fingerprint: Cell<u64>,
    events: RefCell<Vec<Event>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Scheduler>>> = const { RefCell::new(None) };
}

/// Calls `with` with the scheduler of the simulation that runs on this thread.
fn scheduler<T>(with: impl FnOnce(&Scheduler) -> T) -> T {
    let current = CURRENT.with(|current| current.borrow().clone());
    with(&current.expect("called inside a simulation"))
}

/// Result of a finished simulation.
#[derive(Debug)]
pub struct Finished<T> {
    /// Output of the main task; the error is the message of a panic in a task, or says that all tasks waited for each
    /// other.
    pub output: Result<T, String>,
    /// Virtual time that passed during the simulation.
    pub elapsed: Duration,
    /// Number of times that the runtime has run a task.
    pub polls: u64,
    /// Hash of the order in which tasks ran, and of the events. Two runs with the same hash took the same course.
    pub fingerprint: u64,
    /// Lines of the event log, in order.
    pub events: Vec<Event>,
}

/// Runs a simulation until its main task ends. Then drops all other tasks.
pub fn simulate<T: 'static>(seed: u64, main: impl Future<Output = T> + 'static) -> Finished<T> {
    let scheduler = Rc::new(Scheduler::new(seed));
    let _current = Current::enter(&scheduler);
    let output = Rc::new(RefCell::new(None));
    let result = Rc::clone(&output);
    scheduler.spawn(OUTSIDE, Box::pin(async move { *result.borrow_mut() = Some(main.await) }));
    let course = || {
        loop {
            if let Some(output) = output.borrow_mut().take() {
                return output;
            }
            assert!(scheduler.step(), "all tasks wait at {:?}", scheduler.now.get());
        }
    };
    // After a panic, only the event log of the simulation is used.
    let output = panic::catch_unwind(AssertUnwindSafe(course)).map_err(|panicked| message_of(&*panicked));
    scheduler.drop_tasks(|_| true);
    Finished {
        output,
        elapsed: scheduler.now.get() - BEGIN,
        polls: scheduler.polls.get(),
        fingerprint: scheduler.fingerprint.get(),
        events: scheduler.events.take(),
    }
}

fn message_of(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panicked.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Runs a future to its end in a new simulation. Until then, the new simulation replaces the one that runs on this
/// thread.
fn block_on<T>(seed: u64, main: impl Future<Output = T>) -> T {
    let scheduler = Rc::new(Scheduler::new(seed));
    let _current = Current::enter(&scheduler);
    let waker = scheduler.waker(scheduler.next_id());
    let mut main = std::pin::pin!(main);
    loop {
        let polled = main.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(output) = polled {
            scheduler.drop_tasks(|_| true);
            return output;
        }
        // Any step may have woken the main future.
        assert!(scheduler.step(), "all tasks wait at {:?}", scheduler.now.get());
    }
}

/// Guard of the current thread's scheduler. Dropping it restores the previous scheduler.
struct Current(Option<Rc<Scheduler>>);

impl Current {
    fn enter(scheduler: &Rc<Scheduler>) -> Self {
        Self(CURRENT.with(|current| current.replace(Some(Rc::clone(scheduler)))))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let before = self.0.take();
        let ended = CURRENT.with(|current| current.replace(before));
        drop(ended);
    }
}

impl Scheduler {
    fn new(seed: u64) -> Self {
        Self {
            now: Cell::new(BEGIN),
            last_id: Cell::default(),
            tasks: RefCell::default(),
            ready: ReadyQueue::default(),
            held: RefCell::default(),
            stopped: RefCell::default(),
            timers: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            process: Cell::new(OUTSIDE),
            polls: Cell::default(),
            fingerprint: Cell::new(seed),
            events: RefCell::default(),
        }
    }

    fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    fn waker(&self, id: TaskId) -> Waker {
        Waker::from(Arc::new(TaskWaker { id, is_queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) }))
    }

    fn spawn(&self, process: ProcessId, future: BoxedTask) {
        let id = self.next_id();
        let waker = Arc::new(TaskWaker { id, is_queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        self.tasks.borrow_mut().insert(id, Task { process, future: Some(future), waker: Arc::clone(&waker) });
        waker.wake();
    }

    /// Takes a random one of the ready tasks, all with equal probability.
    fn next_ready(&self) -> Option<TaskId> {
        let mut ready = lock(&self.ready);
        if ready.is_empty() {
            return None;
        }
        let at = self.rng.borrow_mut().random_range(0..ready.len());
        ready.swap(0, at);
        ready.pop_front()
    }

    /// Runs a ready task, or advances the time to the next timer. Returns false if there is neither.
    fn step(&self) -> bool {
        let Some(id) = self.next_ready() else {
            let Some(((at, _), waker)) = self.timers.borrow_mut().pop_first() else { return false };
            self.now.set(self.now.get().max(at));
            waker.wake();
            return true;
        };
        let Some((process, mut future, waker)) = self.take(id) else { return true };
        waker.is_queued.store(false, Ordering::SeqCst);
        self.process.set(process);
        self.polls.set(self.polls.get() + 1);
        self.mix(id ^ (self.now.get().as_nanos() as u64).rotate_left(20));
        let polled = future.as_mut().poll(&mut Context::from_waker(&Waker::from(waker)));
        self.process.set(OUTSIDE);
        let mut tasks = self.tasks.borrow_mut();
        let ended = match (polled, tasks.get_mut(&id)) {
            (Poll::Pending, Some(task)) => {
                task.future = Some(future);
                None
            }
            (Poll::Ready(()), Some(_)) => tasks.remove(&id).map(|_| future),
            // The task has killed its own process.
            (_, None) => Some(future),
        };
        // Dropping a future may use the scheduler, so the lock on the tasks is released first.
        drop(tasks);
        drop(ended);
        true
    }

    /// Takes the future of a ready task, unless the task has ended or its process is stopped.
    fn take(&self, id: TaskId) -> Option<(ProcessId, BoxedTask, Arc<TaskWaker>)> {
        let mut tasks = self.tasks.borrow_mut();
        let task = tasks.get_mut(&id)?;
        if self.stopped.borrow().contains(&task.process) {
            self.held.borrow_mut().push(id);
            return None;
        }
        Some((task.process, task.future.take()?, Arc::clone(&task.waker)))
    }

    fn drop_tasks(&self, is_dropped: impl Fn(ProcessId) -> bool) {
        let mut tasks = self.tasks.borrow_mut();
        let dropped: Vec<Task> =
            tasks.extract_if(.., |_, task| is_dropped(task.process)).map(|(_, task)| task).collect();
        drop(tasks);
        drop(dropped);
    }

    fn mix(&self, value: u64) {
        let mixed = (self.fingerprint.get() ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint.set(mixed ^ (mixed >> 29));
    }
}

/// Returns the virtual time since the start of the simulation.
#[must_use]
pub fn now() -> Duration {
    scheduler(|scheduler| scheduler.now.get() - BEGIN)
}

/// Returns a random number from a range, derived from the seed.
#[must_use]
pub fn random(range: Range<u64>) -> u64 {
    scheduler(|scheduler| scheduler.rng.borrow_mut().random_range(range))
}

/// Returns a random duration from a range, in whole microseconds.
#[must_use]
pub fn random_duration(range: Range<Duration>) -> Duration {
    Duration::from_micros(random(range.start.as_micros() as u64..range.end.as_micros() as u64))
}

/// Starts `future` as a task of a process.
pub fn spawn(process: ProcessId, future: impl Future<Output = ()> + 'static) {
    scheduler(|scheduler| scheduler.spawn(process, Box::pin(future)));
}

/// Drops all tasks of a process, as a crash does.
pub fn kill(process: ProcessId) {
    scheduler(|scheduler| {
        scheduler.stopped.borrow_mut().remove(&process);
        scheduler.drop_tasks(|owner| owner == process);
    });
}

/// Stops a process: its tasks stay, and none of them runs until [`resume`].
pub fn stop(process: ProcessId) {
    scheduler(|scheduler| _ = scheduler.stopped.borrow_mut().insert(process));
}

/// Continues a stopped process.
pub fn resume(process: ProcessId) {
    scheduler(|scheduler| {
        scheduler.stopped.borrow_mut().remove(&process);
        let held = scheduler.held.take();
        // Tasks of other processes that are still stopped are held back again when they would run.
        lock(&scheduler.ready).extend(held);
    });
}

/// Adds a line about a process to the event log of the simulation.
pub fn record(process: ProcessId, text: impl Into<String>) {
    let text = text.into();
    scheduler(|scheduler| {
        text.bytes().for_each(|byte| scheduler.mix(byte.into()));
        let at = scheduler.now.get() - BEGIN;
        scheduler.events.borrow_mut().push(Event { at, process, text });
    });
}

/// Sets or changes a timer that wakes `waker` at the scheduler's time `at`. Returns the number of the timer.
fn set_timer(at: Duration, number: Option<u64>, waker: &Waker) -> u64 {
    scheduler(|scheduler| {
        let number = number.unwrap_or_else(|| scheduler.next_id());
        scheduler.timers.borrow_mut().insert((at, number), waker.clone());
        number
    })
}

fn remove_timer(at: Duration, number: u64) {
    // A future may be dropped after its simulation has ended. Then there is no scheduler.
    let current = CURRENT.try_with(|current| current.borrow().clone());
    if let Ok(Some(scheduler)) = current {
        let removed = scheduler.timers.borrow_mut().remove(&(at, number));
        drop(removed);
    }
}

/// Returns the time of the scheduler's clock, which begins at [`BEGIN`] and not at zero.
fn clock() -> Duration {
    scheduler(|scheduler| scheduler.now.get())
}

fn current_process() -> ProcessId {
    scheduler(|scheduler| scheduler.process.get())
}

fn new_rng() -> SmallRng {
    SmallRng::seed_from_u64(scheduler(|scheduler| scheduler.rng.borrow_mut().random::<u64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs several tasks that draw random numbers and sleep. Returns the order of their steps.
    fn course(seed: u64) -> Finished<Vec<(u64, u64)>> {
        simulate(seed, async {
            let steps = Rc::new(RefCell::new(Vec::new()));
            for task in 1..=5 {
                let steps = Rc::clone(&steps);
                spawn(task, async move {
                    for step in 0..10 {
                        sleep(Duration::from_millis(random(0..3))).await;
                        steps.borrow_mut().push((task, step));
                        record(task, format!("step {step}"));
                    }
                });
            }
            sleep(Duration::from_secs(1)).await;
            steps.take()
        })
    }

    #[test]
    fn a_seed_determines_the_course() {
        let (one, same, other) = (course(1), course(1), course(2));
        assert_eq!(one.output.as_ref().unwrap().len(), 50);
        assert!(one.output == same.output && one.fingerprint == same.fingerprint && one.events == same.events);
        assert!(one.output != other.output && one.fingerprint != other.fingerprint);
        assert_eq!(one.elapsed, Duration::from_secs(1));
    }

    #[test]
    fn a_killed_process_never_runs_again_and_a_stopped_one_goes_on() {
        let finished = simulate(7, async {
            let counts = Rc::new(RefCell::new([0_u32; 3]));
            for process in 1..=2 {
                let counts = Rc::clone(&counts);
                spawn(process, async move {
                    loop {
                        sleep(Duration::from_millis(10)).await;
                        counts.borrow_mut()[process as usize] += 1;
                    }
                });
            }
            sleep(Duration::from_millis(105)).await;
            kill(1);
            stop(2);
            sleep(Duration::from_millis(100)).await;
            let stopped = *counts.borrow();
            resume(2);
            sleep(Duration::from_millis(104)).await;
            (stopped, *counts.borrow())
        });
        let (stopped, resumed) = finished.output.unwrap();
        assert_eq!(stopped, [0, 10, 10]);
        assert_eq!(resumed, [0, 10, 21], "the timer that ended in the stop, and ten more");
    }

    #[test]
    fn a_panic_and_a_deadlock_end_the_simulation_and_the_log_stays() {
        let stuck = simulate(1, std::future::pending::<()>());
        assert!(stuck.output.unwrap_err().starts_with("all tasks wait"));
        let panicked = simulate(1, async {
            record(OUTSIDE, "begins");
            spawn(1, async { panic!("a bug") });
            sleep(Duration::from_secs(1)).await;
        });
        assert_eq!(panicked.output.unwrap_err(), "a bug");
        assert_eq!(panicked.events.len(), 1);
        assert_eq!(course(1).output, course(1).output, "later simulations are not concerned");
    }
}
