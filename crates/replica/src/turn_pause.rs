//! Pauses between the turns of an address, which leave most of the time to the commands of other clients.
//!
//! Owns: how long no expensive command of an address is taken after some of them were. Does not own: which commands are
//! expensive, and whether other clients have written in between (`queue`).
//!
//! Without pauses, a client that sends expensive commands without waiting for their replies takes half of the commits. A
//! client with one write at a time then waits for an expensive group before each of its writes: with groups of 30 ms, 25
//! writes a second could not be served. A short turn delays nobody noticeably, so it is followed by a short pause. Long
//! turns that follow each other are kept apart further and further, until they take 1.5 % of the time: then fewer than one
//! in a hundred requests of another client meets one.
//!
//! Invariant: there is no pause while the commands of one client are the only ones. Pauses are local to a node. They decide
//! when a command is committed, and never its outcome.

use std::time::Duration;

/// Time that one step takes. It is about 100 ns on the machines on which the limits of the commands were chosen.
const STEP: Duration = Duration::from_nanos(100);
/// Steps of a turn above which the pauses grow: about 4 ms of work.
pub(crate) const LONG_TURN_STEPS: u64 = 40_000;
/// Length of a pause after a short turn, as a multiple of the turn's time. The address gets a third of the time.
const MIN_MULTIPLE: u32 = 2;
/// Length of a pause after many long turns, as a multiple of the turn's time.
const MAX_MULTIPLE: u32 = 64;
/// Factor by which the multiple grows with each long turn.
const GROWTH: u32 = 4;
/// Longest pause: a commit that took very long waited for the disk.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Pauses of one address.
#[derive(Debug)]
pub(crate) struct TurnPause {
    /// Monotonic time at which the pause ends.
    until: Duration,
    /// Length of the last pause.
    length: Duration,
    /// Length of the last pause, as a multiple of the time of the turn before it.
    multiple: u32,
    /// Number of groups of ready commands that the queue had taken before the last turn of the address.
    pub(crate) ready_groups: u64,
}

impl Default for TurnPause {
    fn default() -> Self {
        Self { until: Duration::ZERO, length: Duration::ZERO, multiple: MIN_MULTIPLE, ready_groups: 0 }
    }
}

impl TurnPause {
    /// Begins a pause after a turn that is taken now, will probably take this number of steps, and delays other clients.
    pub(crate) fn begin(&mut self, now: Duration, steps: u64) {
        // An address that rested for the length of its last pause gets shorter pauses again.
        if now >= self.until + self.length {
            self.multiple = MIN_MULTIPLE;
        } else if steps > LONG_TURN_STEPS {
            self.multiple = (self.multiple * GROWTH).min(MAX_MULTIPLE);
        }
        let time = STEP * u32::try_from(steps).unwrap_or(u32::MAX);
        self.length = (time * self.multiple(steps)).min(MAX_PAUSE);
        self.until = now + time + self.length;
    }

    /// Lengthens the pause after a turn of this number of steps, which began at a monotonic time and took this time.
    pub(crate) fn took(&mut self, began: Duration, time: Duration, steps: u64) {
        let length = (time * self.multiple(steps)).min(MAX_PAUSE);
        if length > self.length {
            self.length = length;
            self.until = self.until.max(began + time + length);
        }
    }

    /// Returns the time until the end of the pause; zero outside of a pause.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }

    /// Returns how many times longer than without pauses the address's expensive commands wait at present.
    pub(crate) fn slowdown(&self) -> u32 {
        self.multiple / MIN_MULTIPLE
    }

    /// Short turns have short pauses, also between long ones.
    fn multiple(&self, steps: u64) -> u32 {
        if steps > LONG_TURN_STEPS { self.multiple } else { MIN_MULTIPLE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 2 * LONG_TURN_STEPS;

    fn millis(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn a_pause_is_a_multiple_of_the_turn_before_it() {
        let mut pause = TurnPause::default();
        assert_eq!(pause.left(millis(1)), Duration::ZERO);
        pause.begin(millis(100), 10_000);
        assert_eq!(pause.left(millis(100)), millis(3), "1 ms of work and a pause of 2 ms");
        pause.took(millis(100), millis(10), 10_000);
        assert_eq!(pause.left(millis(110)), millis(20));
        pause.took(millis(100), millis(1), 10_000);
        assert_eq!(pause.left(millis(110)), millis(20), "never shortened");
        pause.took(millis(100), millis(60_000), 10_000);
        assert_eq!(pause.left(millis(60_100)), MAX_PAUSE);
    }

    #[test]
    fn pauses_of_long_turns_grow_and_those_of_short_ones_do_not() {
        let mut pause = TurnPause::default();
        let mut now = millis(1_000);
        let mut length_after = |steps| {
            pause.begin(now, steps);
            now += pause.left(now);
            pause.length
        };
        assert_eq!([LONG; 5].map(&mut length_after), [16, 64, 256, 512, 512].map(millis));
        assert_eq!([LONG_TURN_STEPS; 2].map(&mut length_after), [millis(8); 2]);
        assert_eq!(length_after(LONG), millis(512));
        assert_eq!(pause.slowdown(), 32);
    }

    #[test]
    fn an_address_that_rests_has_short_pauses_again() {
        let mut pause = TurnPause::default();
        (0..5).for_each(|number| pause.begin(millis(1_000 + number), LONG));
        let rested = pause.until + pause.length;
        pause.begin(rested, LONG);
        assert_eq!((pause.length, pause.slowdown()), (millis(16), 1));
    }
}
