//! Tests that nodes that apply the same entries agree, whatever their options, backends, maintenance and restarts.

use crate::{
    groupings::{count, list},
    random::{
        Puts,
        differential::{Differential, OPTIONS},
        node::{Open, on_a_map},
        shrink::Reports,
    },
    stores::STORES,
    workload::{Rng, for_each_seed},
};

/// Checks `normally` random logs; an acceptance run sets a higher number with `THALWEG_LOGS`.
fn check(normally: u64, name: &str, backend: fn() -> Open) {
    let mut reports = Reports::default();
    for_each_seed(count("THALWEG_LOGS", normally), |seed| {
        let mut rng = Rng(seed ^ 0x5eed);
        let options = OPTIONS[rng.below(OPTIONS.len() as u64) as usize];
        let other = Differential { options, backend: &backend };
        let about = format!("THALWEG_SEED={seed}, {name}, {options:?}");
        reports.check(&about, &list(seed, Puts::Anywhere), &|list| other.check(list));
    });
    reports.finish();
}

#[test]
fn upkeep_restarts_and_options_do_not_show() {
    check(300, "map", on_a_map);
}

#[test]
fn no_backend_shows() {
    STORES.into_iter().for_each(|(name, open)| check(25, name, open));
}
