//! Waits for events on many sockets, with timeouts in nanoseconds.
//!
//! Owns: an epoll instance. Does not own: the sockets. The kernel removes a socket from the instance when the socket is
//! closed.
//!
//! The load generators wait in `epoll_pwait2`, because the timers of a runtime tick only in milliseconds. They do not
//! spin, because on a small machine the server needs the CPU.

use std::{io, num::NonZeroU64};

pub use rustix::event::epoll::Event;
pub(crate) use rustix::event::epoll::EventFlags;
use rustix::{
    event::epoll::{self, EventData},
    fd::{AsFd, OwnedFd},
    thread::set_current_timer_slack,
    time::Timespec,
};

/// An epoll instance of the calling thread.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates a poller. Also asks the kernel to end this thread's waits without the usual timer slack (delay of
    /// timers).
    pub fn new() -> io::Result<Self> {
        // With the usual timer slack the kernel may wake the thread 50 µs late. If the kernel refuses the change, the
        // recorded lag shows the lateness.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Starts reporting when the socket becomes readable. The events carry `token`.
    pub fn add(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Starts or stops reporting when the socket becomes writable.
    pub fn report_writable(&self, socket: impl AsFd, token: u64, is_wanted: bool) -> io::Result<()> {
        let flags = if is_wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.0, socket, EventData::new_u64(token), flags)?)
    }

    /// Appends events to the spare capacity of `events`. Waits for the first event for at most `nanos` nanoseconds,
    /// which must be less than a second. A signal ends the wait early.
    pub fn wait(&self, events: &mut Vec<Event>, nanos: u64) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanos as _ };
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Tests that waits end within a millisecond. If timeouts were rounded up to milliseconds, each wait would take
    /// longer.
    #[test]
    fn waits_are_finer_than_a_millisecond() {
        let poller = Poller::new().unwrap();
        let wait = |_| {
            let (began, mut events) = (Instant::now(), Vec::<Event>::with_capacity(1));
            poller.wait(&mut events, 100_000).unwrap();
            began.elapsed()
        };
        let shortest = (0..100).map(wait).min().unwrap();
        assert!(shortest >= Duration::from_micros(100) && shortest < Duration::from_millis(1), "{shortest:?}");
    }
}
