//! Stacks of calls as a tree. Each stack has a weight: seconds of time or MiB of memory.

use std::collections::BTreeMap;

/// Stacks of calls with their weights (seconds of time or MiB of memory), as a tree. Each node is a function in the
/// context of its callers.
#[derive(Clone, Debug, PartialEq)]
pub struct Stacks {
    root: Call,
    unit: &'static str,
}

/// Empty stacks, with seconds as the unit of weights.
impl Default for Stacks {
    fn default() -> Self {
        Self::in_unit("s")
    }
}

/// A function in the context of its callers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Weight of all stacks that contain this call.
    pub weight: f64,
    /// Weight of the stacks that end with this call.
    pub own_weight: f64,
    /// Calls that this function makes, by the names of the called functions.
    pub callees: BTreeMap<String, Self>,
}

impl Stacks {
    /// Creates empty stacks. `unit` is the unit of the weights, such as `MiB`.
    pub fn in_unit(unit: &'static str) -> Self {
        Self { root: Call::default(), unit }
    }

    /// Returns the unit of the stacks' weights: seconds or MiB.
    pub fn unit(&self) -> &'static str {
        self.unit
    }

    /// Adds a stack with its weight. `frames` are function names, the outermost one first.
    pub fn add<'a>(&mut self, frames: impl IntoIterator<Item = &'a str>, weight: f64) {
        let mut call = &mut self.root;
        call.weight += weight;
        for frame in frames {
            if !call.callees.contains_key(frame) {
                call.callees.insert(frame.to_owned(), Call::default());
            }
            call = call.callees.get_mut(frame).expect("inserted when missing");
            call.weight += weight;
        }
        call.own_weight += weight;
    }

    /// Returns the root of the tree. Its weight is the sum over all stacks.
    pub fn root(&self) -> &Call {
        &self.root
    }

    /// Returns the `most` functions with the largest weights. Each has its name, the weight of the stacks that end with
    /// it, and the weight of all stacks that contain it. The first frame of each stack, the name of the thread, is left
    /// out.
    pub fn functions(&self, most: usize) -> Vec<(String, f64, f64)> {
        let mut sums = BTreeMap::new();
        for thread in self.root.callees.values() {
            thread.callees.iter().for_each(|(name, call)| sum(&mut sums, &mut Vec::new(), name, call));
        }
        let mut all: Vec<_> = sums.into_iter().map(|(name, (own, whole))| (name.to_owned(), own, whole)).collect();
        all.sort_by(|left, right| right.1.total_cmp(&left.1));
        all.truncate(most);
        all
    }

    /// Returns the threads and the weights of their stacks, the largest weight first.
    pub fn threads(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<_> = self.root.callees.iter().map(|(name, call)| (&**name, call.weight)).collect();
        all.sort_by(|left, right| right.1.total_cmp(&left.1));
        all
    }
}

/// Adds the weights of a call and its callees to the sums of their functions. A function that calls itself counts once
/// in each stack.
fn sum<'a>(sums: &mut BTreeMap<&'a str, (f64, f64)>, callers: &mut Vec<&'a str>, name: &'a str, call: &'a Call) {
    let of = sums.entry(name).or_default();
    of.0 += call.own_weight;
    if !callers.contains(&name) {
        of.1 += call.weight;
    }
    callers.push(name);
    call.callees.iter().for_each(|(callee, call)| sum(sums, callers, callee, call));
    callers.pop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_recursion_counts_once() {
        let mut stacks = Stacks::default();
        stacks.add(["t", "main", "work"], 2.0);
        stacks.add(["t", "main", "work", "main"], 1.0);
        stacks.add(["u", "main"], 0.5);
        assert_eq!(stacks.root().weight, 3.5);
        assert_eq!(stacks.threads(), [("t", 3.0), ("u", 0.5)]);
        let functions = stacks.functions(10);
        assert_eq!(functions[0], ("work".to_owned(), 2.0, 3.0));
        assert_eq!(functions[1], ("main".to_owned(), 1.5, 3.5));
        assert_eq!(stacks.functions(1).len(), 1);
    }
}
