//! A link: a channel to the server as callers see it. Callers stage requests on a link: they hand over encoded frames
//! for sending. The link survives reconnections of its channel.
//!
//! Owns: the table of requests and subscriptions in progress, the frames that wait to be written, and the choice of the
//! task that writes them. Does not own reading (`channel`), dialling (`pool`), or retries (`client`).
//!
//! ```text
//! callers --(state)--> staged --(io)--> outbox --> socket --> decoder --(state)--> waiters
//!          a short lock         one writer at a time                a lock per frame
//! ```
//! A caller encodes its request into `staged`, under a short lock that is never held during a system call. If
//! nothing else is in progress, the caller also writes, so a lone request is sent without switching to
//! another task. Otherwise the channel's task writes: it first lets all ready callers stage their requests
//! and then writes all of them together.
//!
//! Invariants: a thread that holds the lock of `io` may take the lock of `state`, but never the reverse. Frames go out
//! in the order in which they were staged. Ids of requests belong to a *generation*, which lasts from a connect to the
//! loss of that connection; ids of another generation are ignored. A reply is passed to its caller, and its id is
//! released, under the lock of `state`.

mod reply;
mod state;
mod supervised;
mod task;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use thalweg_transport::{Channel, Outbox};
use thalweg_wire::{CancelMode, Decoder, Frame as _, Permit, Ping, Session, session::SessionFull};
use tokio::sync::{Notify, oneshot};

use crate::{
    error::{ConnectError, Invalid},
    mailbox::Mailbox,
    options::Options,
};

use state::{ConnectionState, State};

pub(crate) use reply::{Reply, Ticket};
pub(crate) use state::{Check, Run, SessionParameters, StageError, Waiter, any_server};

const READY: &str = "ready() has checked that there is a session";

/// Maximum number of pings in progress on a channel (a TCP connection or a QUIC stream).
const MAX_PINGS: usize = 1024;

/// The part of a link that reads and writes the socket. The channel's task locks this part each time it is polled. In
/// between, a caller may lock it to write.
pub(crate) struct Io {
    pub channel: Channel,
    pub decoder: Decoder,
    outbox: Outbox,
    /// Error of a write by a caller. The channel's task takes this error and ends the connection.
    failed: Option<io::Error>,
}

/// One channel (a TCP connection or a QUIC stream) of the client's pool, which survives reconnections.
pub(crate) struct Link {
    pub options: Arc<Options>,
    state: Mutex<State>,
    io: Mutex<Option<Io>>,
    /// Notifies waiting callers of three changes: the link has a connection, it can never have one again, or it has
    /// room for frames again.
    pub changed: Notify,
    /// Notifies one of the callers that wait until another request finishes. These callers also wait for `changed`.
    pub finished: Notify,
    /// Number of requests in progress on this link. The pool uses it to choose the less busy of two links.
    load: AtomicUsize,
}

/// Choice of the task that writes staged frames to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritingThread {
    /// The caller writes, unless the channel's task is about to write.
    Caller,
    /// The channel's task writes, together with frames that other callers stage in the meantime.
    Task,
}

/// Function that appends the frame of a request with the given id.
pub(crate) type Encode<'a> = dyn FnMut(&mut Vec<u8>, u32) -> Result<(), Invalid> + 'a;

/// Function that appends the frame that begins a subscription, with the given id and initial credit.
pub(crate) type Begin<'a> = dyn FnMut(&mut Vec<u8>, u32, Permit) -> Result<(), Invalid> + Send + 'a;

/// Function that appends a frame. It may return bytes, which the link sends after the frame without a copy.
pub(crate) type Append<'a> = dyn FnMut(&mut Vec<u8>) -> Result<Option<Bytes>, Invalid> + 'a;

