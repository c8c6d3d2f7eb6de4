//! The property that outcomes and replicated rows are functions of the entries.
//!
//! Two nodes apply the same entries. The first does nothing else. The second has other options and another backend,
//! moves and compacts, forgets, restarts, and is replaced by a node that has installed its snapshot.

use thalweg_state::{audit::Values, machine::MachineOptions};

use super::{
    Input, List,
    groupings::{Checked, same_outcomes, same_rows, sound},
    list::Grouping,
    node::{Node, Open, on_a_map},
    replicated, upkeep,
};

/// Options of nodes: short values stay inline, or all values.
pub const OPTIONS: [MachineOptions; 3] = [
    MachineOptions { inline_value_bytes: 128 },
    MachineOptions { inline_value_bytes: 256 },
    MachineOptions { inline_value_bytes: 1 << 20 },
];

/// Options and backend of the second node.
pub struct Differential<'a> {
    pub options: MachineOptions,
    /// Returns the function that opens a fresh backend.
    pub backend: &'a dyn Fn() -> Open,
}

impl Differential<'_> {
    /// Checks a list, in the grouping of its steps.
    pub fn check(&self, list: &List) -> Checked {
        let grouping = Grouping::Random(0);
        let mut plain = Node::new(on_a_map(), OPTIONS[0]);
        let mut busy = Node::new((self.backend)(), self.options);
        let (mut expected, mut outcomes) = (Vec::new(), Vec::new());
        for entry in list.entries(grouping) {
            expected.extend(plain.apply(entry.time, &entry.commands));
            outcomes.extend(busy.apply(entry.time, &entry.commands));
            same_outcomes(list, grouping, &expected, &outcomes)?;
            let hashes = [&plain, &busy].map(|node| node.machine().applied().running_hash);
            if hashes[0] != hashes[1] {
                return Err(format!("running hashes differ after {} outcomes: {hashes:x?}", outcomes.len()));
            }
            let mut input = Input(entry.upkeep);
            for _ in 0..input.below(3) {
                upkeep::some(&mut busy, &mut input);
            }
            if input.one_in(32) {
                busy = busy.install(OPTIONS[input.below(OPTIONS.len())]);
            }
        }
        busy.restart();
        let rows = |node: &Node| replicated::of(&node.rows());
        same_rows("replicated rows", &rows(&plain), &rows(&busy))?;
        sound(&busy, Values::AtLeast)
    }
}
