//! Pauses of a client address between its turns. In a turn, the queue of proposals takes a batch of the address's
//! expensive commands. The pauses leave most of the time to the commands of other clients.
//!
//! Owns: the time for which the queue takes no expensive command of an address after it has taken some. Does not own:
//! which commands are expensive, and whether other clients have written in between (`queue`).
//!
//! Without pauses, a client that sends expensive commands without waiting for their replies gets every second commit. A
//! client with one write at a time then waits for expensive commands before each of its writes: with turns of 30 ms, 25
//! writes a second could not be served. A short turn delays nobody noticeably, so it is followed by a short pause.
//! Successive long turns are separated by longer and longer pauses, until the turns take 1.5 % of the time. Then fewer
//! than one in a hundred requests of other clients has to wait for such a turn.
//!
//! Invariant: an address makes no pause while no other client writes. Pauses are local to a node. They decide when a
//! command is committed, and never its outcome.

use std::time::Duration;

/// Assumed duration of one step, the unit of work: about 100 ns on the machines on which the limits of the commands
/// were chosen.
const STEP: Duration = Duration::from_nanos(100);
/// Number of steps (units of work) above which a turn, a batch of expensive commands, counts as long: about 4 ms of
/// work. The pauses after successive long turns grow.
pub(crate) const LONG_TURN_STEPS: u64 = 40_000;
/// Length of the pause after a short turn (batch of expensive commands), as a multiple of the turn's time. With 2, the
/// address gets a third of the time.
const MIN_MULTIPLE: u32 = 2;
/// Maximum length of a pause after many long turns (batches of expensive commands), as a multiple of the last turn's
/// time.
const MAX_MULTIPLE: u32 = 64;
/// Factor by which each long turn (batch of expensive commands) makes the following pause longer, up to
/// [`MAX_MULTIPLE`].
const GROWTH: u32 = 4;
/// Maximum length of a pause after a turn (batch of expensive commands). A turn that would need a longer pause mostly
/// waited for the disk, which is not the client's fault.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Pauses of one client address after its turns, which are batches of its expensive commands.
#[derive(Debug)]
pub(crate) struct TurnPause {
    /// Number of turns (batches of expensive commands) that were followed by a pause.
    turns: u64,
    /// Monotonic time at which the last turn (batch of expensive commands) with a pause began.
    began: Duration,
    /// Monotonic time at which the client address's last pause ends or has ended.
    until: Duration,
    /// Length of the client address's last pause.
    length: Duration,
    /// Length of the last pause after a long turn (batch of expensive commands), as a multiple of the turn's time.
    multiple: u32,
    /// Multiple from which `multiple` was computed at the last turn: its value before the turn, or [`MIN_MULTIPLE`] if
    /// the address had made no recent turn. A correction of the last pause computes `multiple` again from this value.
    multiple_before: u32,
    /// True if the last turn began soon after the pause before it: the time between that pause and the turn was shorter
    /// than the pause.
    is_repeated: bool,
    /// Number of batches that the queue had taken from its lane of ready (cheap) commands when the client address had
    /// its last turn.
    pub(crate) ready_turns: u64,
}

impl Default for TurnPause {
    fn default() -> Self {
        Self {
            turns: 0,
            began: Duration::ZERO,
            until: Duration::ZERO,
            length: Duration::ZERO,
            multiple: MIN_MULTIPLE,
            multiple_before: MIN_MULTIPLE,
            is_repeated: false,
            ready_turns: 0,
        }
    }
}

impl TurnPause {
    /// Begins a pause after a turn, a batch of expensive commands that delays other clients. The turn begins at the
    /// monotonic time `began`, lasts for `time`, and takes `steps` steps (units of work). Returns the number of the
    /// turn.
    pub(crate) fn begin(&mut self, began: Duration, time: Duration, steps: u64) -> u64 {
        // An address that rested for the length of its last pause gets shorter pauses again.
        self.is_repeated = began < self.until + self.length;
        self.multiple_before = if self.is_repeated { self.multiple } else { MIN_MULTIPLE };
        self.began = began;
        self.turns += 1;
        self.set(time, steps);
        self.turns
    }

    /// Begins a pause after a turn (batch of expensive commands) that begins now and will probably take `steps` steps
    /// (units of work). Returns the number of the turn.
    pub(crate) fn begin_probable(&mut self, now: Duration, steps: u64) -> u64 {
        self.begin(now, time_of(steps), steps)
    }

    /// Corrects the pause after turn number `turn`, once the number of steps (units of work) that the turn has taken is
    /// known. Does nothing if the address has had another turn since.
    pub(crate) fn correct(&mut self, turn: u64, steps: u64) {
        if turn == self.turns {
            self.set(time_of(steps), steps);
        }
    }

    fn set(&mut self, time: Duration, steps: u64) {
        let is_long = steps > LONG_TURN_STEPS;
        let growth = if is_long && self.is_repeated { GROWTH } else { 1 };
        self.multiple = (self.multiple_before * growth).min(MAX_MULTIPLE);
        self.length = (time * if is_long { self.multiple } else { MIN_MULTIPLE }).min(MAX_PAUSE);
        self.until = self.began + time + self.length;
    }

    /// Returns the time until the end of the pause; zero outside of a pause.
    pub(crate) fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }

    /// Returns the factor by which pauses presently lengthen the wait of the address's expensive commands; 1 without
    /// recent long turns.
    pub(crate) fn slowdown(&self) -> u32 {
        self.multiple / MIN_MULTIPLE
    }
}

/// Returns the time that `steps` steps (units of work) probably take, at most [`MAX_PAUSE`]. The bound is needed
/// because estimates of long batches are high, and because the estimate of a batch that consensus refuses is never
/// corrected.
fn time_of(steps: u64) -> Duration {
    (STEP * u32::try_from(steps).unwrap_or(u32::MAX)).min(MAX_PAUSE)
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
        pause.begin(millis(100), millis(10), 10_000);
        assert_eq!(pause.left(millis(110)), millis(20));
        pause.begin(millis(200), millis(60_000), 10_000);
        assert_eq!(pause.left(millis(60_200)), MAX_PAUSE);
    }

    #[test]
    fn a_pause_is_corrected_once_the_steps_of_its_turn_are_known() {
        let mut pause = TurnPause::default();
        pause.begin_probable(millis(100), LONG);
        let turn = pause.begin_probable(millis(110), LONG);
        assert_eq!(pause.left(millis(110)), millis(8 + 64));
        pause.correct(turn, 10_000);
        assert_eq!((pause.left(millis(110)), pause.slowdown()), (millis(1 + 2), 1), "the turn was a short one");
        pause.correct(turn, LONG);
        assert_eq!(pause.left(millis(110)), millis(8 + 64));
        let next = pause.begin_probable(millis(150), 10_000);
        pause.correct(turn, 0);
        assert_eq!(pause.left(millis(150)), millis(1 + 2), "an earlier turn changes nothing");
        pause.correct(next, 0);
        assert_eq!(pause.left(millis(150)), Duration::ZERO);
    }

    #[test]
    fn pauses_of_long_turns_grow_and_those_of_short_ones_do_not() {
        let mut pause = TurnPause::default();
        let mut now = millis(1_000);
        let mut length_after = |steps| {
            pause.begin_probable(now, steps);
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
        (0..5).for_each(|number| _ = pause.begin_probable(millis(1_000 + number), LONG));
        let rested = pause.until + pause.length;
        pause.begin_probable(rested, LONG);
        assert_eq!((pause.length, pause.slowdown()), (millis(16), 1));
    }
}
