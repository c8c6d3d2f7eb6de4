//! Suspensions of the computer, for example by sleep or by a hypervisor. After one, a leader's lease is void.
//!
//! Owns: the check if the machine was suspended since a request was sent. Does not own: the reading of the clocks
//! (`thalweg_types::Clock::suspended`), or the reads that use the check (`reads`).

use std::{cell::Cell, time::Duration};

use openraft::{
    async_runtime::AsyncRuntime,
    type_config::{TypeConfigExt, alias::InstantOf},
};

use crate::types::Types;

/// Longest suspension that a leader ignores. It is much shorter than a quarter of the lease, the margin for differences
/// between clocks.
const MIN_SUSPENSION: Duration = Duration::from_millis(2);

/// Suspensions of the computer that this node has noticed.
pub(crate) struct Suspensions<Rt: AsyncRuntime> {
    /// Total time of all suspensions so far: those before the start, and those that were noticed since.
    total: Cell<Duration>,
    /// Time at which this node last noticed a suspension; the suspension was over by then.
    noticed_at: Cell<Option<InstantOf<Types<Rt>>>>,
}

impl<Rt: AsyncRuntime> Suspensions<Rt> {
    /// Creates the value at the start of a node. `total` is the clock's [`suspended`](thalweg_types::Clock::suspended).
    pub(crate) fn new(total: Duration) -> Self {
        Self { total: Cell::new(total), noticed_at: Cell::new(None) }
    }

    /// Returns true if the computer was suspended after the instant `sent`; if `sent` is `None`, at any time since the
    /// node started. `total` is the total time of suspensions that the clock now reports.
    pub(crate) fn have_followed(&self, sent: Option<InstantOf<Types<Rt>>>, total: Duration) -> bool {
        if total > self.total.get() + MIN_SUSPENSION {
            self.noticed_at.set(Some(Types::<Rt>::now()));
            self.total.set(total);
        }
        // A reading of the total can be too high, but never too low. So the lowest reading is kept.
        self.total.set(self.total.get().min(total));
        self.noticed_at.get().is_some_and(|noticed_at| sent.is_none_or(|sent| sent <= noticed_at))
    }
}

#[cfg(test)]
mod tests {
    use openraft_rt_tokio::TokioRuntime;

    use super::*;

    #[test]
    fn only_requests_after_a_suspension_extend_a_lease() {
        let seconds = Duration::from_secs;
        let suspensions = Suspensions::<TokioRuntime>::new(seconds(5));
        let before = Types::<TokioRuntime>::now();
        assert!(!suspensions.have_followed(None, seconds(5)), "the one before the start does not count");
        assert!(!suspensions.have_followed(Some(before), seconds(5) + MIN_SUSPENSION));
        assert!(suspensions.have_followed(Some(before), seconds(65)));
        assert!(suspensions.have_followed(Some(before), seconds(65)), "it is remembered");
        assert!(suspensions.have_followed(None, seconds(65)));
        let after = Types::<TokioRuntime>::now() + Duration::from_micros(1);
        assert!(!suspensions.have_followed(Some(after), seconds(65)));
        assert!(suspensions.have_followed(Some(before), seconds(66)));
    }

    /// The total is the difference of two clocks. A pause of the process between their readings makes it too high.
    #[test]
    fn a_total_that_was_read_too_high_hides_no_later_suspension() {
        let suspensions = Suspensions::<TokioRuntime>::new(Duration::from_secs(9));
        let sent = Types::<TokioRuntime>::now();
        assert!(!suspensions.have_followed(Some(sent), Duration::from_secs(5)));
        assert!(suspensions.have_followed(Some(sent), Duration::from_secs(6)));
    }
}
