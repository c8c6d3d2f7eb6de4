//! Facts about this node (the progress of its log, its disk, its clock and its description) that were sent to another
//! node over a connection.
//!
//! Owns: the rule when facts are sent again. Does not own: the facts, or the frames with them (`signs`).

use std::time::{Duration, Instant};

use thalweg_types::{Index, SpaceTime};

/// Number of signs of life after which a node sends its facts again even if they have not changed.
const TELL_EVERY: u32 = 60;
/// Minimum difference between this node's wall clock and the time that the clock should show. From this difference on,
/// the clock counts as set by hand.
const CLOCK_SET: Duration = Duration::from_millis(100);

/// Facts about this node that the other nodes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnFacts {
    /// Index of the last entry of this node's log.
    pub last: Index,
    /// Index of the last log entry that this node has applied.
    pub applied: Index,
    /// True if this node's disk is too full for new data.
    pub lacks_room: bool,
    /// Time that this node's wall clock shows.
    pub wall: SpaceTime,
    /// Number of the node's description (its name, zone and addresses). A changed description has another number.
    pub about: u32,
}

/// Facts that this node sent last over a connection, and the time of sending.
#[derive(Debug)]
struct LastFacts {
    facts: OwnFacts,
    at: Instant,
    /// Number of signs of life without facts that this node has sent after these facts.
    signs: u32,
}

/// Facts about this node that it has sent over one connection; `None` before the first ones.
#[derive(Debug, Default)]
pub(crate) struct SentFacts(Option<LastFacts>);

impl SentFacts {
    /// Returns true if the next sign of life must contain these facts.
    pub(crate) fn is_due(&self, facts: &OwnFacts, now: Instant) -> bool {
        let Some(sent) = &self.0 else { return true };
        let expected = sent.facts.wall.plus(now.saturating_duration_since(sent.at));
        let clock_is_off = expected.0.abs_diff(facts.wall.0) >= CLOCK_SET.as_micros() as u64;
        sent.signs >= TELL_EVERY || clock_is_off || OwnFacts { wall: sent.facts.wall, ..*facts } != sent.facts
    }

    /// Records that a sign of life with these facts was sent.
    pub(crate) fn note_facts(&mut self, facts: OwnFacts, now: Instant) {
        self.0 = Some(LastFacts { facts, at: now, signs: 0 });
    }

    /// Records that a sign of life without facts was sent.
    pub(crate) fn note_sign(&mut self) {
        if let Some(sent) = &mut self.0 {
            sent.signs += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: OwnFacts =
        OwnFacts { last: Index(7), applied: Index(6), lacks_room: false, wall: SpaceTime(1_000_000_000), about: 5 };

    #[test]
    fn facts_are_told_first_after_changes_and_from_time_to_time() {
        let (mut sent, begun) = (SentFacts::default(), Instant::now());
        assert!(sent.is_due(&FACTS, begun), "nothing is told yet");
        sent.note_facts(FACTS, begun);
        assert!(!sent.is_due(&FACTS, begun));
        let changed = [
            OwnFacts { last: Index(8), ..FACTS },
            OwnFacts { applied: Index(7), ..FACTS },
            OwnFacts { lacks_room: true, ..FACTS },
            OwnFacts { about: 6, ..FACTS },
        ];
        for facts in changed {
            assert!(sent.is_due(&facts, begun), "{facts:?}");
        }
        for _ in 0..TELL_EVERY {
            assert!(!sent.is_due(&FACTS, begun));
            sent.note_sign();
        }
        assert!(sent.is_due(&FACTS, begun));
        sent.note_facts(FACTS, begun);
        assert!(!sent.is_due(&FACTS, begun));
    }

    #[test]
    fn a_wall_clock_that_goes_on_is_not_told_and_one_that_was_set_is() {
        let (mut sent, begun) = (SentFacts::default(), Instant::now());
        sent.note_facts(FACTS, begun);
        let minute = Duration::from_secs(60);
        let at = |ahead_millis: i64| {
            let wall = FACTS.wall.plus(minute).0.saturating_add_signed(1000 * ahead_millis);
            sent.is_due(&OwnFacts { wall: SpaceTime(wall), ..FACTS }, begun + minute)
        };
        assert_eq!([-100, -99, 0, 99, 100].map(at), [true, false, false, false, true]);
    }
}
