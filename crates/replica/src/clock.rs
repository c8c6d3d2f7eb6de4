//! Space time: the clock by which a space (Raft group) timestamps its log entries and expires keys. It starts at the
//! wall clock, advances by the monotonic clock, and never decreases.
//!
//! Owns: the timestamps of log entries, the time at which a read decides which keys have expired, and the consistency
//! between the two. Does not own: the meaning of a deadline.
//!
//! ```text
//! word := time << 1 | frozen        time: the latest timestamp of an entry or time of a read
//! ```
//! An entry gets its timestamp before it is written, and becomes visible later, when it is applied. A read in between
//! must not use a time after the timestamp. Otherwise the read could hide a key as expired, although the entry, which
//! is applied at its own earlier time, still finds the key. So the time of reads stands still from the moment at which
//! an entry gets its timestamp until the entry is applied. This includes the fsync, if the durability level requires
//! one.
//!
//! The log contains the times of entries, but not those of reads. Instead, a [`TimeKeeper`] stores a bound that the
//! time of no read exceeds, at most [`NOTE_AHEAD`] ahead of the reads. If the wall clock is behind the stored bound by
//! more than this span at an open, the wall clock was set back, and space time continues from the bound. So a key that
//! a read has hidden as expired stays hidden, even if the process is killed and the wall clock is set back. After a
//! kill without a change of the wall clock, the time does not jump. A keeper need not make each bound durable, so a
//! power loss can lose the last bounds. Therefore the space also appends an entry at the next run of maintenance after
//! a deadline has passed, and when the space is closed.
//!
//! Invariants: the time never decreases while the space is open; an entry's timestamp is at least the time of every
//! read that did not see the entry; a read's time is at least the timestamp of every entry that it sees.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_state::expiry::ReadTime;
use thalweg_types::{Clock, SpaceTime};

const FROZEN: u64 = 1;

/// Span by which a bound that a [`TimeKeeper`] stores is ahead of the read that made it necessary. With a shorter span
/// bounds are stored more often. With a longer one, the time jumps further if the process was killed and the wall clock
/// was set back.
pub const NOTE_AHEAD: Duration = Duration::from_millis(50);

/// Storage outside the log for an upper bound of the times that reads of the space (Raft group) have used.
pub trait TimeKeeper: Send + Sync + std::fmt::Debug {
    /// Stores `time` as the new upper bound of the times that reads have used: no read so far has used a later time.
    /// The bounds of successive calls increase.
    fn note(&self, time: SpaceTime);
}

/// The clock of one space (Raft group). It returns the group's time, by which log entries are timestamped and keys
/// expire.
#[derive(Debug)]
pub struct SpaceClock {
    clock: Arc<dyn Clock>,
    anchor: SpaceTime,
    anchored_at: Duration,
    word: AtomicU64,
    /// Latest upper bound of the times of reads that was passed to the keeper, in microseconds since 1970; `u64::MAX`
    /// without a keeper. A read at a time up to this bound needs no new bound.
    noted: AtomicU64,
    keeper: Option<Arc<dyn TimeKeeper>>,
    /// Lock that a thread holds while it passes an upper bound of the times of reads to the keeper, so that the bounds
    /// increase.
    noting: Mutex<()>,
}

impl SpaceClock {
    /// Creates the clock of a space (Raft group). Its time starts at the wall clock, or at `last` (the time of the
    /// newest log entry) if that is later.
    #[must_use]
    pub fn anchor(clock: Arc<dyn Clock>, last: SpaceTime) -> Self {
        let anchor = clock.wall().max(last);
        let anchored_at = clock.monotonic();
        let (word, noted) = (AtomicU64::new(pack(last)), AtomicU64::new(u64::MAX));
        Self { clock, anchor, anchored_at, word, noted, keeper: None, noting: Mutex::new(()) }
    }

    /// Makes the clock store an upper bound of the times of reads with `keeper`.
    #[must_use]
    pub fn with_keeper(self, keeper: Arc<dyn TimeKeeper>) -> Self {
        Self { keeper: Some(keeper), noted: AtomicU64::new(0), ..self }
    }

    #[cold]
    fn note(&self, time: SpaceTime) {
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        if time.0 > self.noted.load(Ordering::Relaxed)
            && let Some(keeper) = &self.keeper
        {
            let noted = time.plus(NOTE_AHEAD);
            keeper.note(noted);
            self.noted.store(noted.0, Ordering::Relaxed);
        }
    }

