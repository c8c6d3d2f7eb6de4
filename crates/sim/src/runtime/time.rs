//! Virtual time: instants, sleeps and timeouts.

use std::{
    fmt,
    future::Future,
    ops::{Add, AddAssign, Sub, SubAssign},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{clock, remove_timer, set_timer};

/// A moment of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimInstant(pub(super) Duration);

impl Add<Duration> for SimInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl AddAssign<Duration> for SimInstant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for SimInstant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

impl SubAssign<Duration> for SimInstant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Sub for SimInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl openraft_rt::Instant for SimInstant {
    fn now() -> Self {
        Self(clock())
    }
}

/// A future that resolves at a moment of virtual time.
#[derive(Debug)]
pub struct Sleep {
    at: Duration,
    timer: Option<u64>,
}

impl Sleep {
    pub(super) fn until(at: SimInstant) -> Self {
        Self { at: at.0, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock() >= self.at {
            return Poll::Ready(());
        }
        self.timer = Some(set_timer(self.at, self.timer, context.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            remove_timer(self.at, timer);
        }
    }
}

/// Returns a future that resolves after a duration of virtual time.
#[must_use]
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { at: clock() + duration, timer: None }
}

/// Error of a timeout that passed, or of waiting for a task that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time is over")
    }
}

/// A future with a time limit on another future.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("sleep", &self.sleep).finish_non_exhaustive()
    }
}

impl<F> Timeout<F> {
    pub(super) fn until(at: SimInstant, future: F) -> Self {
        Self { future: Box::pin(future), sleep: Sleep::until(at) }
    }
}

/// Returns a future that ends with the output of `future`, or with an error after a duration of virtual time.
pub fn timeout<F>(duration: Duration, future: F) -> Timeout<F> {
    Timeout { future: Box::pin(future), sleep: sleep(duration) }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(Elapsed))
    }
}
