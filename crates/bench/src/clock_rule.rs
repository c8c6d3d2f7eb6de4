//! The rule that makes the results of a suite void if the machine's clocks were unusable in a round. It serves suites
//! without a load generator, and uses the criteria by which the load generator judges its runs ([`unusable_clocks`]).

use crate::{
    load::{Validity, unusable_clocks},
    report::Check,
    usage::{Clocks, Meter},
};

/// Result of checking the machine's clocks and processors in the counted rounds of a suite.
#[derive(Debug, Default)]
pub(crate) struct ClockRule {
    rounds: u64,
    /// Number of counted rounds of the suite during which the machine's clocks were unusable, and the reason for the
    /// first of them; `None` if there was none.
    unusable: Option<(u64, Validity)>,
}

impl ClockRule {
    /// Performs a round of the suite, and checks afterwards that the machine's clocks and processors were usable during
    /// it.
    pub(crate) fn around<T, E>(&mut self, round: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let meter = Meter::begin(None);
        let done = round()?;
        self.add(&meter.clocks());
        Ok(done)
    }

    /// Judges the machine's clocks during one round, or during the samples of one store.
    pub(crate) fn add(&mut self, clocks: &Clocks) {
        self.rounds += 1;
        let Some(why) = unusable_clocks(clocks) else { return };
        self.unusable.get_or_insert((0, why)).0 += 1;
    }

    /// Returns the failed check that makes the report void; `None` if the machine's clocks were usable in all rounds.
    pub(crate) fn check(&self) -> Option<Check> {
        let (count, first) = self.unusable.clone()?;
        let (why, verdict) = first.verdict();
        Some(Check {
            what: "clocks and processors of the machine".to_owned(),
            required: "usable in all rounds".to_owned(),
            measured: format!("not in {count} of {} rounds; first: {why}", self.rounds),
            verdict,
            is_goal: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn a_round_with_stolen_time_makes_the_report_void() {
        let mut rule = ClockRule::default();
        let clocks = |stolen| Clocks { seconds: 10.0, drift_seconds: 0.0, stolen: Some(stolen) };
        rule.add(&clocks(0.1));
        assert!(rule.check().is_none());
        rule.add(&clocks(0.5));
        rule.add(&clocks(0.6));
        let check = rule.check().unwrap();
        assert_eq!(check.verdict, Verdict::Void);
        assert!(check.measured.starts_with("not in 2 of 3 rounds; first: the host took 50 %"), "{}", check.measured);
    }

    #[test]
    fn the_clocks_of_each_round_are_read() {
        let mut rule = ClockRule::default();
        assert_eq!(rule.around(|| Ok::<_, ()>(7)), Ok(7));
        assert_eq!(rule.around(|| Err::<(), _>("failed")), Err("failed"));
        assert_eq!(rule.rounds, 1);
    }
}
