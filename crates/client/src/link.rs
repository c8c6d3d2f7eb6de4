//! A channel as its callers see it. Callers stage requests (hand over their encoded frames for sending) on a
//! link, which survives reconnections of the channel.
//!
//! Owns: the table of requests and subscriptions in progress, the frames that wait to be written, and the choice of
//! the thread that writes them. Does not own reading (`channel`), dialling (`pool`), or retries (`client`).
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
//! Invariants: a thread that holds the lock of `io` may take that of `state`, never the other way round.
//! Frames go out in the order in which they were staged. Ids of requests belong to a *generation*, which is
//! the time from one connect to the loss of that connection; ids of another generation are ignored. A reply
//! is passed to its caller under the lock of `state`, which also releases its id.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use thalweg_transport::{Channel, Outbox};
use thalweg_wire::{
    Cancel, CancelMode, Decoder, EncodeError, Frame, Permit, Ping, Session, SharedFrame, session::SessionFull,
};
use tokio::sync::{Notify, oneshot};

use crate::{
    error::{ConnectError, Invalid, Lost},
    mailbox::Mailbox,
    options::Options,
    staged::{HAND_OVER_BYTES, Staged},
};

const READY: &str = "ready() has checked that there is a session";

/// Maximum number of pings in progress on a channel.
const MAX_PINGS: usize = 1024;

/// Receiver of the reply to a request, or of the items pushed to a subscription.
#[derive(Debug)]
pub(crate) enum Waiter {
    Reply(oneshot::Sender<Result<SharedFrame, Lost>>),
    Subscription(Arc<Mailbox>),
}

/// Parameters that client and server agreed on for one connection.
#[derive(Clone, Debug)]
pub(crate) struct SessionParameters {
    /// Largest frame that the server accepts, in bytes without the frame's header.
    pub max_send_bytes: usize,
    /// Number of the server's run. Ids of caches are valid for one run only.
    pub run: u64,
    /// Maximum number of requests in progress on the channel.
    pub max_requests: u32,
    pub max_subscriptions: u32,
}

/// Reason why a frame cannot be staged for sending now.
#[derive(Debug)]
pub(crate) enum StageError {
    /// The link has no connection, for this reason. The caller should wait for one.
    Connection(Arc<ConnectError>),
    /// Too many unsent bytes, subscriptions or pings are on the link. The caller should wait until there are fewer.
    Room,
    /// Too many requests are in progress on the link. The caller should wait until one has
    /// [finished](Link::finished).
    Requests,
    /// The link has no connection, for this reason, and the client makes no further attempt to connect.
    Dead(Arc<ConnectError>),
    /// The client has been closed.
    Closed,
    /// The server is in another run than the one that the request requires.
    OtherRun,
    /// The server has other data than the one for which the request was made.
    OtherData,
    /// The request cannot be sent.
    Invalid(Invalid),
}

impl From<EncodeError> for StageError {
    fn from(error: EncodeError) -> Self {
        Self::Invalid(error.into())
    }
}

#[derive(Debug)]
enum ConnectionState {
    /// The link has no connection, for this reason.
    Down(Arc<ConnectError>),
    Up(SessionParameters),
    /// The link has no connection, for this reason, and the client makes no further attempt to connect.
    Dead(Arc<ConnectError>),
    Closed,
}

/// The part of a link that reads and writes the socket. It belongs to the channel's task, which locks it for
/// a turn. Between turns a caller may lock it to write.
pub(crate) struct Io {
    pub channel: Channel,
    pub decoder: Decoder,
    outbox: Outbox,
    /// Error of a write by a caller; the channel's task has to process it.
    failed: Option<io::Error>,
}

