//! Space time (the clock that the members of a space share), as one member computes it: the time of the last entry from
//! the leader, plus the monotonic time since the entry arrived.
//!
//! Owns: the timestamps that this node gives to entries while it leads. Does not own: the time by which reads hide
//! values, which on a member is the time of the last applied entry.
//!
//! A member continues the leader's time from each entry that it receives, so a new leader's first timestamp follows the
//! old leader's. Blank entries and memberships carry the time of the entry before them, so they do not advance the
//! time.
//!
//! Invariant: the timestamps never decrease, and the times that [`MemberClock::now`] returns never decrease.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thalweg_types::{Clock, SpaceTime};

/// The clock of one space (Raft group), as one member computes it.
#[derive(Debug)]
pub struct MemberClock {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Time of the space (Raft group) at the monotonic time `anchored_at`.
    anchor: SpaceTime,
    anchored_at: Duration,
    /// Last timestamp that this node gave to a log entry.
    stamped: SpaceTime,
    /// Latest time that [`MemberClock::now`] has returned.
    shown: SpaceTime,
    /// True if this clock began with the time of the node's wall clock. This happens if the state has no entries,
    /// although the log may have some.
    is_of_wall: bool,
}

impl MemberClock {
    /// Creates a clock that begins at `anchor`.
    pub(crate) fn new(clock: Arc<dyn Clock>, anchor: SpaceTime) -> Self {
        let anchored_at = clock.monotonic();
        let (stamped, shown) = (SpaceTime::default(), SpaceTime::default());
        let state = State { anchor, anchored_at, stamped, shown, is_of_wall: false };
        Self { clock, state: Mutex::new(state) }
    }

    /// Creates a clock that begins at the time of the node's wall clock. A later call of
    /// [`continue_from`](Self::continue_from) replaces this time by that of a log entry.
    pub(crate) fn at_wall(clock: Arc<dyn Clock>) -> Self {
        let wall = clock.wall();
        let created = Self::new(clock, wall);
        created.state().is_of_wall = true;
        created
    }

    /// Returns the current time of the space (Raft group).
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        let mut state = self.state();
        let ticked = self.ticked(&state);
        state.shown = state.shown.max(ticked);
        state.shown
    }

    /// Returns the timestamp for the next log entry that this node, the leader, writes.
    #[must_use]
    pub fn stamp(&self) -> SpaceTime {
        let mut state = self.state();
        let ticked = self.ticked(&state);
        state.stamped = state.stamped.max(ticked);
        state.stamped
    }

    /// Continues from `time`, the time of the last entry found in the log at open. The clock then drops the time of the
    /// node's wall clock, which may be wrong. Zero means that the log has no entries, and changes nothing.
    pub fn continue_from(&self, time: SpaceTime) {
        let mut state = self.state();
        if time > self.ticked(&state) || state.is_of_wall && time > SpaceTime::default() {
            (state.anchor, state.anchored_at, state.is_of_wall) = (time, self.clock.monotonic(), false);
        }
    }

    /// Raises the time to `time`, which the members have agreed on or which comes from an installed state. An earlier
    /// time has no effect.
    pub fn raise_to(&self, time: SpaceTime) {
        let mut state = self.state();
        if time > self.ticked(&state) {
            (state.anchor, state.anchored_at) = (time, self.clock.monotonic());
        }
    }

    /// Continues from the time of an entry with commands that has just been written to this node's log. Entries that
    /// this node has stamped itself have no effect.
    pub fn received(&self, time: SpaceTime) {
        let mut state = self.state();
        if time > state.stamped {
            (state.anchor, state.anchored_at) = (time, self.clock.monotonic());
        }
    }

    /// Returns the time of the node's wall clock. The time of the space (Raft group) does not follow this clock
    /// automatically.
    #[must_use]
    pub fn wall(&self) -> SpaceTime {
        self.clock.wall()
    }

    /// Returns the total time of all suspensions of the machine, see [`Clock::suspended`].
    #[must_use]
    pub fn suspended(&self) -> Duration {
        self.clock.suspended()
    }

    /// Returns by how much the time of the space (Raft group) is behind `time`; zero if it is not behind.
    #[must_use]
    pub fn behind(&self, time: SpaceTime) -> Duration {
        Duration::from_micros(time.0.saturating_sub(self.ticked(&self.state()).0))
    }

    /// Returns the monotonic time of the node.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn ticked(&self, state: &State) -> SpaceTime {
        state.anchor.plus(self.clock.monotonic().saturating_sub(state.anchored_at))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::ManualClock;

    use super::*;

    fn at(anchor: u64) -> (Arc<ManualClock>, MemberClock) {
        let clock = Arc::new(ManualClock::at(SpaceTime(9_000_000)));
        (clock.clone(), MemberClock::new(clock, SpaceTime(anchor)))
    }

    #[test]
    fn a_new_leader_continues_from_the_last_entry_and_not_from_its_wall_clock() {
        let (clock, space) = at(0);
        space.received(SpaceTime(500));
        clock.advance(Duration::from_micros(30));
        clock.step_wall(SpaceTime(7));
        assert_eq!(space.stamp(), SpaceTime(530));
        space.received(SpaceTime(530));
        clock.advance(Duration::from_micros(5));
        assert_eq!(space.stamp(), SpaceTime(535), "its own entries do not set it back");
    }

    #[test]
    fn a_wall_clock_begins_the_time_of_a_space_without_entries_only() {
        let clock = Arc::new(ManualClock::at(SpaceTime(9_000_000)));
        let space = MemberClock::at_wall(clock.clone());
        space.continue_from(SpaceTime::default());
        assert_eq!(space.stamp(), SpaceTime(9_000_000));
        let space = MemberClock::at_wall(clock);
        space.continue_from(SpaceTime(500));
        assert_eq!(space.stamp(), SpaceTime(500), "the log has an entry that the state has not");
        let (_, space) = at(1_000);
        space.continue_from(SpaceTime(500));
        assert_eq!(space.stamp(), SpaceTime(1_000));
    }

    #[test]
    fn a_follower_takes_the_leaders_time_but_shows_none_twice() {
        let (clock, space) = at(1_000);
        clock.advance(Duration::from_micros(100));
        assert_eq!(space.now(), SpaceTime(1_100));
        space.received(SpaceTime(1_040));
        assert_eq!(space.now(), SpaceTime(1_100));
        assert_eq!(space.stamp(), SpaceTime(1_040));
        space.raise_to(SpaceTime(2_000));
        space.raise_to(SpaceTime(1_500));
        assert_eq!((space.now(), space.stamp()), (SpaceTime(2_000), SpaceTime(2_000)));
    }
}
