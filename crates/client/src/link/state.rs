//! The state of a link: its connection, the requests and subscriptions in progress, and the frames that wait to be
//! written.
//!
//! Owns: the conditions under which a frame can be staged. Does not own the lock around the state (`link`), nor the
//! wake-ups of callers and of the channel's task (`link`).

use std::{sync::Arc, task::Waker};

use thalweg_wire::{Cancel, CancelMode, EncodeError, Frame as _, Session, SharedFrame};
use tokio::sync::oneshot;

use super::reply::Ticket;
use crate::{
    error::{ConnectError, Invalid, Lost},
    mailbox::Mailbox,
    options::Options,
    staged::Staged,
};

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
    /// Number of the server's run (from start to stop). Ids of caches are valid for one run only.
    pub run: u64,
    /// Maximum number of requests in progress on the channel (a TCP connection or a QUIC stream).
    pub max_requests: u32,
    pub max_subscriptions: u32,
}

/// Reason why a frame cannot be staged for sending now.
#[derive(Debug)]
pub(crate) enum StageError {
    /// The link has no connection, for the stated reason. The caller should wait for a connection.
    Connection(Arc<ConnectError>),
    /// Too many unsent bytes, subscriptions or pings are on the link. The caller should wait until there are fewer.
    Room,
    /// Too many requests are in progress on the link. The caller should wait until one has
    /// [finished](crate::link::Link::finished).
    Requests,
    /// The link has no connection, for the stated reason, and the client makes no further attempt to connect.
    Dead(Arc<ConnectError>),
    /// The client has been closed.
    Closed,
    /// The request is valid only for another run of the server than the present one.
    OtherRun,
    /// The request was made for other data than the server has now.
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
pub(super) enum ConnectionState {
    /// The link has no connection, for the stated reason.
    Down(Arc<ConnectError>),
    Up(SessionParameters),
    /// The link has no connection, for the stated reason, and the client makes no further attempt to connect.
    Dead(Arc<ConnectError>),
    Closed,
}

/// Number of the server run (from start to stop) for which a request is valid; `None` for any run.
pub(crate) type Run = Option<u64>;

/// Function that checks if a frame may be sent on a connection with these parameters. The link calls the function and
/// stages the frame under one lock, so the frame goes out on the connection that was checked.
pub(crate) type Check<'a> = dyn Fn(&SessionParameters) -> Result<(), StageError> + 'a;

/// The [`Check`] of a frame that may go to any server.
pub(crate) fn any_server(_: &SessionParameters) -> Result<(), StageError> {
    Ok(())
}

/// Requests, subscriptions and unsent frames of a link.
pub(super) struct State {
    pub(super) connection: ConnectionState,
    pub(super) session: Option<Session<Waiter>>,
    pub(super) generation: u64,
    pub(super) staged: Staged,
    /// Number of bytes in the queue of the socket (the outbox) at the end of the last write.
    pub(super) writing_bytes: usize,
    /// Waker of the channel's task. The field `woken` is true if another poll of this task is already due.
    pub(super) task: Option<Waker>,
    pub(super) woken: bool,
    /// True if a caller waits until the link has fewer unsent bytes, so that it can stage its frame.
    pub(super) waits_for_room: bool,
    /// True once a caller had to wait until a request of this connection finishes. From then on, each finished request
    /// wakes one waiting caller.
    pub(super) waits_for_request: bool,
    pub(super) closing: bool,
    /// True once the client has moved to another node. The channel (a TCP connection or a QUIC stream) then sends a
    /// goodbye and ends.
    pub(super) leaving: bool,
    pub(super) pings: Vec<(u64, oneshot::Sender<()>)>,
    pub(super) next_token: u64,
    /// Number of failed requests that had no id, because their callers wanted no reply.
    pub(super) failures_without_id: u64,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
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
        }
    }

    /// Checks that a frame can be staged now. Returns the generation (number of the connection) and the largest
    /// permitted frame size in bytes. After a success, `session` is `Some`.
    pub(super) fn ready(&mut self, check: &Check<'_>, options: &Options) -> Result<(u64, usize), StageError> {
        let parameters = match &self.connection {
            ConnectionState::Up(parameters) => parameters,
            ConnectionState::Down(why) => return Err(StageError::Connection(why.clone())),
            ConnectionState::Dead(why) => return Err(StageError::Dead(why.clone())),
            ConnectionState::Closed => return Err(StageError::Closed),
        };
        check(parameters)?;
        if self.is_full(options) {
            self.waits_for_room = true;
            return Err(StageError::Room);
        }
        match self.session {
            Some(_) => Ok((self.generation, parameters.max_send_bytes)),
            None => Err(StageError::Connection(Arc::new(ConnectError::NotYet))),
        }
    }

    pub(super) fn is_full(&self, options: &Options) -> bool {
        self.staged.len() + self.writing_bytes >= options.max_unsent_bytes
    }

    /// Returns true while requests wait for a connection to another node.
    pub(super) fn is_moving(&self) -> bool {
        matches!(&self.connection, ConnectionState::Down(why) if matches!(**why, ConnectError::Lost(Lost::Moved)))
    }

    pub(super) fn in_progress(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.in_progress().0)
    }

    pub(super) fn wake(&mut self) -> Option<Waker> {
        if self.woken {
            return None;
        }
        self.woken = true;
        self.task.clone()
    }

    /// Stages a request of at most `max` bytes. If the request cannot be staged, marks the request as failed, so that
    /// its id becomes free again.
    pub(super) fn stage(
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

    pub(super) fn cancel(&mut self, ticket: Ticket, mode: CancelMode) {
        if self.session.is_some() && self.generation == ticket.generation {
            // The frame has no variable fields, so encoding cannot fail.
            let _ = Cancel { mode }.encode(&mut self.staged.frames, ticket.id);
        }
    }
}
