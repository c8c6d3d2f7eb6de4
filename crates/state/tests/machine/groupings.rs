//! Tests that commands sharing an entry have the same effect as alone, with random lists of commands of every kind.

use thalweg_state::{audit::Values, machine::MachineOptions};
use thalweg_types::command::max_steps;

use crate::{
    random::{
        Input, List, Puts, describe,
        groupings::{Groupings, steps_of},
        list::Grouping,
        node::{Node, Open, on_a_map},
        shrink::Reports,
    },
    stores::STORES,
    workload::{Rng, for_each_seed},
};

/// Options with a bound that the generator's values are both below and above.
const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 128 };

/// Returns the number of cases of a test: the value of a variable, or `normally`.
pub fn count(variable: &str, normally: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(normally, |given| given.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Returns the list of a seed.
pub fn list(seed: u64, puts: Puts) -> List {
    let mut rng = Rng(seed);
    let (bytes, max) = (300 + rng.below(4000), 12 + rng.below(60) as usize);
    List::generate(&mut Input(&rng.bytes(bytes)), puts, max)
}

fn check(count: u64, puts: Puts, values: Values, backend: fn() -> Open) {
    let groupings = Groupings { options: OPTIONS, backend: &backend, values };
    let mut reports = Reports::default();
    for_each_seed(count, |seed| {
        let about = format!("THALWEG_SEED={seed}");
        reports.check(&about, &list(seed, puts), &|list| groupings.check(list));
    });
    reports.finish();
}

#[test]
fn any_grouping_into_entries_gives_the_same_outcomes_and_rows() {
    check(count("THALWEG_LISTS", 300), Puts::Anywhere, Values::AtLeast, on_a_map);
}

#[test]
fn live_bytes_are_exact_where_nothing_is_replaced_blindly() {
    check(count("THALWEG_LISTS", 300) / 2, Puts::FreshKeys, Values::Exactly, on_a_map);
}

#[test]
fn steps_are_the_same_on_every_backend_and_within_the_bound_of_the_command() {
    for_each_seed(count("THALWEG_STORE_LISTS", 15), |seed| {
        let list = list(seed, Puts::Anywhere);
        let mut steps = Vec::new();
        for open in std::iter::once(on_a_map as fn() -> Open).chain(STORES.into_iter().map(|(_, open)| open)) {
            let mut node = Node::new(open(), OPTIONS);
            let mut each = Vec::new();
            for entry in list.entries(Grouping::Alone) {
                let (before, keeps_history) = (steps_of(&node), node.machine().keeps_history());
                node.apply(entry.time, &entry.commands);
                let (taken, [command]) = (steps_of(&node) - before, &entry.commands[..]) else { panic!("one command") };
                let bound = max_steps(command, keeps_history);
                assert!(
                    taken <= bound,
                    "THALWEG_SEED={seed}: {taken} steps, bound {bound}: {}",
                    describe::command(command)
                );
                each.push(taken);
            }
            steps.push(each);
        }
        assert!(steps.windows(2).all(|pair| pair[0] == pair[1]), "THALWEG_SEED={seed}");
    });
}

#[test]
fn any_grouping_is_the_same_on_every_backend() {
    let lists = count("THALWEG_STORE_LISTS", 15);
    STORES.into_iter().for_each(|(_, open)| check(lists, Puts::Anywhere, Values::AtLeast, open));
}
