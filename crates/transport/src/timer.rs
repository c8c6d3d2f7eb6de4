//! Timers with microsecond precision; the runtime's own timers have a precision of 1 millisecond.
//!
//! The kernel owns the timer (a timerfd), and the runtime watches its file descriptor like a socket, so it
//! needs neither a thread nor spinning. Setting the timer takes one system call.

use std::{
    future::poll_fn,
    io,
    os::fd::OwnedFd,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer with microsecond precision, for one task at a time.
#[derive(Debug)]
pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    /// Deadline that is set in the kernel's timer; `None` if the timer is not set.
    armed: Option<Instant>,
}

impl Timer {
    /// Creates a timer that is not set. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The process has reached its limit of open files, or the runtime cannot watch the file descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the `AsyncFd` owns the descriptor, so it stays open and the same until the `AsyncFd` is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE)? };
        Ok(Self { fd, armed: None })
    }

    /// Waits until `deadline`; returns immediately if it has passed.
    ///
    /// # Errors
    /// Errors of the kernel or the runtime; none are expected.
    pub async fn sleep_until(&mut self, deadline: Instant) -> io::Result<()> {
        poll_fn(|cx| self.poll_until(cx, deadline)).await
    }

    /// Polls for `deadline`: the result is ready once the deadline has passed. A different deadline replaces
    /// the earlier one.
    ///
    /// # Errors
    /// The same errors as [`sleep_until`](Self::sleep_until).
    pub fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<io::Result<()>> {
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                self.armed = None;
                return Poll::Ready(Ok(()));
            }
            if self.armed != Some(deadline) {
                self.arm(wait)?;
                self.armed = Some(deadline);
            }
            // An earlier, abandoned deadline may have caused this readiness.
            ready!(self.fd.poll_read_ready(cx))?.clear_ready();
            self.armed = None;
        }
    }

    /// Sets the kernel's timer to expire after `wait`, and clears its earlier expiry.
    fn arm(&self, wait: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value =
            Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX), tv_nsec: wait.subsec_nanos().into() };
        timerfd_settime(
            self.fd.get_ref(),
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: value },
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_are_never_too_short_and_can_be_dropped() {
        let mut timer = Timer::new().unwrap();
        for micros in [50_u64, 300, 1_500] {
            let began = Instant::now();
            timer.sleep_until(began + Duration::from_micros(micros)).await.unwrap();
            assert!(began.elapsed() >= Duration::from_micros(micros));
        }
        let long = Instant::now() + Duration::from_secs(3600);
        let dropped = tokio::time::timeout(Duration::from_millis(2), timer.sleep_until(long)).await;
        assert!(dropped.is_err());
        let began = Instant::now();
        timer.sleep_until(began + Duration::from_micros(100)).await.unwrap();
        assert!(began.elapsed() >= Duration::from_micros(100));
        timer.sleep_until(began).await.unwrap();
    }
}
