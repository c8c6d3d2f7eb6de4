//! The loop of a channel of the native protocol, and a timer that is finer than the runtime's milliseconds.
//!
//! Owns: the order of composing, writing and reading, and waiting for the first event. Does not own the bytes that are
//! composed and the meaning of frames ([`Session`]).
//!
//! Everything that is due is composed before the channel is written, and everything that came with a read is handled
//! before it is written again: many messages share a call to the kernel.

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
use crate::load::Clock;

/// Event that a session waits for when it has composed and handled everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionWait {
    /// The session is over.
    Done,
    /// The session waits for frames, or for room to write.
    Channel,
    /// The session waits for the channel or for a time of the clock, whatever comes first.
    Due(u64),
    /// The session can go on, after a turn of the thread's other tasks.
    Yield,
}

/// One side's part in the conversation on a channel.
pub trait Session {
    /// Reads before the thread's other tasks have a turn. Each brings 64 KiB and more.
    const READS_PER_TURN: usize = usize::MAX;

    /// Appends everything that is due to what the channel sends.
    fn compose(&mut self, line: &mut ReadyChannel) -> Result<(), ChannelError>;

    /// Handles all complete frames; `bytes` came with one read.
    fn receive(&mut self, line: &mut ReadyChannel, bytes: usize) -> Result<(), ChannelError>;

    /// Decides what to wait for. `is_blocked`: the peer takes no more bytes for now.
    fn next(&mut self, is_blocked: bool) -> SessionWait;
}

/// Runs a session on a channel until it is over.
pub async fn drive(line: &mut ReadyChannel, clock: &Clock, session: &mut impl Session) -> Result<(), ChannelError> {
    let mut alarm = None;
    std::future::poll_fn(|cx| poll(cx, line, clock, session, &mut alarm)).await
}

fn poll<S: Session>(
    cx: &mut Context<'_>,
    line: &mut ReadyChannel,
    clock: &Clock,
    session: &mut S,
    alarm: &mut Option<Alarm>,
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
                    None => alarm.insert(Alarm::new()?),
                };
                ready!(alarm.poll(cx, clock, at))?;
            }
            SessionWait::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
    // Woken again after the runtime has looked at sockets and timers, which `wake_by_ref` would put off.
    std::pin::pin!(tokio::task::yield_now()).poll(cx).map(Ok)
}

/// Wakes its task at a time of the clock.
#[derive(Debug)]
struct Alarm {
    /// A timer's descriptor: readable, as a pipe's is, from that time on. (`AsyncFd` takes descriptors by unsafe calls
    /// only.)
    timer: Receiver,
    /// The time that the timer is set to, if it is set.
    set: Option<u64>,
}

impl Alarm {
    /// Creates a timer that is not set. Must be called within a runtime.
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Receiver::from_file_unchecked(timer.into())?, set: None })
    }

    /// Ready from the time `at` on, which may be past; sets the timer only if `at` differs from before.
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
            // The timer rang, perhaps for an earlier time that it was set to: look at the clock again.
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
            let (clock, mut alarm) = (Clock::start(), Alarm::new().unwrap());
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
