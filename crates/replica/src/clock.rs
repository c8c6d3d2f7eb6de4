//! Space time: anchored to the wall clock once, then carried by the monotonic clock, never going back.
//!
//! Owns: the time that entries are stamped with and the time that reads hide deadlines by, and that the two
//! agree on one order. Does not own what a deadline is.
//!
//! ```text
//! word := time << 1 | frozen        time: the newest that an entry was stamped with or that a read was told
//! ```
//! An entry is stamped before it is written, and seen once it is applied. A read in between must not be told
//! a later time than the stamp: it could hide a key that the entry, by its own time, still finds. So the time
//! stands still for reads while a stamped entry is on its way, for as long as its level takes (an fsync).
//!
//! What reads were told is not written down, entries are. Past a deadline that it has hidden a key by, a space puts an
//! entry within a round of maintenance and when it is closed, so only a kill in between lets the time go back behind
//! the deadline, and only if the wall clock was set back as well. (To write a bound ahead of reads would close that
//! gap, and let time jump ahead to the bound after each kill: leases would end early, which is worse.)
//!
//! Invariants: the time never goes back while the space is open; an entry's stamp is at least the time of every read that did not see
//! the entry; a read's time is at least the stamp of every entry that it sees.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_state::expiry::ReadTime;
use thalweg_types::{Clock, SpaceTime};

const FROZEN: u64 = 1;

/// The time of one space.
#[derive(Debug)]
pub struct SpaceClock {
    clock: Arc<dyn Clock>,
    anchor: SpaceTime,
    anchored_at: Duration,
    word: AtomicU64,
}

impl SpaceClock {
    /// Anchors at the wall clock, or at `last` (the time of the newest entry) if that is later.
    #[must_use]
    pub fn anchor(clock: Arc<dyn Clock>, last: SpaceTime) -> Self {
        let anchor = clock.wall().max(last);
        let anchored_at = clock.monotonic();
        Self { clock, anchor, anchored_at, word: AtomicU64::new(pack(last)) }
    }

    /// The space's time now. A caller who acts on it must not have told anybody what has passed by then:
    /// for that there is [`read`](Self::read).
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        self.ticked().max(unpack(self.word.load(Ordering::Relaxed)))
    }

    /// The time that a read hides deadlines by. Every entry stamped from now on gets at least it.
    #[must_use]
    pub fn read(&self) -> SpaceTime {
        let ticked = self.ticked();
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            let known = unpack(word);
            if word & FROZEN != 0 || ticked <= known {
                return known;
            }
            match self.word.compare_exchange_weak(word, pack(ticked), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return ticked,
                Err(changed) => word = changed,
            }
        }
    }

    /// The time for the next entry, of a space in which no read has asked for the time yet. Called by the
    /// holder of the writer role only.
    pub(crate) fn stamp(&self) -> SpaceTime {
        let now = self.now();
        self.word.store(pack(now), Ordering::Relaxed);
        now
    }

    /// The time for the next entry; reads stay at it until the guard is dropped, which is when the entry is
    /// applied or given up. Called by the holder of the writer role only.
    pub(crate) fn stamp_frozen(&self) -> (SpaceTime, Frozen<'_>) {
        let ticked = self.ticked();
        let freeze = |word| Some(pack(ticked.max(unpack(word))) | FROZEN);
        let before = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, freeze);
        let before = before.unwrap_or_else(|word| word);
        (ticked.max(unpack(before)), Frozen(self))
    }

    /// The anchor and the time since.
    fn ticked(&self) -> SpaceTime {
        let since = self.clock.monotonic().saturating_sub(self.anchored_at);
        self.anchor.plus(since).min(MAX)
    }
}

impl ReadTime for SpaceClock {
    fn now(&self) -> SpaceTime {
        self.now()
    }

    fn read_time(&self) -> SpaceTime {
        self.read()
    }
}

/// Holds reads at an entry's stamp; see [`SpaceClock::stamp_frozen`].
#[derive(Debug)]
pub(crate) struct Frozen<'a>(&'a SpaceClock);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!FROZEN, Ordering::SeqCst);
    }
}

/// The latest time that fits beside the flag: in 290,000 years. A foreign entry may claim more.
const MAX: SpaceTime = SpaceTime(u64::MAX >> 1);

