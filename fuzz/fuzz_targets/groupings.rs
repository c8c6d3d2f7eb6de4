//! Lists of commands of every kind, cut into entries in several ways, and applied by nodes that do other things beside.
//!
//! Never a panic or a stop; the same outcomes and replicated rows for each way to cut a list, whatever the node's options,
//! moves, compactions, restarts and installed snapshots; what the state keeps twice agrees.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{
    Input,
    random::{
        List, Puts,
        differential::{Differential, OPTIONS},
        groupings::Groupings,
        node::on_a_map,
        shrink::Reports,
    },
};
use thalweg_state::audit::Values;

/// Commands of a list.
const MAX_COMMANDS: usize = 80;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (puts, values) = match input.one_in(4) {
        true => (Puts::FreshKeys, Values::Exactly),
        false => (Puts::Anywhere, Values::AtLeast),
    };
    let options = OPTIONS[input.below(OPTIONS.len())];
    let list = List::generate(&mut input, puts, MAX_COMMANDS);
    let mut reports = Reports::default();
    let groupings = Groupings { options: OPTIONS[0], backend: &on_a_map, values };
    reports.check("groupings", &list, &|list| groupings.check(list));
    let differential = Differential { options, backend: &on_a_map };
    reports.check("differential", &list, &|list| differential.check(list));
    reports.finish();
});
