//! Lines in the node's log that show its progress while it catches up with its cluster after a start.
//!
//! Owns: the times of the lines. Does not own: the entries that the node lacks; consensus requests and applies them.

use std::time::{Duration, Instant};

use thalweg_serving::cluster::ClusterReport;

/// Time between two log lines about the progress of a catch-up.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of log entries that a member may lack and still count as caught up. While clients write, a member
/// always lacks a few.
const CLOSE_ENTRIES: u64 = 1_000;

/// Log line that a member writes about its catch-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The member still lacks this number of log entries.
    Behind(u64),
    /// The member has caught up. This line is written only if at least one line `Behind` was written before.
    CaughtUp,
}

/// Progress of a member that catches up after its start.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    last_line: Option<Instant>,
    is_over: bool,
}

impl CatchUp {
    /// Returns the line to write at `now`, if there is one. `behind` is the number of log entries that the member has
    /// not applied; `None` while it knows no leader.
    pub(crate) fn note(&mut self, behind: Option<u64>, now: Instant) -> Option<Line> {
        let behind = behind.filter(|_| !self.is_over)?;
        if behind <= CLOSE_ENTRIES {
            self.is_over = true;
            return self.last_line.map(|_| Line::CaughtUp);
        }
        let is_recent = |at: Instant| now.saturating_duration_since(at) < NOTE_EVERY;
        if self.last_line.is_some_and(is_recent) {
            return None;
        }
        self.last_line = Some(now);
        Some(Line::Behind(behind))
    }
}

/// Returns the number of entries of the leader's log that the reporting node has not applied. Returns `None` if the
/// node knows no leader or does not know the end of the leader's log yet.
pub(crate) fn entries_behind(report: &ClusterReport) -> Option<u64> {
    let leader = report.leader?;
    let end = report.members.iter().find(|member| member.node == leader)?.log_index?;
    Some(end.max(report.commit_index).0.saturating_sub(report.applied_index.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_every_few_seconds_until_the_member_is_close() {
        let (mut catch_up, start) = (CatchUp::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(catch_up.note(None, at(0)), None, "no leader is known");
        assert_eq!(catch_up.note(Some(90_000), at(1)), Some(Line::Behind(90_000)));
        assert_eq!(catch_up.note(Some(80_000), at(3)), None);
        assert_eq!(catch_up.note(Some(70_000), at(6)), Some(Line::Behind(70_000)));
        assert_eq!(catch_up.note(None, at(12)), None);
        assert_eq!(catch_up.note(Some(CLOSE_ENTRIES), at(13)), Some(Line::CaughtUp));
        assert_eq!(catch_up.note(Some(90_000), at(60)), None, "only the start has such lines");
    }

    #[test]
    fn a_member_that_is_close_at_its_start_logs_nothing() {
        let (mut catch_up, start) = (CatchUp::default(), Instant::now());
        assert_eq!(catch_up.note(Some(3), start), None);
        assert_eq!(catch_up.note(Some(90_000), start + NOTE_EVERY), None);
    }
}
