//! Whether one connection has the server to itself.
//!
//! Owns: who was last at work, and for how long nobody else was. Does not own what follows from it: a channel that
//! is alone commits on its own thread, which blocks it for an fsync but saves waking the committer and being woken by it,
//! and reads pages of records there. With others at work that would hold them up, and their commands are better committed together.
//!
//! It is a guess about the next moment from the last ones. If it is wrong, somebody who comes anew waits for one fsync
//! or one page at most, and only if there is no other worker thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Turns in a row after which a connection counts as alone.
const TURNS: u32 = 4;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Solitude {
    last: AtomicU64,
    turns: AtomicU32,
}

impl Solitude {
    /// `who` is at work. Whether nobody else has been lately.
    #[inline]
    pub fn at_work(&self, who: u64) -> bool {
        if self.last.load(Ordering::Relaxed) != who {
            self.last.store(who, Ordering::Relaxed);
            self.turns.store(0, Ordering::Relaxed);
            return false;
        }
        let turns = self.turns.load(Ordering::Relaxed);
        if turns < TURNS {
            self.turns.store(turns + 1, Ordering::Relaxed);
        }
        turns >= TURNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_turns_alone_are_solitude_and_anybody_else_ends_it() {
        let solitude = Solitude::default();
        let alone = |who| (0..8).map(|_| solitude.at_work(who)).collect::<Vec<_>>();
        assert_eq!(alone(7), [false, false, false, false, false, true, true, true]);
        assert!(!solitude.at_work(9));
        assert!(!solitude.at_work(7));
        assert_eq!(alone(7).iter().filter(|alone| **alone).count(), 4);
    }
}
