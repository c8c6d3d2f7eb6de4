//! Work for a client that continues after the client has disconnected.
//!
//! The future of a request is dropped when its client disconnects, but a command that was proposed is committed
//! nevertheless. The objects that it creates must still be counted. Otherwise a client that always disconnects at once
//! could create objects without being charged for them.
//!
//! Owns: [`Finishing`]. Does not own: the work. Bound: until its command has an outcome, the work holds its
//! reservation, such as that of a stream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

/// Future of work that is always finished: if this value is dropped before the work ends, a new task finishes it. See
/// the [module](self).
#[must_use = "it goes on in a task of its own if it is dropped"]
pub struct Finishing<T: 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: 'static> Finishing<T> {
    /// Wraps the future `work`, whose command was proposed already, so that it is always finished.
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }
}

impl<T: 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.0.as_mut().expect("not polled after its end");
        let result = ready!(work.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(result)
    }
}

impl<T: 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, so the work is dropped.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}
