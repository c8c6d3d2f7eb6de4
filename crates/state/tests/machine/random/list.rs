//! A list of commands, and the ways to group it into entries.

use super::{Generator, Input, Puts};

/// Number of random groupings that each list contains.
pub const RANDOM_GROUPINGS: u8 = 2;

/// A command of a list.
#[derive(Clone, Debug)]
pub struct Step {
    /// Space time of its entry. Only commands of equal time may share an entry.
    pub time: u64,
    pub command: Vec<u8>,
    /// Bit set of the random groupings in which the command joins the entry of the previous command.
    pub joins: u8,
    /// Decisions about a node's local maintenance after the entry that ends with this command.
    pub upkeep: Vec<u8>,
}

/// Bytes of the decisions about maintenance.
const UPKEEP_BYTES: usize = 12;

impl Step {
    /// Creates a command that begins an entry of its own in every random grouping.
    pub fn new(time: u64, command: Vec<u8>) -> Self {
        Self { time, command, joins: 0, upkeep: Vec::new() }
    }
}

/// An entry of a list.
#[derive(Clone, Debug)]
pub struct ListEntry<'a> {
    pub time: u64,
    pub commands: Vec<&'a [u8]>,
    /// Decisions about maintenance; see [`Step::upkeep`].
    pub upkeep: &'a [u8],
}

/// Commands in order; times never decrease.
#[derive(Clone, Debug, Default)]
pub struct List(pub Vec<Step>);

/// Grouping of a list into entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// One entry for each command.
    Alone,
    /// One entry for all commands of equal time.
    Together,
    /// A random grouping, whose number selects the bits of the steps.
    Random(u8),
}

/// Microseconds between times: mostly enough for short deadlines to pass, rarely enough for nearly all of them.
const LATER: [u64; 14] = [
    1,
    1000,
    10_000,
    40_000,
    60_000,
    100_000,
    1,
    40_000,
    60_000,
    100_000,
    250_000,
    1000,
    1_000_000,
    9 * 24 * 3_600_000_000,
];

impl List {
    /// Generates a list of at most `max` commands.
    pub fn generate(input: &mut Input<'_>, puts: Puts, max: usize) -> Self {
        let mut generator = Generator::new(input, puts);
        let names = generator.names(input);
        let mut steps: Vec<_> = names.into_iter().map(|command| Step::new(generator.time, command)).collect();
        while steps.len() < max && !input.is_empty() {
            if input.one_in(6) {
                generator.time += LATER[input.below(LATER.len())];
            }
            let (joins, upkeep) = (input.byte(), input.take(UPKEEP_BYTES).to_vec());
            steps.push(Step { time: generator.time, command: generator.command(input), joins, upkeep });
        }
        Self(steps)
    }

    /// Returns the entries in order.
    pub fn entries(&self, grouping: Grouping) -> Vec<ListEntry<'_>> {
        let mut entries: Vec<ListEntry<'_>> = Vec::new();
        for step in &self.0 {
            let joins = match grouping {
                Grouping::Alone => false,
                Grouping::Together => true,
                Grouping::Random(bit) => step.joins >> bit & 1 == 1,
            };
            match entries.last_mut() {
                Some(entry) if joins && entry.time == step.time => {
                    entry.commands.push(&step.command);
                    entry.upkeep = &step.upkeep;
                }
                _ => {
                    let commands = vec![step.command.as_slice()];
                    entries.push(ListEntry { time: step.time, commands, upkeep: &step.upkeep });
                }
            }
        }
        entries
    }

    /// Returns all groupings that tests compare with [`Grouping::Alone`].
    pub fn groupings() -> impl Iterator<Item = Grouping> {
        std::iter::once(Grouping::Together).chain((0..RANDOM_GROUPINGS).map(Grouping::Random))
    }
}
