//! Limits the rate at which a snapshot is read while clients write.
//!
//! Owns: [`Pacer`], which computes the pause (rest) of a snapshot's reader after each chunk. Does not own: the clock,
//! or the sleeping.
//!
//! A snapshot uses all processor time that other threads leave. Other threads on the machine do not notice this,
//! because the snapshot's threads have idle priority. But the provider of a virtual machine may limit its processor
//! time in each period. When the limit is reached, the provider stops the whole machine, including the writers, for the
//! rest of the period. So above a certain rate a snapshot gains little and costs writers much.
//!
//! Invariants: a rest is at most [`MAX_REST`], which is shorter than the time for which the pipeline waits for a chunk.
//! If a chunk or a rest took too long, later rests are shorter, until up to [`CREDIT`] of the delay is made up for.

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

use thalweg_types::Lsn;

/// Time after the last write during which clients count as writing.
const ACTIVE: Duration = Duration::from_millis(100);
/// Maximum delay for which a snapshot makes up. If chunks took longer than the intended pace permits, later rests
/// (pauses) are shorter until this much time is gained.
const CREDIT: Duration = Duration::from_millis(100);
/// Longest rest (pause) after a chunk. A snapshot therefore reads at least one chunk in this time, even if the
/// configured pace is slower.
pub(crate) const MAX_REST: Duration = Duration::from_millis(250);

/// Computes the rest (pause) of a snapshot after each chunk, so that the snapshot keeps its pace while clients write.
#[derive(Debug)]
pub(crate) struct Pacer {
    bytes_per_second: Option<NonZeroU64>,
    /// LSN after the last record of the log at the last call, and the time at which this LSN was first seen; `None`
    /// before the first call.
    end: Option<(Lsn, Instant)>,
    /// Time at which the next chunk should begin according to the pace.
    due: Instant,
}

impl Pacer {
    pub(crate) fn new(bytes_per_second: Option<NonZeroU64>, now: Instant) -> Self {
        Self { bytes_per_second, end: None, due: now }
    }

    /// Returns the time for which the snapshot must pause after a chunk of `bytes` bytes. `end` is the LSN after the
    /// last record that the log has now.
    pub(crate) fn rest(&mut self, bytes: usize, end: Lsn, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let wrote = match self.end {
            Some((last, since)) if last == end => Some(since),
            Some(_) => Some(now),
            // On the first call it is unknown if clients have written before.
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

    /// Reads chunks for one second, and returns their number. The log grows before each chunk. Reading itself takes no
    /// time.
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
        assert_eq!(free, 10, "the number of chunks in the credit");
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
