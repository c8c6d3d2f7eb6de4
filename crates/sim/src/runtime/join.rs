//! Handle that returns the output of a task.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use super::{Elapsed, current_process, spawn};

struct Shared<T> {
    output: Option<T>,
    waker: Option<Waker>,
}

/// A future that resolves with the output of a task. If the task's process is killed, the future never resolves. Only
/// tasks of this process wait for it, and they are dropped at the same time.
pub struct JoinHandle<T>(Rc<RefCell<Shared<T>>>);

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.0.borrow_mut();
        if let Some(output) = shared.output.take() {
            return Poll::Ready(Ok(output));
        }
        shared.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Starts a task in the process of the task that runs now.
pub(super) fn spawn_joined<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let shared = Rc::new(RefCell::new(Shared { output: None, waker: None }));
    let ended = Rc::clone(&shared);
    spawn(current_process(), async move {
        let output = future.await;
        let mut shared = ended.borrow_mut();
        shared.output = Some(output);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
    });
    JoinHandle(shared)
}
