//! The property that the grouping of commands into entries affects only positions.
//!
//! A list is applied with one command per entry, with all commands of equal time in one entry, and in random
//! groupings. All of them must return the same outcome for each command and leave the same replicated rows. The
//! audit must find nothing. A machine that has loaded the rows must behave like the machine that wrote them.

use std::fmt::Write as _;

use thalweg_state::{audit, machine::MachineOptions};
use thalweg_types::command::Outcome;

use super::{
    List, describe,
    list::Grouping,
    node::{Node, Open},
    probes::probes,
    replicated,
};

/// Result of a check; the error is a description.
pub type Checked = Result<(), String>;

/// Parameters of the check.
pub struct Groupings<'a> {
    pub options: MachineOptions,
    /// Returns the function that opens a fresh backend.
    pub backend: &'a dyn Fn() -> Open,
    /// Precision of the counts of live bytes with one command per entry.
    pub values: audit::Values,
}

impl Groupings<'_> {
    /// Checks a list.
    pub fn check(&self, list: &List) -> Checked {
        let (mut reference, expected) = self.run(list, Grouping::Alone, self.values)?;
        let steps = steps_of(&reference);
        let rows = replicated::of(&reference.rows());
        self.check_unawaited(list, &reference)?;
        let answers = self.probe(list, &mut reference, Grouping::Alone)?;
        for grouping in List::groupings() {
            let (mut node, outcomes) = self.run(list, grouping, audit::Values::AtLeast)?;
            same_outcomes(list, grouping, &expected, &outcomes)?;
            if steps_of(&node) != steps {
                return Err(format!("steps with {grouping:?}: expected {steps}, found {}", steps_of(&node)));
            }
            same_rows(&format!("rows after {grouping:?}"), &rows, &replicated::of(&node.rows()))?;
            let probed = self.probe(list, &mut node, grouping)?;
            same_outcomes(&probes(list), grouping, &answers, &probed)?;
        }
        Ok(())
    }

    /// Checks that a node on which no client waits for outcomes has the same rows, hash and steps.
    fn check_unawaited(&self, list: &List, reference: &Node) -> Checked {
        let mut follower = Node::new((self.backend)(), self.options);
        follower.is_awaited = false;
        follower.apply_list(list, Grouping::Alone);
        same_rows("rows where no client waits", &reference.rows(), &follower.rows())?;
        let figures = |node: &Node| (node.machine().applied(), steps_of(node));
        match (figures(reference), figures(&follower)) {
            (expected, found) if expected != found => {
                Err(format!("position, hash and steps where no client waits: expected {expected:?}, found {found:?}"))
            }
            _ => Ok(()),
        }
    }

    fn run(&self, list: &List, grouping: Grouping, values: audit::Values) -> Result<(Node, Vec<Outcome>), String> {
        let mut node = Node::new((self.backend)(), self.options);
        let outcomes = node.apply_list(list, grouping);
        if outcomes.len() != list.0.len() {
            return Err(format!("{grouping:?}: {} outcomes of {} commands", outcomes.len(), list.0.len()));
        }
        sound(&node, values).map_err(|found| format!("after {grouping:?}\n{found}"))?;
        Ok((node, outcomes))
    }

    /// Applies more commands to the node, and to one that has loaded its rows.
    fn probe(&self, list: &List, node: &mut Node, grouping: Grouping) -> Result<Vec<Outcome>, String> {
        let (more, mut loaded) = (probes(list), node.copy());
        let (answers, of_loaded) = (node.apply_list(&more, Grouping::Alone), loaded.apply_list(&more, Grouping::Alone));
        let context = |found| format!("{grouping:?}, then opened again from the rows (found: the opened one)\n{found}");
        same_outcomes(&more, Grouping::Alone, &answers, &of_loaded).map_err(context)?;
        same_rows("rows", &node.rows(), &loaded.rows()).map_err(context)?;
        sound(node, audit::Values::AtLeast).map_err(|found| format!("{grouping:?}, after probes\n{found}"))?;
        Ok(answers)
    }
}

/// Returns the steps that the commands have taken since the node was started.
pub fn steps_of(node: &Node) -> u64 {
    node.machine().steps().expect("it runs")
}

/// Audits the rows, and reads the bytes that they point to.
pub fn sound(node: &Node, values: audit::Values) -> Checked {
    let findings = audit::audit(&*node.backend().view(), values).map_err(|error| format!("audit: {error}"))?;
    let mut wrong: Vec<_> = findings.iter().map(|finding| format!("audit: {finding}")).collect();
    wrong.extend(node.unreadable());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Compares outcomes command by command, and describes the first difference.
pub fn same_outcomes(list: &List, grouping: Grouping, expected: &[Outcome], found: &[Outcome]) -> Checked {
    let Some(at) = (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at)) else {
        return Ok(());
    };
    let mut out = format!("outcomes differ with {grouping:?}, of command {at}");
    if let Some(step) = list.0.get(at) {
        let _ = write!(out, "\n  {}", describe::command(&step.command));
    }
    let _ = write!(out, "\n  expected {:?}\n  found    {:?}", expected.get(at), found.get(at));
    Err(out)
}

/// Compares rows, and describes the first few differences.
pub fn same_rows(
    what: &str,
    expected: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>,
    found: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>,
) -> Checked {
    let keys: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let different: Vec<_> = keys.into_iter().filter(|key| expected.get(*key) != found.get(*key)).collect();
    if different.is_empty() {
        return Ok(());
    }
    let mut out = format!("{what}: {} differ", different.len());
    let text = |row: Option<&Vec<u8>>| row.map_or_else(|| "no row".to_owned(), |row| row.escape_ascii().to_string());
    for key in different.iter().take(6) {
        let (expected, found) = (text(expected.get(*key)), text(found.get(*key)));
        let _ = write!(out, "\n  {}\n    expected {expected}\n    found    {found}", describe::row(key));
    }
    Err(out)
}
