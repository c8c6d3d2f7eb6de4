//! A flag with a waker (a *bell*). Any thread can ring it to wake the task that proposes commands.

use std::{
    fmt,
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    task::Poll,
};

use futures_util::task::AtomicWaker;
use thalweg_replica::ProposalDriver;

/// A flag for which one task waits. Once set (rung), it stays set until the task has noticed it.
#[derive(Default)]
pub(crate) struct Bell {
    is_rung: AtomicBool,
    waker: AtomicWaker,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("is_rung", &self.is_rung).finish_non_exhaustive()
    }
}

impl Bell {
    pub(crate) fn ring(&self) {
        if !self.is_rung.swap(true, SeqCst) {
            self.waker.wake();
        }
    }

    /// Waits until a thread has rung the bell (set its flag), and clears the flag.
    pub(crate) async fn heard(&self) {
        poll_fn(|context| {
            if self.is_rung.swap(false, SeqCst) {
                return Poll::Ready(());
            }
            self.waker.register(context.waker());
            // Another thread may have rung the bell before the waker was registered.
            if self.is_rung.swap(false, SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl ProposalDriver for Bell {
    fn notify(&self) {
        self.ring();
    }
}
