//! Content of the database for the snapshot suite. One part of each value can be compressed, and the other cannot.

use rand::Rng as _;
use thalweg_engine::{Database, Keyspace};
use thalweg_types::command::CommitBuilder;

use super::options::NAME;
use crate::{
    BenchError,
    data::{self, KEY_BYTES},
    random::{generator, mix_bits},
};

/// Number of puts in each commit during setup.
const COMMIT: u64 = 100;

/// Number of entries in the database, and how their values are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) entries: u64,
    pub(super) value_bytes: usize,
    /// Percentage of each value that can be compressed. This part consists of words of 8 bytes. Each word is one of
    /// 256, so 8 bytes hold 1 byte of information.
    pub(super) compressible: usize,
}

impl Content {
    /// Returns the bytes of all keys and values together.
    pub(super) fn bytes(&self) -> u64 {
        self.entries * (KEY_BYTES + self.value_bytes) as u64
    }

    /// Writes the value for a seed to `out`: first its random part, then its words. Values of different seeds have
    /// different random parts.
    pub(super) fn value(&self, seed: u64, out: &mut Vec<u8>) {
        let mut rng = generator(seed);
        out.clear();
        let random = self.value_bytes - self.value_bytes * self.compressible / 100;
        while out.len() < random {
            out.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        out.truncate(random);
        while out.len() < self.value_bytes {
            for word in rng.next_u64().to_le_bytes() {
                out.extend_from_slice(&mix_bits(u64::from(word)).to_le_bytes());
            }
        }
        out.truncate(self.value_bytes);
    }

    /// Puts all entries of the benchmark into the keyspace.
    pub(super) fn fill(&self, database: &Database, keyspace: &Keyspace) -> Result<(), BenchError> {
        let (mut commit, mut value, mut pending) = (CommitBuilder::new(), Vec::new(), 0);
        for index in 0..self.entries {
            self.value(index, &mut value);
            commit
                .put(keyspace.id(), &data::key(index), &value)
                .map_err(BenchError::subject(NAME, "building a commit"))?;
            pending += 1;
            if pending == COMMIT || index + 1 == self.entries {
                database.commit(&commit).map_err(BenchError::subject(NAME, "filling"))?;
                (commit, pending) = (CommitBuilder::new(), 0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_long_and_as_various_as_asked() {
        for (value_bytes, compressible) in [(1024, 50), (1000, 0), (7, 100), (0, 50)] {
            let content = Content { entries: 1, value_bytes, compressible };
            let (mut one, mut same, mut other) = (Vec::new(), vec![9; 3], Vec::new());
            content.value(1, &mut one);
            content.value(1, &mut same);
            content.value(2, &mut other);
            assert_eq!((one.len(), &one), (value_bytes, &same));
            assert!(value_bytes == 0 || one != other);
        }
    }
}
