//! Concurrent writers as an async server has them: many futures, one thread that polls those that are woken.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// Runs `count` tasks on this thread until all have ended. A task is a series of futures: `next` gives the one
/// that follows, `None` at its end. The first error ends everything.
pub fn run<F, E>(count: usize, mut next: impl FnMut() -> Option<F>) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let ready = Arc::new(Ready { numbers: Mutex::new((0..count).collect()), thread: thread::current() });
    let wakers: Vec<Waker> =
        (0..count).map(|number| Waker::from(Arc::new(Task { number, ready: Arc::clone(&ready) }))).collect();
    let mut futures: Vec<Option<Pin<Box<F>>>> = (0..count).map(|_| next().map(Box::pin)).collect();
    let mut running = futures.iter().flatten().count();
    let mut woken = Vec::new();
    while running > 0 {
        std::mem::swap(&mut woken, &mut *ready.numbers.lock().unwrap_or_else(PoisonError::into_inner));
        if woken.is_empty() {
            thread::park();
        }
        for number in woken.drain(..) {
            let mut context = Context::from_waker(&wakers[number]);
            while let Some(future) = &mut futures[number] {
                match future.as_mut().poll(&mut context) {
                    Poll::Pending => break,
                    Poll::Ready(done) => done?,
                }
                futures[number] = next().map(Box::pin);
                if futures[number].is_none() {
                    running -= 1;
                }
            }
        }
    }
    Ok(())
}

/// Tasks to be polled, and the thread that polls them.
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
        let (given, done) = (Cell::new(0), Cell::new(0));
        let next = || {
            given.set(given.get() + 1);
            let (mut polled, wake, done) = (false, wake.clone(), &done);
            let future = std::future::poll_fn(move |context| {
                if polled {
                    done.set(done.get() + 1);
                    return Poll::Ready(Ok::<_, ()>(()));
                }
                polled = true;
                wake.send(context.waker().clone()).unwrap();
                Poll::Pending
            });
            (given.get() <= 1000).then_some(future)
        };
        run(20, next).unwrap();
        assert_eq!(done.get(), 1000);
        drop(wake);
        waking.join().unwrap();
    }

    #[test]
    fn an_error_ends_everything() {
        assert_eq!(run(3, || Some(std::future::ready(Err("no")))), Err("no"));
    }
}
