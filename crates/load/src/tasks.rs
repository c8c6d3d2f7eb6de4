//! Concurrent writers, as in an async server: many futures on one thread. The thread polls the futures that are woken.
//!
//! Owns: a minimal async runtime. A server's runtime does the same for its connections, but the timers of tokio are too
//! coarse for a schedule. Here the thread sleeps until the next task is due, or until a future is woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use crate::Clock;

/// The next step of a task that [`run`] executes.
#[derive(Debug)]
pub enum NextStep<F> {
    /// The task waits for this future.
    Future(F),
    /// The task asks for its next step again at this time, in nanoseconds since the run started.
    Due(u64),
    /// The task has ended.
    Nothing,
}

/// Runs `count` tasks on this thread until all have ended. `next` returns the next step of a task. It gets the task's
/// number, and the output of the task's last future if one has just completed. The first error ends all tasks.
pub fn run<F: Future, E>(
    count: usize,
    clock: &Clock,
    mut next: impl FnMut(usize, Option<F::Output>) -> Result<NextStep<F>, E>,
) -> Result<(), E> {
    let ready = Arc::new(Ready { numbers: Mutex::default(), thread: thread::current() });
    let task = |number| Waker::from(Arc::new(Task { number, ready: Arc::clone(&ready) }));
    let wakers: Vec<Waker> = (0..count).map(task).collect();
    let mut futures: Vec<Option<Pin<Box<F>>>> = (0..count).map(|_| None).collect();
    // `due` has the time at which each task is asked for its next step; `NEVER` while it waits for a future.
    let (mut due, mut running, mut woken) = (vec![0; count], count, Vec::new());
    loop {
        let soonest = due.iter().copied().min().unwrap_or(NEVER);
        if soonest != NEVER {
            let now = clock.now();
            woken.extend((0..count).filter(|number| due[*number] <= now));
        }
        for number in woken.drain(..) {
            let mut output = None;
            loop {
                if let Some(future) = &mut futures[number] {
                    match future.as_mut().poll(&mut Context::from_waker(&wakers[number])) {
                        Poll::Pending => break,
                        Poll::Ready(value) => output = Some(value),
                    }
                    futures[number] = None;
                } else if due[number] == NEVER {
                    break; // woken after its end
                }
                due[number] = NEVER;
                match next(number, output.take())? {
                    NextStep::Future(future) => futures[number] = Some(Box::pin(future)),
                    NextStep::Due(at) => {
                        due[number] = at;
                        break;
                    }
                    NextStep::Nothing => {
                        running -= 1;
                        break;
                    }
                }
            }
        }
        if running == 0 {
            return Ok(());
        }
        std::mem::swap(&mut woken, &mut *ready.numbers.lock().unwrap_or_else(PoisonError::into_inner));
        if woken.is_empty() {
            match due.iter().copied().min().unwrap_or(NEVER) {
                NEVER => thread::park(),
                at => thread::park_timeout(Duration::from_nanos(at.saturating_sub(clock.now()))),
            }
        }
    }
}

const NEVER: u64 = u64::MAX;

/// Numbers of the tasks that must be polled, and the thread that polls them, which is woken when a number is added.
struct Ready {
    numbers: Mutex<Vec<usize>>,
    thread: Thread,
}

struct Task {
    number: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut numbers = self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.push(self.number);
        let is_first = numbers.len() == 1;
        drop(numbers);
        if is_first {
            self.ready.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::mpsc};

    use super::*;

    #[test]
    fn tasks_that_are_woken_from_another_thread_all_end() {
        let (wake, woken) = mpsc::channel::<Waker>();
        let waking = thread::spawn(move || woken.into_iter().for_each(Waker::wake));
        let (given, done) = (Cell::new(0), Cell::new(0_u32));
        let next = |_, ended: Option<()>| {
            done.set(done.get() + u32::from(ended.is_some()));
            given.set(given.get() + 1);
            if given.get() > 1000 {
                return Ok::<_, ()>(NextStep::Nothing);
            }
            let (mut polled, wake) = (false, wake.clone());
            let future = std::future::poll_fn(move |context| {
                if polled {
                    return Poll::Ready(());
                }
                polled = true;
                wake.send(context.waker().clone()).unwrap();
                Poll::Pending
            });
            Ok(NextStep::Future(future))
        };
        run(20, &Clock::start(), next).unwrap();
        assert_eq!(done.get(), 1000);
        drop(wake);
        waking.join().unwrap();
    }

    #[test]
    fn an_error_ends_everything() {
        let next = |_, ended: Option<Result<(), _>>| {
            ended.unwrap_or(Ok(()))?;
            Ok(NextStep::Future(std::future::ready(Err("no"))))
        };
        assert_eq!(run(3, &Clock::start(), next), Err("no"));
    }
}