    /// Returns the current time of the space (Raft group). To decide which keys have expired, use [`read`](Self::read)
    /// instead.
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        self.ticked().max(unpack(self.word.load(Ordering::Relaxed)))
    }

    /// Returns the monotonic time since an arbitrary start, for durations.
    pub(crate) fn monotonic(&self) -> std::time::Duration {
        self.clock.monotonic()
    }

    /// Returns the time by which a read hides expired keys. Every later log entry gets at least this timestamp.
    #[must_use]
    #[inline]
    pub fn read(&self) -> SpaceTime {
        let time = self.read_unnoted();
        if time.0 > self.noted.load(Ordering::Relaxed) {
            self.note(time);
        }
        time
    }

    fn read_unnoted(&self) -> SpaceTime {
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

    /// Returns the timestamp for the next log entry. The writer uses this function while the space (Raft group) has no
    /// keys with deadlines, so that reads do not depend on the time. Only the thread that holds the writer role (the
    /// right to write log entries) calls it.
    pub(crate) fn stamp(&self) -> SpaceTime {
        let now = self.now();
        self.word.store(pack(now), Ordering::Relaxed);
        now
    }

    /// Returns the timestamp for the next log entry, and a guard. Until the guard is dropped, which happens when the
    /// entry is applied or abandoned, reads use the timestamp as their time. Only the thread that holds the writer role
    /// (the right to write log entries) calls this function.
    pub(crate) fn stamp_frozen(&self) -> (SpaceTime, FrozenTime<'_>) {
        let ticked = self.ticked();
        let freeze = |word| Some(pack(ticked.max(unpack(word))) | FROZEN);
        let before = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, freeze);
        let before = before.unwrap_or_else(|word| word);
        (ticked.max(unpack(before)), FrozenTime(self))
    }

    /// Returns the time at which the clock was anchored, plus the monotonic time since then.
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

/// Guard that keeps the time of reads at the timestamp of a log entry in progress; see [`SpaceClock::stamp_frozen`].
#[derive(Debug)]
pub(crate) struct FrozenTime<'a>(&'a SpaceClock);

impl Drop for FrozenTime<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!FROZEN, Ordering::SeqCst);
    }
}

/// Latest time that the clock can return: 290,000 years from now. The clock stores the time in a 64-bit word, of which
/// one bit is a flag. A log entry from another node may have a later time.
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

    /// A monotonic clock for tests that can go back. No single clock does this, but the clocks of two processors may
    /// disagree slightly.
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

    #[derive(Debug, Default)]
    struct RecordedTimes(Mutex<Vec<SpaceTime>>);

    impl TimeKeeper for RecordedTimes {
        fn note(&self, time: SpaceTime) {
            self.0.lock().unwrap().push(time);
        }
    }

    #[test]
    fn no_read_exceeds_the_noted_time_and_few_are_noted() {
        let clock = Arc::new(ManualClock::at(SpaceTime(1000)));
        let notes = Arc::new(RecordedTimes::default());
        let space = SpaceClock::anchor(clock.clone(), SpaceTime(0)).with_keeper(notes.clone());
        assert_eq!(space.stamp(), SpaceTime(1000));
        assert_eq!(*notes.0.lock().unwrap(), [], "entries are logged");
        for _ in 0..100 {
            clock.advance(Duration::from_millis(1));
            let read = space.read();
            assert!(read <= *notes.0.lock().unwrap().last().unwrap());
        }
        assert_eq!(notes.0.lock().unwrap().len(), 2);
        assert!(notes.0.lock().unwrap().is_sorted());
    }

    #[test]
    fn a_time_that_no_clock_shows_is_capped() {
        let (clock, space) = at(0, u64::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!((space.now(), space.read()), (MAX, MAX));
        assert_eq!(space.stamp_frozen().0, MAX);
    }

    /// Runs readers and one writer on real threads. A read after a log entry was applied must get at least the entry's
    /// timestamp, and no entry may get a timestamp below the time of an earlier read.
    #[test]
    fn reads_and_stamps_agree_on_one_order() {
        let clock = Arc::new(thalweg_types::SystemClock::default());
        let space = SpaceClock::anchor(clock, SpaceTime(0));
        let applied = AtomicU64::new(0);
        let latest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = SpaceTime(0);
                    for _ in 0..20_000 {
                        let seen = applied.load(Ordering::SeqCst);
                        let time = space.read();
                        assert!(time.0 >= seen && time >= last);
                        last = time;
                        latest.fetch_max(time.0, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..20_000 {
                let before = latest.load(Ordering::SeqCst);
                let (stamp, frozen) = space.stamp_frozen();
                assert!(stamp.0 >= before);
                std::hint::spin_loop();
                assert!(latest.load(Ordering::SeqCst) <= stamp.0, "a read got a later time than the entry in progress");
                applied.store(stamp.0, Ordering::SeqCst);
                drop(frozen);
            }
        });
    }
}
