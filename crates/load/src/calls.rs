//! Connections that perform requests in this process instead of sending them.
//!
//! Owns: the request in progress of such a connection, and the bell ([`Bell`]). A thread that completes a request rings
//! the bell to wake the load thread. Does not own: the effect of a request, and its bytes ([`Calls`]).

use std::{
    fmt,
    future::Future,
    io::{self, ErrorKind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Performs the requests of one connection in this process, one at a time.
pub trait Calls: fmt::Debug + Send {
    /// Performs an encoded request. If the reply is available at once, appends it to `reply` and returns `None`.
    /// Otherwise returns the future of the reply's bytes.
    fn call(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Option<PendingReply>;
}

/// Future of the reply to a request that is performed in this process. It resolves to the reply's bytes.
pub type PendingReply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Wakes a load thread that waits for events of its sockets, when a request that is performed in this process has made
/// progress. The request's connection rings the bell.
#[derive(Debug)]
pub(crate) struct Bell {
    eventfd: OwnedFd,
    /// Numbers of the connections that have rung the bell since the last [`take`](Self::take). Their replies may be
    /// ready.
    rung: Mutex<Vec<usize>>,
    /// True if `rung` is not empty. The load thread checks this flag between requests without taking the lock.
    is_ringing: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { eventfd, rung: Mutex::default(), is_ringing: AtomicBool::new(false) })
    }

    /// Returns a file descriptor that is readable from the moment at which a connection rings the bell until the next
    /// [`take`](Self::take).
    pub(crate) fn source(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    fn ring(&self, number: usize) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.push(number);
        if !self.is_ringing.swap(true, Ordering::AcqRel) {
            // The counter never gets near its maximum, so the write cannot fail.
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }

    /// Stops the bell, and returns the numbers of the connections that have rung it since the last call.
    pub(crate) fn take(&self) -> Vec<usize> {
        if !self.is_ringing.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ringing.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.eventfd, &mut [0_u8; 8]);
        std::mem::take(&mut *rung)
    }
}

/// Waker of a request that is performed in this process. When the request makes progress, the waker rings the bell that
/// wakes the connection's load thread.
struct BellWaker {
    bell: Arc<Bell>,
    number: usize,
}

impl Wake for BellWaker {
    fn wake(self: Arc<Self>) {
        self.bell.ring(self.number);
    }
}

/// Waker of a thread that waits for a single reply.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The part of a connection that performs requests in this process: the [`Calls`] that perform them, and the request in
/// progress.
pub(crate) struct InProcess {
    calls: Box<dyn Calls>,
    pending: Option<PendingReply>,
    waker: Option<Waker>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl InProcess {
    pub(crate) fn new(calls: Box<dyn Calls>) -> Self {
        Self { calls, pending: None, waker: None }
    }

    /// Makes this connection ring `bell` with its `number` when its request in progress has a reply.
    pub(crate) fn attach(&mut self, bell: &Arc<Bell>, number: usize) {
        self.waker = Some(Arc::new(BellWaker { bell: Arc::clone(bell), number }).into());
    }

    /// Begins a request. If the reply is ready, appends it to `input`. Otherwise [`receive`](Self::receive) appends it
    /// later.
    pub(crate) fn send(&mut self, request: &[u8], input: &mut Vec<u8>) {
        debug_assert!(self.pending.is_none(), "a connection has one request at a time");
        self.pending = self.calls.call(request, input);
        if self.pending.is_some() {
            // Polling registers the waker. An error means that the reply is not ready yet.
            let _ = self.receive(input);
        }
    }

    /// Appends the reply to the request in progress to `input`. Returns the error `WouldBlock` if the reply is not
    /// ready yet.
    pub(crate) fn receive(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        let Some(pending) = &mut self.pending else { return Err(ErrorKind::WouldBlock.into()) };
        let waker = self.waker.as_ref().unwrap_or(Waker::noop());
        match pending.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(reply) => {
                self.pending = None;
                input.extend_from_slice(&reply);
                Ok(())
            }
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Blocks this thread until the reply is ready, and appends it to `input`. For connections that are attached to no
    /// bell.
    pub(crate) fn wait(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        self.waker.get_or_insert_with(|| Arc::new(ThreadWaker(thread::current())).into());
        loop {
            match self.receive(input) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.pending.is_some() => thread::park(),
                other => return other,
            }
        }
    }
}