pub(crate) struct State {
    connection: ConnectionState,
    session: Option<Session<Waiter>>,
    generation: u64,
    staged: Staged,
    /// Number of bytes that waited for the socket after the last flush.
    writing_bytes: usize,
    /// Waker of the channel's task. `woken` is true if this task has been woken since its last turn began.
    task: Option<Waker>,
    woken: bool,
    /// True if a caller waits until the link has room for its frame.
    waits_for_room: bool,
    /// True once a caller had to wait until a request of this connection finishes. From then on, each request that
    /// finishes wakes one such caller.
    waits_for_request: bool,
    closing: bool,
    /// True once the client has moved to another node, and the channel is to end with a goodbye.
    leaving: bool,
    pings: Vec<(u64, oneshot::Sender<()>)>,
    next_token: u64,
    /// Number of failed requests that had no id, because their callers wanted no reply.
    failures_without_id: u64,
}

/// One channel of the client's pool, which survives reconnections.
pub(crate) struct Link {
    pub options: Arc<Options>,
    state: Mutex<State>,
    io: Mutex<Option<Io>>,
    /// Notifies waiting callers when the link has a connection, when it can never have one again, or when it
    /// has room again.
    pub changed: Notify,
    /// Notifies one of the callers that wait for a request to finish. All of them also wait for `changed`.
    pub finished: Notify,
    /// Number of requests in progress, by which the client spreads requests over links.
    load: AtomicUsize,
}

/// Identity of a request or subscription that was staged on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub generation: u64,
    pub id: u32,
}

/// A reply that has not arrived yet.
#[derive(Debug)]
pub(crate) struct Reply {
    pub ticket: Ticket,
    receiver: oneshot::Receiver<Result<SharedFrame, Lost>>,
}

impl Reply {
    /// Returns the reply if it has arrived; otherwise `None`, without waiting.
    pub(crate) fn try_take(&mut self) -> Option<Result<SharedFrame, Lost>> {
        match self.receiver.try_recv() {
            Ok(came) => Some(came),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(Lost::Closed)),
        }
    }
}

impl Future for Reply {
    type Output = Result<SharedFrame, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|came| came.unwrap_or(Err(Lost::Closed)))
    }
}

/// Choice of the thread that writes staged frames to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritingThread {
    /// The caller writes, unless the channel's task is about to.
    Caller,
    /// The channel's task writes, together with frames that other callers stage in the meantime.
    Task,
}

/// Function that appends the frame of a request with the given id.
pub(crate) type Encode<'a> = dyn FnMut(&mut Vec<u8>, u32) -> Result<(), Invalid> + 'a;

/// Function that appends the frame that begins a subscription, with the given id and initial credit.
pub(crate) type Begin<'a> = dyn FnMut(&mut Vec<u8>, u32, Permit) -> Result<(), Invalid> + Send + 'a;

/// Function that appends a frame and returns bytes that are sent after it without a copy.
pub(crate) type Append<'a> = dyn FnMut(&mut Vec<u8>) -> Result<Option<Bytes>, Invalid> + 'a;

/// Number of the server run (from start to stop) for which a request is valid; `None` for any run.
pub(crate) type Run = Option<u64>;

impl Link {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        let state = State {
            connection: ConnectionState::Down(Arc::new(ConnectError::NotYet)),
            session: None,
            generation: 0,
            staged: Staged::default(),
            writing_bytes: 0,
            task: None,
            woken: false,
            waits_for_room: false,
            waits_for_request: false,
            closing: false,
            leaving: false,
            pings: Vec::new(),
            next_token: 0,
            failures_without_id: 0,
        };
        Self {
            options,
            state: Mutex::new(state),
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

    /// Returns true if the link has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.lock().connection, ConnectionState::Up(_))
    }

    /// Number of the link's present connection; it grows with each reconnect.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Returns false if a caller has to wait for a connection or for room to stage a frame. In that case
    /// `changed` notifies the caller later.
    pub(crate) fn has_room(&self) -> bool {
        let mut state = self.lock();
        !matches!(state.ready(None, &self.options), Err(StageError::Room | StageError::Connection(_)))
    }

    /// Returns true if the link has a connection with as many requests in progress as it permits.
    pub(crate) fn is_out_of_requests(&self) -> bool {
        self.lock().session.as_ref().is_some_and(|session| !session.may_request())
    }

