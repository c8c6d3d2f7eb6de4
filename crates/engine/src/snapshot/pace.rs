//! How fast a snapshot reads while others write.
//!
//! Owns: [`Pacer`], which says how long to rest after a chunk. Does not own: the clock, or the sleeping.
//!
//! A snapshot takes whatever the processors have left. Inside the machine nobody notices, since its threads are idle
//! ones; but who rents out a machine may stop all of it for the rest of a period in which it worked too much, writers
//! included. So there is a rate beyond which a snapshot gains little and costs others much.
//!
//! Invariants: a rest is at most [`MAX_REST`], less than the pipeline's patience; what rests and stops lasted too long
//! is made up for, up to [`CREDIT`].

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

use thalweg_types::Lsn;

/// Writers who wrote within this time write still.
const ACTIVE: Duration = Duration::from_millis(100);
/// How far a snapshot may lie behind its pace and hurry to make up for it.
const CREDIT: Duration = Duration::from_millis(100);
/// The longest rest: a slower pace than a chunk in this time is not kept.
pub(super) const MAX_REST: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug)]
pub(super) struct Pacer {
    bytes_per_second: Option<NonZeroU64>,
    /// Where the log ended last time, and when it was first seen to end there.
    end: Option<(Lsn, Instant)>,
    /// When the next chunk should begin.
    due: Instant,
}

impl Pacer {
    pub(super) fn new(bytes_per_second: Option<NonZeroU64>, now: Instant) -> Self {
        Self { bytes_per_second, end: None, due: now }
    }

    /// How long to rest, `now` that so many bytes were read and the log ends at `end`.
    pub(super) fn rest(&mut self, bytes: usize, end: Lsn, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let wrote = match self.end {
            Some((last, since)) if last == end => Some(since),
            Some(_) => Some(now),
            // Whether somebody wrote before is not known.
            None => None,
        };
        if self.end.is_none_or(|(last, _)| last != end) {
            self.end = Some((end, now));
        }
        let is_active = wrote.is_some_and(|at| now.saturating_duration_since(at) <= ACTIVE);
        if !is_active {
            self.due = now;
            return Duration::ZERO;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate.get() as f64).min(MAX_REST);
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        self.due = self.due.max(earliest) + takes;
        self.due.saturating_duration_since(now).min(MAX_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1_000_000;

    fn pacer(rate: u64) -> (Pacer, Instant) {
        let now = Instant::now();
        (Pacer::new(NonZeroU64::new(rate), now), now)
    }

    /// Reads chunks that take no time of their own for a second, the log growing before each; says how many.
    fn chunks_in_a_second(pacer: &mut Pacer, begun: Instant) -> usize {
        let mut now = begun;
        (1..1_000_000)
            .take_while(|lsn| {
                now += pacer.rest(CHUNK, Lsn(*lsn), now);
                now - begun < Duration::from_secs(1)
            })
            .count()
    }

    #[test]
    fn while_the_log_grows_the_pace_is_kept() {
        let (mut pacer, now) = pacer(300_000_000);
        let chunks = chunks_in_a_second(&mut pacer, now);
        assert!((298..=302).contains(&chunks), "{chunks}");
    }

    #[test]
    fn a_chunk_that_came_late_is_made_up_for_but_not_a_long_stop() {
        let (mut paced, now) = pacer(100_000_000);
        paced.rest(CHUNK, Lsn(1), now);
        let rest = paced.rest(CHUNK, Lsn(2), now);
        assert_eq!(rest, Duration::from_millis(10));
        assert_eq!(paced.rest(CHUNK, Lsn(3), now + Duration::from_millis(25)), Duration::ZERO, "5 ms late");
        assert_eq!(paced.rest(CHUNK, Lsn(4), now + Duration::from_millis(25)), Duration::from_millis(5));
        let after = now + Duration::from_secs(10);
        let free = (5..).take_while(|lsn| paced.rest(CHUNK, Lsn(*lsn), after).is_zero()).count();
        assert_eq!(free, 10, "as many as the credit is worth");
    }

    #[test]
    fn nobody_waits_while_nobody_writes() {
        let (mut paced, now) = pacer(1_000_000);
        for millis in [0, 101, 500] {
            assert_eq!(paced.rest(CHUNK, Lsn(7), now + Duration::from_millis(millis)), Duration::ZERO);
        }
        let (mut unpaced, now) = (Pacer::new(None, now), now);
        assert!((1..100).all(|lsn| unpaced.rest(CHUNK, Lsn(lsn), now).is_zero()));
    }

    #[test]
    fn a_rest_is_bounded_whatever_the_pace() {
        let (mut paced, mut now) = pacer(1);
        paced.rest(CHUNK, Lsn(0), now);
        for lsn in 1..10 {
            let rest = paced.rest(CHUNK, Lsn(lsn), now);
            assert_eq!(rest, MAX_REST);
            now += rest;
        }
    }
}
