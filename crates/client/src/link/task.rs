//! Operations of the channel's task on its link: writing staged frames, and passing received frames to their callers.
//!
//! Does not own: reading, and the order of the steps of a turn. Both belong to `channel`.

use std::{
    io,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use thalweg_wire::{Frame, Session};

use super::{Io, Link, Waiter, state::State};
use crate::staged::HAND_OVER_BYTES;

impl Link {
    /// Writes all frames that callers have staged (handed over for sending) to the socket.
    pub(crate) fn flush(&self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = io.failed.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            {
                let mut state = self.lock();
                // While the socket is slow, frames stay in `staged`. There they count towards the bound of unsent
                // bytes.
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

    /// Notifies callers that wait to stage a frame, if the link's unsent bytes are below their limit again.
    fn feed_starved(&self, state: &mut State) {
        if state.waits_for_room && !state.is_full(&self.options) {
            state.waits_for_room = false;
            self.changed.notify_waiters();
        }
    }

    /// Begins a turn (one poll) of the channel's task. A wake-up after this call causes another turn. Returns true if
    /// the channel must be closed.
    pub(crate) fn begin_turn(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        match &mut state.task {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        state.woken = false;
        state.closing || state.leaving
    }

    /// Returns true if the task should first let other callers stage their frames, and then write all frames together.
    pub(crate) fn should_gather(&self) -> bool {
        let state = self.lock();
        !state.staged.is_empty() && state.in_progress() > 1
    }

    /// Calls `run` with the session of the connection (its requests and subscriptions) under the lock of the link's
    /// state. Used to process a received frame. Returns `None` if there is no connection.
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

    /// Stages (queues for sending) a frame of the channel's task itself, such as the answer to a ping.
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
}
