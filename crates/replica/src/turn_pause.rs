//! Pauses between groups of expensive commands, which leave most of the time to the commands of other clients.
//!
//! Owns: how long the committer takes no expensive commands after it has committed some. Does not own: which commands are
//! expensive, and whether others were committed in between (`queue`).
//!
//! Without pauses, a client that sends expensive commands without waiting for their replies takes half of the commits. A
//! client with one write at a time then waits for an expensive group before each of its writes: with groups of 30 ms, 25
//! writes a second could not be served.
//!
//! Invariant: there is no pause while expensive commands are the only ones. Pauses are local to a node. They decide when a
//! command is committed, and never its outcome.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Length of a pause, as a multiple of the time that the expensive group before it took. Expensive commands get a third of
/// the time while other clients write.
const PAUSE: u32 = 2;
/// Longest pause: a commit that took very long waited for the disk.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Time of the next expensive group.
#[derive(Debug, Default)]
pub(crate) struct TurnPause {
    /// Monotonic time in microseconds at which the pause ends.
    until: AtomicU64,
}

impl TurnPause {
    /// Begins a pause after an expensive group that was committed between two monotonic times, while other clients wrote.
    pub(crate) fn begin(&self, from: Duration, to: Duration) {
        let until = to + (to.saturating_sub(from) * PAUSE).min(MAX_PAUSE);
        self.until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the time until the end of the pause; `None` outside of a pause.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        let left = Duration::from_micros(self.until.load(Relaxed)).saturating_sub(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_multiple_of_the_time_before_it_and_bounded() {
        let millis = Duration::from_millis;
        let pause = TurnPause::default();
        assert_eq!(pause.left(millis(0)), None);
        pause.begin(millis(100), millis(130));
        assert_eq!(pause.left(millis(130)), Some(millis(60)));
        assert_eq!(pause.left(millis(180)), Some(millis(10)));
        assert_eq!(pause.left(millis(190)), None);
        pause.begin(millis(200), millis(10_000));
        assert_eq!(pause.left(millis(10_000)), Some(MAX_PAUSE));
    }
}
