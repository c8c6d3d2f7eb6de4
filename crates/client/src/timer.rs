//! Short waits, to the microsecond: the runtime's own timers have a grain of a millisecond.
//!
//! A timer of the kernel whose end the runtime hears of as of any socket: no thread, no spinning. Arming it is one system
//! call.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer for one task.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an owned descriptor is open, and the same one, until it is dropped, which the `AsyncFd` does.
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE)? };
        Ok(Self { fd })
    }

    /// Waits until then; not at all if that has passed.
    pub(crate) async fn sleep_until(&self, deadline: Instant) -> io::Result<()> {
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        self.arm(wait)?;
        loop {
            let mut ready = self.fd.readable().await?;
            // What made it ready may have been an earlier wait, which was dropped.
            ready.clear_ready();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.arm(left)?;
        }
    }

    /// Setting it also makes it unreadable.
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
        let timer = Timer::new().unwrap();
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
