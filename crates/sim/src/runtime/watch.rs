//! A watch channel for one thread: it holds one value, the latest.

use std::{
    cell::{Cell, Ref, RefCell},
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

use openraft_rt::{
    OptionalSend, OptionalSync,
    watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender},
};

/// Watch channels of the simulation, in the form that openraft requires.
#[derive(Debug)]
pub struct SimWatch;

struct Shared<T> {
    value: RefCell<T>,
    version: Cell<u64>,
    /// Wakers of the tasks that wait for the channel's next value.
    wakers: RefCell<Vec<Waker>>,
    senders: Cell<usize>,
    receivers: Cell<usize>,
}

impl<T> Shared<T> {
    fn wake(&self) {
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    fn changed(&self) {
        self.version.set(self.version.get() + 1);
        self.wake();
    }
}

/// Sender of a watch channel.
pub struct Sender<T>(Rc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Self(Rc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.wake();
        }
    }
}

/// Receiver of a watch channel, with the version that it has seen.
pub struct Receiver<T>(Rc<Shared<T>>, u64);

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.receivers.set(self.0.receivers.get() + 1);
        Self(Rc::clone(&self.0), self.1)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.receivers.set(self.0.receivers.get() - 1);
    }
}

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Rc::new(Shared {
            value: RefCell::new(init),
            version: Cell::new(0),
            wakers: RefCell::default(),
            senders: Cell::new(1),
            receivers: Cell::new(1),
        });
        (Sender(Rc::clone(&shared)), Receiver(shared, 0))
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<SimWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.get() == 0 {
            return Err(SendError(value));
        }
        let before = self.0.value.replace(value);
        drop(before);
        self.0.changed();
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let is_modified = modify(&mut self.0.value.borrow_mut());
        if is_modified {
            self.0.changed();
        }
        is_modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.set(self.0.receivers.get() + 1);
        Receiver(Rc::clone(&self.0), self.0.version.get())
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<SimWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        poll_fn(|context| {
            if self.0.version.get() != self.1 {
                self.1 = self.0.version.get();
                return Poll::Ready(Ok(()));
            }
            if self.0.senders.get() == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            let mut wakers = self.0.wakers.borrow_mut();
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.1 = self.0.version.get();
        self.0.value.borrow()
    }
}
