//! A list of commands, and the ways to cut it into entries.

use super::{Generator, Input, Puts};

/// How many random ways of grouping each list carries.
pub const RANDOM_GROUPINGS: u8 = 2;

/// A command of a list.
#[derive(Clone, Debug)]
pub struct Step {
    /// Space time of the entry that carries it. Only commands of equal time may share one.
    pub time: u64,
    pub command: Vec<u8>,
    /// Bit by bit, in which random groupings the command joins the entry of the one before.
    pub joins: u8,
}

/// Commands in order; times never fall.
#[derive(Clone, Debug, Default)]
pub struct List(pub Vec<Step>);

/// How a list becomes entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// One entry per command.
    Alone,
    /// One entry for all commands of equal time.
    Together,
    /// As the steps say.
    Random(u8),
}

/// Microseconds between times: mostly so that short deadlines pass, rarely so that nearly everything does.
const LATER: [u64; 8] = [1, 1000, 40_000, 60_000, 100_000, 250_000, 1_000_000, 9 * 24 * 3_600_000_000];

impl List {
    /// A list of at most `max` commands.
    pub fn generate(input: &mut Input<'_>, puts: Puts, max: usize) -> Self {
        let mut generator = Generator::new(input, puts);
        let names = generator.names(input);
        let mut steps: Vec<_> =
            names.into_iter().map(|command| Step { time: generator.time, command, joins: 0 }).collect();
        while steps.len() < max && !input.is_empty() {
            if input.one_in(6) {
                generator.time += LATER[input.below(LATER.len())];
            }
            let joins = input.byte();
            steps.push(Step { time: generator.time, command: generator.command(input), joins });
        }
        Self(steps)
    }

    /// The entries: their time and their commands.
    pub fn entries(&self, grouping: Grouping) -> Vec<(u64, Vec<&[u8]>)> {
        let mut entries: Vec<(u64, Vec<&[u8]>)> = Vec::new();
        for step in &self.0 {
            let joins = match grouping {
                Grouping::Alone => false,
                Grouping::Together => true,
                Grouping::Random(bit) => step.joins >> bit & 1 == 1,
            };
            match entries.last_mut() {
                Some((time, commands)) if joins && *time == step.time => commands.push(&step.command),
                _ => entries.push((step.time, vec![&step.command])),
            }
        }
        entries
    }

    /// All ways to cut it that tests compare with [`Grouping::Alone`].
    pub fn groupings() -> impl Iterator<Item = Grouping> {
        std::iter::once(Grouping::Together).chain((0..RANDOM_GROUPINGS).map(Grouping::Random))
    }
}
