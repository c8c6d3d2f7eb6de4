//! A timer that is finer than the runtime's milliseconds: load that is due is sent when it is due.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    net::unix::pipe::Receiver,
};

/// Nanoseconds since the begin of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// Now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Wakes its task at a moment.
#[derive(Debug)]
pub struct Alarm {
    /// A timer's descriptor: readable, as a pipe's is, from the moment on. (`AsyncFd` takes descriptors by unsafe calls only.)
    timer: Receiver,
    /// For when it is set, if it is.
    set: Option<u64>,
}

impl Alarm {
    /// Not set. Must be called within a runtime.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: Receiver::from_file_unchecked(timer.into())?, set: None })
    }

    /// Ready from the moment `at` on, which may be past; set anew only if it is another than before.
    pub fn poll(&mut self, cx: &mut Context<'_>, clock: &Clock, at: u64) -> Poll<io::Result<()>> {
        loop {
            if clock.now() >= at {
                self.set = None;
                return Poll::Ready(Ok(()));
            }
            if self.set != Some(at) {
                self.arm(at.saturating_sub(clock.now()).max(1))?;
                self.set = Some(at);
            }
            let mut count = [0; 8];
            ready!(Pin::new(&mut self.timer).poll_read(cx, &mut ReadBuf::new(&mut count)))?;
            // It rang, perhaps for an earlier moment that it was set to: look at the clock again.
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
