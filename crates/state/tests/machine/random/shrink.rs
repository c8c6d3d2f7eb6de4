//! Reduction of a failing list, and the report about it.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use super::{List, describe, groupings::Checked};

/// Maximum number of checks while a list is reduced.
const MAX_CHECKS: usize = 3000;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Reports of a run over many lists. One fault makes many lists fail, in a few ways.
#[derive(Debug, Default)]
pub struct Reports {
    failed: usize,
    /// Reports by their text without numbers.
    distinct: BTreeMap<String, String>,
}

/// Maximum number of different reports; further failing lists are only counted.
const MAX_REPORTS: usize = 6;

impl Reports {
    /// Checks a list. If it fails, reduces it and records the failure of the smallest list.
    pub fn check(&mut self, about: &str, list: &List, check: &dyn Fn(&List) -> Checked) {
        let Err(first) = guarded(check, list) else { return };
        self.failed += 1;
        if self.distinct.len() < MAX_REPORTS {
            let (list, failure) = shrink(list.clone(), first, check);
            let report = format!("{about}\n{}{failure}\n", tell(&list));
            self.distinct.entry(in_general(&failure)).or_insert(report);
        }
    }

    /// Fails if any list failed, and reports each kind of failure once.
    ///
    /// # Panics
    /// Panics if any list failed.
    pub fn finish(self) {
        let Self { failed, distinct } = self;
        let reports: Vec<_> = distinct.into_values().collect();
        assert!(failed == 0, "{failed} lists fail, in these ways among others:\n\n{}", reports.join("\n"));
    }
}

/// Returns the beginning of a report without its numbers.
fn in_general(failure: &str) -> String {
    failure.lines().take(2).flat_map(str::chars).filter(|char| !char.is_numeric()).take(60).collect()
}

/// Runs a check, and converts a panic to a failure.
fn guarded(check: &dyn Fn(&List) -> Checked, list: &List) -> Checked {
    keep_quiet();
    IS_QUIET.set(true);
    let checked = catch_unwind(AssertUnwindSafe(|| check(list)));
    IS_QUIET.set(false);
    checked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panic: {}",
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        ))
    })
}

/// Suppresses the output of panics within checks.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
}

/// Removes commands, many at a time first, while the list still fails.
fn shrink(mut list: List, mut failure: String, check: &dyn Fn(&List) -> Checked) -> (List, String) {
    let mut checks = 0;
    let mut len = list.0.len() / 2;
    while len > 0 && checks < MAX_CHECKS {
        let (mut at, mut is_smaller) = (list.0.len(), false);
        while at > 0 && checks < MAX_CHECKS {
            let from = at.saturating_sub(len);
            let mut smaller = list.clone();
            smaller.0.drain(from..at);
            checks += 1;
            if let Err(found) = guarded(check, &smaller) {
                (list, failure, is_smaller) = (smaller, found, true);
            }
            at = from;
        }
        // The last round is repeated until no command can be removed.
        if len > 1 || !is_smaller {
            len /= 2;
        }
    }
    (list, failure)
}

/// Describes the list.
fn tell(list: &List) -> String {
    let mut out = String::new();
    let mut time = None;
    for (number, step) in list.0.iter().enumerate() {
        if time != Some(step.time) {
            let _ = writeln!(out, "at time {}", step.time);
            time = Some(step.time);
        }
        let joins: String =
            (0..super::list::RANDOM_GROUPINGS).map(|bit| if step.joins >> bit & 1 == 1 { '+' } else { '.' }).collect();
        let _ = writeln!(out, "  {number:3} {joins} {}", describe::command(&step.command));
    }
    out
}
