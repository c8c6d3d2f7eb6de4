//! Operations of the pool's supervisor on a link: connecting it, moving it to another node, and closing it.
//!
//! Does not own: dialling, and the choice of the node. Both belong to `pool`.

use std::sync::{Arc, atomic::Ordering};

use thalweg_transport::{Channel, Outbox};
use thalweg_wire::{Decoder, Session};
use tokio::sync::oneshot;

use super::{
    Io, Link, Waiter,
    state::{ConnectionState, SessionParameters},
};
use crate::{
    error::{ConnectError, Lost},
    mailbox::Item,
    staged::Staged,
};

impl Link {
    /// Gives the link a new connection, so that callers can send requests on the link again.
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

    /// Makes further requests wait until the link has a connection to another node. Returns a receiver for the answer
    /// to a ping. The answer arrives when the server has processed all frames that were staged before.
    pub(crate) fn begin_move(&self) -> Option<oneshot::Receiver<()>> {
        let pong = self.ping().ok();
        let mut state = self.lock();
        if matches!(state.connection, ConnectionState::Up(_)) {
            state.connection = ConnectionState::Down(Arc::new(ConnectError::Lost(Lost::Moved)));
        }
        pong
    }

    /// Waits until all requests in progress on this link, which moves to another node, have their replies.
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

    /// Ends the connection of a link that moves to another node: the channel's task sends a goodbye and ends.
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
                Waiter::Subscription(mailbox) => mailbox.push(Item::Lost(lost.clone())),
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

    /// Closes the link. Callers can stage no more frames. The channel's task writes the staged frames, and then the
    /// channel (a TCP connection or a QUIC stream) ends.
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