fn pack(time: SpaceTime) -> u64 {
    time.min(MAX).0 << 1
}

fn unpack(word: u64) -> SpaceTime {
    SpaceTime(word >> 1)
}

#[cfg(test)]
mod tests {
    use thalweg_types::ManualClock;

    use super::*;

    fn at(wall: u64, last: u64) -> (Arc<ManualClock>, SpaceClock) {
        let clock = Arc::new(ManualClock::at(SpaceTime(wall)));
        (clock.clone(), SpaceClock::anchor(clock, SpaceTime(last)))
    }

    #[test]
    fn a_stepped_wall_clock_changes_nothing() {
        let (clock, space) = at(1_000_000, 0);
        clock.advance(Duration::from_micros(5));
        assert_eq!(space.stamp(), SpaceTime(1_000_005));
        clock.step_wall(SpaceTime(1));
        assert_eq!((space.now(), space.read()), (SpaceTime(1_000_005), SpaceTime(1_000_005)));
        clock.step_wall(SpaceTime(u64::MAX / 2));
        clock.advance(Duration::from_micros(5));
        assert_eq!(space.read(), SpaceTime(1_000_010));
        assert_eq!(space.stamp_frozen().0, SpaceTime(1_000_010));
    }

    #[test]
    fn a_wall_clock_behind_the_newest_entry_does_not_take_time_back() {
        let (_, space) = at(10, 500);
        assert_eq!((space.now(), space.read()), (SpaceTime(500), SpaceTime(500)));
    }

    /// A monotonic clock that goes back: no clock does, but two processors' may disagree by a little.
    #[derive(Debug, Default)]
    struct Jitter(AtomicU64);

    impl Clock for Jitter {
        fn wall(&self) -> SpaceTime {
            SpaceTime(1000)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_micros(self.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn an_entry_is_not_stamped_before_what_a_read_was_told() {
        let clock = Arc::new(Jitter::default());
        let space = SpaceClock::anchor(clock.clone(), SpaceTime(0));
        clock.0.store(50, Ordering::Relaxed);
        assert_eq!(space.read(), SpaceTime(1050));
        clock.0.store(20, Ordering::Relaxed);
        assert_eq!(space.now(), SpaceTime(1050));
        assert_eq!(space.stamp_frozen().0, SpaceTime(1050));
        assert_eq!(space.stamp(), SpaceTime(1050));
    }

    #[test]
    fn reads_stand_still_while_an_entry_is_on_its_way() {
        let (clock, space) = at(1000, 0);
        let (stamp, frozen) = space.stamp_frozen();
        clock.advance(Duration::from_micros(7));
        assert_eq!((stamp, space.read(), space.now()), (SpaceTime(1000), SpaceTime(1000), SpaceTime(1007)));
        drop(frozen);
        assert_eq!(space.read(), SpaceTime(1007));
    }

    #[test]
    fn a_time_that_no_clock_shows_is_capped() {
        let (clock, space) = at(0, u64::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!((space.now(), space.read()), (MAX, MAX));
        assert_eq!(space.stamp_frozen().0, MAX);
    }

    /// Readers and one writer on real threads: whoever reads after an entry was applied is told at least its
    /// stamp, and no entry is stamped below what a read was told before.
    #[test]
    fn reads_and_stamps_agree_on_one_order() {
        let clock = Arc::new(thalweg_types::SystemClock::default());
        let space = SpaceClock::anchor(clock, SpaceTime(0));
        let applied = AtomicU64::new(0);
        let told = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = SpaceTime(0);
                    for _ in 0..20_000 {
                        let seen = applied.load(Ordering::SeqCst);
                        let time = space.read();
                        assert!(time.0 >= seen && time >= last);
                        last = time;
                        told.fetch_max(time.0, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..20_000 {
                let before = told.load(Ordering::SeqCst);
                let (stamp, frozen) = space.stamp_frozen();
                assert!(stamp.0 >= before);
                std::hint::spin_loop();
                assert!(told.load(Ordering::SeqCst) <= stamp.0, "a read was told more than the entry on its way");
                applied.store(stamp.0, Ordering::SeqCst);
                drop(frozen);
            }
        });
    }
}
