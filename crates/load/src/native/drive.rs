//! The event loop of a channel of the native protocol, and a timer that is finer than the runtime's milliseconds.
//!
//! Owns: the order of composing, writing and reading frames, and waiting for the next event. Does not own: the content
//! of frames ([`Session`]).
//!
//! The loop composes all frames that are due before it writes to the channel. It handles all frames that arrived with a
//! read before it writes again. Therefore one system call can serve many messages.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    net::unix::pipe::Receiver,
};

use super::line::{ChannelError, ReadyChannel};
use crate::Clock;

/// Event that a session waits for after it has composed all frames that are due and handled all that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionWait {
    /// The session is over.
    Done,
    /// The session waits until frames arrive, or until the channel (a TCP connection or a QUIC stream) accepts bytes
    /// again.
    Channel,
    /// The session waits for the channel (a TCP connection or a QUIC stream), or until this time of the run's clock in
    /// nanoseconds, whichever comes first.
    Due(u64),
    /// The session can continue at once, but first gives the other tasks of its thread time to run.
    Yield,
}

/// One side of the conversation on a channel (a TCP connection or a QUIC stream): composes outgoing frames and handles
/// received ones.
pub trait Session {
    /// Maximum number of reads, each of 64 KiB or more, that the session makes before other tasks of its thread can
    /// run.
    const READS_PER_TURN: usize = usize::MAX;

    /// Encodes all frames that are due now, and appends them to the outgoing bytes of `line`.
    fn compose(&mut self, line: &mut ReadyChannel) -> Result<(), ChannelError>;

    /// Handles all complete frames that have arrived. The last read from the channel (a TCP connection or a QUIC
    /// stream) brought `bytes` bytes.
    fn receive(&mut self, line: &mut ReadyChannel, bytes: usize) -> Result<(), ChannelError>;

    /// Returns the event to wait for. `is_blocked` is true if the peer accepts no more bytes for now.
    fn next(&mut self, is_blocked: bool) -> SessionWait;
}

/// Runs a session on a channel (a TCP connection or a QUIC stream) until the session is over.
pub async fn drive(line: &mut ReadyChannel, clock: &Clock, session: &mut impl Session) -> Result<(), ChannelError> {
    let mut alarm = None;
    std::future::poll_fn(|cx| poll(cx, line, clock, session, &mut alarm)).await
}

fn poll<S: Session>(
    cx: &mut Context<'_>,
    line: &mut ReadyChannel,
    clock: &Clock,
    session: &mut S,
    alarm: &mut Option<Timer>,
) -> Poll<Result<(), ChannelError>> {
    for _ in 0..S::READS_PER_TURN {
        session.compose(line)?;
        line.keep_alive(cx);
        let is_blocked = line.poll_send(cx)?.is_pending();
        if let Poll::Ready(bytes) = line.poll_receive(cx)? {
            session.receive(line, bytes)?;
            continue;
        }
        match session.next(is_blocked) {
            SessionWait::Done => return Poll::Ready(Ok(())),
            SessionWait::Channel => return Poll::Pending,
            SessionWait::Due(at) => {
                let alarm = match alarm {
                    Some(alarm) => alarm,
                    None => alarm.insert(Timer::new()?),
                };
                ready!(alarm.poll(cx, clock, at))?;
            }
            SessionWait::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
    // `yield_now` wakes this task after the runtime has checked its sockets and timers. `wake_by_ref` would postpone
    // that check.
    std::pin::pin!(tokio::task::yield_now()).poll(cx).map(Ok)
}

/// Timer that wakes its task at a given time of the benchmark run's clock.
#[derive(Debug)]
struct Timer {
    /// File descriptor of a Linux timer. Like a pipe, it becomes readable, at the set time. (`AsyncFd` accepts
    /// descriptors only in unsafe code.)
    timer: Receiver,
    /// Time for which the timer is set, in nanoseconds of the benchmark run's clock; `None` if it is not set.
    set: Option<u64>,
}

impl Timer {
    /// Creates a timer that is not set. Must be called within a tokio runtime.
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Receiver::from_file_unchecked(timer.into())?, set: None })
    }

    /// Returns ready from the time `at` on, which is in nanoseconds of the run's clock and may be in the past. Sets the
    /// timer only if `at` has changed since the last call.
    fn poll(&mut self, cx: &mut Context<'_>, clock: &Clock, at: u64) -> Poll<io::Result<()>> {
        loop {
            let now = clock.now();
            if now >= at {
                self.set = None;
                return Poll::Ready(Ok(()));
            }
            if self.set != Some(at) {
                self.arm(at - now)?;
                self.set = Some(at);
            }
            let mut count = [0; 8];
            ready!(Pin::new(&mut self.timer).poll_read(cx, &mut ReadBuf::new(&mut count)))?;
            // The timer has fired, perhaps for an earlier time for which it was set. So the clock is read again.
            self.set = None;
        }
    }

    fn arm(&self, after: u64) -> io::Result<()> {
        let value = Timespec { tv_sec: (after / 1_000_000_000) as _, tv_nsec: (after % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn it_rings_within_a_fraction_of_a_millisecond_and_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (clock, mut alarm) = (Clock::start(), Timer::new().unwrap());
            let mut best = u64::MAX;
            for _ in 0..50 {
                let at = clock.now() + 200_000;
                poll_fn(|cx| alarm.poll(cx, &clock, at)).await.unwrap();
                let now = clock.now();
                assert!(now >= at);
                best = best.min(now - at);
            }
            assert!(best < 500_000, "at best {best} ns late");
            let past = clock.now() - 1;
            poll_fn(|cx| alarm.poll(cx, &clock, past)).await.unwrap();
        });
    }
}
