//! Work for a client that goes on if the client goes away.
//!
//! The future of a request is dropped when its client disconnects, but a command that was proposed is committed
//! nevertheless. So the count of what a client has created must not end with that future: otherwise a client that
//! disconnects at once would create without being charged for it.
//!
//! Owns: [`Finishing`]. Does not own: the work. Bound: the work holds what it has reserved, such as one of the streams
//! that there may be, until its command has an outcome.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

/// Future of work that a task of its own finishes if the future is dropped before. See the [module](self).
#[must_use = "it goes on in a task of its own if it is dropped"]
pub struct Finishing<T: 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: 'static> Finishing<T> {
    /// Creates the future of `work`, whose command was proposed.
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
        // Without a runtime the process ends.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}