impl Link {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self {
            options,
            state: Mutex::new(State::new()),
            io: Mutex::new(None),
            changed: Notify::new(),
            finished: Notify::new(),
            load: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_io(&self) -> MutexGuard<'_, Option<Io>> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Returns true if the link (one channel to the server) has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.lock().connection, ConnectionState::Up(_))
    }

    /// Number of the link's present connection; it grows with each reconnect.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Returns true if a caller can stage a frame (hand it over for sending) on this link now. Otherwise the caller has
    /// to wait for a connection or for room, and `changed` notifies it later.
    pub(crate) fn has_room(&self) -> bool {
        let mut state = self.lock();
        !matches!(state.ready(&any_server, &self.options), Err(StageError::Room | StageError::Connection(_)))
    }

    /// Returns true if the link has a connection, and the maximum number of requests is in progress on it.
    pub(crate) fn is_out_of_requests(&self) -> bool {
        self.lock().session.as_ref().is_some_and(|session| !session.may_request())
    }

    /// Wakes another caller that waits for a request to finish, if the link permits another request. A woken caller
    /// that sends no request must call this, so that the wake-up is not lost.
    pub(crate) fn pass_turn(&self) {
        self.wake_waiting(&self.lock());
    }

    fn wake_waiting(&self, state: &State) {
        if state.waits_for_request && state.session.as_ref().is_some_and(Session::may_request) {
            self.finished.notify_one();
        }
    }

    /// Returns the reason why the link (one channel to the server) has no connection; `None` if it has one.
    pub(crate) fn connect_error(&self) -> Option<Arc<ConnectError>> {
        match &self.lock().connection {
            ConnectionState::Down(why) | ConnectionState::Dead(why) => Some(why.clone()),
            ConnectionState::Up(_) | ConnectionState::Closed => None,
        }
    }

    /// Returns the number of the present run of the server, from start to stop; `None` if the link has no connection.
    pub(crate) fn run(&self) -> Run {
        match &self.lock().connection {
            ConnectionState::Up(parameters) => Some(parameters.run),
            _ => None,
        }
    }

    /// Number of failed requests so far for which the callers had requested no reply.
    pub(crate) fn failures_without_id(&self) -> u64 {
        self.lock().failures_without_id
    }

    // ---- operations of callers

