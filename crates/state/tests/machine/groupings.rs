//! Commands that share an entry do what they do alone: random lists of commands of every kind.

use std::cell::RefCell;

use thalweg_state::{audit::Values, machine::MachineOptions};

use crate::{
    random::{Input, List, Puts, groupings::Groupings, node::on_a_map, shrink::Reports},
    workload::{Rng, for_seeds},
};

/// Values of the generator are below and above it.
const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 128 };

/// Lists of an acceptance run are given by `THALWEG_LISTS`.
fn lists(normally: u64) -> u64 {
    let given = std::env::var("THALWEG_LISTS").ok();
    given.map_or(normally, |given| given.parse().expect("THALWEG_LISTS is a number"))
}

fn list(seed: u64, puts: Puts) -> List {
    let mut rng = Rng(seed);
    let (bytes, max) = (200 + rng.below(3000), 12 + rng.below(60) as usize);
    List::generate(&mut Input(&rng.bytes(bytes)), puts, max)
}

fn check(count: u64, puts: Puts, values: Values) {
    let groupings = Groupings { options: OPTIONS, backend: &on_a_map, values };
    let reports = RefCell::new(Reports::default());
    for_seeds(count, |seed| {
        let about = format!("THALWEG_SEED={seed}");
        reports.borrow_mut().check(&about, &list(seed, puts), &|list| groupings.check(list));
    });
    reports.into_inner().finish();
}

#[test]
fn any_grouping_into_entries_gives_the_same_outcomes_and_rows() {
    check(lists(300), Puts::Anywhere, Values::AtLeast);
}

#[test]
fn live_bytes_are_exact_where_nothing_is_replaced_blindly() {
    check(lists(300) / 2, Puts::FreshKeys, Values::Exactly);
}