    /// Wakes another caller that waits for a request to finish, if the link permits another request. A caller that was
    /// woken but may send no request must call this.
    pub(crate) fn pass_turn(&self) {
        self.wake_waiting(&self.lock());
    }

    fn wake_waiting(&self, state: &State) {
        if state.waits_for_request && state.session.as_ref().is_some_and(Session::may_request) {
            self.finished.notify_one();
        }
    }

    /// Returns the reason why the link has no connection; `None` if it has one.
    pub(crate) fn connect_error(&self) -> Option<Arc<ConnectError>> {
        match &self.lock().connection {
            ConnectionState::Down(why) | ConnectionState::Dead(why) => Some(why.clone()),
            ConnectionState::Up(_) | ConnectionState::Closed => None,
        }
    }

    /// Returns the number of the server's run, if the link has a connection.
    pub(crate) fn run(&self) -> Run {
        match &self.lock().connection {
            ConnectionState::Up(parameters) => Some(parameters.run),
            _ => None,
        }
    }

    /// Number of failed requests so far whose callers wanted no reply.
    pub(crate) fn failures_without_id(&self) -> u64 {
        self.lock().failures_without_id
    }

    // ---- operations of callers

    /// Stages a request for sending. `encode` appends one frame with the given id. Without a `writer`, the
    /// caller writes the frame if no other request is in progress; otherwise the channel's task writes it.
    pub(crate) fn request(
        &self,
        run: Run,
        encode: &mut Encode<'_>,
        writer: Option<WritingThread>,
    ) -> Result<Reply, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(run, &self.options)?;
        let session = state.session.as_mut().expect(READY);
        let (send, receiver) = oneshot::channel();
        let Ok(id) = session.request(Waiter::Reply(send)) else {
            state.waits_for_request = true;
            return Err(StageError::Requests);
        };
        let alone = session.in_progress().0 == 1;
        let staged = state.stage(id, max, |out| encode(out, id));
        // Several requests may have finished before the first woken caller ran.
        self.wake_waiting(state);
        staged?;
        self.load.store(state.in_progress(), Ordering::Relaxed);
        self.staged(guard, writer.unwrap_or(if alone { WritingThread::Caller } else { WritingThread::Task }));
        Ok(Reply { ticket: Ticket { generation, id }, receiver })
    }

    /// Stages the request that begins a subscription, whose items go to `mailbox`.
    pub(crate) fn subscribe(
        &self,
        mailbox: &Arc<Mailbox>,
        window: &Permit,
        encode: &mut Begin<'_>,
    ) -> Result<Ticket, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(None, &self.options)?;
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

    /// Stages a frame that gets no reply. `put` appends the frame and may return bytes that are sent after it
    /// without a copy. Returns the generation (number of the connection) on which the frame is sent.
    pub(crate) fn send(&self, put: &mut Append<'_>, writer: WritingThread) -> Result<u64, StageError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let (generation, max) = state.ready(None, &self.options)?;
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
        state.ready(None, &self.options)?;
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

    /// Cancels a request or subscription for which its caller does not wait any more.
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

    /// Counts items of a subscription that the application has finished with, and stages a frame that gives
    /// the server new credit if one is due.
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

    /// Makes sure that a staged frame is written: the caller writes it, or the channel's task is woken.
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

    // ---- operations of the channel's task

    /// Writes all staged frames.
    pub(crate) fn flush(&self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = io.failed.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            {
                let mut state = self.lock();
                // While the socket is slow, frames stay in `staged`, where they count towards the bound.
                if io.outbox.len() < HAND_OVER_BYTES {
                    state.staged.move_to(&mut io.outbox);
                }
                state.writing_bytes = io.outbox.len();
                self.feed_starved(&mut state);
            }
            if io.outbox.is_empty() {
                return Poll::Ready(Ok(()));
            }
            ready!(io.channel.poll_write(cx, &mut io.outbox))?;
        }
    }

    /// Notifies callers that wait for room, if there is room among the unsent frames again.
    fn feed_starved(&self, state: &mut State) {
        if state.waits_for_room && !state.is_full(&self.options) {
            state.waits_for_room = false;
            self.changed.notify_waiters();
        }
    }

    /// Begins a turn of the channel's task; a wake-up from now on causes another turn. Returns true if the
    /// channel must be closed.
    pub(crate) fn begin_turn(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        match &mut state.task {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        state.woken = false;
        state.closing || state.leaving
    }

    /// Returns true if writing the staged frames should wait for those that other callers are about to stage.
    pub(crate) fn should_gather(&self) -> bool {
        let state = self.lock();
        !state.staged.is_empty() && state.in_progress() > 1
    }

    /// Calls `run` with the state of the connection's requests and subscriptions, under the lock of that
    /// state. Used to process a received frame.
    pub(crate) fn with_session<R>(&self, run: impl FnOnce(&mut Session<Waiter>) -> R) -> Option<R> {
        let mut state = self.lock();
        let before = state.in_progress();
        let done = run(state.session.as_mut()?);
        self.load.store(state.in_progress(), Ordering::Relaxed);
        if state.in_progress() < before {
            // A frame finishes at most one request.
            self.wake_waiting(&state);
        }
        self.feed_starved(&mut state);
        if state.is_moving() && state.in_progress() == 0 {
            self.changed.notify_waiters();
        }
        Some(done)
    }

    /// Stages a frame that the channel's task itself sends.
    pub(crate) fn stage_control<'a>(&self, frame: &impl Frame<'a>) {
        // These frames have bounded fields, so encoding cannot fail.
        let _ = frame.encode(&mut self.lock().staged.frames, 0);
    }

    pub(crate) fn handle_pong(&self, token: u64) {
        let mut state = self.lock();
        if let Some(at) = state.pings.iter().position(|(asked, _)| *asked == token) {
            let (_, waiter) = state.pings.remove(at);
            let _ = waiter.send(());
        }
    }

    pub(crate) fn count_failure_without_id(&self) {
        self.lock().failures_without_id += 1;
    }

    // ---- operations of the pool

    /// Puts the link into use with a new connection.
    pub(crate) fn set_connected(&self, channel: Channel, decoder: Decoder, parameters: SessionParameters) {
        let io = Io { channel, decoder, outbox: Outbox::new(), failed: None };
        *self.lock_io() = Some(io);
        let mut state = self.lock();
        state.session = Some(Session::new(parameters.max_requests, parameters.max_subscriptions));
        state.generation += 1;
        state.staged = Staged::default();
        state.writing_bytes = 0;
        state.leaving = false;
        state.waits_for_request = false;
        state.woken = true; // callers do not write until the task has begun
        state.task = None;
        if !matches!(state.connection, ConnectionState::Closed) {
            state.connection = ConnectionState::Up(parameters);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Keeps further requests waiting until the link has a connection to another node. Returns the answer to a ping: it
    /// arrives when the server has processed all frames that were staged before.
    pub(crate) fn begin_move(&self) -> Option<oneshot::Receiver<()>> {
        let pong = self.ping().ok();
        let mut state = self.lock();
        if matches!(state.connection, ConnectionState::Up(_)) {
            state.connection = ConnectionState::Down(Arc::new(ConnectError::Lost(Lost::Moved)));
        }
        pong
    }

    /// Waits until all requests that are in progress on a link that moves have their replies.
    pub(crate) async fn until_idle(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.lock().in_progress() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Ends the connection of a link that moves: the channel's task sends a goodbye and ends.
    pub(crate) fn leave(&self) {
        let task = {
            let mut state = self.lock();
            state.leaving = true;
            state.wake()
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Records that the link's connection is lost, and notifies all callers that wait for replies.
    pub(crate) fn down(&self, lost: &Lost) {
        *self.lock_io() = None;
        let mut state = self.lock();
        let waiters = state.session.take();
        let pings = std::mem::take(&mut state.pings);
        state.staged = Staged::default();
        state.writing_bytes = 0;
        state.task = None;
        if matches!(state.connection, ConnectionState::Up(_)) {
            state.connection = ConnectionState::Down(Arc::new(ConnectError::Lost(lost.clone())));
        }
        self.load.store(0, Ordering::Relaxed);
        for (_, waiter) in waiters.into_iter().flat_map(Session::into_waiters) {
            match waiter {
                Waiter::Reply(waiter) => drop(waiter.send(Err(lost.clone()))),
                Waiter::Subscription(mailbox) => mailbox.push(crate::mailbox::Item::Lost(lost.clone())),
            }
        }
        drop(state);
        drop(pings);
        self.changed.notify_waiters();
    }

    /// Records a failed attempt to connect. If `again` is false, the client makes no further attempt.
    pub(crate) fn not_connected(&self, why: Arc<ConnectError>, again: bool) {
        let mut state = self.lock();
        if !matches!(state.connection, ConnectionState::Closed) {
            state.connection = if again { ConnectionState::Down(why) } else { ConnectionState::Dead(why) };
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Closes the link: callers can stage no more frames, the channel's task writes the staged ones, and then
    /// the channel ends.
    pub(crate) fn close(&self) {
        let task = {
            let mut state = self.lock();
            state.connection = ConnectionState::Closed;
            state.closing = true;
            state.wake()
        };
        self.changed.notify_waiters();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }
}

impl State {
    /// Checks that a frame can be staged now. Returns the generation (number of the connection) and the size
    /// of the largest permitted frame in bytes. If this succeeds, `session` is present.
    fn ready(&mut self, run: Run, options: &Options) -> Result<(u64, usize), StageError> {
        let parameters = match &self.connection {
            ConnectionState::Up(parameters) => parameters,
            ConnectionState::Down(why) => return Err(StageError::Connection(why.clone())),
            ConnectionState::Dead(why) => return Err(StageError::Dead(why.clone())),
            ConnectionState::Closed => return Err(StageError::Closed),
        };
        if run.is_some_and(|run| run != parameters.run) {
            return Err(StageError::OtherRun);
        }
        if self.is_full(options) {
            self.waits_for_room = true;
            return Err(StageError::Room);
        }
        match self.session {
            Some(_) => Ok((self.generation, parameters.max_send_bytes)),
            None => Err(StageError::Connection(Arc::new(ConnectError::NotYet))),
        }
    }

    fn is_full(&self, options: &Options) -> bool {
        self.staged.len() + self.writing_bytes >= options.max_unsent_bytes
    }

    /// Returns true while requests wait for a connection to another node.
    fn is_moving(&self) -> bool {
        matches!(&self.connection, ConnectionState::Down(why) if matches!(**why, ConnectError::Lost(Lost::Moved)))
    }

    fn in_progress(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.in_progress().0)
    }

    fn wake(&mut self) -> Option<Waker> {
        if self.woken {
            return None;
        }
        self.woken = true;
        self.task.clone()
    }

    /// Stages a request of at most `max` bytes. If the request cannot be staged, releases its id by treating
    /// it as failed.
    fn stage(
        &mut self,
        id: u32,
        max: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Invalid>,
    ) -> Result<(), StageError> {
        let begin = self.staged.frames.len();
        encode(&mut self.staged.frames).and_then(|()| self.staged.check(begin, max)).map_err(|error| {
            self.staged.frames.truncate(begin);
            if let Some(session) = &mut self.session {
                let _ = session.route(thalweg_wire::Kind::Failed, id);
            }
            StageError::Invalid(error)
        })
    }

    fn cancel(&mut self, ticket: Ticket, mode: CancelMode) {
        if self.session.is_some() && self.generation == ticket.generation {
            // The frame has no variable fields, so encoding cannot fail.
            let _ = Cancel { mode }.encode(&mut self.staged.frames, ticket.id);
        }
    }
}