    /// Stages a request for sending, if the connection passes `check`. `encode` appends one frame with the given id. If
    /// `writer` is `None`, the caller writes the frame if no other request is in progress; otherwise the channel's task
    /// writes it.
    pub(crate) fn request(
        &self,
        check: &Check<'_>,
        encode: &mut Encode<'_>,
        writer: Option<WritingThread>,
    ) -> Result<Reply, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(check, &self.options)?;
        let session = state.session.as_mut().expect(READY);
        let (send, receiver) = oneshot::channel();
        let Ok(id) = session.request(Waiter::Reply(send)) else {
            state.waits_for_request = true;
            return Err(StageError::Requests);
        };
        let alone = session.in_progress().0 == 1;
        let staged = state.stage(id, max, |out| encode(out, id));
        // Several requests may have finished before this caller was woken, so it wakes the next waiting caller.
        self.wake_waiting(state);
        staged?;
        self.load.store(state.in_progress(), Ordering::Relaxed);
        self.staged(guard, writer.unwrap_or(if alone { WritingThread::Caller } else { WritingThread::Task }));
        Ok(Reply { ticket: Ticket { generation, id }, receiver })
    }

    /// Stages the request that begins a subscription, if the connection passes `check`. The items of the subscription
    /// go to `mailbox`.
    pub(crate) fn subscribe(
        &self,
        check: &Check<'_>,
        mailbox: &Arc<Mailbox>,
        window: &Permit,
        encode: &mut Begin<'_>,
    ) -> Result<Ticket, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(check, &self.options)?;
        let session = state.session.as_mut().expect(READY);
        let (id, permit) = match session.subscribe(Waiter::Subscription(mailbox.clone()), window) {
            Ok(begun) => begun,
            Err(SessionFull::Requests { .. } | SessionFull::Subscriptions { .. }) => {
                state.waits_for_room = true;
                return Err(StageError::Room);
            }
        };
        state.stage(id, max, |out| encode(out, id, permit))?;
        self.staged(guard, WritingThread::Task);
        Ok(Ticket { generation, id })
    }

    /// Stages a frame that gets no reply. `put` appends the frame and may return bytes that are sent after it without a
    /// copy. Returns the generation (number of the connection) on which the link sends the frame.
    pub(crate) fn send(&self, put: &mut Append<'_>, writer: WritingThread) -> Result<u64, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(&any_server, &self.options)?;
        let begin = state.staged.frames.len();
        let put = put(&mut state.staged.frames).and_then(|rest| {
            state.staged.check(begin, max.saturating_sub(rest.as_ref().map_or(0, Bytes::len)))?;
            Ok(rest)
        });
        match put {
            Ok(Some(rest)) => state.staged.share(rest),
            Ok(None) => {}
            Err(error) => {
                state.staged.frames.truncate(begin);
                return Err(StageError::Invalid(error));
            }
        }
        self.staged(guard, writer);
        Ok(generation)
    }

    /// Stages a ping. The answer arrives when the server has processed all frames that were staged before the
    /// ping.
    pub(crate) fn ping(&self) -> Result<oneshot::Receiver<()>, StageError> {
        let mut state = self.lock();
        state.ready(&any_server, &self.options)?;
        state.pings.retain(|(_, waiter)| !waiter.is_closed());
        if state.pings.len() >= MAX_PINGS {
            state.waits_for_room = true;
            return Err(StageError::Room);
        }
        let (send, receive) = oneshot::channel();
        state.next_token += 1;
        let token = state.next_token;
        state.pings.push((token, send));
        Ping { token }.encode(&mut state.staged.frames, 0)?;
        self.staged(state, WritingThread::Caller);
        Ok(receive)
    }

    /// Cancels a request or subscription that its caller no longer waits for.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.cancel(ticket, CancelMode::Now);
        self.staged(state, WritingThread::Task);
    }

    /// Cancels a request unless its reply has arrived.
    pub(crate) fn abandon(&self, reply: &mut Reply) {
        let mut state = self.lock();
        if reply.try_take().is_none() {
            state.cancel(reply.ticket, CancelMode::Now);
            self.staged(state, WritingThread::Task);
        }
    }

    /// Records that the application has finished with items of a subscription. Stages a frame that gives the server new
    /// credit, if one is due.
    pub(crate) fn consumed(&self, ticket: Ticket, permit: Permit) {
        let mut state = self.lock();
        if state.generation != ticket.generation {
            return;
        }
        let Some(session) = &mut state.session else { return };
        if let Some(credit) = session.consumed(ticket.id, permit.messages, permit.bytes)
            && credit.encode(&mut state.staged.frames, ticket.id).is_ok()
        {
            self.staged(state, WritingThread::Task);
        }
    }

    /// Ensures that a frame that was just staged is written: the caller writes it, or wakes the channel's task.
    fn staged(&self, mut state: MutexGuard<'_, State>, writer: WritingThread) {
        if writer == WritingThread::Caller && !state.woken {
            drop(state);
            self.write_on_caller();
        } else if let Some(task) = state.wake() {
            drop(state);
            task.wake();
        }
    }

    fn write_on_caller(&self) {
        if let Ok(mut io) = self.io.try_lock() {
            let Some(io) = io.as_mut() else { return };
            match self.flush(io, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => return,
                Poll::Ready(Err(error)) => io.failed = Some(error),
                Poll::Pending => {} // The socket must wake the task when it has room, not this context.
            }
        }
        self.wake_task();
    }

    pub(crate) fn wake_task(&self) {
        let task = self.lock().wake();
        if let Some(task) = task {
            task.wake();
        }
    }
}
